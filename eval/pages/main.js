// Events, and the parts of the page that each event redraws.

const OVERVIEW = ["dataset", "metric", "cost", "sort", "boundary", "a", "b"];
const OPENING = ["dataset", "a", "b"];

function update(changes) {
  Object.assign(state, changes);
  settle("b" in changes ? "b" : "a");
  writeAddress();
  const keys = Object.keys(changes);
  if (keys.some(key => OVERVIEW.includes(key))) drawOverview();
  drawExamples(keys.some(key => OPENING.includes(key)));
}

/** Replaces invalid values of the state; A and B get the same questions, those of the slot `lead`. */
function settle(lead) {
  const datasets = [...new Set(index.configurations.map(config => config.dataset))];
  if (!datasets.includes(state.dataset)) state.dataset = cellOf("a")?.config.dataset ?? datasets[0];
  if (!Object.hasOwn(MEASURES, state.metric)) state.metric = "em";
  if (!Object.hasOwn(COSTS, state.cost)) state.cost = "retrievals";
  if (!shown().some(config => config.overall[state.metric])) state.metric = "em";
  const best = shown().map(config => index.cells[config.cells[0]]);
  const fits = slot => cellOf(slot)?.config.dataset === state.dataset;
  if (!fits(lead)) state[lead] = (best.find(cell => cell.id !== state[lead === "a" ? "b" : "a"]) ?? best[0]).id;
  const other = lead === "a" ? "b" : "a", first = cellOf(lead);
  if (cellOf(other)?.set === first.set && cellOf(other) !== first) return;
  const rivals = shown().flatMap(config => config.cells.map(number => index.cells[number])).filter(cell => cell.set === first.set && cell !== first);
  state[other] = (rivals.find(cell => cell.config === cellOf(other)?.config) ?? rivals[0])?.id ?? "";
  if (lead === "b" && !state.a) [state.a, state.b] = [state.b, ""];
}

function drawOverview() {
  const configs = shown();
  const counted = key => new Set(configs.map(config => config[key])).size;
  const seeds = new Set(configs.flatMap(config => config.cells.map(number => index.cells[number].seed))).size;
  const sets = new Set(configs.flatMap(config => config.cells.map(number => index.cells[number].set)));
  const questions = [...sets].reduce((sum, set) => sum + index.sets[set], 0);
  $("about").textContent = `${state.dataset}, ${plural(questions, "question")}: ${[plural(counted("strategy"), "strategy", "strategies"), plural(counted("model"), "model"),
    plural(counted("retriever"), "retriever"), plural(seeds, "seed")].join(", ")}.`;
  fillSelect("metric", Object.entries(MEASURES), state.metric);
  fillSelect("dataset", [...new Set(index.configurations.map(config => config.dataset))].map(name => [name, name]), state.dataset);
  $("dataset").parentNode.hidden = $("dataset").options.length < 2;
  const cells = configs.flatMap(config => config.cells.map(number => [index.cells[number].id, cellName(index.cells[number])]));
  fillSelect("a", cells, state.a);
  const same = cells.filter(([id]) => index.cells.find(cell => cell.id === id).set === cellOf("a").set);
  fillSelect("b", state.b ? same : [["", "none"]], state.b);
  choices("costs", "cost", Object.entries(COSTS));
  drawBoard();
  drawFrontier();
  drawParts();
  drawDecisions();
  drawTokens();
}

function fillSelect(id, options, value) {
  $(id).replaceChildren(...options.map(([key, text]) => new Option(text, key)));
  $(id).value = value;
}

for (const id of ["dataset", "metric", "a", "b", "hops", "type"]) $(id).addEventListener("change", () => update({ [id]: $(id).value }));
$("search").addEventListener("input", () => update({ search: $("search").value }));
$("list").addEventListener("scroll", () => requestAnimationFrame(drawRows));
$("list").addEventListener("keydown", move);
new ResizeObserver(() => pair && drawRows()).observe($("list"));

/** Handles Escape: clears the search, then moves from the search or the example to the list. */
function back() {
  if (document.activeElement === $("search") && $("search").value) update({ search: "" });
  else if ($("search") === document.activeElement || $("example").contains(document.activeElement)) $("list").focus();
}

document.addEventListener("keydown", event => {
  const typing = event.target.matches("input:not([type=radio]), select");
  if (event.key === "Escape") back();
  else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) $("search").focus();
  else if (event.key === "ArrowDown" && event.target === $("search")) $("list").focus();
  else return;
  event.preventDefault();
});

const sections = [...document.querySelectorAll("main > section")].map(section => section.id);

function goTo(section) {
  if (!sections.includes(section)) return;
  $(section).scrollIntoView();
  $(section).focus({ preventScroll: true });
}

for (const link of document.querySelectorAll("nav a")) {
  link.addEventListener("click", event => {
    event.preventDefault();
    state.section = link.hash.slice(1);
    writeAddress();
    goTo(state.section);
  });
}

async function open() {
  readAddress();
  settle("a");
  drawOverview();
  await drawExamples(true);
  goTo(state.section);
}

addEventListener("hashchange", open);
open();
