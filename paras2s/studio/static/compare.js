// Curves of several runs over each other: one plot a metric, one colour a run.

import "./player.js";
import { element, fetchJson } from "./studio.js";
import { Panels } from "./plots.js";

const names = [...document.querySelectorAll("#names li")];
const panels = new Panels(document.getElementById("plots"));

/** The log of one run; where that cannot be read, a message, and the curves of the others all the same. */
async function logOf(item) {
  try {
    return await fetchJson(`/api/metrics?run=${encodeURIComponent(item.dataset.run)}`);
  } catch (error) {
    item.append(element("span", { class: "small problem" }, ` ${error.message}`));
    return { rows: [] };
  }
}

const parts = await Promise.all(names.map(logOf));
const steps = [...new Set(parts.flatMap((part) => part.rows.map((row) => row.step)))].sort((one, other) => one - other);
document.getElementById("none").hidden = steps.length > 0;

const metrics = new Map();
for (const plot of parts.flatMap((part) => part.plots || [])) {
  for (const [key, name] of plot.lines) {
    if (!metrics.has(key)) metrics.set(key, { title: plot.lines.length > 1 || plot.title === "Reward" ? `${plot.title}, ${name}` : plot.title, unit: plot.unit });
  }
}
for (const [key, { title, unit }] of metrics) {
  const lines = parts.map((part, number) => {
    const values = new Map(part.rows.map((row) => [row.step, row[key] ?? null]));
    return { name: names[number].dataset.name, colour: number, values: steps.map((step) => values.get(step) ?? null) };
  }).filter((line) => line.values.some((value) => value !== null));
  if (lines.length) panels.panel(title, unit, false).draw(steps, lines, panels.smoothing);
}
document.getElementById("plots").dataset.read = steps.length;
