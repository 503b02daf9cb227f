// A question and two answers: waveform and spectrogram of each clip, and what is measured on it.

import { element, fetchJson, onKey } from "./studio.js";
import { Panel } from "./plots.js";
import { showWave } from "./sound.js";

const units = { hz: "Hz", lufs: "LUFS" };

function shortNumber(value) {
  if (Array.isArray(value)) return `${value.length} values`;
  return typeof value === "number" ? value.toLocaleString("en", { maximumSignificantDigits: 4 }) : String(value);
}

function fieldRow(field) {
  const name = element("th", {}, field.name.replaceAll("_", " "));
  if (field.absent !== undefined) return element("tr", {}, name, element("td", { colspan: "3", class: "soft" }, field.absent));
  const confidence = field.confidence === null ? "" : `confidence ${field.confidence.toFixed(2)}`;
  return element("tr", {}, name, element("td", { class: "r" }, shortNumber(field.value)), element("td", {}, field.unit || ""), element("td", { class: "soft" }, confidence));
}

async function showMeasured(box, query) {
  let found;
  try {
    found = await fetchJson(`/api/measured?${query}`);
  } catch (error) {
    box.append(element("p", { class: "notice" }, `Not measured: ${error.message}`));
    return;
  }
  for (const field of found.fields.filter((one) => Array.isArray(one.value))) {
    const unit = field.unit || units[field.name.split("_").at(-1)] || "";
    const panel = new Panel(box, field.name.replaceAll("_", " "), `${unit}, over the ${found.duration_s.toFixed(1)} s of the clip, in means of ${field.value.length} stretches`);
    panel.draw(field.value.map((_, place) => place + 1), [{ name: unit, values: field.value, colour: 0 }], 0);
  }
  box.append(element("table", { class: "measured" }, element("tbody", {}, ...found.fields.map(fieldRow))));
}

for (const section of document.querySelectorAll("section[data-clip]")) {
  if (!section.dataset.clip) {
    section.append(element("p", { class: "notice" }, "There is no sound: this system gave none."));
    continue;
  }
  const query = new URLSearchParams({ run: section.dataset.run, name: section.dataset.clip });
  const wave = element("div", { class: "wave", role: "img", "aria-label": "Waveform and spectrogram" });
  const play = element("button", { type: "button" }, "Play");
  const zoom = element("input", { type: "range", min: "0", max: "800", value: "0", "aria-label": "Zoom" });
  const details = element("details", {}, element("summary", {}, "Pitch and loudness"));
  section.querySelector("h2").after(element("div", { class: "sound" }, element("div", { class: "bar tight" }, play, element("label", { class: "small" }, "Zoom ", zoom)), wave, details));
  showWave(wave, `/clip?${query}`, play, zoom);
  details.addEventListener("toggle", () => showMeasured(details, query), { once: true });
}

for (const [key, id] of [["p", "previous"], ["n", "next"]]) onKey(key, () => document.getElementById(id)?.click());
