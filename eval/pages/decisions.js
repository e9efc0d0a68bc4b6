// Decisions against the knowledge boundary, and reliability of the probability of retrieving.

const BOUNDARIES = {
  facts: ["Training facts", "One decision per step: retrieving is right if the model was not trained on the fact that the subquery asks for."],
  cot: ["Chain of thought", "One decision per question: retrieving at all is right if the same model's chain of thought without retrieval is wrong (DeepRAG, appendix B.2)."],
};
const DECIDED = [["mcc", "MCC"], ["f1", "F1"], ["balanced_accuracy", "Balanced acc."], ["accuracy", "Accuracy"]];

function drawDecisions() {
  const configs = shown();
  const kinds = Object.keys(BOUNDARIES).filter(kind => configs.some(config => config.boundaries[kind]));
  const kind = kinds.includes(state.boundary) ? state.boundary : kinds[0];
  $("decisions").hidden = !kinds.length;
  if (!kinds.length) return;
  choices("boundaries", "boundary", kinds.map(kind => [kind, BOUNDARIES[kind][0]]));
  $("boundaries").hidden = kinds.length < 2;
  $("boundary").textContent = BOUNDARIES[kind][1];
  fill($("confusions"), ["a", "b"].map(slot => [slot, cellOf(slot)?.config]).filter(([, config]) => config).map(([slot, config]) => confusion(slot, config, config.boundaries[kind])));
  const judged = configs.filter(config => total(config.boundaries[kind]));
  fill($("decided").tHead, el("tr", {}, el("th", { scope: "col" }, "Configuration"), DECIDED.map(([, title]) => el("th", { scope: "col" }, title)),
    el("th", { scope: "col", class: "left" }, "Retrieved: ○ known, ● unknown"), el("th", { scope: "col" }, kind === "facts" ? "Steps" : "Questions")));
  fill($("decided").tBodies[0], judged.map(config => {
    const counts = config.boundaries[kind];
    return el("tr", { class: slotOf(config) }, el("th", { scope: "row" }, config.name),
      DECIDED.map(([key]) => el("td", {}, counts[key] === null ? "–" : fixed(counts[key], 3))), el("td", {}, dumbbell(counts)), el("td", {}, total(counts).toLocaleString("en")));
  }));
  fold("decided", judged.length);
  const reliable = configs.filter(config => config.reliability[kind]);
  $("reliable").hidden = !reliable.length;
  fill($("reliability"), reliable.map(config => reliability(config, config.reliability[kind])));
}

const total = counts => (counts ? counts.tp + counts.fp + counts.fn + counts.tn : 0);
const share = value => (value === null ? "none" : `${(100 * value).toFixed(0)}%`);

/** Draws the shares retrieved of known cases (ideal: 0) and of unknown cases (ideal: 100%). */
function dumbbell({ retrieved_known: known, retrieved_unknown: unknown }) {
  const x = value => 6 + 168 * value;
  return svg("svg", { class: "dumbbell", viewBox: "0 0 180 14", role: "img", "aria-label": `Retrieved: ${share(known)} of the known, ${share(unknown)} of the unknown` },
    svg("title", {}, `Retrieved: ${share(known)} of the known, ${share(unknown)} of the unknown`),
    svg("line", { class: "grid", x1: 6, x2: 174, y1: 7, y2: 7 }),
    known !== null && unknown !== null && svg("line", { class: "bar", x1: x(known), x2: x(unknown), y1: 7, y2: 7 }),
    known !== null && svg("circle", { class: "hollow", cx: x(known), cy: 7, r: 5.5 }),
    unknown !== null && svg("circle", { class: "mark", cx: x(unknown), cy: 7, r: 3.5 }));
}

function confusion(slot, config, counts) {
  const title = el("caption", {}, el("span", { class: `slot ${slot}` }, slot.toUpperCase()), ` ${config.name}`);
  if (!total(counts)) return el("table", { class: "confusion" }, title, el("tbody", {}, el("tr", {}, el("td", { class: "soft" }, "No decision matches the boundary."))));
  const row = (name, memory, retrieved, right) => el("tr", {}, el("th", { scope: "row" }, name),
    [memory, retrieved].map((count, i) => {
      const part = count / Math.max(1, memory + retrieved);
      const cell = el("td", { class: (i === 0) === right ? "right" : "wrong" }, count.toLocaleString("en"), el("span", {}, ` ${(100 * part).toFixed(0)}%`));
      cell.style.setProperty("--share", `${(15 + 85 * part).toFixed(0)}%`);
      return cell;
    }));
  return el("table", { class: "confusion" }, title,
    el("thead", {}, el("tr", {}, el("td"), ["From memory", "Retrieved"].map(name => el("th", { scope: "col" }, name)))),
    el("tbody", {}, row("Known", counts.tp, counts.fn, true), row("Unknown", counts.fp, counts.tn, false)),
    counts.unmatched > 0 && el("tfoot", {}, el("tr", {}, el("td", { colspan: 3, class: "soft" }, `Not counted: ${plural(counts.unmatched, "step")} that ask for no fact of the boundary.`))));
}

function reliability(config, { points, ece, steps }) {
  const x = scale(0, 1, 42, 254), y = scale(0, 1, 222, 10);
  const most = Math.max(...points.map(([, , , , n]) => n));
  return el("figure", { class: slotOf(config) },
    el("figcaption", {}, el("b", {}, config.name), el("span", { class: "soft" }, ` ECE ${ece.toFixed(3)} over ${plural(steps, "step")}`)),
    svg("svg", { class: "plot", viewBox: "0 0 264 300", role: "img", "aria-label": `${config.name}: ${points.map(([p, unknown, , , n]) => `at ${p.toFixed(2)}, ${unknown.toFixed(2)} unknown of ${n}`).join("; ")}` },
      [0, 0.5, 1].flatMap(tick => [
        svg("line", { class: "grid", x1: 42, x2: 254, y1: y(tick), y2: y(tick) }), svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 10, y2: 222 }),
        svg("text", { class: "tick", x: 36, y: y(tick) + 4, "text-anchor": "end" }, String(tick)),
        svg("text", { class: "tick", x: x(tick), y: 278, "text-anchor": "middle" }, String(tick))]),
      svg("line", { class: "diagonal", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }),
      points.map(([p, , , , n]) => svg("rect", { class: "count", x: x(Math.min(9, Math.floor(10 * p)) / 10) + 2, width: 17.2, y: 262 - 32 * n / most, height: 32 * n / most })),
      svg("polyline", { class: "hull", points: points.map(([p, unknown]) => `${x(p)},${y(unknown)}`).join(" ") }),
      points.map(([p, unknown, lo, hi, n]) => svg("g", {}, svg("title", {}, `${p.toFixed(2)}: ${unknown.toFixed(2)} unknown of ${plural(n, "step")}`),
        svg("line", { class: "bar", x1: x(p), x2: x(p), y1: y(lo), y2: y(hi) }), svg("circle", { class: "mark", cx: x(p), cy: y(unknown), r: 4.5 }))),
      svg("text", { class: "tick", x: 148, y: 296, "text-anchor": "middle" }, "Probability of retrieving"),
      svg("text", { class: "tick", transform: "translate(9 116) rotate(-90)", "text-anchor": "middle" }, "Share unknown")));
}
