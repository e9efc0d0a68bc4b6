// Script of the page of rag_train.serving.strategy.

const EXAMPLES = [
  ["Who wrote The Left Hand of Darkness?", "one fact"],
  ["Where was the director of Jaws born?", "two facts, one after the other"],
  ["Which film came out first, Alien or Blade Runner?", "two facts to compare"],
];
const view = new AnswerView($("way"));
const session = [];  // all questions asked since the page was opened
let strategies = [];
let run = null;  // the question asked last

// -- asking --

function start(question, strategy) {
  run = asked(question, strategy);
  session.push(run);
  show(run);
  ask(run, "", authorization(), event => {
    view.update(run, event);
    if (!run.ended) return;
    busy();
    past();
  });
}

/** Shows a question: the one that is being asked, or one of the history. */
function show(one) {
  $("welcome").hidden = true;
  $("result").hidden = false;
  $("asked").textContent = one.question;
  view.show(one);
  busy();
  past();
  history.replaceState(null, "", `#${new URLSearchParams({ q: one.question, strategy: one.strategy })}`);
}

function busy() {
  const working = run !== null && !run.ended;
  $("ask").classList.toggle("stop", working);
  $("ask").textContent = working ? "Stop" : "Ask";
}

function past() {
  $("history").hidden = session.length < 2;
  drawPast($("history"), session, one => one === view.one, show);
}

// -- the form --

function describe() {
  $("about").textContent = about(strategies.find(strategy => strategy.id === $("strategy").value));
}

async function submit() {
  const question = $("question").value.trim();
  if (!question) return;
  if (!strategies.length) await prepare();  // with the key that has just been given
  if (strategies.length) start(question, $("strategy").value);
}

$("form").addEventListener("submit", event => {
  event.preventDefault();
  if (run && !run.ended) run.abort.abort(); else submit();
});
$("strategy").addEventListener("change", describe);
$("examples").append(...EXAMPLES.map(([question, kind]) => el("li", {}, textButton(question, () => {
  $("question").value = question;
  $("question").focus();
}), el("span", { class: "soft" }, kind))));

/** The header with the API key, if one has been given. */
const authorization = () => ($("key").value ? { Authorization: `Bearer ${$("key").value}` } : {});

/** Fills the form from the address, #q=QUESTION&strategy=NAME. A link fills the form only, as anyone can write one. */
function fillForm() {
  const given = new URLSearchParams(location.hash.slice(1));
  const strategy = given.get("strategy");
  if (strategy && ![...$("strategy").options].some(option => option.value === strategy)) $("strategy").append(new Option(strategy));
  if (strategy) $("strategy").value = strategy;
  $("question").value ||= given.get("q") ?? "";
  describe();
}

function problem(message) {
  $("problem").textContent = message;
  $("problem").hidden = !message;
}

/** Reads what the service can run. */
async function prepare() {
  problem("");
  try {
    const [health, models] = await Promise.all(["health", "v1/models"].map(path => load(path, authorization())));
    $("system").textContent = system(health);
    strategies = models.data;
    fill($("strategy"), strategies.map(strategy => new Option(strategy.id)));
    $("keyed").hidden = true;
  } catch (error) {
    if (error.status === 401) $("keyed").hidden = false;
    problem(error.status ? error.message : "The service cannot be reached.");
  }
  fillForm();
}

addEventListener("hashchange", () => {
  $("question").value = "";
  fillForm();
});
prepare();
