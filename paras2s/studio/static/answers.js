// Answers of a bench: sorted by the change from the warm-up, filtered, and those of several systems under one another.

import { exists, keepPlace, placeOf } from "./data.js";
import { element, fetchJson, onKey, turnsBefore } from "./studio.js";
import { Shown } from "./shown.js";
import "./player.js";

const box = document.getElementById("answers"), form = document.getElementById("filters"), run = encodeURIComponent(box.dataset.run);
const fixed = (value, digits = 2) => (value === null ? "–" : value.toFixed(digits).replace(/^-(0\.0*)$/, "$1"));
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
const ALL = "all";
const words = (text) => text.toLowerCase().match(/[\p{L}\p{N}']+/gu)?.join(" ") ?? "";
let view, shown, cursor = -1;

/** The name of a judge, in full where two share the first part. */
function nameOf(judge) {
  const short = judge.split("/")[0];
  return view.judges.filter((other) => other.split("/")[0] === short).length > 1 ? judge : short;
}

const scoreOf = (answer, judge) => answer.verdicts[judge]?.score ?? null;
const apart = (one, other) => one !== null && other !== null && Math.abs(one - other) >= view.contradiction;
const GAPS = {
  reward: (answer, judge) => apart(scoreOf(answer, judge), answer.model),
  judges: (answer) => { const known = answer.verdicts.flatMap((one) => one?.score ?? []); return known.length > 1 && apart(Math.max(...known), Math.min(...known)); },
};

/** The mean score of a system's answers to a question; null where none has one. */
function meanOf(question, system, judge) {
  return mean(question.answers.filter((answer) => answer.system === system).map((answer) => scoreOf(answer, judge)).filter((score) => score !== null));
}

function changeOf(question, system, judge) {
  const before = meanOf(question, view.policies[0], judge), after = meanOf(question, system, judge);
  return before === null || after === null || system === view.policies[0] ? null : after - before;
}

function chip(name, score, reason = "", bad = false) {
  const colour = score === null ? "none" : Math.min(5, Math.max(1, Math.floor(score + 0.5)));
  return element("span", { class: `score${bad ? " contradicts" : ""}`, title: reason }, `${name} `,
    element("b", { class: `chip chip-${colour}` }, score === null ? "unscored" : fixed(score)));
}

function play(part, label) {
  return part.clip ? element("button", { type: "button", class: "play", "data-clip": part.clip, "aria-label": label }, "▶")
    : element("span", { class: "small problem" }, part.problem);
}

function answerRow(question, answer, judge) {
  const [before, after] = view.policies, odd = GAPS.reward(answer, judge), verdict = answer.verdicts[judge];
  const beside = answer.system === before ? [before, after] : [before, answer.system];
  const pair = beside.filter((system) => view.systems.includes(system)).map((system) => `&system=${encodeURIComponent(system)}`).join("");
  const verdictPage = `/verdict?run=${run}&query=${encodeURIComponent(question.query)}&n=${answer.n}${pair}`;
  const said = answer.text || "(nothing)", heard = answer.transcript !== null && words(answer.transcript) !== words(said) ? answer.transcript || "(nothing)" : "";
  return element("li", {},
    element("span", { class: "who" }, answer.system), play(answer, `${answer.system}, answer ${answer.n + 1}`),
    element("div", { class: "said" }, element("span", { dir: "auto" }, said),
      heard ? element("div", { class: "small soft" }, "heard as: ", element("span", { dir: "auto" }, heard)) : null,
      element("div", { class: "small soft" }, answer.tone ? `${answer.tone}; ` : "", verdict?.reason ?? "")),
    element("div", { class: "scores" },
      ...view.judges.map((name, at) => (answer.verdicts[at] ? chip(nameOf(name), scoreOf(answer, at), answer.verdicts[at].reason) : null)),
      answer.model === null ? null : chip("reward model", answer.model, odd ? "contradicts the judge by two points or more" : "", odd),
      odd ? element("span", { class: "chip bad" }, "contradicts the judge") : null,
      exists(verdictPage) ? element("a", { class: "small", href: verdictPage }, "verdict") : null));
}

function questionBox(question, { system, judge }) {
  const change = changeOf(question, system === ALL ? view.policies[1] : system, judge);
  const systems = system === ALL ? view.systems : [...new Set([...view.policies, system])];
  const rows = systems.flatMap((name) => question.answers.filter((answer) => answer.system === name));
  const way = change === null || Math.abs(change) < 0.005 ? "" : change > 0 ? "better" : "worse";
  return element("article", { class: "box question-box", tabindex: "-1" }, turnsBefore(question.before),
    element("header", {}, play(question, `Play the question, ${question.style}`),
      element("h3", { dir: "auto" }, question.text || question.query),
      ...[question.category, question.style].map((word) => element("span", { class: "chip" }, word)),
      change === null ? null : element("span", { class: `change ${way}` }, `${change >= 0.005 ? "+" : ""}${fixed(change)}`, element("span", { class: "soft small" }, ` from ${view.policies[0]}`))),
    element("ul", {}, ...rows.map((answer) => answerRow(question, answer, judge))));
}

function readFilters() {
  const values = Object.fromEntries(new FormData(form));
  return { ...values, judge: Math.max(0, view.judges.indexOf(values.judge)), find: values.find.trim().toLowerCase() };
}

function update() {
  const filters = readFilters(), { category, style, system, judge, gap, find, sort } = filters;
  const compared = system === ALL ? view.policies[1] : system;
  const mine = (question) => question.answers.filter((answer) => system === ALL || answer.system === system || view.policies.includes(answer.system));
  const ranked = {
    "": (question) => changeOf(question, compared, judge) ?? 9, best: (question) => -(changeOf(question, compared, judge) ?? -9),
    low: (question) => meanOf(question, compared, judge) ?? 9, order: () => 0,
  }[sort] ?? (() => 0);
  const found = view.questions.filter((question) => (!category || question.category === category) && (!style || question.style === style)
    && (!gap || mine(question).some((answer) => GAPS[gap](answer, judge)))
    && (!find || [question.text, question.query, ...mine(question).flatMap((answer) => [answer.text, answer.transcript, ...answer.verdicts.map((one) => one?.reason)])]
      .some((text) => (text || "").toLowerCase().includes(find)))).sort((one, other) => ranked(one) - ranked(other));
  cursor = -1;
  shown.make = (question) => questionBox(question, filters);
  shown.show(found);
  const [here, all] = view.contrasts, part = here < all ? `; ${here} of ${all} contrasts, the studio shows all` : "";
  document.getElementById("counted").textContent = `${found.length} of ${view.questions.length} questions${part}`;
  box.dataset.shown = found.length;
}

/** The filters that differ from those of a fresh page, in the address. */
function keep() {
  const kept = new URLSearchParams(placeOf().has("run") ? { run: placeOf().get("run") } : {});
  for (const field of form.elements) if (field.name && field.value !== (field.options?.[0].value ?? "")) kept.set(field.name, field.value);
  keepPlace(`?${kept}`);
}

function fill(name, values, texts = values) {
  form.elements[name].append(...values.map((value, at) => element("option", { value }, texts[at])));
}

function move(by) {
  const all = box.children;
  if (!all.length) return;
  if (cursor + by >= all.length) shown.grow();
  cursor = Math.min(all.length - 1, Math.max(0, cursor + by));
  all[cursor].focus();
}

onKey("j", () => move(1));
onKey("k", () => move(-1));
onKey("/", () => form.elements.find.focus());
onKey("Enter", (event) => { const control = event.target.closest("button, a, summary"); if (control) control.click(); else box.children[cursor]?.querySelector(".scores a")?.click(); });
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", () => { update(); keep(); });

try {
  view = await fetchJson(`/api/answers?run=${run}`);
  const has = (name) => view.systems.includes(name), [before, after] = view.policies;
  // Without the two policies the first two systems stand in their places.
  if (!has(before) || !has(after)) view.policies = [before, after].map((name, at) => (has(name) ? name : view.systems.filter((one) => one !== before && one !== after)[at] ?? view.systems[0]));
  const distinct = (key) => [...new Set(view.questions.map((question) => question[key]))].sort();
  fill("category", distinct("category"));
  fill("style", distinct("style"));
  fill("system", [view.policies[1], ...view.systems.filter((name) => !view.policies.includes(name)), ALL]);
  fill("judge", view.judges, view.judges.map(nameOf));
  for (const [name, value] of placeOf()) {
    const field = form.elements[name];
    if (field && name !== "run") field.value = value;
    if (field?.options && field.selectedIndex < 0) field.selectedIndex = 0;
  }
  shown = new Shown(box, null);
  if (view.questions.length) update();
  else document.getElementById("message").append(element("p", { class: "notice" }, "No answer was judged yet: paras2s bench contrasts does it."));
  form.hidden = !view.questions.length;
} catch (error) {
  document.getElementById("message").append(element("p", { class: "notice bad" }, error.message));
}
