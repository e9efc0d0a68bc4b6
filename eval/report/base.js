// The data of the page, the reader's choices, and what its other scripts share.

// -- data --

const index = JSON.parse($("index").textContent);

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

const EMPTY = { section: "", measure: "em", a: "", b: "", outcome: "", hops: "", type: "", search: "", example: "" };
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

// -- cells --

const cellOf = slot => index.cells.find(cell => cell.id === state[slot]) ?? null;

/** Returns the cells with the same questions as `cell`, best first. */
const rivals = cell => index.cells.filter(other => other.set === cell.set && other !== cell).sort((a, b) => b.em - a.em);

/** Fills a fieldset with radio buttons that select a value of the state. */
function choices(id, key, options) {
  const legend = $(id).querySelector("legend");
  fill($(id), legend, options.map(([value, text, count]) => el("label", {},
    el("input", { type: "radio", name: id, value, checked: state[key] === value, "data-key": `${id}-${value}`,
      on: { change: () => update({ [key]: value }) } }),
    el("span", {}, text, count === undefined ? null : el("span", { class: "count" }, count.toLocaleString("en"))))));
}
