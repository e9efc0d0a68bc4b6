// Elements and numbers, for the scripts of all pages. Texts of models and documents are inserted as text nodes only, never as markup.
"use strict";
const $ = id => document.getElementById(id);

/** Flattens children and drops absent ones, so that `condition && child` can be a child. */
const present = children => children.flat().filter(child => ![undefined, null, false, ""].includes(child));

/** Returns a function that creates an element with attributes (except null and false) and children; strings become text. */
const maker = create => (tag, attributes = {}, ...children) => {
  const node = create(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...present(children));
  return node;
};
const el = maker(tag => document.createElement(tag));
const svg = maker(tag => document.createElementNS("http://www.w3.org/2000/svg", tag));

/** Replaces the children of a node; the focus stays on the element with the same data-key. */
function fill(node, ...children) {
  const key = node.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  node.replaceChildren(...present(children));
  if (key) [...node.querySelectorAll("[data-key]")].find(child => child.dataset.key === key)?.focus();
}

const plural = (count, noun, nouns = `${noun}s`) => `${count.toLocaleString("en")} ${count === 1 ? noun : nouns}`;
const fixed = (value, digits) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "−");
const percent = (value, digits = 1) => fixed(100 * value, digits);
const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1).trimEnd()}…` : text);

/** Returns a button that looks like a link. */
const textButton = (text, click) => el("button", { type: "button", class: "text", on: { click } }, text);
