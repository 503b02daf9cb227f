// A run as it goes: rows of its log come in parts, as long as it runs.

import { live, openPage } from "./data.js";
import { element, fetchJson, onKey } from "./studio.js";
import { Panels } from "./plots.js";

const RUNNING_MS = 3000, RESTING_MS = 20000;
const page = document.getElementById("run");
const address = encodeURIComponent(page.dataset.run);
const panels = new Panels(document.getElementById("plots"));
let rows = [], offset = 0, file = "";

function duration(seconds) {
  if (seconds === null) return "-";
  const minutes = Math.round(seconds / 60);
  return minutes < 1 ? `${Math.round(seconds)} s` : minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function draw(plots) {
  const steps = rows.map((row) => row.step);
  document.getElementById("none").hidden = rows.length > 0;
  for (const plot of plots) {
    const lines = plot.lines.map(([key, name], number) => ({ name, colour: number, values: rows.map((row) => row[key] ?? null) }));
    panels.panel(plot.title, plot.unit, plot.stacked).draw(steps, lines, panels.smoothing);
  }
}

function showAlerts(alerts, plots) {
  const flagged = new Set(alerts.flatMap((alert) => alert.keys));
  document.getElementById("alerts").replaceChildren(...alerts.map((alert) =>
    element("p", { class: "notice bad" }, element("b", {}, `${alert.kind}, step ${alert.step}: `), alert.text)));
  for (const plot of plots) {
    panels.panels.get(plot.title)?.box.classList.toggle("flagged", plot.lines.some(([key]) => flagged.has(key)));
  }
}

async function readState() {
  const state = await fetchJson(`/api/run?run=${address}`);
  page.dataset.state = state.state;
  const chip = document.querySelector("#state .chip");
  chip.textContent = state.state === "running" ? `running: ${state.stage}` : state.state === "stopped" ? `stopped in ${state.stage}` : state.state;
  chip.className = `chip ${{ running: "running", finished: "finished", unreadable: "bad" }[state.state] || ""}`;
  document.getElementById("steps").textContent = state.steps_done;
  document.getElementById("left").textContent = duration(state.left_s);
  document.getElementById("doing").textContent = state.doing || "-";
  showBar(state.steps_done, state.steps);
}

function showBar(done, all) {
  document.getElementById("bar").style.width = all ? `${Math.min(100, (100 * done) / all)}%` : "0";
  document.querySelector(".progress").setAttribute("aria-valuenow", done);
}

async function poll() {
  let wait = RESTING_MS;
  const silent = document.getElementById("silent");
  try {
    await readState();
    const part = await fetchJson(`/api/metrics?run=${address}&offset=${offset}&file=${file}`);
    ({ offset, file } = part);
    if (part.anew) rows = [];
    rows.push(...part.rows);
    if (part.plots) { draw(part.plots); showAlerts(part.alerts, part.plots); }
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

if (page.dataset.rollouts) onKey("r", () => openPage(`/rollouts?run=${address}`));
poll();
