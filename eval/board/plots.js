// Axes of plots, for the scripts of all pages.

/** Returns a linear or logarithmic map from [lo, hi] to [start, end], with round ticks. */
function scale(lo, hi, start, end, log = false) {
  const warp = log ? Math.log10 : value => value;
  const map = value => start + (warp(value) - warp(lo)) / (warp(hi) - warp(lo)) * (end - start);
  if (log) {
    const all = [1, 2, 5].flatMap(m => Array.from({ length: 12 }, (_, i) => m * 10 ** (i - 2)));
    map.ticks = all.filter(value => value >= lo && value <= hi).sort((a, b) => a - b);
  } else {
    const step = roundStep(hi - lo);
    const first = Math.ceil(lo / step - 1e-9);
    map.ticks = Array.from({ length: Math.floor(hi / step + 1e-9) - first + 1 }, (_, i) => Number(((first + i) * step).toFixed(9)));
  }
  return map;
}

function roundStep(span) {
  const power = 10 ** Math.floor(Math.log10(span / 4));
  return Math.max(...[1, 2, 5].map(m => m * power).filter(step => step <= span / 4 * (1 + 1e-9)));
}

/** Returns round ends of a scale for values; the lower end is zero if zero is near. */
function span(values) {
  const least = Math.min(...values), most = Math.max(...values);
  const lo = least < 0.5 * most ? 0 : least;
  const hi = most > lo ? most : lo + 1;
  const step = roundStep(hi - lo);
  return [Math.floor(lo / step + 1e-9) * step, Math.ceil(hi / step - 1e-9) * step];
}

const tickText = tick => (tick && Math.abs(tick) < 0.001 ? tick.toExponential() : String(tick)).replace("-", "−");

/** Draws the grid, the axes and their labels for a plot with margins of 46 on the left, 14 on the right and 44 below. */
function frame(x, y, width, high, across, up) {
  return [
    ...y.ticks.flatMap(tick => [svg("line", { class: "grid", x1: 46, x2: width - 14, y1: y(tick), y2: y(tick) }),
      svg("text", { class: "tick", x: 39, y: y(tick) + 4, "text-anchor": "end" }, tickText(tick))]),
    svg("line", { class: "axis", x1: 46, x2: width - 14, y1: high - 44, y2: high - 44 }),
    ...x.ticks.map(tick => svg("text", { class: "tick", x: x(tick), y: high - 26, "text-anchor": "middle" }, tick.toLocaleString("en"))),
    svg("text", { class: "tick", x: (32 + width) / 2, y: high - 6, "text-anchor": "middle" }, across),
    svg("text", { class: "tick", transform: `translate(11 ${high / 2 - 16}) rotate(-90)`, "text-anchor": "middle" }, up),
  ];
}

/** Returns a function that calls `draw` with the width of `node`; redraws when the width changes. */
function sized(node, draw) {
  let last = 0;
  const again = () => { last = node.clientWidth; if (last) draw(last); };
  new ResizeObserver(() => { if (node.clientWidth !== last) again(); }).observe(node);
  return again;
}
