// Script of the page of rag_train.serving.strategy. Texts of models and passages become text nodes only, never markup.
"use strict";
const $ = id => document.getElementById(id);
const EXAMPLES = [
  ["Who wrote The Left Hand of Darkness?", "one fact"],
  ["Where was the director of Jaws born?", "two facts, one after the other"],
  ["Which film came out first, Alien or Blade Runner?", "two facts to compare"],
];
let strategies = [];
let run = null;  // the question asked last, see `ask`
let shown = null;  // the question on the screen
const session = [];  // all questions asked since the page was opened

/** Create an element with a class and with text or children. */
function el(tag, name = "", content = "") {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (Array.isArray(content)) node.append(...content); else node.textContent = content;
  return node;
}

/** A button that looks like a link. */
function link(text, act) {
  const button = el("button", "text", text);
  button.type = "button";
  button.addEventListener("click", act);
  return button;
}

/** A number with its noun, such as "2 steps". */
const counted = (count, singular, plural = singular + "s") => `${count.toLocaleString("en")} ${count === 1 ? singular : plural}`;

// -- sending a question --

async function ask(question, strategy) {
  const current = run = { question, strategy, steps: [], plan: [], outline: {}, answer: "", problem: "", trajectory: null,
    began: performance.now(), seconds: 0, ended: false, abort: new AbortController() };
  session.push(current);
  show(current);
  const tick = () => {
    current.seconds = (performance.now() - current.began) / 1000;
    if (shown === current) status(current);
  };
  const clock = setInterval(tick, 100);
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...authorization() },
      body: JSON.stringify({ stream: true, strategy, messages: [{ role: "user", content: question }] }),
      signal: current.abort.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response.body)) receive(current, event);
    if (!current.trajectory && !current.problem) throw new Error("The connection to the service was lost.");
  } catch (error) {
    current.problem = current.abort.signal.aborted ? "Stopped." : error.message;
  } finally {
    clearInterval(clock);
    tick();
    current.ended = true;
    if (shown === current) finish(current);
    busy();
    past();
  }
}

/** Yield the JSON objects of a stream of server-sent events. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const whole = (text + value).split("\n\n");
    text = whole.pop();
    for (const event of whole) if (event !== "data: [DONE]") yield JSON.parse(event.slice("data: ".length));
  }
}

/** Add an event to a question, and to the screen if the question is there. */
function receive(current, event) {
  if (event.error) current.problem = event.error.message;
  else current.answer += event.choices[0].delta.content ?? "";
  if (event.plan) current.plan = event.plan.nodes;
  if (event.outline) current.outline = event.outline;
  if (event.trajectory) {
    current.trajectory = event.trajectory;
    current.plan = event.trajectory.plan?.nodes ?? [];
    current.outline = event.trajectory.outline;
  }
  if (event.step) current.steps.push(event.step);
  if (shown !== current) return;
  if (event.step) addStep(current, event.step, current.steps.length);
  draw(current);
}

// -- showing a question --

/** Show a question: the one that is being asked, or one of the history. */
function show(one) {
  shown = one;
  $("welcome").hidden = true;
  $("result").hidden = false;
  $("asked").textContent = one.question;
  $("steps").replaceChildren();
  if (!one.ended) $("steps").append(el("li", "pending busy", "The next step is running."));
  one.steps.forEach((step, i) => addStep(one, step, i + 1));
  $("trail").hidden = one.ended && !one.steps.length;
  draw(one);
  busy();
  past();
  history.replaceState(null, "", `#${new URLSearchParams({ q: one.question, strategy: one.strategy })}`);
}

/** Draw the end of the question on the screen: its passages can be marked now. */
function finish(one) {
  $("steps").querySelector(".pending").remove();
  $("trail").hidden = !one.steps.length;
  one.steps.forEach((step, i) => {
    const details = $(`step-${i + 1}`).querySelector("details");
    details?.replaceChildren(details.firstChild, ...quotes(step.passages, one.trajectory?.answer));
  });
  draw(one);
}

/** Draw all that is shown of a question except its steps. */
function draw(one) {
  const { trajectory } = one;
  const answer = trajectory && trajectory.answer === null ? "No answer." : one.answer;
  if ($("answer").textContent !== answer) $("answer").textContent = answer;  // a screen reader reads each change
  problem(one.problem);
  status(one);
  $("sources").replaceChildren(...(one.ended ? sources(one) : []));
  $("reasoning").hidden = !trajectory?.reasoning;
  $("reasoning").lastElementChild.textContent = trajectory?.reasoning ?? "";
  list("outline", Object.entries(one.outline));
  list("notes", Object.entries(trajectory?.notes ?? {}).map(([name, note]) => [name, [note]]));
  table(trajectory?.calls ?? []);
  $("plan").hidden = !one.plan.length;
  const answered = one.steps.map((step, i) => [step.node, { ...step, open: () => visit(`step-${i + 1}`) }]);
  $("plan").lastElementChild.replaceChildren(planGraph(one.plan, new Map(answered)));
}

function busy() {
  const working = run !== null && !run.ended;
  $("ask").classList.toggle("stop", working);
  $("ask").textContent = working ? "Stop" : "Ask";
}

/** What a question has cost; without a trajectory, its calls and tokens are not known. */
function cost({ steps, trajectory, seconds }) {
  const queries = steps.filter(step => step.decision === "retrieve").flatMap(step => step.queries.length ? step.queries : [step.subquery]);
  return {
    retrievals: queries.filter(query => query.trim()).length,
    calls: trajectory?.calls.length,
    tokens: trajectory?.calls.reduce((sum, call) => sum + call.prompt_tokens + call.completion_tokens, 0),
    seconds: seconds.toFixed(1),
  };
}

function status(one) {
  const { retrievals, calls, tokens, seconds } = cost(one);
  const words = [counted(one.steps.length, "step"), counted(retrievals, "retrieval")];
  if (one.trajectory) words.push(counted(calls, "call"), counted(tokens, "token"));
  $("status").classList.toggle("busy", !one.ended);
  $("status").textContent = (one.ended ? "" : "Working: ") + [...words, `${seconds} s`].join(", ");
}

function problem(message) {
  $("problem").textContent = message;
  $("problem").hidden = !message;
}

/** Move to an element and mark it. */
function visit(id) {
  $(id).querySelector("details")?.setAttribute("open", "");
  $(id).scrollIntoView({ block: "nearest" });
  $(id).focus({ preventScroll: true });
}

function addStep(one, step, number) {
  const card = el("li", `step ${step.decision}`, [head(step, number), el("p", "subquery", step.subquery)]);
  card.id = `step-${number}`;
  card.tabIndex = -1;
  if (step.queries.length) card.append(el("p", "soft", `Queries: ${step.queries.join(" · ")}`));
  if (step.passages.length) {
    card.append(el("details", "", [el("summary", "", counted(step.passages.length, "passage")), ...quotes(step.passages, one.trajectory?.answer)]));
  }
  if (step.answer) card.append(el("p", "", step.answer));
  const key = step.round === null ? `step ${number}` : `round ${step.round}`;
  let row = [...$("steps").children].find(row => row.dataset.round === key);
  if (!row) {
    // Nested lists: rounds below each other, the steps of a round side by side.
    row = el("li", "", [el("ul", "round")]);
    row.dataset.round = key;
    $("steps").insertBefore(row, $("steps").querySelector(".pending"));
  }
  row.firstChild.append(card);
}

function head(step, number) {
  const parts = [el("span", "", step.node || `${number}`), el("span", "badge", step.decision === "retrieve" ? "searched" : "knew")];
  if (step.retrieve_probability !== null) {
    parts.push(el("span", "", `P(search) ${step.retrieve_probability.toFixed(2)}`));
  }
  return el("p", "head", parts);
}

/** Split a text at each mention of an answer, which is kept: every second part is a mention. Yes and no are in any text. */
function mentions(text, answer) {
  if (!answer || /^(yes|no)$/i.test(answer)) return [text];
  const escaped = answer.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return text.split(new RegExp(`(?<![\\p{L}\\p{N}])(${escaped})(?![\\p{L}\\p{N}])`, "iu"));
}

function quotes(found, answer) {
  const marked = text => mentions(text, answer).map((part, i) => (i % 2 ? el("mark", "", part) : part));
  return found.map(passage => el("blockquote", "", [el("b", "", passage.title || passage.id), el("div", "", marked(passage.text))]));
}

/** Links to the steps whose passages contain the answer. */
function sources({ steps, trajectory }) {
  const found = new Map();
  steps.forEach((step, i) => step.passages.forEach(passage => {
    const title = passage.title || passage.id;
    if (mentions(passage.text, trajectory?.answer).length > 1 && !found.has(title)) found.set(title, `step-${i + 1}`);
  }));
  return [...found].flatMap(([title, step], i) => [i ? " · " : "The answer is in: ", link(title, () => visit(step))]);
}

/** Fill a definition list with names, each with one or more lines. */
function list(id, entries) {
  $(id).hidden = !entries.length;
  $(id).querySelector("dl").replaceChildren(...entries.flatMap(([name, lines]) => [
    el("dt", "", name),
    lines.length > 1 ? el("dd", "", [el("ul", "", lines.map(line => el("li", "", line)))]) : el("dd", "", lines[0] ?? ""),
  ]));
}

/** A row of a table, whose first cell names it. */
function tableRow(first, cells, name = "") {
  const head = el("th", "", first);
  head.scope = "row";
  return el("tr", name, [head, ...cells.map(cell => el("td", "", cell))]);
}

function table(calls) {
  const modules = new Map();
  for (const call of [...calls, ...calls.map(call => ({ ...call, module: null }))]) {  // module null: the total
    const sums = modules.get(call.module) ?? [0, 0, 0];
    modules.set(call.module, [sums[0] + 1, sums[1] + call.prompt_tokens, sums[2] + call.completion_tokens]);
  }
  const row = ([module, sums]) => tableRow(module ?? "total", sums.map(sum => sum.toLocaleString("en")));
  const rows = [...modules];
  $("calls").hidden = !rows.length;
  $("calls").querySelector("tbody").replaceChildren(...rows.filter(([module]) => module !== null).map(row));
  $("calls").querySelector("tfoot").replaceChildren(...rows.filter(([module]) => module === null).map(row));
}

/** The questions of the session, the last first; a click shows one again. */
function past() {
  $("history").hidden = session.length < 2;
  const focused = [...$("past").querySelectorAll("button")].indexOf(document.activeElement);
  $("past").tBodies[0].replaceChildren(...[...session].reverse().map(one => {
    const { retrievals, calls, tokens, seconds } = cost(one);
    const figures = [retrievals, calls, tokens, seconds].map(figure => one.ended ? figure?.toLocaleString("en") ?? "–" : "…");
    const answer = one.problem || (one.trajectory ? one.answer || "No answer." : "…");
    return tableRow([link(one.question, () => show(one))], [one.strategy, answer, ...figures], one === shown ? "current" : "");
  }));
  $("past").querySelectorAll("button")[focused]?.focus();
}

// -- the form --

function describe() {
  const chosen = strategies.find(strategy => strategy.id === $("strategy").value);
  $("about").textContent = chosen ? [chosen.description, chosen.paper].filter(Boolean).join(" ") : "";
}

async function submit() {
  const question = $("question").value.trim();
  if (!question) return;
  if (!strategies.length) await start();  // with the key that has just been given
  if (strategies.length) ask(question, $("strategy").value);
}

$("form").addEventListener("submit", event => {
  event.preventDefault();
  if (run && !run.ended) run.abort.abort(); else submit();
});
$("strategy").addEventListener("change", describe);
$("examples").append(...EXAMPLES.map(([question, kind]) => el("li", "", [link(question, () => {
  $("question").value = question;
  $("question").focus();
}), el("span", "soft", kind)])));

/** The header with the API key, if one has been given. */
const authorization = () => $("key").value ? { Authorization: `Bearer ${$("key").value}` } : {};

async function load(path) {
  const response = await fetch(path, { headers: authorization() });
  if (!response.ok) throw Object.assign(new Error((await response.json()).error.message), { status: response.status });
  return response.json();
}

/** Fill the form from the address, #q=QUESTION&strategy=NAME. A link fills the form only, as anyone can write one. */
function fill() {
  const given = new URLSearchParams(location.hash.slice(1));
  const strategy = given.get("strategy");
  if (strategy && ![...$("strategy").options].some(option => option.value === strategy)) $("strategy").append(new Option(strategy));
  if (strategy) $("strategy").value = strategy;
  $("question").value ||= given.get("q") ?? "";
  describe();
}

async function start() {
  problem("");
  try {
    const [health, models] = await Promise.all(["health", "v1/models"].map(load));
    $("system").textContent = `${health.model} with ${health.retriever}, ${counted(health.k, "passage")} per search`;
    strategies = models.data;
    $("strategy").replaceChildren(...strategies.map(strategy => new Option(strategy.id)));
    $("keyed").hidden = true;
  } catch (error) {
    if (error.status === 401) $("keyed").hidden = false;
    problem(error.status ? error.message : "The service cannot be reached.");
  }
  fill();
}

addEventListener("hashchange", () => {
  $("question").value = "";
  fill();
});
start();
