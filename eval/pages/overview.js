// Leaderboard, cost, parts and tokens.

const ANSWERS = ["em", "f1", "accuracy"];  // measures that every question has
const measure = key => ({ key, title: key === "em" ? "EM" : MEASURES[key], best: -1, format: value => percent(value), of: config => config.overall[key] });
const COLUMNS = [
  { key: "name", title: "Configuration", of: config => config.name },
  { key: "questions", title: "n", best: -1, format: value => fixed(value, 0), of: config => config.questions },
  ...ANSWERS.map(key => ({ ...measure(key), interval: true })),
  ...Object.keys(COSTS).map(key => ({ key, title: key === "completion_tokens" ? "Written" : COSTS[key], best: 1, format: value => fixed(value, digits(key)), of: config => config.overall[key] })),
  ...Object.keys(MEASURES).filter(key => !ANSWERS.includes(key)).map(key => ({ ...measure(key), optional: true })),
  { key: "mcc", optional: true, title: "MCC", best: -1, format: value => fixed(value, 3), of: config => mcc(config) },
  { key: "unparsed", title: "Unparsed", best: 1, format: value => percent(value), of: config => config.unparsed },
  { key: "empty", title: "Empty", best: 1, format: value => percent(value), of: config => config.empty },
  { key: "errors", optional: true, title: "Refused", best: 1, format: value => fixed(value, 0), of: config => config.errors },
];

const mcc = config => config.boundaries.facts?.mcc ?? null;
const first = value => (Array.isArray(value) ? value[0] : value ?? null);

/** Returns the measures that are within 0.2 points of exact match in all configurations, as with answers of one word. */
const nearEM = configs => ["f1", "accuracy"].filter(key => configs.every(({ overall }) => Math.abs(overall[key][0] - overall.em[0]) <= 0.002));

function drawBoard() {
  const configs = shown();
  const near = nearEM(configs);
  const columns = COLUMNS.filter(column => !near.includes(column.key) && (!column.optional || configs.some(config => column.of(config))));
  const [by, direction] = (state.sort || `${state.metric}:down`).split(":");
  const sorted = columns.find(column => column.key === by) ?? columns.find(column => column.key === "em");
  const sign = direction === "up" ? 1 : -1;
  const value = config => first(sorted.of(config));
  configs.sort((a, b) => (value(a) === null) - (value(b) === null) || sign * (value(a) > value(b) ? 1 : value(a) < value(b) ? -1 : 0));
  fill($("board").tHead, el("tr", {}, el("th", { scope: "col", class: "picks" }, el("span", { class: "unseen" }, "Compare")),
    columns.map(column => heading(column, column === sorted ? sign : 0))));
  const most = Math.max(...configs.flatMap(config => ANSWERS.map(key => config.overall[key][2])), 0.01);
  fill($("board").tBodies[0], configs.map(config => el("tr", { class: slotOf(config) }, picks(config),
    columns.map(column => (column.key === "name" ? el("th", { scope: "row" }, config.name) : figure(column, config, most))))));
  fold("board", configs.length);
  headline(configs);
  const seeds = Math.max(...configs.map(config => config.cells.length));
  const others = configs.some(config => !sameQuestions(config, cellOf("a").config));
  $("intervals").textContent = ["Scores in percent, costs per question, with 95% intervals "
    + (seeds > 1 ? `over the ${seeds} seeds.` : "over the questions, Wilson's for scores."),
    near.length && `Not shown, as within 0.2 points of exact match in every row: ${near.map(key => inSentence(MEASURES[key])).join(" and ")}.`,
    "n: questions; unparsed: share of questions in which the text of a module did not parse; empty: share without an answer.",
    others && "≠: other questions than A's, so a difference from A may be one of the questions."].filter(Boolean).join(" ");
}

function heading(column, sign) {
  const down = sign < 0 || (!sign && column.best === -1);
  return el("th", { scope: "col", class: column.interval && "left", "aria-sort": sign ? (sign < 0 ? "descending" : "ascending") : null },
    el("button", { type: "button", "data-key": `sort-${column.key}`,
      on: { click: () => update({ sort: `${column.key}:${sign ? (down ? "up" : "down") : (down ? "down" : "up")}` }) } },
      column.title, el("span", { class: "arrow", "aria-hidden": "true" }, sign ? (sign < 0 ? "▾" : "▴") : "")));
}

function figure(column, config, most) {
  const value = column.of(config);
  if (first(value) === null) return el("td", { class: "soft" }, "–");
  const text = column.format(first(value));
  if (column.key === "questions" && !sameQuestions(config, cellOf("a").config)) return el("td", { title: "other questions than A's" }, `${text}\u00a0≠`);
  if (!Array.isArray(value)) return el("td", {}, text);
  const interval = `95% interval ${column.format(value[1])} to ${column.format(value[2])}`;
  if (!column.interval) return el("td", { title: interval }, text);
  return el("td", { title: interval }, el("span", { class: "with-interval" }, text, drawInterval(value, most, interval)));
}

/** Two buttons that make a configuration A or B. */
function picks(config) {
  return el("td", { class: "picks" }, ["a", "b"].map(slot => el("button", { type: "button", class: `pick ${slot}`, "data-key": `${slot}-${config.name}`,
    "aria-pressed": String(slotOf(config) === slot), "aria-label": `${slot.toUpperCase()}: ${config.name}`, on: { click: () => pick(slot, config) } }, slot.toUpperCase())));
}

/** Selects a configuration for comparison: its cell with the other slot's questions if it exists, else its first cell. */
function pick(slot, config) {
  const other = cellOf(slot === "a" ? "b" : "a");
  const number = config.cells.find(number => index.cells[number].set === other?.set) ?? config.cells[0];
  update({ [slot]: index.cells[number].id });
}

/** Returns a title for use within a sentence: "exact match", but "F1". */
const inSentence = title => (/^[A-Z][a-z]/.test(title) ? title[0].toLowerCase() + title.slice(1) : title);

/** Says which configuration is best, and which as good one is cheapest, among those that answered the same questions. */
function headline(configs) {
  const value = config => config.overall[state.metric]?.[0] ?? null;
  const [best] = shown();
  const measured = configs.filter(config => value(config) !== null), compared = measured.filter(config => sameQuestions(config, best));
  const tied = compared.filter(config => value(config) === value(best));
  const at = config => `${percent(value(config))} ${ends(config.overall[state.metric], percent)}`;
  const rivals = compared.filter(config => config.overall[state.metric][2] >= best.overall[state.metric][1]);
  const cheap = rivals.reduce((a, b) => (b.overall[state.cost][0] < a.overall[state.cost][0] ? b : a), best);
  const price = config => `${fixed(config.overall[state.cost][0], digits(state.cost))} ${COSTS[state.cost].toLowerCase()}`;
  const title = inSentence(MEASURES[state.metric]);
  const winner = tied.length > 1
    ? [el("b", {}, tied.length > 3 ? `${tied.length} configurations` : tied.map(config => config.name).join(" and ")), ` tie for the highest ${title}, ${at(best)} percent. `]
    : [el("b", {}, best.name), ` has the highest ${title}, ${at(best)} percent, at ${price(best)} per question. `];
  const cheapest = cheap === best ? ["No configuration with an overlapping interval is cheaper. "]
    : ["The cheapest configuration with an overlapping interval is ", el("b", {}, cheap.name), `, ${at(cheap)} at ${price(cheap)}. `];
  const left = measured.length - compared.length;
  fill($("headline"), ...(value(best) === 0 ? [`No configuration has a right answer: every ${title} is ${at(best)} percent. `] : [...winner, ...cheapest]),
    left > 0 && `${plural(left, "configuration")} answered other questions and ${left > 1 ? "are" : "is"} not compared here.`);
}

// -- accuracy against cost --

let pointed = null;  // the configuration of the marked point
let marks = [];  // {config, x, y} from left to right
const drawFrontier = sized($("frontier"), width => {
  const configs = shown().filter(config => config.overall[state.metric]);
  const high = width < 600 ? 320 : 420;
  const costs = configs.map(config => config.overall[state.cost]);
  const least = Math.min(...costs.map(cost => cost[0])), most = Math.max(...costs.map(cost => cost[0]));
  const log = least > 0 && most / least > 30;
  const [lo, hi] = log ? [least / 1.3, most * 1.3] : span(costs.flat().map(value => Math.max(0, value)));
  const x = scale(lo, hi, 46, width - 14, log);
  const [bottom, top] = span(configs.flatMap(config => config.overall[state.metric].map(value => 100 * Math.min(1, Math.max(0, value)))));
  const y = scale(bottom, top, high - 44, 12);
  marks = configs.map(config => ({ config, x: x(config.overall[state.cost][0]), y: y(100 * config.overall[state.metric][0]) }))
    .sort((a, b) => a.x - b.x || a.y - b.y);
  const line = unbeaten();
  const cut = value => Math.min(Math.max(value, Math.min(lo, hi)), Math.max(lo, hi));
  const bars = mark => {
    const [, low, high] = mark.config.overall[state.metric], [, less, more] = mark.config.overall[state.cost];
    const clip = value => Math.min(top, Math.max(bottom, 100 * value));
    return [svg("line", { class: "bar", x1: x(cut(less)), x2: x(cut(more)), y1: mark.y, y2: mark.y }),
      svg("line", { class: "bar", x1: mark.x, x2: mark.x, y1: y(clip(low)), y2: y(clip(high)) })];
  };
  const ordered = [...marks].sort((a, b) => !!slotOf(a.config) - !!slotOf(b.config));
  const picture = svg("svg", { width, height: high, viewBox: `0 0 ${width} ${high}`, tabindex: 0, role: "group", "data-key": "frontier",
    "aria-label": `${MEASURES[state.metric]} against ${COSTS[state.cost].toLowerCase()}; ← and → move between the marks`,
    on: { pointermove: pointNearest, pointerleave: () => point(null), click: event => pointed && pick(event.shiftKey ? "b" : "a", pointed), keydown: moveMark, blur: () => point(null) } },
    frame(x, y, width, high, `${COSTS[state.cost]} per question${log ? " (logarithmic)" : ""}`, `${MEASURES[state.metric]} (%)`),
    svg("polyline", { class: "hull", points: line.map(mark => `${mark.x},${mark.y}`).join(" ") }),
    ordered.map(mark => svg("g", { class: `point ${slotOf(mark.config)}` }, line.includes(mark) || slotOf(mark.config) ? bars(mark) : [],
      svg("circle", { class: "mark", cx: mark.x, cy: mark.y, r: slotOf(mark.config) ? 6.5 : 4.5 }))),
    labels(line, width, high),
    svg("circle", { class: "ring", r: 9, visibility: "hidden" }));
  fill($("frontier"), picture);
  point(null);
});

/** Returns the marks that no other mark beats on both axes, from left to right. */
function unbeaten() {
  let best = Infinity;
  return [...marks].sort((a, b) => a.x - b.x || a.y - b.y).filter(mark => mark.y < best && ((best = mark.y), true));
}

/** Labels A, B and the marks of the line; if possible, without overlaps and inside the plot. */
function labels(line, width, high) {
  const taken = marks.map(mark => [mark.x - 6, mark.y - 6, mark.x + 6, mark.y + 6]);
  const wanted = marks.filter(mark => slotOf(mark.config) || line.includes(mark)).sort((a, b) => !!slotOf(b.config) - !!slotOf(a.config));
  return wanted.map(mark => {
    const name = short(mark.config.name, Math.min(32, Math.floor(width / 16))), wide = 7.2 * name.length;
    const spots = [-9, 17, 4, -22, 30, -35, 43].flatMap(up => [[mark.x + 10, mark.y + up], [mark.x - 10 - wide, mark.y + up]]);
    const clashes = ([left, base]) => {
      const outside = left < 48 || left + wide > width || base < 12 || base > high - 48;
      return 5 * outside + taken.filter(b => left < b[2] && b[0] < left + wide && base - 11 < b[3] && b[1] < base + 3).length;
    };
    const [left, base] = spots.reduce((best, spot) => (clashes(spot) < clashes(best) ? spot : best));
    taken.push([left, base - 11, left + wide, base + 3]);
    const end = left < mark.x;
    return svg("text", { class: `label ${slotOf(mark.config)}`, x: end ? mark.x - 10 : mark.x + 10, y: base, "text-anchor": end ? "end" : "start" }, name);
  });
}

function point(mark) {
  pointed = mark?.config ?? null;
  const ring = $("frontier").querySelector(".ring");
  ring.setAttribute("visibility", mark ? "visible" : "hidden");
  if (mark) for (const axis of ["x", "y"]) ring.setAttribute(`c${axis}`, mark[axis]);
  const measure = mark?.config.overall[state.metric], cost = mark?.config.overall[state.cost];
  const format = value => fixed(value, digits(state.cost));
  $("readout").textContent = mark ? `${pointed.name}: ${percent(measure[0])} ${ends(measure, percent)} at ${format(cost[0])} ${ends(cost, format)} ${COSTS[state.cost].toLowerCase()}` : "";
}

function pointNearest(event) {
  const box = event.currentTarget.getBoundingClientRect();
  const distance = mark => Math.hypot(mark.x - (event.clientX - box.left), mark.y - (event.clientY - box.top));
  const best = marks.reduce((a, b) => (distance(b) < distance(a) ? b : a));
  point(distance(best) < 40 ? best : null);
}

function moveMark(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (step) {
    const at = marks.findIndex(mark => mark.config === pointed);
    point(marks[at < 0 ? (step > 0 ? 0 : marks.length - 1) : Math.min(marks.length - 1, Math.max(0, at + step))]);
  } else if (event.key === "Enter" && pointed) {
    const config = pointed;
    pick(event.shiftKey ? "b" : "a", config);
    point(marks.find(mark => mark.config === config));
  } else return;
  event.preventDefault();
}

// -- by hops and type --

const partName = (kind, value) => (kind === "hops" ? plural(value, "hop") : value);

function drawParts() {
  const configs = shown();
  const parts = ["hops", "type"].flatMap(kind => [...new Set(configs.flatMap(config => config[kind].map(part => part.value)))]
    .sort((a, b) => (a > b ? 1 : -1)).map(value => ({ kind, value, of: config => config[kind].find(part => part.value === value) })));
  $("parts").hidden = !parts.length;
  if (!parts.length) return;
  versus(parts);
  fill($("heat").tHead, el("tr", {}, el("th", { scope: "col" }, "Configuration"), parts.map(part => el("th", { scope: "col" }, partName(part.kind, part.value)))));
  const most = Math.max(...configs.flatMap(config => parts.map(part => part.of(config)?.[state.metric]?.[0] ?? 0)), 0.01);
  fill($("heat").tBodies[0], configs.map(config => el("tr", { class: slotOf(config) }, el("th", { scope: "row" }, config.name), parts.map(part => {
    const found = part.of(config);
    if (!found?.[state.metric]) return el("td", { class: "soft" }, "–");
    const [mean] = found[state.metric];
    const cell = el("td", { title: plural(found.questions, "question") }, percent(mean), el("span", { class: "soft" }, ` ${ends(found[state.metric], value => percent(value, 0))}`));
    cell.style.setProperty("--heat", `${(55 * mean / most).toFixed(0)}%`);
    return cell;
  }))));
  fold("heat", configs.length);
}

/** Draws A and B for each part, as marks with intervals from 0 to 100%. */
let versusParts = [];
const drawVersus = sized($("versus"), width => {
  const configs = ["a", "b"].map(slot => [slot, cellOf(slot)?.config]).filter(([, config]) => config);
  const left = Math.min(170, width * 0.36), x = scale(0, 100, left, width - 14);
  const high = 40 * versusParts.length + 26;
  fill($("versus"), svg("svg", { width, height: high, viewBox: `0 0 ${width} ${high}`, role: "img", "aria-label": `${MEASURES[state.metric]} of A and B by hops and type; the numbers are in the table below` },
    x.ticks.flatMap(tick => [svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: high - 24 }),
      svg("text", { class: "tick", x: x(tick), y: high - 6, "text-anchor": "middle" }, `${tick}%`)]),
    versusParts.flatMap((part, row) => [
      svg("text", { x: 0, y: 40 * row + 17 }, short(partName(part.kind, part.value), Math.floor((left - 8) / 7))),
      svg("text", { class: "tick", x: 0, y: 40 * row + 33 }, plural(part.of(configs[0][1])?.questions ?? 0, "question")),
      ...configs.filter(([, config]) => part.of(config)?.[state.metric]).map(([slot, config], i) => {
        const [mean, lo, hi] = part.of(config)[state.metric].map(value => x(100 * Math.min(1, Math.max(0, value)))), y = 40 * row + 14 + 13 * i;
        return svg("g", { class: `point ${slot}` }, svg("title", {}, `${config.name}: ${percent(part.of(config)[state.metric][0])}`),
          svg("line", { class: "bar", x1: lo, x2: hi, y1: y, y2: y }), svg("circle", { class: "mark", cx: mean, cy: y, r: 5 }));
      }),
    ])));
});

function versus(parts) {
  versusParts = parts;
  drawVersus();
}

// -- tokens by module --

function drawTokens() {
  const total = config => config.tokens.reduce((sum, [, , read, written]) => sum + read + written, 0);
  const configs = shown().sort((a, b) => total(b) - total(a));
  const most = Math.max(...configs.map(total), 1);
  const open = new Set([...$("modules").querySelectorAll("details[open]")].map(node => node.dataset.name));
  fill($("modules"), configs.map(config => el("details", { class: slotOf(config), "data-name": config.name, open: open.has(config.name) },
    el("summary", { "data-key": `tokens-${config.name}` }, el("span", { class: "name" }, config.name), stack(config, most), el("span", { class: "figure" }, fixed(total(config), 0))),
    el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, ["Module", "Calls", "Read", "Written"].map(title => el("th", { scope: "col" }, title)))),
      el("tbody", {}, config.tokens.map(([module, calls, read, written], i) => el("tr", {},
        el("th", { scope: "row" }, el("span", { class: `key c${i % 8}` }), module), el("td", {}, fixed(calls, 2)), el("td", {}, fixed(read, 1)), el("td", {}, fixed(written, 1))))))))));
  fold("modules", configs.length);
}

function stack(config, most) {
  let at = 0;
  return svg("svg", { class: "stack", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    config.tokens.map(([module, , read, written], i) => {
      const wide = 100 * (read + written) / most;
      at += wide;
      return svg("rect", { class: `c${i % 8}`, x: at - wide, y: 0, width: wide, height: 10 }, svg("title", {}, `${module}: ${fixed(read + written, 0)}`));
    }));
}
