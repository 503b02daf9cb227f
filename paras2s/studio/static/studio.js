// Theme, keys and small helpers that every page has.

import { openPage } from "./data.js";

export { fetchJson } from "./data.js";

const root = document.documentElement;

function storedTheme() {
  try { return localStorage.getItem("theme"); } catch { return null; }
}

function applyTheme(theme) {
  if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
  document.dispatchEvent(new CustomEvent("themechange"));
}

export function isDark() {
  return (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
}

function toggleTheme() {
  const theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("theme", theme); } catch { /* private windows */ }
  applyTheme(theme);
}

/** An element with attributes and children; text is never parsed as HTML. */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** The turns of a dialogue before a question; null without any. */
export function turnsBefore(turns) {
  if (!turns.length) return null;
  return element("ol", { class: "before", "aria-label": "Turns before the question" }, ...turns.map((turn) => element("li", {},
    element("span", { class: "soft small" }, turn.speaker),
    turn.clip ? element("button", { type: "button", class: "play", "data-clip": turn.clip, "aria-label": `Play the ${turn.speaker}'s turn` }, "▶") : null,
    element("span", { dir: "auto" }, turn.text), turn.problem ? element("span", { class: "small problem" }, turn.problem) : null)));
}

const handlers = new Map();

/** Call `action` when a key (or two, "g r") is pressed outside of a field. */
export function onKey(keys, action) { handlers.set(keys, action); }

let before = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input:not([type=checkbox]):not([type=radio]), select, textarea, dialog[open]")) return;
  const both = `${before} ${event.key}`;
  const action = handlers.get(both) || handlers.get(event.key);
  before = event.key;
  if (!action) return;
  event.preventDefault();
  before = "";
  action(event);
});

applyTheme(storedTheme());
document.getElementById("theme").addEventListener("click", toggleTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new CustomEvent("themechange")));
onKey("d", toggleTheme);
onKey("g r", () => openPage("/"));
onKey("?", () => document.getElementById("keys").showModal());
