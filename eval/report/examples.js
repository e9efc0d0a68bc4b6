// The example browser: a list that draws only its visible rows, and the trajectories of A and B side by side.

const ROW = 56;  // height of a row in pixels, as in matrix.css
let opening = 0;
let pair = null;  // the questions and outcomes of A (and B)
let matches = [];  // numbers of the questions that pass the filters
let current = -1;  // number of the selected question

/** Unpacks questions and outcomes of A and B; returns false if a later call has started. */
async function openPair() {
  const mine = ++opening;
  const cells = ["a", "b"].map(cellOf).filter(Boolean);
  const numbers = cells.map(cell => index.cells.indexOf(cell));
  const [questions, ...outcomes] = await Promise.all([block(`questions-${cells[0].set}`), ...numbers.map(number => block(`outcomes-${number}`))]);
  if (mine !== opening) return false;
  const haystack = questions.map((question, i) => [question.question, ...question.answers, ...outcomes.map(cell => cell.answers[i] ?? "")].join("\n").toLowerCase());
  pair = { cells, numbers, questions, outcomes, haystack, byId: new Map(questions.map((question, i) => [question.id, i])) };
  return true;
}

/** Returns a digit per cell, such as "10" if A is right and B wrong; by the measure. */
const outcome = number => pair.outcomes.map(cell => cell[state.measure][number]).join("");

async function drawExamples(opened) {
  if (opened && !(await openPair())) return;
  if (!pair) return;
  options("hops", "Any hops", pair.questions.map(question => question.hops), value => plural(value, "hop"));
  options("type", "Any type", pair.questions.map(question => question.type), value => value);
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const passing = pair.questions.map((_, i) => i).filter(i => {
    const { hops, type = "" } = pair.questions[i];
    return (!state.hops || String(hops) === state.hops) && (!state.type || type === state.type) && words.every(word => pair.haystack[i].includes(word));
  });
  const counts = {};
  for (const number of passing) counts[outcome(number)] = (counts[outcome(number)] ?? 0) + 1;
  choices("outcomes", "outcome", outcomes().map(([code, text]) => [code, text, code ? counts[code] ?? 0 : passing.length]));
  paired(passing.length, counts);
  matches = passing.filter(number => !state.outcome || outcome(number) === state.outcome);
  $("count").textContent = matches.length === pair.questions.length ? plural(matches.length, "example") : `${matches.length.toLocaleString("en")} of ${plural(pair.questions.length, "example")}`;
  if ($("search").value !== state.search) $("search").value = state.search;
  $("rows").style.height = `${ROW * matches.length}px`;
  await drawChosen();
}

/** Draws the example of the state, or the first example. */
async function drawChosen() {
  const wanted = pair.byId.get(state.example);
  current = matches.includes(wanted) ? wanted : matches[0] ?? -1;
  reveal();
  drawRows();
  await drawExample();
}

function outcomes() {
  if (pair.cells.length < 2) return [["", "All"], ["1", "A right"], ["0", "A wrong"]];
  return [["", "All"], ["10", "A right, B wrong"], ["01", "A wrong, B right"], ["11", "Both right"], ["00", "Both wrong"]];
}

function options(id, any, values, name) {
  const distinct = [...new Set(values)].filter(value => value !== undefined && value !== "").sort((a, b) => (a > b ? 1 : -1));
  $(id).parentNode.hidden = distinct.length < 2;
  $(id).replaceChildren(new Option(any, ""), ...distinct.map(value => new Option(name(value), value)));
  if (!distinct.some(value => String(value) === state[id])) state[id] = "";
  $(id).value = state[id];
}

/** Shows the paired difference between A and B, with Bonett and Price's interval (2012) and McNemar's exact test. */
function paired(n, counts) {
  const { "10": wins = 0, "01": losses = 0 } = counts, alone = pair.cells.length < 2;
  $("paired").hidden = !n || (alone && index.cells.length < 2);
  const d = (wins - losses) / n, center = (wins - losses) / (n + 2);
  const half = 1.96 * Math.sqrt(((wins + losses + 2) / (n + 2) - center * center) / (n + 2));
  const signed = value => `${value < 0 ? "−" : "+"}${percent(Math.min(1, Math.abs(value)))}`;
  $("paired").textContent = alone ? "No other cell has A's questions, so there is no paired comparison."
    : `A − B over ${n === pair.questions.length ? "all" : "the selected"} ${plural(n, "question")}: ${signed(d)} points [${signed(center - half)}, ${signed(center + half)}] `
    + `${state.measure === "accuracy" ? "accuracy" : "exact match"}, McNemar's exact test p = ${mcnemar(wins, losses).toPrecision(2)}.`;
}

function mcnemar(wins, losses) {
  const n = wins + losses;
  let log = -n * Math.LN2, tail = 0;  // log of C(n, i) / 2^n
  for (let i = 0; i <= Math.min(wins, losses); i++) {
    tail += Math.exp(log);
    log += Math.log((n - i) / (i + 1));
  }
  return Math.min(1, 2 * tail);
}

// -- the list --

function drawRows() {
  const from = Math.max(0, Math.floor($("list").scrollTop / ROW) - 4);
  const to = Math.min(matches.length, from + Math.ceil($("list").clientHeight / ROW) + 8);
  fill($("rows"), matches.length ? matches.slice(from, to).map((number, i) => listRow(number, from + i)) : el("p", { class: "empty" }, "No example matches the filters. ",
    el("button", { type: "button", on: { click: () => update({ outcome: "", hops: "", type: "", search: "" }) } }, "Show all")));
  if (current < 0) $("list").removeAttribute("aria-activedescendant");
  else $("list").setAttribute("aria-activedescendant", `example-${current}`);
}

function listRow(number, at) {
  const question = pair.questions[number], code = outcome(number);
  const row = el("div", { role: "option", id: `example-${number}`, "aria-selected": String(number === current), "aria-posinset": at + 1, "aria-setsize": matches.length,
    on: { click: () => { show(number); enter(); } } },
    el("span", { class: "marks" }, [...code].map((digit, i) => verdict(digit === "1", "AB"[i]))), el("span", { class: "text" }, question.question));
  row.style.top = `${ROW * at}px`;
  return row;
}

const verdict = (right, slot) => el("span", { class: right ? "verdict right" : "verdict wrong", "aria-label": `${slot} ${right ? "right" : "wrong"}`, role: "img" }, right ? "✓" : "✗");

/** Scrolls the list to the selected example. */
function reveal() {
  const top = ROW * matches.indexOf(current), list = $("list");
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
}

function show(number) {
  if (number === undefined) return;
  Object.assign(state, { section: "examples", example: pair.questions[number].id });
  writeAddress();
  drawChosen();
}

/** On narrow screens, scrolls to the example below the list. */
function enter() {
  if (getComputedStyle($("list").parentNode.parentNode).gridTemplateColumns.split(" ").length < 2) $("example").scrollIntoView();
}

function move(event) {
  const page = Math.max(1, Math.floor($("list").clientHeight / ROW) - 1);
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -matches.length, End: matches.length };
  if (event.key === "Enter") {
    $("example").focus();
    $("example").scrollIntoView({ block: "nearest" });
  } else if (Object.hasOwn(steps, event.key)) show(matches[Math.min(matches.length - 1, Math.max(0, matches.indexOf(current) + steps[event.key]))]);
  else return;
  event.preventDefault();
}

// -- the example --

let drawing = 0;

async function drawExample() {
  const mine = ++drawing, { cells, numbers, outcomes } = pair, number = current;
  if (number < 0) return fill($("example"));
  const question = pair.questions[number];
  const trajectories = await Promise.all(numbers.map(cell => entry(`trajectories-${cell}`, number, index.examples)));
  const wanted = [...new Set(trajectories.flatMap(trajectory => trajectory.steps.flatMap(step => step.passages.map(([passage]) => passage))))];
  const passages = new Map(await Promise.all(wanted.map(async passage => [passage, await entry("passages", passage, index.passages)])));
  if (mine !== drawing) return;
  const right = outcome(number);
  fill($("example"), header(question), el("div", { class: "columns" }, trajectories.map((trajectory, i) =>
    card("ab"[i], cells[i], question, { ...trajectory, answer: outcomes[i].answers[number], f1: outcomes[i].f1[number], right: right[i] === "1" }, passages))));
}

function header(question) {
  const at = matches.indexOf(current);
  const button = (text, to, label) => el("button", { type: "button", "data-key": label, "aria-label": label, disabled: matches[to] === undefined, on: { click: () => show(matches[to]) } }, text);
  const facts = [question.id, question.hops && plural(question.hops, "hop"), question.type].filter(Boolean).join(" · ");
  const gold = question.decomposition ?? [];
  return el("header", {},
    el("p", { class: "meta" }, el("span", {}, facts), el("span", { class: "steppers" }, button("←", at - 1, "Previous example"), button("→", at + 1, "Next example"))),
    el("h3", {}, question.question),
    el("p", {}, el("span", { class: "soft" }, "Gold answer "), el("b", {}, question.answers[0]), question.answers.length > 1 && el("span", { class: "soft" }, ` or ${question.answers.slice(1).join(" or ")}`)),
    gold.length > 0 && el("details", { class: "gold" }, el("summary", {}, `Gold decomposition: ${plural(gold.length, "hop")}`),
      el("ol", {}, gold.map(step => el("li", {}, `${step.subquery} `, el("b", {}, step.value || step.answer), " ", step.known !== undefined && step.known !== null && el("span", { class: "badge open" }, step.known ? "fact known" : "fact unknown"))))));
}

function card(slot, cell, question, trajectory, passages) {
  const { plan, outline = {}, notes = {}, calls, steps } = trajectory;
  const read = calls.reduce((sum, call) => sum + call[2], 0), written = calls.reduce((sum, call) => sum + call[3], 0);
  const cost = [plural(trajectory.retrievals, "retrieval"), plural(trajectory.rounds, "round"), plural(calls.reduce((sum, call) => sum + call[1], 0), "call"), plural(read + written, "token")];
  const places = steps.map(step => stepItem(step, question, passages));
  return el("section", { class: `card ${slot}`, "aria-label": `${slot.toUpperCase()}: ${cell.name}` },
    el("h4", {}, el("span", { class: "slot" }, slot.toUpperCase()), ` ${cell.name}`),
    el("p", { class: "final" }, el("b", {}, trajectory.answer || "No answer"), " ", el("span", { class: `badge ${trajectory.right ? "right" : "wrong"}` }, trajectory.right ? "✓ right" : "✗ wrong"),
      !trajectory.right && trajectory.f1 > 0 && el("span", { class: "soft" }, ` F1 ${percent(trajectory.f1)}`)),
    el("p", { class: "soft" }, cost.join(" · ")),
    trajectory.error && el("p", { class: "problem" }, trajectory.error),
    plan?.nodes?.length > 0 && el("div", {}, el("h5", {}, "Plan"), el("div", { class: "scroll" }, planGraph(plan.nodes, answered(steps, places)))),
    steps.length > 0 && el("div", {}, el("h5", {}, "Steps"), el("ol", { class: "steps" }, places)),
    Object.keys(outline).length > 0 && el("div", {}, el("h5", {}, "Outline"), listing(outline)),
    Object.keys(notes).length > 0 && el("div", {}, el("h5", {}, "Notes"), listing(Object.fromEntries(Object.entries(notes).map(([name, note]) => [name, [note]])))),
    trajectory.reasoning && el("details", {}, el("summary", {}, "Reasoning"), el("blockquote", {}, trajectory.reasoning)),
    calls.length > 0 && el("details", {}, el("summary", {}, "Calls by module"), el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, ["Module", "Calls", "Read", "Written"].map(title => el("th", { scope: "col" }, title)))),
      el("tbody", {}, calls.map(([module, ...numbers]) => el("tr", {}, el("th", { scope: "row" }, module), numbers.map(number => el("td", {}, number.toLocaleString("en"))))))))));
}

/** Maps a plan's nodes to their steps; a click moves to the step's place. */
const answered = (steps, places) => new Map(steps.map((step, i) => [step.node, {
  decision: step.retrieved ? "retrieve" : "parametric", answer: step.answer,
  open: () => { places[i].focus(); places[i].scrollIntoView({ block: "nearest" }); } }]));

const listing = entries => el("dl", {}, Object.entries(entries).flatMap(([name, lines]) => [el("dt", {}, name), ...lines.map(line => el("dd", {}, line))]));

function stepItem(step, question, passages) {
  const action = step.retrieved ? "retrieved" : "from memory";
  const judged = step.known === undefined ? null : step.known !== step.retrieved;
  const badge = judged === null ? ["open", action] : judged ? ["right", `✓ ${action}, fact ${step.known ? "known" : "unknown"}`] : ["wrong", `✗ ${action}, fact ${step.known ? "known" : "unknown"}`];
  const asides = [step.node, step.round && `round ${step.round}`, step.retrieve_probability !== undefined && `P(retrieve)\u00a0${step.retrieve_probability.toFixed(2)}`].filter(Boolean);
  return el("li", { class: step.retrieved ? "retrieved" : "memory", tabindex: -1 },
    el("p", { class: "subquery" }, step.subquery),
    el("p", { class: "soft" }, el("span", { class: `badge ${badge[0]}` }, badge[1]), " ", asides.join(" · ")),
    step.queries && el("p", { class: "soft" }, `Queries: ${step.queries.join(" · ")}`),
    step.passages.length > 0 && el("details", {}, el("summary", {}, plural(step.passages.length, "passage"), el("span", { class: "titles" }, ` ${step.passages.map(([number]) => titled(passages.get(number))).join(" · ")}`)),
      step.passages.map(([number, score]) => {
        const [id, , text] = passages.get(number);
        return el("blockquote", {}, el("p", {}, el("b", {}, titled(passages.get(number))), question.gold.includes(id) && el("span", { class: "badge right" }, "gold"), score !== null && el("span", { class: "score" }, score.toPrecision(3))), el("p", {}, marked(text, question.answers)));
      })),
    step.answer && el("p", { class: "found" }, step.answer));
}

const titled = ([id, title]) => title || id;

/** Returns the text with marked gold answers. */
function marked(text, answers) {
  const words = answers.filter(answer => answer.length > 1).map(answer => answer.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (!words.length) return text;
  return text.split(new RegExp(`(?<![\\p{L}\\p{N}])(${words.join("|")})(?![\\p{L}\\p{N}])`, "giu")).map((part, i) => (i % 2 ? el("mark", {}, part) : part));
}
