// Questions to strategy services, and the ways to their answers, for every page that asks.

// -- asking --

/** Returns a question, to be filled by `ask` with what arrives of its answer. `who` answers it. */
const asked = (question, strategy, who = strategy) => ({ question, strategy, who, steps: [], plan: [], outline: {}, answer: "", problem: "", trajectory: null,
  began: performance.now(), seconds: 0, ended: false, abort: new AbortController() });

/** Asks the service at `base`. Calls `changed` with each event, and without one as time passes and at the end. */
async function ask(one, base, headers, changed) {
  const tick = () => {
    one.seconds = (performance.now() - one.began) / 1000;
    changed();
  };
  const clock = setInterval(tick, 100);
  try {
    const body = JSON.stringify({ stream: true, strategy: one.strategy, messages: [{ role: "user", content: one.question }] });
    const signal = one.abort.signal;
    const response = await fetch(`${base}v1/chat/completions`, { method: "POST", headers: { "Content-Type": "application/json", ...headers }, body, signal });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const event of events(response.body)) {
      receive(one, event);
      changed(event);
    }
    if (!one.trajectory && !one.problem) throw new Error("The connection to the service was lost.");
  } catch (error) {
    one.problem = one.abort.signal.aborted ? "Stopped." : error.message;
  } finally {
    clearInterval(clock);
    one.ended = true;
    tick();
  }
}

/** Yields the JSON objects of a stream of server-sent events. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const whole = (text + value).split("\n\n");
    text = whole.pop();
    for (const event of whole) if (event !== "data: [DONE]") yield JSON.parse(event.slice("data: ".length));
  }
}

function receive(one, event) {
  if (event.error) one.problem = event.error.message;
  if (event.step) one.steps.push(event.step);
  if (event.plan) one.plan = event.plan.nodes;
  if (event.outline) one.outline = event.outline;
  one.answer += event.choices?.[0]?.delta.content ?? "";
  if (!event.trajectory) return;
  one.trajectory = event.trajectory;
  one.plan = event.trajectory.plan?.nodes ?? [];
  one.outline = event.trajectory.outline;
}

/** Reads what a service says of itself, such as its health. */
async function load(path, headers = {}) {
  const response = await fetch(path, { headers });
  if (!response.ok) throw Object.assign(new Error((await response.json()).error.message), { status: response.status });
  return response.json();
}

const system = health => `${health.model} with ${health.retriever}, ${plural(health.k, "passage")} per search`;

const about = strategy => [strategy?.description, strategy?.paper].filter(Boolean).join(" ");

/** Returns what a question has cost; without a trajectory, its calls and tokens are not known. */
function cost({ steps, trajectory, seconds }) {
  const queries = steps.filter(step => step.decision === "retrieve").flatMap(step => (step.queries.length ? step.queries : [step.subquery]));
  return {
    retrievals: queries.filter(query => query.trim()).length,
    calls: trajectory?.calls.length,
    tokens: trajectory?.calls.reduce((sum, call) => sum + call.prompt_tokens + call.completion_tokens, 0),
    seconds: seconds.toFixed(1),
  };
}

// -- citations --

const SENTENCES = new Intl.Segmenter("en", { granularity: "sentence" });
const NAMES = /(?<![\p{L}\p{N}])[\p{Lu}\p{N}][\p{L}\p{N}]*/gu;
const FUNCTION_WORDS = new Set("a an and at by for from he her his in is it its no of on or she that the their there these they this was were yes".split(" "));

/** Returns a pattern that finds whole words. */
const words = texts => new RegExp(`(?<![\\p{L}\\p{N}])(${texts.map(text => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})(?![\\p{L}\\p{N}])`, "iu");

/**
 * Returns the words of a passage that an answer to a question can rest on: the answer as it stands, or all names and numbers of the
 * answer that the question does not have. There are none for yes and no, which any text may have.
 */
function evidence(passage, answer, question) {
  const bare = answer.trim().replace(/[.!?]+$/, "");
  if (!bare || /^(yes|no)$/i.test(bare)) return [];
  if (words([bare]).test(passage)) return [bare];
  const names = (bare.match(NAMES) ?? []).filter(name => !FUNCTION_WORDS.has(name.toLowerCase()) && !words([name]).test(question));
  return names.every(name => words([name]).test(passage)) ? names : [];
}

const marked = (text, found) => (found.length ? text.split(words(found)).map((part, i) => (i % 2 ? el("mark", {}, part) : part)) : text);

/** Returns the sources that an answer to a question can rest on, with the words `found` in them. */
const supporting = (sources, answer, question) => sources.map(source => ({ ...source, found: evidence(source.passage.text, answer, question) })).filter(source => source.found.length);

/** Returns an answer with the numbers of the sources that `choose` returns for each sentence; a number opens its passage below. */
function cited(answer, choose) {
  const quotes = [];
  const cite = source => {
    const quote = el("blockquote", { hidden: true }, passageHead(source, textButton(`in ${source.place}`, source.visit)), el("p", {}, marked(source.passage.text, source.found)));
    const open = event => {
      quote.hidden = !quote.hidden;
      event.currentTarget.setAttribute("aria-expanded", String(!quote.hidden));
    };
    quotes.push(quote);
    return el("button", { type: "button", class: "cite", title: titleOf(source.passage), "aria-label": `Passage ${source.number}: ${titleOf(source.passage)}`, "aria-expanded": "false",
      on: { click: open } }, `[${source.number}]`);
  };
  const parts = [...SENTENCES.segment(answer)].flatMap(({ segment }) => {
    const text = segment.trimEnd();
    return [text, choose(text).map(cite), segment.slice(text.length)];
  });
  return [el("p", {}, ...parts), ...quotes];
}

const keyOf = passage => JSON.stringify([passage.id, passage.title, passage.text]);
const titleOf = passage => passage.title || passage.id;
const passageHead = ({ number, passage }, ...more) => el("p", { class: "source" }, el("span", {}, `[${number}] `, el("b", {}, titleOf(passage))), ...more);

// -- the way to an answer --

const titled = (title, content) => [el("h3", {}, title), content];
const listing = entries => el("dl", {}, entries.flatMap(([name, lines]) => [
  el("dt", {}, name), el("dd", {}, lines.length > 1 ? el("ul", {}, lines.map(line => el("li", {}, line))) : lines[0])]));

/** Draws the way of a question to its answer into `node`: as it is with `show`, and what has changed with `update`. */
class AnswerView {
  constructor(node) {
    fill(node,
      this.problem = el("p", { class: "problem", role: "alert", hidden: true }),
      this.answer = el("div", { class: "answer", "aria-live": "polite" }),
      this.status = el("p", { class: "soft status" }),
      this.reasoning = el("div"),
      this.plan = el("div", { class: "part" }),
      el("div", { class: "columns" },
        this.trail = el("div", { class: "part" }, el("h3", {}, "Steps"), this.steps = el("ol", { class: "steps", "aria-live": "polite", "aria-relevant": "additions" })),
        this.aside = el("div", { class: "aside" })));
  }

  show(one) {
    this.one = one;
    this.cards = [];
    this.sources = new Map();  // by passage, with numbers from 1
    fill(this.steps, !one.ended && el("li", { class: "pending busy" }, "The next step is running."));
    fill(this.answer);
    one.steps.forEach(step => this.add(step));
    this.draw();
  }

  /** Draws the changes by an event, or by time. */
  update(one, event) {
    if (this.one !== one) return;
    if (event?.step) this.add(event.step);
    if (event || one.ended) this.draw();
    else this.count();
  }

  draw() {
    const { one, one: { trajectory } } = this;
    this.count();
    this.problem.textContent = one.problem;
    this.problem.hidden = !one.problem;
    this.trail.hidden = one.ended && !one.steps.length;
    const answered = one.steps.map((step, i) => [step.node, { ...step, open: () => visit(this.cards[i]) }]);
    fill(this.plan, one.plan.length > 0 && titled("Plan", el("div", { class: "scroll" }, planGraph(one.plan, new Map(answered)))));
    const outline = Object.entries(one.outline), notes = Object.entries(trajectory?.notes ?? {});
    fill(this.aside, [
      outline.length > 0 && titled("Outline", listing(outline)),
      notes.length > 0 && titled("Notes", listing(notes.map(([name, note]) => [name, [note]]))),
      trajectory?.calls.length > 0 && titled("Calls", callTable(trajectory.calls)),
    ].map(part => part && el("div", { class: "part" }, part)));
    if (one.ended) this.finish();
  }

  /** Draws what is known at the end: the answer with its sources, and its words in all passages. */
  finish() {
    const { one, one: { trajectory, steps } } = this;
    this.steps.querySelector(".pending")?.remove();
    steps.forEach((step, i) => {
      const details = this.cards[i].querySelector("details");
      if (details) fill(details, details.firstChild, this.quotes(step));
    });
    if (!trajectory) return;
    fill(this.reasoning, trajectory.reasoning && el("details", {}, el("summary", {}, "Reasoning"), el("blockquote", {}, trajectory.reasoning)));
    const answer = trajectory.answer || "No answer.";
    fill(this.answer, cited(answer, sentence => this.support(sentence)));
    if (trajectory.answer && this.sources.size && !this.answer.querySelector(".cite")) this.answer.append(el("p", { class: "soft" }, "No passage that was found has this answer."));
  }

  /** Returns the sources of a sentence of the answer; of yes and no, which no passage says, those of the steps. */
  support(sentence) {
    const { one: { question, steps } } = this;
    if (!/^(yes|no)\b/i.test(sentence)) return supporting([...this.sources.values()], sentence, question);
    const all = steps.flatMap(step => supporting(this.sourcesOf(step), step.answer, step.subquery));
    return [...new Map(all.map(source => [source.number, source])).values()].sort((a, b) => a.number - b.number);
  }

  sourcesOf(step) {
    return [...new Set(step.passages.map(passage => this.sources.get(keyOf(passage))))];
  }

  quotes(step) {
    const { one: { question, trajectory } } = this;
    return this.sourcesOf(step).map(source => el("blockquote", {}, passageHead(source), el("p", {}, marked(source.passage.text, evidence(source.passage.text, trajectory?.answer ?? "", question)))));
  }

  count() {
    const { one } = this, { retrievals, calls, tokens, seconds } = cost(one);
    const figures = [plural(one.steps.length, "step"), plural(retrievals, "retrieval"), ...(one.trajectory ? [plural(calls, "call"), plural(tokens, "token")] : []), `${seconds} s`];
    this.status.classList.toggle("busy", !one.ended);
    this.status.textContent = (one.ended ? "" : "Working: ") + figures.join(", ");
  }

  add(step) {
    const number = this.cards.length + 1, card = el("li", { class: `step ${step.decision}`, tabindex: -1 }), place = `step ${number}`;
    for (const passage of step.passages) {
      const key = keyOf(passage);
      if (!this.sources.has(key)) this.sources.set(key, { number: this.sources.size + 1, passage, place, visit: () => visit(card) });
    }
    fill(card,
      el("p", { class: "head" }, el("span", {}, step.node || `${number}`), el("span", { class: "badge" }, step.decision === "retrieve" ? "searched" : "knew"),
        step.retrieve_probability !== null && el("span", {}, `P(search) ${step.retrieve_probability.toFixed(2)}`)),
      el("p", { class: "subquery" }, step.subquery),
      step.queries.length > 0 && el("p", { class: "soft" }, `Queries: ${step.queries.join(" · ")}`),
      step.passages.length > 0 && el("details", {}, el("summary", {}, plural(step.passages.length, "passage")), this.quotes(step)),
      step.answer && cited(step.answer, sentence => supporting(this.sourcesOf(step), sentence, step.subquery)));
    this.cards.push(card);
    this.row(step.round === null ? place : `round ${step.round}`).append(card);
  }

  /** Returns the list of a round. Rounds are below each other, the steps of a round side by side. */
  row(key) {
    const row = [...this.steps.children].find(row => row.dataset.round === key) ?? el("li", { "data-round": key }, el("ul", { class: "round" }));
    if (!row.parentNode) this.steps.insertBefore(row, this.steps.querySelector(".pending"));
    return row.firstChild;
  }
}

/** Moves to a step and opens its passages. */
function visit(card) {
  card.querySelector("details")?.setAttribute("open", "");
  card.scrollIntoView({ block: "nearest" });
  card.focus({ preventScroll: true });
}

const tableRow = (head, cells, attributes = {}) => el("tr", attributes, el("th", { scope: "row" }, head), cells.map(cell => el("td", {}, cell)));
const table = (titles, rows, ...more) => el("table", {}, el("thead", {}, el("tr", {}, titles.map(title => el("th", { scope: "col" }, title)))), el("tbody", {}, rows), ...more);

function callTable(calls) {
  const modules = new Map();
  for (const call of [...calls, ...calls.map(call => ({ ...call, module: null }))]) {  // module null: the total
    const sums = modules.get(call.module) ?? [0, 0, 0];
    modules.set(call.module, [sums[0] + 1, sums[1] + call.prompt_tokens, sums[2] + call.completion_tokens]);
  }
  const rows = [...modules].map(([module, sums]) => tableRow(module ?? "total", sums.map(sum => sum.toLocaleString("en"))));
  return table(["Module", "Calls", "Read", "Written"], rows.slice(0, -1), el("tfoot", {}, rows.at(-1)));
}

/** Draws the questions of the session into `place`, the last first; a click shows one again. */
function drawPast(place, session, current, show) {
  const row = one => {
    const { retrievals, calls, tokens, seconds } = cost(one);
    const figures = [retrievals, calls, tokens, seconds].map(figure => (one.ended ? figure?.toLocaleString("en") ?? "–" : "…"));
    const answer = one.problem || (one.trajectory ? one.answer || "No answer." : "…");
    const again = textButton(one.question, () => show(one));
    again.dataset.key = session.indexOf(one);
    return tableRow(again, [one.who, answer, ...figures], { class: current(one) && "current" });
  };
  const titles = ["Question", "Strategy", "Answer", "Retrievals", "Calls", "Tokens", "Seconds"];
  fill(place, el("h2", {}, "Asked in this session"),
    el("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": "Questions of this session" }, table(titles, [...session].reverse().map(row))));
}
