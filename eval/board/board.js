// Script of the board. Texts of files are inserted as text nodes only, never as markup.

const KINDS = ["training", "sweep", "synthesis", "evaluation"];
const PLOTS = [  // title, and the metrics of the plot with their names
  ["Loss", { loss: "training", eval_loss: "held out" }],
  ["Accuracy", { "rewards/accuracies": "training", eval_accuracy: "held out" }],
  ["Reward margin", { "rewards/margins": "" }],
  ["Reward", { reward: "" }],
  ["Decisions to retrieve", { "decisions/retrieve": "" }],
  ["Learning rate", { learning_rate: "" }],
  ["Answers of the checkpoints", { em: "exact match", f1: "F1" }],
  ["Retrievals per question", { retrievals: "" }],
];
const LIVE = 60;  // seconds since the last write, up to which a run counts as live
const DRAWN = 300;  // points of a line that are drawn at most

const runs = new Map();  // id → {id, card, rows, node}
let ahead = 0;  // seconds by which the server's clock is ahead of this one

// -- events --

const source = new EventSource("events");
let first = true;  // whether the next event has all that there is
source.onopen = () => { first = true; };
source.onerror = () => {
  $("state").className = "lost";
  $("state").textContent = "The connection is lost; the page tries again. If the board has ended, start it again.";
};
source.onmessage = event => {
  const news = JSON.parse(event.data);
  if (first) begin(news);
  for (const change of news.runs ?? []) receive(change);
  for (const id of news.gone ?? []) remove(id);
  if (news.pages) drawPages(news.pages);
  arrange(first);
  first = false;
  tell();
};

/** Forgets what an earlier connection sent; runs that exist still keep their nodes. */
function begin(news) {
  ahead = news.now - Date.now() / 1000;
  const known = new Set((news.runs ?? []).map(run => run.id));
  for (const [id, run] of runs) if (known.has(id)) run.rows = []; else remove(id);
  $("state").className = "soft";
}

function receive({ id, card, rows, restart }) {
  const run = runs.get(id) ?? { id, rows: [], node: node() };
  runs.set(id, run);
  if (restart) run.rows = [];
  run.rows.push(...rows ?? []);
  if (card) run.card = card;
  run.node.ontoggle = () => drawBody(run);
  drawHead(run);
  drawBody(run);
}

function remove(id) {
  runs.get(id)?.node.remove();
  runs.delete(id);
}

// -- the list --

/** Puts runs into their sections, unfinished and then new ones first; opens the first of each section at the start. */
function arrange(opening = false) {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = ({ card }) => words.every(word => [card.name, ...Object.values(card.facts)].join(" ").toLowerCase().includes(word));
  for (const kind of KINDS) {
    const all = [...runs.values()].filter(run => run.card.kind === kind);
    all.sort((a, b) => a.card.finished - b.card.finished || b.card.updated - a.card.updated || a.card.name.localeCompare(b.card.name));
    const place = $(kind).lastElementChild;
    if (opening && all.length && !place.querySelector("[open]")) all[0].node.open = true;
    const nodes = all.map(run => run.node);
    const moved = nodes.some(node => node.parentNode !== place) || settled(all) !== place.dataset.order;
    if (moved && !place.contains(document.activeElement)) place.replaceChildren(...nodes);
    else place.append(...nodes.filter(node => node.parentNode !== place));
    place.dataset.order = settled(all);
    for (const run of all) run.node.hidden = !matches(run);
    $(kind).hidden = all.every(run => run.node.hidden);
    $(kind).firstElementChild.textContent = `${$(kind).firstElementChild.textContent.split(" (")[0]} (${all.length})`;
  }
  $("nothing").hidden = runs.size > 0 || !$("pages").hidden;
}

/** Returns which runs are finished, as text: the order changes only with that, so that runs do not move under the reader. */
const settled = all => JSON.stringify(all.map(run => [run.id, run.card.finished]).sort());

function node() {
  return el("details", { class: "run" }, el("summary"), el("div", { class: "body" }));
}

function drawHead({ card, node }) {
  fill(node.firstElementChild, el("span", { class: "name" }, card.name || "this directory"), el("span", { class: "badge", "data-updated": card.updated, "data-finished": String(card.finished) }),
    el("span", { class: "soft line" }, card.line), card.problems.length > 0 && el("span", { class: "badge wrong" }, plural(card.problems.length, "problem")),
    !card.finished && card.share !== null && el("progress", { value: card.share, max: 1, "aria-label": `${percent(card.share, 0)}% done` }));
}

/** Writes what changes with time: how long ago each run was written, and how many are live. */
function tell() {
  if (first) return;
  const now = Date.now() / 1000 + ahead;
  let live = 0;
  for (const badge of document.querySelectorAll("[data-updated]")) {
    const age = Math.max(0, now - badge.dataset.updated), finished = badge.dataset.finished === "true";
    badge.className = `badge ${finished || age > LIVE ? "open" : "live"}`;
    badge.textContent = finished ? `finished ${ago(age)}` : `written ${ago(age)}`;
    live += !finished && age <= LIVE;
  }
  if (!$("state").classList.contains("lost")) $("state").textContent = `${plural(runs.size, "run")}, ${live || "none"} of them writing now`;
}

function ago(seconds) {
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([size]) => seconds >= size) ?? [1, "s"];
  return `${Math.floor(seconds / size)} ${unit} ago`;
}

function drawPages(pages) {
  $("pages").hidden = !pages.length;
  fill($("pages").lastElementChild, pages.map(path => el("li", {}, link(path, `page/${path.split("/").map(encodeURIComponent).join("/")}`))));
}

const link = (text, address) => el("a", { href: address, target: "_blank", rel: "noopener" }, text);

// -- a run --

function drawBody(run) {
  if (!run.node.open) return;
  const { card } = run, body = run.node.lastElementChild;
  body.style.minHeight = `${body.clientHeight}px`;  // so that the page does not jump while the body is replaced
  fill(body, card.problems.map(text => el("p", { class: "problem" }, text)), facts(card.facts), progress(card.progress), plots(run, body),
    records("Last records", card.records), records("Last rejections and open items", card.rejections), actions(run.id, card));
  body.style.minHeight = "";
}

const facts = values => Object.keys(values).length > 0
  && el("dl", { class: "facts" }, Object.entries(values).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));

function progress(parts) {
  if (!parts.length) return null;
  const named = parts.some(part => part.name);
  const columns = ["Done", "Open", "Rejected", "Records", "Tokens read", "Tokens written"];
  const reasons = part => Object.entries(part.rejected).map(([reason, count]) => `${reason}: ${count.toLocaleString("en")}`).join(", ");
  const row = part => el("tr", {}, named && el("th", { scope: "row" }, part.name),
    el("td", {}, part.done.toLocaleString("en") + (part.of === null ? "" : ` of ${part.of.toLocaleString("en")}`)), el("td", {}, part.open.toLocaleString("en")),
    el("td", { class: "reasons" }, reasons(part) || "0"), [part.records, part.read, part.written].map(count => el("td", {}, count.toLocaleString("en"))));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Progress" }, el("table", { class: named ? "named" : "unnamed" },
    el("thead", {}, el("tr", {}, named && el("th", { scope: "col" }, "Answers"), columns.map(title => el("th", { scope: "col" }, title)))), el("tbody", {}, parts.map(row))));
}

const records = (title, shown) => shown.length > 0 && el("div", {}, el("h3", {}, title),
  el("ol", { class: "shown" }, shown.map(([id, reason, text]) => el("li", {}, el("p", {}, [id, reason].filter(Boolean).join(" · ")), el("pre", { tabindex: 0 }, text)))));

function actions(id, card) {
  if (!card.links.length && !card.commands.length) return null;
  return el("div", { class: "actions" }, card.links.map(([text, address]) => link(text, address)), card.commands.map(([label, text]) => command(id, label, text)));
}

// -- curves --

/** Returns the plots of a run that have points. A sweep has a plot for each metric, with a line for each trial. */
function plots(run, body) {
  const sweep = run.card.kind === "sweep";
  const wanted = sweep ? PLOTS.flatMap(([title, names]) => Object.entries(names).map(([key, name]) => [name ? `${title}, ${name}` : title, { [key]: "" }])) : PLOTS;
  const drawn = wanted.map(([title, names]) => [title, lines(run, names)]).filter(([, lines]) => lines.length);
  if (!drawn.length) return null;
  const columns = Math.max(1, Math.floor((body.clientWidth + 4) / 280));
  const width = Math.min(460, (body.clientWidth - 29 - 32 * (columns - 1)) / Math.min(columns, 4));
  return el("div", { class: "plots" }, drawn.map(([title, lines]) => plot(run.id, title, lines, Math.max(240, width), sweep)));
}

function lines(run, names) {
  const found = new Map(), sweep = run.card.kind === "sweep";
  Object.entries(names).forEach(([key, name], i) => {
    for (const row of run.rows) {
      if (!(key in row)) continue;
      const line = `${key} ${row.run}`;
      const best = row.run === run.card.best, style = sweep && !best ? "other" : ["first", "second"][i];
      if (!found.has(line)) found.set(line, { name: sweep ? `trial ${row.run}` : name, best, style, points: [] });
      found.get(line).points.push([row.step, row[key]]);
    }
  });
  return [...found.values()].sort((a, b) => a.best - b.best);  // the best is drawn last, on top
}

/** Leaves out points, evenly, but never the last. */
function thinned(points) {
  const stride = Math.ceil(points.length / DRAWN);
  return points.filter((_, i) => i % stride === 0 || i === points.length - 1);
}

function plot(id, title, lines, width, sweep) {
  const high = 210;
  for (const line of lines) line.shown = thinned(line.points);
  const all = lines.flatMap(line => line.shown);
  const steps = all.map(([step]) => step), values = all.map(([, value]) => value);
  const constant = values.every(value => value === values[0]);  // then zero is the other end
  const x = scale(...span([0, ...steps]), 46, width - 14), y = scale(...span(constant ? [0, ...values] : values), high - 44, 12);
  const along = sweep ? lines.at(-1) : lines.reduce((a, b) => (b.points.length > a.points.length ? b : a));
  const key = line => el("span", { class: `legend ${line.style}` }, el("span", { class: "key" }), sweep ? `best so far: ${line.name}` : line.name);
  const named = lines.filter(line => (sweep ? line.best : line.name));
  while (x.ticks.length * 50 > width - 60) x.ticks = x.ticks.filter((_, i) => i % 2 === 0);
  const cursor = svg("line", { class: "cursor", y1: 12, y2: high - 44, visibility: "hidden" });
  const readout = el("p", { class: "readout", "aria-live": "polite" });
  const at = point(along.points, x, cursor, readout, sweep ? [along] : lines);
  const picture = svg("svg", { width, height: high, viewBox: `0 0 ${width} ${high}`, tabindex: 0, role: "group", "data-key": `${id} ${title}`,
    "aria-label": `${title}; ← and → move along the curve`, on: at }, frame(x, y, width, high, "Step", ""), lines.map(line => drawn(line, x, y)), cursor);
  return el("figure", {}, el("figcaption", {}, el("b", {}, title), named.map(key)), picture, readout);
}

function drawn(line, x, y) {
  const [step, value] = line.shown.at(-1);
  return svg("g", { class: line.style }, svg("title", {}, line.name), svg("polyline", { class: `curve ${line.style}`, points: line.shown.map(([step, value]) => `${x(step)},${y(value)}`).join(" ") }),
    line.style !== "other" && svg("circle", { class: "mark", cx: x(step), cy: y(value), r: 3 }));
}

/** Returns the handlers that move the cursor of a plot and write the values at its step. */
function point(points, x, cursor, readout, lines) {
  let current = points.length;
  const nearest = (all, step) => all.reduce((best, point) => (Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best));
  const show = index => {
    current = Math.min(points.length - 1, Math.max(0, index));
    const [step] = points[current];
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(step));
    cursor.setAttribute("visibility", "visible");
    readout.textContent = `Step ${step.toLocaleString("en")}: ${lines.map(line => `${line.name} ${exact(nearest(line.points, step)[1])}`.trim()).join(", ")}`;
  };
  const hide = () => {
    cursor.setAttribute("visibility", "hidden");
    readout.textContent = "";
  };
  return {
    pointermove: event => {
      const left = event.clientX - event.currentTarget.getBoundingClientRect().left;
      const distance = ([step]) => Math.abs(x(step) - left);
      show(points.reduce((best, point, i) => (distance(point) < distance(points[best]) ? i : best), 0));
    },
    pointerleave: hide,
    blur: hide,
    keydown: event => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      show(current + move);
      event.preventDefault();
    },
  };
}

const exact = value => (value && Math.abs(value) < 0.001 ? value.toExponential(2) : value.toPrecision(4)).replace("-", "−");

// -- keys --

$("filter").addEventListener("input", () => arrange());
document.addEventListener("keydown", event => {
  const typing = event.target === $("filter");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && typing) {
    $("filter").value = "";
    arrange();
    $("filter").blur();
  } else if (event.key === "/" && !typing) $("filter").focus();
  else if ((event.key === "j" || event.key === "k") && !typing) step(event.key === "j" ? 1 : -1);
  else return;
  event.preventDefault();
});

/** Moves the focus to the next or the previous run. */
function step(by) {
  const heads = [...document.querySelectorAll(".run:not([hidden]) > summary")];
  const here = heads.findIndex(head => head.parentNode.contains(document.activeElement));
  heads[Math.min(heads.length - 1, Math.max(0, here + (here < 0 ? Math.max(by, 0) : by)))]?.focus();
}

addEventListener("resize", () => { for (const run of runs.values()) drawBody(run); });
setInterval(tell, 1000);
