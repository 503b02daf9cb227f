// Curves over the steps of a run, drawn by uPlot.

import uPlot from "./vendor/uPlot.esm.js";
import { element, onKey } from "./studio.js";

const COLOURS = ["--accent", "--second", "--third", "--fourth", "--fifth", "--sixth"];
const HEIGHT = 190;

export function colour(number) {
  return getComputedStyle(document.documentElement).getPropertyValue(COLOURS[number % COLOURS.length]).trim();
}

/** A colour of the theme by its name in the style sheet. */
export function ink(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

/** Exponential smoothing that starts at the first value, unbiased at the start; gaps stay gaps. */
export function smooth(values, weight) {
  let sum = 0, total = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

function short(value) {
  if (value === null || value === undefined) return "-";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 100000)) return value.toExponential(1);
  return value.toLocaleString("en", { maximumSignificantDigits: 4, useGrouping: false });
}

/** One plot: `draw` takes x and lines of {name, values, colour}; values that are sparse are joined and get points. */
export class Panel {
  constructor(parent, title, unit, stacked = false) {
    this.stacked = stacked;
    this.legend = element("ul", { class: "legend" });
    this.area = element("div", { class: "plot", role: "img", "aria-label": title });
    this.box = element("section", { class: "box panel", "aria-label": title },
      element("header", {}, element("h3", {}, title), element("span", { class: "soft" }, unit)), this.legend, this.area);
    this.title = title;
    parent.append(this.box);
  }

  /** Let a click, or arrows and Enter, open a step. */
  opens(open) {
    if (this.open) return;
    this.open = open;
    const area = this.area, move = (by) => {
      const last = this.plot.data[0].length - 1, at = Math.min(last, Math.max(0, (this.plot.cursor.idx ?? last) + by));
      this.plot.setCursor({ left: this.plot.valToPos(this.plot.data[0][at], "x"), top: 0 });
    };
    const keys = { ArrowLeft: () => move(-1), ArrowRight: () => move(1), Enter: () => this.#enter() };
    for (const [name, value] of Object.entries({ role: "slider", tabindex: "0", title: "click: the rollouts of this step", "aria-valuemin": "0" })) area.setAttribute(name, value);
    area.addEventListener("click", () => this.#enter());
    area.addEventListener("keydown", (event) => {
      if (!keys[event.key]) return;
      event.preventDefault();
      event.stopPropagation();
      keys[event.key]();
    });
  }

  #enter() {
    const all = this.plot.data[0];
    this.open(all[this.plot.cursor.idx ?? all.length - 1]);
  }

  /** Draw lines over steps; `marks` are steps that leave the curve. */
  draw(steps, lines, smoothing, marks = this.marks ?? []) {
    this.last = [steps, lines, smoothing];
    this.marks = marks;
    const known = (values) => values.filter((value) => value !== null && value !== undefined);
    const latest = lines.map((line) => known(line.values).at(-1));
    this.legend.replaceChildren(...lines.map((line, number) => element("li", {},
      element("span", { class: `swatch c${line.colour % COLOURS.length}` }), `${line.name} ${short(latest[number])}`)));
    this.area.setAttribute("aria-label", `${this.title}: ${lines.map((line, n) => `${line.name} ${short(latest[n])} at the last step`).join(", ")}`);
    let below = steps.map(() => 0);
    const data = [steps], series = [{ label: "step" }];
    const bands = [];
    for (const line of lines) {
      const own = colour(line.colour), sparse = known(line.values).length < steps.length / 2;
      if (this.stacked) {
        below = below.map((value, place) => value + (line.values[place] ?? 0));
        data.push(below);
        series.push({ label: line.name, stroke: own, fill: `${own}55`, width: 1, points: { show: false } });
        if (data.length > 2) bands.push({ series: [data.length - 1, data.length - 2] });
        continue;
      }
      const smoothed = smoothing > 0 && !sparse;
      if (smoothed) {
        data.push(line.values);
        series.push({ label: `${line.name}, as measured`, stroke: `${own}44`, width: 1, spanGaps: true, points: { show: false } });
      }
      data.push(smoothed ? smooth(line.values, smoothing) : line.values);
      series.push({ label: line.name, stroke: own, width: 2, spanGaps: true, dash: line.dash, points: { show: sparse, size: 6, fill: own } });
    }
    const axis = { stroke: ink("--soft"), grid: { stroke: ink("--rule"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    this.plot?.destroy();
    this.plot = new uPlot({
      width: this.area.clientWidth || 340, height: HEIGHT, series, bands, legend: { show: false },
      cursor: { y: false, sync: { key: "steps" } },
      scales: { x: { time: false }, y: { range: (_, low, high) => (low === high ? [low - (Math.abs(low) || 1) / 2, low + (Math.abs(low) || 1) / 2] : uPlot.rangeNum(low, high, 0.1, true)) } },
      axes: [{ ...axis, size: 26, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick : "")) },
             { ...axis, size: 52, values: (_, ticks) => ticks.map(short) }],
      hooks: { setCursor: [(plot) => this.#point(plot, lines, latest)], draw: [(plot) => this.#mark(plot)] },
    }, data, this.area);
    if (this.open) this.#value(steps.at(-1), `step ${steps.at(-1)}`, steps.at(-1));
  }

  /** A dashed line at each marked step. */
  #mark(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = ink("--alert");
    ctx.setLineDash([4, 4]);
    for (const step of this.marks) {
      const x = Math.round(plot.valToPos(step, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  #value(step, text, last) {
    this.area.setAttribute("aria-valuenow", step);
    this.area.setAttribute("aria-valuetext", text);
    if (last !== undefined) this.area.setAttribute("aria-valuemax", last);
  }

  #point(plot, lines, latest) {
    const place = plot.cursor.idx;
    const at = place === null || place === undefined ? null : place;
    [...this.legend.children].forEach((item, number) => {
      const value = at === null ? latest[number] : lines[number].values[at];
      item.lastChild.textContent = `${lines[number].name} ${short(value)}${at === null ? "" : ` at ${plot.data[0][at]}`}`;
    });
    if (this.open && at !== null) this.#value(plot.data[0][at], `step ${plot.data[0][at]}: ${this.legend.textContent}`);
  }

  redraw() { if (this.last) this.draw(...this.last); }
}

/** Several panels that share smoothing, theme and width. */
export class Panels {
  constructor(parent) {
    this.parent = parent;
    this.panels = new Map();
    this.slider = document.getElementById("smoothing");
    this.slider.addEventListener("input", () => this.redraw());
    document.addEventListener("themechange", () => this.redraw());
    addEventListener("resize", () => { clearTimeout(this.timer); this.timer = setTimeout(() => this.redraw(), 150); });
    const move = (by) => { this.slider.value = Number(this.slider.value) + by; this.redraw(); };
    onKey("[", () => move(-0.1));
    onKey("]", () => move(0.1));
  }

  get smoothing() { return Number(this.slider.value); }

  panel(title, unit, stacked) {
    if (!this.panels.has(title)) this.panels.set(title, new Panel(this.parent, title, unit, stacked));
    return this.panels.get(title);
  }

  redraw() {
    for (const panel of this.panels.values()) {
      if (panel.last) panel.draw(panel.last[0], panel.last[1], this.smoothing);
    }
  }
}
