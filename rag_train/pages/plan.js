// A plan as a graph, for every page that shows plans. Texts are inserted as text nodes only.

/**
 * Returns a picture of a plan's nodes, in rows by depth; each box has the node's id and question.
 * `answered` maps ids to {decision, answer, open}: a box with `open` is a link that calls it.
 */
function planGraph(nodes, answered = new Map()) {
  const WIDE = 176, HIGH = 60, ACROSS = 12, DOWN = 32;
  const draw = (tag, attributes, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const write = (tag, ...children) => {
    const node = document.createElement(tag);
    node.append(...children);
    return node;
  };
  const places = new Map(), rows = [];
  for (const node of nodes) {
    if (places.has(node.id)) continue;  // of nodes with the same id, the first counts
    const row = 1 + Math.max(-1, ...(node.parents ?? []).map(id => places.get(id)?.row ?? -1));
    places.set(node.id, { node, row, column: (rows[row] ??= []).push(node) - 1 });
  }
  const width = (WIDE + ACROSS) * Math.max(1, ...rows.map(row => row.length)) - ACROSS + 4, height = (HIGH + DOWN) * Math.max(1, rows.length) - DOWN + 4;
  const corner = ({ row, column }) => [width / 2 + (WIDE + ACROSS) * (column - rows[row].length / 2) + ACROSS / 2, (HIGH + DOWN) * row + 2];
  const edges = [...places.values()].flatMap(to => (to.node.parents ?? []).filter(id => places.has(id)).map(id => {
    const [left, top] = corner(places.get(id)), [x, y] = corner(to);
    const [x1, y1, x2] = [left + WIDE / 2, top + HIGH, x + WIDE / 2];
    return draw("path", { class: "edge", d: `M${x1} ${y1}C${x1} ${y1 + DOWN} ${x2} ${y - DOWN} ${x2} ${y}` });
  }));
  const boxes = [...places.values()].map(place => {
    const [x, y] = corner(place), { id, question } = place.node, { decision = "", answer, open } = answered.get(id) ?? {};
    const box = draw(open ? "a" : "g", { class: `node ${decision}`, ...(open && { href: "#" }) },
      draw("title", {}, [question, answer].filter(Boolean).join(" → ")),
      draw("rect", { x, y, width: WIDE, height: HIGH, rx: 6 }),
      draw("foreignObject", { x, y, width: WIDE, height: HIGH }, write("p", write("b", id), ` ${question}`)));
    if (open) box.addEventListener("click", event => { event.preventDefault(); open(); });
    return box;
  });
  const told = [...places.values()].map(({ node }) => node.id + (node.parents?.length ? ` after ${node.parents.join(" and ")}` : "")).join(", ");
  return draw("svg", { class: "plan", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Plan: ${told}` }, ...edges, ...boxes);
}
