// The page of an annotator. Every click goes to the server in order and by a name of its own; until the server has stored it, it
// stays in the browser's storage. So a server that is killed, or a page that is loaded anew, loses no click and counts none twice.

import { element, onKey } from "./studio.js";

const token = location.pathname.split("/")[2];
const api = `/api/annotate/${encodeURIComponent(token)}`;
// A click has a key of its own: two windows of one annotator must not write over each other's. The numbers keep their order.
const stored = `click ${token} `;
const RETRY_MS = 1000;
// A play counts when it begins here, not when a stopped one goes on.
const BEGINNING_S = 0.25;

const byId = (id) => document.getElementById(id);
const clipKeys = { question: "q", 1: "a", 2: "s", 3: "f", 4: "g", 5: "h", 6: "j", 7: "k", 8: "l", 9: "z", 10: "v" };
// Fewer items than this say too little about the pace.
const PACE_MIN_ITEMS = 3;
const paces = [];
let form = null;
let state = null;
let shown = { place: undefined, view: "", since: 0 };
let marked = 0;
let queue = load();
let sending = false;

function load() {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(stored)).sort()
      .map((key) => ({ key, click: JSON.parse(localStorage.getItem(key)) }));
  } catch { return []; }
}
function keep(click) {
  const last = queue.length ? Number(queue.at(-1).key.slice(stored.length, stored.length + 9)) : 0;
  const waiting = { key: `${stored}${String(last + 1).padStart(9, "0")} ${click.id}`, click };
  queue.push(waiting);
  // Private windows refuse: the page itself still holds it.
  try { localStorage.setItem(waiting.key, JSON.stringify(click)); } catch { /* see above */ }
  showSaved();
}
function forget() {
  const { key } = queue.shift();
  try { localStorage.removeItem(key); } catch { /* it was never there */ }
  showSaved();
}
function showSaved() {
  byId("saved").textContent = queue.length ? "saving …" : "saved";
}
function timeLeft() {
  const left = state.total - state.done;
  if (!left || paces.length < PACE_MIN_ITEMS) return "";
  // The median: a break does not count.
  const pace = [...paces].sort((a, b) => a - b)[Math.floor(paces.length / 2)];
  const minutes = Math.round(pace * left / 60_000);
  if (minutes < 1) return "less than a minute left";
  return minutes < 60 ? `about ${minutes} min left` : `about ${Math.floor(minutes / 60)} h ${minutes % 60} min left`;
}
function choicesOf(question) {
  return question.choices.filter((choice) => !form.takes || !/^\d+$/.test(choice.value) || state.clips.includes(choice.value));
}
function titleOf(choice) {
  return form.takes && choice.value === "1" && state.clips.length === 1 ? "Accept" : choice.title;
}
function newName() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function say(id, text) {
  byId(id).textContent = text || "";
  byId(id).hidden = !text;
}

function click(action, name = "", value = "") {
  if (!state) return;
  const place = state.place ?? 0;
  // A monotonic clock: that of the wall may jump.
  const shown_ms = state.place === null ? null : Math.round(performance.now() - shown.since);
  keep({ id: newName(), place, action, name, value, view: shown.view, shown_ms });
  send();
}

async function send() {
  if (sending) return;
  sending = true;
  while (queue.length) {
    let response, answer;
    try {
      response = await fetch(`${api}/click`, { method: "POST", body: JSON.stringify(queue[0].click), headers: { "Content-Type": "application/json" } });
      answer = await response.json();
    } catch {
      say("banner", "The studio does not answer. Your clicks are kept here and sent again.");
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      continue;
    }
    // Only a reply about this very click ends it: a study that is away for a moment has not taken it.
    if (!response.ok && ![400, 409, 413].includes(response.status)) {
      say("banner", `${answer.error} Your click is kept here and sent again.`);
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      continue;
    }
    say("banner", "");
    forget();
    say("message", response.ok ? "" : answer.error);
    // An answer to an earlier click knows nothing of the later ones.
    if (answer.state && !queue.length) render(answer.state);
  }
  sending = false;
}

function render(next) {
  state = next;
  byId("progress").max = state.total;
  byId("progress").value = state.done;
  byId("count").textContent = `${state.done} of ${state.total}`;
  byId("left").textContent = timeLeft();
  byId("undo").disabled = byId("undo-end").disabled = !state.can_undo;
  byId("item").hidden = state.place === null;
  byId("end").hidden = state.place !== null;
  if (state.place === null) { shown = { place: null, view: "", since: 0 }; return; }
  if (state.place !== shown.place) build();
  showChoices();
}

function build() {
  shown = { place: state.place, view: newName(), since: performance.now() };
  marked = 0;
  byId("place").textContent = `Item ${state.done + 1} of ${state.total}`;
  for (const part of ["text", "context"]) say(part, state[part]);
  byId("clips").replaceChildren(...state.clips.map(player));
  byId("questions").replaceChildren(...form.questions.map(fieldset));
  byId("comment").value = state.comment;
  const first = form.questions.findIndex((question) => !(question.name in state.choices));
  mark(first < 0 ? form.questions.length - 1 : first);
  scrollTo(0, 0);
  if (form.takes) togglePlay(String((state.picked ?? 0) + 1));
}

function clipTitle(name) {
  if (name === "question") return "Request";
  if (form.takes && state.clips.length > 1) return `Take ${name}${Number(name) === state.picked + 1 ? ", picked" : ""}`;
  if (form.takes) return "Recording";
  return form.answers > 1 ? `Answer ${name}` : "Answer";
}

function player(name) {
  const place = state.place;
  const audio = element("audio", { controls: true, preload: "auto", "aria-label": clipTitle(name), src: `/annotate/${encodeURIComponent(token)}/clip/${place}/${name}` });
  audio.addEventListener("play", () => {
    for (const other of document.querySelectorAll("audio")) if (other !== audio) other.pause();
    if (audio.currentTime > BEGINNING_S || state.place !== place) return;
    state.plays[name] = (state.plays[name] || 0) + 1;
    state.missing = state.missing.filter((what) => !what.startsWith("listen") || form.answers > 1);
    click("play", name);
    showChoices();
  });
  audio.addEventListener("error", () => {
    box.append(element("p", { class: "notice bad", role: "alert" }, "This recording cannot be played: it is missing or damaged. Use “Cannot be judged”."));
  });
  const box = element("section", { class: `box pad clip${name === "question" ? " request" : ""}`, "data-clip": name },
    element("h2", {}, clipTitle(name), " ", clipKeys[name] ? element("kbd", {}, clipKeys[name]) : null, element("span", { class: "plays soft small" })), audio);
  return box;
}

function fieldset(question, at) {
  const choices = choicesOf(question).map((choice) => {
    const input = element("input", { type: "radio", name: question.name, value: choice.value });
    input.addEventListener("change", () => choose(at, choice.value));
    return element("label", { class: "choice" }, input, element("span", {}, element("b", {}, titleOf(choice)), " ", choice.key ? element("kbd", {}, choice.key) : null,
      choice.help ? element("small", {}, choice.help) : null));
  });
  const helped = question.choices.some((choice) => choice.help);
  const box = element("fieldset", { class: "box pad", "data-question": question.name },
    element("legend", {}, question.title), element("p", { class: "soft" }, question.text), element("div", { class: helped ? "choices helped" : "choices" }, ...choices));
  box.addEventListener("focusin", () => mark(at, false));
  return box;
}

function choose(at, value) {
  const question = form.questions[at];
  const waits = form.questions.filter((other) => other !== question && !(other.name in state.choices));
  if (question.comes_last && waits.length) {
    say("message", `${question.title} comes last; first ${waits.map((other) => other.title).join(", ")}`);
    showChoices();
    return;
  }
  say("message", "");
  state.choices[question.name] = value;
  state.missing = state.missing.filter((what) => what !== question.title);
  click("choose", question.name, value);
  if (form.takes && state.clips.includes(value) && !state.plays[value]) togglePlay(value);
  const next = form.questions.findIndex((other) => !(other.name in state.choices));
  mark(next < 0 ? at : next);
  showChoices();
}

function showChoices() {
  for (const question of form.questions) {
    for (const input of document.getElementsByName(question.name)) input.checked = state.choices[question.name] === input.value;
  }
  for (const box of document.querySelectorAll("[data-clip]")) {
    const plays = state.plays[box.dataset.clip] || 0;
    box.querySelector(".plays").textContent = plays ? ` played ${plays === 1 ? "once" : `${plays} times`}` : "";
  }
  byId("missing").textContent = state.missing.length ? `Still to do: ${state.missing.join(", ")}.` : "Everything is answered.";
}

function mark(at, scroll = true) {
  marked = Math.max(0, Math.min(at, form.questions.length - 1));
  const boxes = [...document.querySelectorAll("[data-question]")];
  boxes.forEach((box, place) => { if (place === marked) box.setAttribute("data-marked", ""); else box.removeAttribute("data-marked"); });
  if (scroll && boxes[marked] && marked > 0) boxes[marked].scrollIntoView({ block: "nearest" });
}

function sendComment() {
  const text = byId("comment").value;
  if (state && state.place !== null && text !== state.comment) { state.comment = text; click("comment", "", text); }
}

function submit() {
  if (!state || state.place === null) return;
  sendComment();
  paces.push(performance.now() - shown.since);
  click("submit");
}

function undo() { if (state && state.can_undo) click("undo"); }

function togglePlay(name) {
  const audio = document.querySelector(`[data-clip="${name}"] audio`);
  if (!audio) return;
  if (audio.paused) { audio.currentTime = 0; audio.play().catch(() => {}); } else audio.pause();
}

function askWhy() {
  if (!state || state.place === null) return;
  byId("reason").value = "";
  byId("why").showModal();
}

async function start() {
  let answer;
  for (;;) {
    try {
      const response = await fetch(api);
      answer = await response.json();
      if (response.ok) break;
      say("banner", answer.error);
    } catch { say("banner", "The studio does not answer. This page tries again."); }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
  say("banner", "");
  form = answer.form;
  byId("instructions").open = answer.state.done === 0;
  render(answer.state);
  byId("item").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  byId("undo").addEventListener("click", undo);
  byId("undo-end").addEventListener("click", undo);
  byId("skip").addEventListener("click", askWhy);
  byId("comment").addEventListener("change", sendComment);
  byId("comment").addEventListener("keydown", (event) => { if (event.key === "Escape") event.target.blur(); });
  byId("why").addEventListener("close", () => {
    const reason = byId("reason").value.trim();
    if (byId("why").returnValue === "skip" && reason) { sendComment(); click("skip", "", reason); }
    byId("why").returnValue = "";
  });
  for (const [name, key] of Object.entries(clipKeys)) if (name === "question" || Number(name) <= form.answers) onKey(key, () => togglePlay(name));
  const keys = new Set(form.questions.flatMap((question) => question.choices.map((choice) => choice.key).filter(Boolean)));
  for (const key of keys) {
    onKey(key, () => {
      const choice = state.place !== null && choicesOf(form.questions[marked]).find((other) => other.key === key);
      if (choice) choose(marked, choice.value);
    });
  }
  onKey("ArrowDown", () => mark(marked + 1));
  onKey("ArrowUp", () => mark(marked - 1));
  onKey("Enter", (event) => { if (event.target.closest("button, summary")) event.target.click(); else submit(); });
  onKey("u", undo);
  onKey("x", askWhy);
  onKey("c", () => byId("comment").focus());
  // Clicks of an earlier visit that no server has stored yet.
  send();
}

start();
