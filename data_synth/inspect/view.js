// Script of the page that rag_train.data_synth.inspect.view writes.
// Texts of models and documents become text nodes only, never markup.
"use strict";
const $ = id => document.getElementById(id);
const { all, items } = JSON.parse($("data").textContent);
let matches = items;  // the items that pass the filters
let current = 0;  // index in `matches` of the item that is shown
let addressTimer = 0;  // timer that updates the page's address

/** Creates an element with a class and with texts and elements as its content; empty content is left out. */
function el(tag, name, ...content) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...present(content));
  return node;
}

const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const present = parts => parts.flat(Infinity).filter(part => ![undefined, null, false, 0, ""].includes(part));

/** Content below a title; nothing if the content is empty. */
const titled = (title, ...content) => present(content).length ? [el("h3", "", title), ...present(content)] : [];

// -- the list --

for (const item of items) item.haystack = JSON.stringify(item.record).toLowerCase();

/** Fills a select with the values that pass the other filters, most frequent first. */
function options(id, any, values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  const kept = $(id).value;
  $(id).replaceChildren(new Option(any, ""), ...sorted.map(([value, count]) => new Option(`${value} (${count.toLocaleString("en")})`, value)));
  if (counts.has(kept)) $(id).value = kept;
}

function filter() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean).map(word => JSON.stringify(word).slice(1, -1));
  const previous = matches[current];
  const withWords = items.filter(item => words.every(word => item.haystack.includes(word)));
  options("task", "All tasks", withWords.map(item => item.task));
  const ofTask = withWords.filter(item => !$("task").value || item.task === $("task").value);
  options("outcome", "All outcomes", ofTask.map(item => item.outcome));
  matches = ofTask.filter(item => !$("outcome").value || item.outcome === $("outcome").value);
  const shown = all > items.length ? `${items.length.toLocaleString("en")} of ${counted(all, "record")}, spread evenly` : counted(all, "record");
  $("count").textContent = matches.length < items.length ? `${matches.length.toLocaleString("en")} of ${shown}` : shown;
  $("list").replaceChildren(...matches.length ? matches.map(row) : [el("p", "soft", "No record passes these filters.")]);
  show(Math.max(0, matches.indexOf(previous)));
}

/** A row of the list; records of the same question as the row above are indented. */
function row(item, index) {
  const option = el("div", matches[index - 1]?.question === item.question ? "same" : "", el("span", "", item.title), el("span", "soft", `${item.line} · ${item.task} · ${item.outcome}`));
  option.id = `row-${index}`;
  option.setAttribute("role", "option");
  option.addEventListener("click", () => show(index));
  return option;
}

function show(index) {
  $(`row-${current}`)?.setAttribute("aria-selected", "false");
  current = index;
  $("record").replaceChildren();
  $("list").removeAttribute("aria-activedescendant");
  const item = matches[index];
  if (!item) return;
  $(`row-${index}`).setAttribute("aria-selected", "true");
  $(`row-${index}`).scrollIntoView({ block: "nearest" });
  $("list").setAttribute("aria-activedescendant", `row-${index}`);
  $("record").replaceChildren(el("h2", "", item.title), about(item), ...present(VIEWS[item.kind](item.record)));
  clearTimeout(addressTimer);  // wait, because browsers refuse frequent changes of the address
  addressTimer = setTimeout(() => history.replaceState(null, "", `#${item.kind === "Rejected" ? "rejected-" : ""}${item.line}`), 150);
}

function about({ line, task, outcome, record }) {
  const words = [`line ${line}`, record.id ?? record.question_id];
  return el("p", "about soft", el("span", "badge", task), el("span", "badge", outcome), ...words.map(word => el("span", "", word)));
}

// -- records --

const VIEWS = {  // content of the page by type of record
  SFTRecord: record => {
    const trained = record.segments.filter(segment => segment.trained).map(segment => segment.text).join("");
    return [
      record.answer && el("p", "answer", record.answer),
      written(trained),
      titled("Steps", steps(record.steps)),
      titled("Prompt", prompt(record.prompt)),
      titled("Completion (trained text is marked)", el("pre", "", record.segments.map(({ text, trained }) => trained ? el("mark", "", text) : text))),
    ];
  },
  PreferencePair: record => [
    titled(`At step ${record.node + 1}`, el("div", "pair", sided("chosen", record.chosen), sided("rejected", record.rejected))),
    titled("Transcript so far", el("pre", "", record.prompt.slice(record.history_start) || "nothing yet")),
    titled("Prompt", prompt(record.prompt.slice(0, record.history_start))),
  ],
  Trajectory: record => [
    record.error ? el("p", "problem", record.error) : el("p", "answer", record.answer ?? "No answer."),
    record.reasoning && el("p", "", record.reasoning),
    plan(record.plan?.nodes ?? [], new Map(record.steps.map(step => [step.node, step]))),
    titled("Steps", steps(record.steps)),
    titled("Outline", list(Object.entries(record.outline))),
    titled("Notes", list(Object.entries(record.notes).map(([name, note]) => [name, [note]]))),
    titled("Calls", calls(record.calls)),
  ],
  Question: record => [
    el("p", "answer", record.answers.join(" · ")),
    titled("Hops", list(record.decomposition.map(hop => [hop.subquery, [hop.answer]]))),
    titled("Gold passages", passages(record.gold_passages)),
    titled("Metadata", Object.keys(record.metadata).length && el("pre", "", JSON.stringify(record.metadata, null, 2))),
  ],
  Rejected: record => [titled("Reason", el("p", "", record.reason)), titled("Text", record.text && el("pre", "", record.text))],
};

/** The prompt, with its instruction (the text before the last blank line) folded. */
function prompt(text) {
  const end = text.lastIndexOf("\n\n");
  const instruction = end < 0 ? null : el("details", "", el("summary", "", "Instruction"), el("pre", "", text.slice(0, end)));
  return [instruction, el("pre", "", text.slice(end < 0 ? 0 : end + 2))];
}

const sided = (name, text) => el("div", name, el("span", "badge", name), el("p", "", text));

/** A module's output if it is JSON: a plan as a graph, any other value as a list of its names. */
function written(text) {
  let value;
  try { value = JSON.parse(text); } catch { return []; }
  if (Array.isArray(value) && value.length && value.every(node => node?.id && Array.isArray(node.parents))) return plan(value);
  const entries = Array.isArray(value) ? value.filter(entry => entry?.entity).map(entry => [entry.entity, entry.queries ?? []]) : Object.entries(value ?? {});
  return titled("Written", list(entries.map(([name, lines]) => [name, [lines].flat().map(line => typeof line === "string" ? line.trim() : JSON.stringify(line))])));
}

const plan = (nodes, answered) => nodes.length ? titled("Plan", el("div", "scroll", planGraph(nodes, answered))) : [];

function steps(taken) {
  if (!taken.length) return null;
  return el("ol", "", taken.map((step, i) => el("li", `step ${step.decision}`,
    el("p", "about", el("span", "", step.node || `${i + 1}`), step.round !== null && el("span", "", `round ${step.round}`),
      el("span", "badge", step.decision === "retrieve" ? "searched" : "knew"),
      step.retrieve_probability !== null && el("span", "", `P(search) ${step.retrieve_probability.toFixed(2)}`)),
    el("p", "subquery", step.subquery),
    step.queries.length > 0 && el("p", "soft", `Asked: ${step.queries.join(" · ")}`),
    step.answer ? el("p", "", step.answer) : el("p", "soft", "no answer"),
    passages(step.passages))));
}

function passages(given) {
  if (!given.length) return null;
  return el("details", "", el("summary", "", counted(given.length, "passage")),
    given.map(passage => el("blockquote", "", el("b", "", passage.title || passage.id), el("div", "", passage.text))));
}

/** A list of names, each with its lines. */
function list(entries) {
  if (!entries.length) return null;
  return el("dl", "", entries.flatMap(([name, lines]) => [
    el("dt", "", name), el("dd", "", lines.length > 1 ? el("ul", "", lines.map(line => el("li", "", line))) : lines[0] ?? "")]));
}

function calls(made) {
  if (!made.length) return null;
  const modules = new Map();
  for (const { module, prompt_tokens, completion_tokens } of made) {
    const [count, read, wrote] = modules.get(module) ?? [0, 0, 0];
    modules.set(module, [count + 1, read + prompt_tokens, wrote + completion_tokens]);
  }
  const head = ["Module", "Calls", "Read", "Written"].map(name => el("th", "", name));
  const rows = [...modules].map(([module, sums]) => el("tr", "", el("th", "", module), sums.map(sum => el("td", "", sum.toLocaleString("en")))));
  return el("table", "", el("thead", "", el("tr", "", head)), el("tbody", "", rows));
}

// -- keys --

$("list").addEventListener("keydown", event => {
  const page = Math.max(1, Math.floor($("list").clientHeight / 80));
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
  if (!(event.key in moves) || !matches.length) return;
  event.preventDefault();
  show(Math.min(matches.length - 1, Math.max(0, current + moves[event.key])));
});
document.addEventListener("keydown", event => {
  if (event.key === "/" && event.target !== $("search")) {
    event.preventDefault();
    $("search").focus();
  } else if (event.key === "Escape") $("list").focus();
});
$("filters").addEventListener("submit", event => event.preventDefault());
$("filters").addEventListener("input", filter);

/** Shows the record that the address names: #12 for line 12, #rejected-3 for line 3 of the rejected items. */
function showAddressed() {
  const [, rejected, line] = location.hash.match(/^#(rejected-)?(\d+)$/) ?? [];
  const index = matches.findIndex(item => item.line === Number(line) && (item.kind === "Rejected") === Boolean(rejected));
  if (index >= 0 && index !== current) show(index);
}

filter();
showAddressed();
addEventListener("hashchange", showAddressed);
