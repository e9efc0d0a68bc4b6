// Events, and the parts of the page that each event redraws.

function update(changes) {
  Object.assign(state, changes);
  settle("b" in changes ? "b" : "a");
  writeAddress();
  drawPickers();
  drawExamples("a" in changes || "b" in changes);
}

/** Replaces invalid values of the state; A and B get the same questions, those of the slot `lead`. */
function settle(lead) {
  const other = lead === "a" ? "b" : "a";
  if (!["em", "accuracy"].includes(state.measure)) state.measure = "em";
  const first = cellOf(lead) ?? index.cells.reduce((best, cell) => (cell.em > best.em ? cell : best));
  state[lead] = first.id;
  if (!rivals(first).includes(cellOf(other))) state[other] = rivals(first)[0]?.id ?? "";
  if (lead === "b" && !state.a) [state.a, state.b] = [state.b, ""];
}

function drawPickers() {
  const options = cells => cells.map(({ id, name }) => [id, name]);
  fillSelect("a", options(index.cells), state.a);
  fillSelect("b", state.b ? options([...rivals(cellOf("a"))]) : [["", "none"]], state.b);
  $("measure").value = state.measure;
}

function fillSelect(id, options, value) {
  $(id).replaceChildren(...options.map(([key, text]) => new Option(text, key)));
  $(id).value = value;
}

for (const id of ["measure", "a", "b", "hops", "type"]) $(id).addEventListener("change", () => update({ [id]: $(id).value }));
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

// Sorts a table by the column whose heading is clicked: numbers from the highest, texts from A; again, the other way.
for (const heading of document.querySelectorAll(".table thead th")) {
  heading.replaceChildren(el("button", { type: "button", on: { click: () => sort(heading) } }, heading.textContent));
}

function sort(heading) {
  const body = heading.closest("table").tBodies[0], rows = [...body.rows];
  const value = row => {
    const text = row.cells[heading.cellIndex].textContent, number = parseFloat(text.replaceAll(",", ""));
    return Number.isNaN(number) ? text : -number;
  };
  const again = heading.ariaSort === "descending" ? -1 : 1;
  for (const other of heading.parentNode.cells) other.ariaSort = null;
  heading.ariaSort = again === 1 ? "descending" : "ascending";
  body.append(...rows.sort((a, b) => again * (value(a) > value(b) ? 1 : value(a) < value(b) ? -1 : 0)));
}

async function open() {
  readAddress();
  settle("a");
  drawPickers();
  await drawExamples(true);
  goTo(state.section);
}

addEventListener("hashchange", open);
open();
