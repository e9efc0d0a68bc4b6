// Script of the board's chat: asks two services the same question.

const session = [];  // the questions of all rounds since the page was opened; a round asks each side
let shown = null;  // the round on the screen
const sides = [...document.querySelectorAll(".side")].map(column);
const running = () => sides.filter(side => side.run && !side.run.ended);

// -- a column --

/** Returns a column of the page: a service, its strategy, and the question that it was asked last. */
function column(node, number) {
  const [service, strategy, problem, way] = [".service", ".strategy", ".problem", ".way"].map(name => node.querySelector(name));
  const side = { node, number, service, strategy, problem, way, view: new AnswerView(way.lastElementChild), strategies: [], system: "", run: null };
  service.selectedIndex = Math.min(number, service.options.length - 1);
  service.addEventListener("change", () => prepare(side));
  strategy.addEventListener("change", () => describe(side));
  return side;
}

const base = side => `chat/${side.service.value}/`;

/** Reads what the chosen service can run. */
async function prepare(side) {
  const chosen = side.service.value;
  Object.assign(side, { strategies: [], system: "" });
  fill(side.strategy);
  describe(side);
  try {
    const [health, models] = await Promise.all(["health", "v1/models"].map(path => load(base(side) + path)));
    if (side.service.value !== chosen) return;
    Object.assign(side, { strategies: models.data, system: system(health) });
    warn(side, "");
  } catch (error) {
    if (side.service.value !== chosen) return;
    warn(side, error.status ? error.message : "The board cannot be reached; start it again.");
  }
  fill(side.strategy, side.strategies.map(strategy => new Option(strategy.id)));
  if (side.number && sides[0].service.value === chosen) side.strategy.selectedIndex = Math.min(1, side.strategies.length - 1);
  describe(side);
}

function describe(side) {
  const chosen = side.strategies.find(strategy => strategy.id === side.strategy.value);
  side.node.querySelector(".about").textContent = [side.system && `${side.system}.`, about(chosen)].filter(Boolean).join(" ");
}

function warn(side, message) {
  side.problem.textContent = message;
  side.problem.hidden = !message;
}

// -- a round --

async function start(question) {
  $("ask").disabled = true;
  await Promise.all(sides.filter(side => !side.strategies.length).map(prepare));  // services that may be up now
  $("ask").disabled = false;
  const round = {};
  for (const side of sides.filter(side => side.strategies.length).reverse()) {  // the history begins with the last
    side.run = asked(question, side.strategy.value, `${side.service.selectedOptions[0].text}, ${side.strategy.value}`);
    session.push(Object.assign(side.run, { round, side }));
  }
  if (session.at(-1)?.round !== round) return;
  show(session.at(-1));
  for (const side of running()) {
    const { run } = side;
    ask(run, base(side), {}, event => {
      side.view.update(run, event);
      if (run.ended) settle();
    });
  }
}

/** Shows the round of a question. */
function show({ round, question }) {
  shown = round;
  for (const side of sides) {
    const one = session.find(one => one.round === round && one.side === side);
    side.way.hidden = !one;
    if (!one) continue;
    side.way.querySelector("h2").textContent = one.who;
    side.way.querySelector("p").textContent = question;
    side.view.show(one);
  }
  settle();
}

function settle() {
  const working = running().length > 0;
  $("ask").classList.toggle("stop", working);
  $("ask").textContent = working ? "Stop" : "Ask";
  $("history").hidden = !session.length;
  drawPast($("history"), session, one => one.round === shown, show);
}

const stop = () => running().forEach(side => side.run.abort.abort());

// -- the page --

if (sides.length) {
  sides.forEach(prepare);
  $("form").addEventListener("submit", event => {
    event.preventDefault();
    const question = $("question").value.trim();
    if (running().length) stop(); else if (question) start(question);
  });
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") stop();
    else if (event.key === "/" && !["INPUT", "SELECT"].includes(event.target.tagName)) {
      event.preventDefault();
      $("question").focus();
      $("question").select();
    }
  });
} else fill($("start"), JSON.parse($("start").dataset.commands).map(([label, text]) => command("start", label, text)));
