// The data of the matrix page, the reader's choices, and what its other scripts share.

// -- data --

const index = JSON.parse($("index").textContent);
const TITLES = { em: "Exact match", f1: "F1", accuracy: "Accuracy", success: "Retrieval success", gold_precision: "Gold precision", gold_recall: "Gold recall",
  compound: "Compound accuracy", rouge2: "ROUGE-2", rouge_l: "ROUGE-L", judge: "Judge" };
const MEASURES = Object.fromEntries(Object.entries(TITLES).filter(([key]) => index.configurations.some(config => config.overall[key])));
const COSTS = { retrievals: "Retrievals", rounds: "Rounds", llm_calls: "Calls", tokens: "Tokens", completion_tokens: "Tokens written" };
const FOLDED = 15;  // rows of a folded table, as in matrix.css
const digits = cost => (cost.endsWith("tokens") ? 0 : 2);
index.configurations.forEach(config => config.cells.forEach(number => { index.cells[number].config = config; }));

// The blocks follow this script: first the blocks of the example list, then the longer blocks of the examples.
const arrived = new Promise(resolve => document.addEventListener("arrived", resolve));
const whole = new Promise(resolve => document.addEventListener("DOMContentLoaded", resolve));
const unpacked = new Map();

/** Returns the value of a data block, unpacked once. */
function block(name) {
  if (!unpacked.has(name)) unpacked.set(name, unpack(name));
  return unpacked.get(name);
}

async function unpack(name) {
  await arrived;
  if (!$(name)) await whole;
  const bytes = Uint8Array.from(atob($(name).textContent), letter => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

/** Returns a value of a block that is split into chunks. */
async function entry(name, number, size) {
  return (await block(`${name}-${Math.floor(number / size)}`))[number % size];
}

// -- state: the reader's choices, stored in the address, so that a link opens the same view --

const EMPTY = { section: "", dataset: "", metric: "em", cost: "retrievals", sort: "", boundary: "facts", a: "", b: "",
  outcome: "", hops: "", type: "", search: "", example: "" };
const state = { ...EMPTY };

function readAddress() {
  const [section, ...rest] = location.hash.slice(1).split("&");
  Object.assign(state, EMPTY, { section });
  for (const [key, value] of new URLSearchParams(rest.join("&"))) if (Object.hasOwn(EMPTY, key)) state[key] = value;
}

let writing = 0;

/** Writes the address after a delay, because browsers limit the changes per second. */
function writeAddress() {
  clearTimeout(writing);
  writing = setTimeout(() => {
    const given = Object.entries(state).filter(([key, value]) => key !== "section" && value !== EMPTY[key]);
    history.replaceState(null, "", `#${[state.section, new URLSearchParams(given)].join("&").replace(/&$/, "")}`);
  }, 150);
}

// -- configurations and cells by name --

/** Returns the configurations of the selected dataset, best first by the selected measure; of equal ones, the cheaper first. */
function shown() {
  return index.configurations
    .filter(config => config.dataset === state.dataset)
    .sort((a, b) => (b.overall[state.metric]?.[0] ?? -1) - (a.overall[state.metric]?.[0] ?? -1) || a.overall.retrievals[0] - b.overall.retrievals[0]);
}

/** Names a configuration by its strategy, and by model and retriever if they differ within its dataset. */
function named(config) {
  const others = index.configurations.filter(other => other.dataset === config.dataset);
  const differs = key => others.some(other => other[key] !== config[key]);
  return ["strategy", "model", "retriever"].filter(key => key === "strategy" || differs(key)).map(key => config[key]).join(" · ");
}

function cellName(cell) {
  const several = cell.config.cells.length > 1;
  return cell.config.name + (several ? ` · seed ${cell.seed}` : "");
}

/** Whether two configurations have cells with the same questions. */
const sameQuestions = (a, b) => a.cells.some(cell => b.cells.some(other => index.cells[cell].set === index.cells[other].set));

const cellOf = slot => index.cells.find(cell => cell.id === state[slot]) ?? null;

/** Returns "a" or "b" if the configuration is selected for comparison, else "". */
const slotOf = config => ["a", "b"].find(slot => cellOf(slot)?.config === config) ?? "";

for (const config of index.configurations) config.name = named(config);

// -- parts of plots --

/** Draws an interval as a line with a mark, for table cells; `most` is the end of the scale. */
function drawInterval([mean, lo, hi], most, text) {
  const x = value => 4 + 72 * Math.min(1, Math.max(0, value / most));
  return svg("svg", { class: "interval", viewBox: "0 0 80 12", role: "img", "aria-label": text },
    svg("line", { class: "grid", x1: 4, x2: 76, y1: 6, y2: 6 }),
    svg("line", { class: "bar", x1: x(lo), x2: x(hi), y1: 6, y2: 6 }),
    svg("circle", { class: "mark", cx: x(mean), cy: 6, r: 3.5 }));
}

const ends = ([, lo, hi], format) => `[${format(lo)}, ${format(hi)}]`;

/** Adds a button that shows all rows of a long table or list; A and B are always visible. */
function fold(id, rows) {
  const button = $(`more-${id}`);
  button.hidden = rows <= FOLDED;
  button.textContent = $(id).classList.contains("unfolded") ? "Show fewer" : `Show all ${rows}`;
  button.onclick = () => { $(id).classList.toggle("unfolded"); fold(id, rows); };
}

/** Fills a fieldset with radio buttons that select a value of the state. */
function choices(id, key, options) {
  const legend = $(id).querySelector("legend");
  fill($(id), legend, options.map(([value, text, count]) => el("label", {},
    el("input", { type: "radio", name: id, value, checked: state[key] === value, "data-key": `${id}-${value}`,
      on: { change: () => update({ [key]: value }) } }),
    el("span", {}, text, count === undefined ? null : el("span", { class: "count" }, count.toLocaleString("en"))))));
}
