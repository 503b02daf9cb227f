// A run as it goes: its state, alerts and curves; rows of its log come in parts, as long as it runs.

import { live, openPage } from "./data.js";
import { element, fetchJson, onKey } from "./studio.js";
import { Panels } from "./plots.js";

const RUNNING_MS = 3000, RESTING_MS = 20000;
const get = (id) => document.getElementById(id);
const page = get("run");
const address = encodeURIComponent(page.dataset.run);
const panels = get("plots") ? new Panels(get("plots")) : null;
const quiet = get("quiet");
let rows = [], offset = 0, file = "";

function duration(seconds) {
  if (seconds === null) return "-";
  const minutes = Math.round(seconds / 60);
  return minutes < 1 ? `${Math.round(seconds)} s` : minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const rolloutsAt = (step) => `/rollouts?run=${address}&step=${step}`;

/** A step in words, which leads to its rollouts where the run kept some. */
function stepLink(step) {
  return page.dataset.rollouts ? element("a", { href: rolloutsAt(step) }, `step ${step}`) : element("span", {}, `step ${step}`);
}

function draw({ plots, alerts, unusual }) {
  const steps = rows.map((row) => row.step), flagged = new Set(alerts.flatMap((alert) => alert.keys));
  get("none").hidden = rows.length > 0;
  for (const plot of plots) {
    const lines = plot.lines.map(([key, name], number) => ({ name, colour: number, values: rows.map((row) => row[key] ?? null) }));
    const panel = panels.panel(plot.title, plot.unit, plot.stacked), keys = plot.lines.map(([key]) => key);
    const parent = plot.quiet ? quiet.querySelector("div") : get("plots");
    if (panel.box.parentElement !== parent) parent.append(panel.box);
    if (page.dataset.rollouts) panel.opens((step) => openPage(rolloutsAt(step)));
    panel.draw(steps, lines, panels.smoothing, unusual.filter((one) => keys.includes(one.key)).map((one) => one.step));
    panel.box.classList.toggle("flagged", keys.some((key) => flagged.has(key)));
  }
  const still = plots.filter((plot) => plot.quiet);
  quiet.hidden = !still.length;
  quiet.querySelector("summary").textContent = `Without signal: ${still.map((plot) => plot.title.toLowerCase()).join(", ")}`;
}

function showAlerts(alerts, unusual) {
  const leaps = unusual.map((one, number) => element("span", {}, number ? "; " : "", stepLink(one.step), `: ${one.text}`));
  get("alerts").replaceChildren(...alerts.map((alert) =>
    element("p", { class: "notice bad" }, element("b", {}, alert.kind, ", ", stepLink(alert.step), ": "), alert.text)),
  ...(leaps.length ? [element("p", { class: "notice" }, element("b", {}, "Unusual steps: "), ...leaps)] : []));
}

async function readState() {
  const state = await fetchJson(`/api/run?run=${address}`);
  // Its end brings scores, which the page does not have yet.
  if (state.state === "finished" && page.dataset.state !== "finished") location.reload();
  page.dataset.state = state.state;
  const chip = document.querySelector("#state .chip");
  chip.textContent = state.state === "running" ? `running: ${state.stage}` : state.state === "stopped" ? `stopped in ${state.stage}` : state.state;
  chip.className = `chip ${{ running: "running", finished: "finished", unreadable: "bad" }[state.state] || ""}`;
  get("steps").textContent = state.steps_done;
  if (!get("left")) return;
  get("left").textContent = duration(state.left_s);
  get("doing").textContent = state.doing || "";
  get("bar").style.width = state.steps ? `${Math.min(100, (100 * state.steps_done) / state.steps)}%` : "0";
  document.querySelector(".progress").setAttribute("aria-valuenow", state.steps_done);
}

async function poll() {
  let wait = RESTING_MS;
  const silent = get("silent");
  try {
    await readState();
    const part = await fetchJson(`/api/metrics?run=${address}&offset=${offset}&file=${file}`);
    ({ offset, file } = part);
    if (part.anew) rows = [];
    rows.push(...part.rows);
    if (part.plots) {
      if (panels) draw(part);
      showAlerts(part.alerts, part.unusual);
    }
    if (page.dataset.state === "running") wait = RUNNING_MS;
    silent.hidden = true;
  } catch (error) {
    // Beside the alerts, which stand until the studio says otherwise.
    silent.textContent = `The studio does not answer: ${error.message}`;
    silent.hidden = false;
  }
  page.dataset.read = offset;
  if (live) setTimeout(poll, wait);
}

quiet?.addEventListener("toggle", () => panels.redraw());
if (page.dataset.rollouts) onKey("r", () => openPage(`/rollouts?run=${address}`));
poll();
