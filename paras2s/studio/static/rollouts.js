// Rollouts of a run: groups of a step, an answer in detail, a query through training.

import { keepPlace, placeOf } from "./data.js";
import { element, fetchJson, onKey, turnsBefore } from "./studio.js";
import { Deck } from "./deck.js";
import { Shown } from "./shown.js";
import { wireLevel } from "./level.js";
import { setLoop, toggle } from "./player.js";
import { showSound } from "./sound.js";

const page = document.getElementById("rollouts");
const get = (id) => document.getElementById(id);
const run = encodeURIComponent(page.dataset.run);
const wanted = placeOf();
const deck = new Deck(get("deck"), false);
const shown = new Shown(get("groups"), (group) => groupBox(steps[at].step, group));
let steps = [], at = 0, groups = [], cursor = -1, sources = [], most = 0, noise = 0;

const fixed = (value, digits = 2) => (value === null || value === undefined ? "-" : value.toFixed(digits).replace(/^-(0\.0*)$/, "$1"));
const known = (answers) => answers.map((answer) => answer.reward).filter((value) => value !== null);
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
const place = (step, answer) => `run=${run}&step=${step}&group=${answer.group}&answer=${answer.answer}`;

function spread(answers) {
  const values = known(answers), middle = mean(values);
  if (!values.length) return null;
  if (Math.max(...values) === Math.min(...values)) return 0;
  return Math.sqrt(mean(values.map((value) => (value - middle) ** 2)));
}

function say(text, bad = true) {
  get("message").replaceChildren(...(text ? [element("p", { class: `notice${bad ? " bad" : ""}` }, text)] : []));
}

/** A bar from the middle: right and green above 0, left and red below, grey where the judge's noise is as large; one scale a step. */
function advantageBar(value, isNoise) {
  if (value === null) return element("span", { class: "soft small" }, "none");
  const bar = element("i", { class: `${value < 0 ? "below" : "above"}${isNoise ? " noise" : ""}` });
  bar.style.width = `${((50 * Math.abs(value)) / (most || 1)).toFixed(1)}%`;
  return element("span", { class: "advantage", title: `advantage ${fixed(value, 3)}${isNoise ? `, no further from the group's mean reward than the judge's noise of ${noise}` : ""}` }, element("span", { class: "track" }, bar), element("span", { class: "number small" }, fixed(value)));
}

function answerRow(step, answer, middle) {
  const play = element("button", { type: "button", class: "play", "data-clip": `/sound?${place(step, answer)}`, "aria-label": `Play answer ${answer.answer + 1}` }, "▶");
  const open = element("button", { type: "button", class: "quiet open", "aria-expanded": "false", "aria-label": `Waveform and tokens of answer ${answer.answer + 1}` }, "⌄");
  const reward = answer.unscored === null
    ? element("td", { class: "r reward" }, element("b", {}, fixed(answer.reward)))
    : element("td", { class: "r reward" }, element("span", { class: "chip bad" }, "unscored"));
  const words = element("td", { class: "words" }, answer.text || element("span", { class: "soft" }, "(no words)"),
    answer.finish_reason === "length" ? element("span", { class: "chip" }, "cut off") : null,
    answer.unscored === null ? null : element("div", { class: "small problem" }, answer.unscored));
  const isNoise = answer.reward !== null && Math.abs(answer.reward - middle) <= noise;
  const row = element("tr", { class: "answer", tabindex: "-1" }, element("td", {}, play), words, reward,
    ...sources.map((source) => element("td", { class: "r soft wide" }, fixed(answer.parts[source]))),
    element("td", { class: "gained" }, advantageBar(answer.advantage, isNoise)),
    element("td", { class: "r soft wide" }, String(answer.steps)),
    element("td", { class: "r soft small mono wide" }, String(answer.seed)), element("td", { class: "opens" }, open));
  open.addEventListener("click", () => detail(row, step, answer, open));
  row.dataset.query = answer.query_id;
  return row;
}

async function detail(row, step, answer, button) {
  if (row.nextElementSibling?.classList.contains("detail")) {
    row.nextElementSibling.remove();
    deck.prune();
    button.setAttribute("aria-expanded", "false");
    return;
  }
  button.setAttribute("aria-expanded", "true");
  const cell = element("td", { colspan: 7 + sources.length });
  row.after(element("tr", { class: "detail" }, cell));
  const title = `group ${answer.group + 1}, answer ${answer.answer + 1}`;
  await showSound(cell, `/sound?${place(step, answer)}`, `/api/rollouts/answer?${place(step, answer)}`, title, deck);
  deck.prune();
}

function answerTable(step, answers) {
  const middle = mean(known(answers));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Answers of group ${answers[0].group + 1}` }, element("table", { class: "answers" },
    element("thead", {}, element("tr", {}, element("th", {}, element("span", { class: "hidden-text" }, "Play")), element("th", {}, "Answer"), element("th", { class: "r" }, "Reward"),
      ...sources.map((source) => element("th", { class: "r" }, source)), element("th", {}, "Advantage"), element("th", { class: "r" }, "Steps"), element("th", { class: "r" }, "Seed"),
      element("th", {}, element("span", { class: "hidden-text" }, "Waveform and tokens")))),
    element("tbody", {}, ...answers.map((answer) => answerRow(step, answer, middle)))));
}

function questionTitle(question, level = "h2") {
  const play = question.clip
    ? element("button", { type: "button", class: "play question", "data-clip": `/clip?run=${run}&name=${encodeURIComponent(question.clip)}`, "aria-label": "Play the question" }, "▶")
    : null;
  return element("div", { class: "question" }, turnsBefore(question.before), play, element(level, {}, question.text || question.id),
    ...[question.category, question.style ?? "style not labelled"].filter(Boolean).map((word) => element("span", { class: "chip" }, word)));
}

function groupBox(step, group) {
  const values = known(group.answers), through = element("button", { type: "button", class: "through" }, "Through training");
  through.addEventListener("click", () => showStrip(group.question.id));
  const facts = [`mean ${fixed(mean(values))}`, `spread ${fixed(spread(group.answers))}`];
  if (group.gain !== null) facts.push(`${group.gain >= 0.005 ? "+" : ""}${fixed(group.gain)} since its first step`);
  if (values.length < group.answers.length) facts.push(`${group.answers.length - values.length} unscored`);
  return element("article", { class: "box group", "data-query": group.question.id },
    element("header", {}, questionTitle(group.question), element("span", { class: "soft small number" }, facts.join(" · ")), through),
    answerTable(step, group.answers));
}

const FIELDS = ["sort", "filter", "find"];
const ORDERS = {
  order: (group) => group.group,
  spread: (group) => -(spread(group.answers) ?? -1),
  gain: (group) => -(group.gain ?? -1e9),
  loss: (group) => group.gain ?? 1e9,
  low: (group) => mean(known(group.answers)) ?? 1e9,
};
const FILTERS = {
  all: () => true,
  flat: (group) => spread(group.answers) === 0,
  spread: (group) => (spread(group.answers) ?? 0) > 0,
  unscored: (group) => group.answers.some((answer) => answer.unscored !== null),
};

function showGroups() {
  const order = ORDERS[get("sort").value], words = get("find").value.trim().toLowerCase();
  const found = groups.filter(FILTERS[get("filter").value])
    .filter((group) => !words || [group.question.text, group.question.id, ...group.answers.map((answer) => answer.text)].some((text) => (text || "").toLowerCase().includes(words)))
    .sort((one, other) => order(one) - order(other) || one.group - other.group);
  cursor = -1;
  shown.show(found);
  deck.prune();
  if (!found.length && groups.length) get("groups").append(element("p", { class: "soft" }, "No group of this step is like that."));
  page.dataset.shown = found.length;
}

/** The step, and the order and filters that differ from those of a fresh page, in the address. */
function keep() {
  const kept = FIELDS.filter((id) => get(id).value !== (get(id).options?.[0].value ?? "")).map((id) => `&${id}=${encodeURIComponent(get(id).value)}`);
  keepPlace(`?run=${run}&step=${steps[at].step}${kept.join("")}`);
}

async function showStep(number) {
  at = Math.min(steps.length - 1, Math.max(0, number));
  const one = steps[at];
  get("step").value = one.step;
  get("slider").value = at;
  get("previous").disabled = at === 0;
  get("next").disabled = at === steps.length - 1;
  get("summary").textContent = one.mean === null ? "" : `mean reward ${fixed(one.mean)}, widest spread ${fixed(one.widest)}, ${one.flat} without spread, ${one.unscored} unscored`;
  keep();
  try {
    const found = await fetchJson(`/api/rollouts/step?run=${run}&step=${one.step}`);
    if (steps[at] !== one) return;
    groups = found.groups;
    sources = [...new Set(groups.flatMap((group) => group.answers.flatMap((answer) => Object.keys(answer.parts))))];
    // A single source is the reward itself.
    if (sources.length < 2) sources = [];
    most = groups.reduce((high, group) => group.answers.reduce((top, answer) => Math.max(top, Math.abs(answer.advantage ?? 0)), high), 0);
    say("");
  } catch (error) {
    if (steps[at] !== one) return;
    groups = [];
    say(error.message);
  }
  showGroups();
  page.dataset.step = one.step;
}

function goTo(step) {
  const near = steps.findIndex((one) => one.step >= step);
  showStep(near < 0 ? steps.length - 1 : near);
}

/** One column a step: its rewards as dots, and the best and the worst answer. */
function stripColumn(one) {
  const values = known(one.answers);
  const jump = element("button", { type: "button", class: "quiet" }, `step ${one.step}`);
  jump.addEventListener("click", () => { hideStrip(); goTo(one.step); });
  // An export has the strip of all steps, and a few of the steps themselves.
  jump.disabled = !steps.some((kept) => kept.step === one.step);
  if (one.problem) return element("li", {}, jump, element("p", { class: "small problem" }, one.problem));
  const sorted = one.answers.filter((answer) => answer.reward !== null).sort((first, second) => second.reward - first.reward);
  const chosen = sorted.length > 1 ? [sorted[0], sorted.at(-1)] : one.answers.slice(0, 1);
  const dots = element("span", { class: "dots", role: "img", "aria-label": `rewards ${values.map((value) => fixed(value, 1)).join(", ")}` },
    ...values.map((value, number) => { const dot = element("i"); dot.style.left = `calc(${(100 * (number + 0.5)) / values.length}% - 4px)`; dot.style.bottom = `${Math.min(100, Math.max(0, (100 * (value - strip.low)) / (strip.high - strip.low || 1)))}%`; return dot; }));
  return element("li", {}, jump, element("b", { class: "number" }, fixed(mean(values))), dots, ...chosen.map((answer) => element("div", { class: "small" },
    element("button", { type: "button", class: "play", "data-clip": `/sound?${place(one.step, answer)}`, "aria-label": `Play an answer of step ${one.step}` }, "▶"),
    element("span", { class: "soft number" }, ` ${fixed(answer.reward)} `), answer.text || "(no words)")));
}

const strip = { low: 1, high: 5 };

async function showStrip(query) {
  try {
    const found = await fetchJson(`/api/rollouts/query?run=${run}&query=${encodeURIComponent(query)}`);
    const all = found.steps.flatMap((one) => known(one.answers));
    strip.low = Math.min(...all, 1e9);
    strip.high = Math.max(...all, strip.low);
    const close = element("button", { type: "button" }, "Back to the step");
    close.addEventListener("click", hideStrip);
    const note = found.all > found.steps.length ? `${found.steps.length} of the ${found.all} steps that sampled it` : `the ${found.all} steps that sampled it`;
    get("strip").replaceChildren(element("div", { class: "box pad" },
      element("div", { class: "bar tight" }, questionTitle(found.question), element("span", { class: "soft small" }, `${note}; the best and the worst answer of each`), close),
      element("ol", { class: "columns", tabindex: "0", "aria-label": "Steps" }, ...found.steps.map(stripColumn))));
    get("strip").hidden = false;
    get("strip").scrollIntoView({ block: "nearest" });
    close.focus();
  } catch (error) {
    say(error.message);
  }
}

function hideStrip() { get("strip").hidden = true; }

function rows() { return [...document.querySelectorAll("#groups tr.answer")]; }

function move(by) {
  if (cursor + by >= rows().length) shown.grow();
  const all = rows();
  if (!all.length) return;
  all[cursor]?.classList.remove("at");
  cursor = Math.min(all.length - 1, Math.max(0, cursor + by));
  all[cursor].classList.add("at");
  all[cursor].focus({ preventScroll: true });
  all[cursor].scrollIntoView({ block: "nearest" });
}

const current = () => rows()[cursor];
onKey("ArrowLeft", () => showStep(at - 1));
onKey("ArrowRight", () => showStep(at + 1));
onKey("j", () => move(1));
onKey("k", () => move(-1));
onKey(" ", (event) => { const button = event.target.closest("button"); if (button) button.click(); else if (current()) toggle(current().querySelector(".play")); });
onKey("Enter", (event) => { const control = event.target.closest("button, a"); if (control) control.click(); else current()?.querySelector(".open").click(); });
onKey("q", () => { const button = current()?.closest("article").querySelector(".play.question"); if (button) toggle(button); });
onKey("t", () => { if (current()) showStrip(current().dataset.query); });
onKey("l", () => get("loop").click());
onKey("Escape", hideStrip);
wireLevel(get("level"));
get("loop").addEventListener("change", () => setLoop(get("loop").checked));
get("previous").addEventListener("click", () => showStep(at - 1));
get("next").addEventListener("click", () => showStep(at + 1));
get("slider").addEventListener("input", () => showStep(Number(get("slider").value)));
get("step").addEventListener("change", () => goTo(Number(get("step").value)));
for (const id of FIELDS) {
  if (wanted.has(id)) get(id).value = wanted.get(id);
  if (get(id).options && get(id).selectedIndex < 0) get(id).selectedIndex = 0;
  get(id).addEventListener("input", () => { showGroups(); keep(); });
}

try {
  const found = await fetchJson(`/api/rollouts?run=${run}`);
  ({ steps, noise } = found);
  if (found.problem) say(`The query through training and the gains are not shown: ${found.problem}`);
  get("slider").max = Math.max(0, steps.length - 1);
  get("step").max = steps.at(-1)?.step ?? 0;
  if (steps.length) await (wanted.has("step") ? goTo(Number(wanted.get("step"))) : showStep(steps.length - 1));
  else say("No step is kept yet; the first one comes with the first step of GRPO.", false);
  if (found.problem) say(`The query through training and the gains are not shown: ${found.problem}`);
} catch (error) {
  say(error.message);
}
