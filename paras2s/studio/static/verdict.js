// A question and its answers: waveform and spectrogram of each clip, and what is measured on it.

import "./player.js";
import { element, fetchJson, onKey } from "./studio.js";
import { Panel } from "./plots.js";
import { Deck } from "./deck.js";
import { placeWords, waveBox } from "./sound.js";

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

async function showWords(button, clip, query) {
  button.disabled = true;
  button.textContent = "Recognising…";
  try {
    const found = await fetchJson(`/api/words?${query}`);
    if (found.words.length) placeWords(clip, found.words, found.duration_s);
    button.replaceWith(element("span", { class: "soft small" }, found.words.length ? "words under the spectrogram; zoom in to read" : "No words were recognised."));
  } catch (error) {
    button.replaceWith(element("span", { class: "notice" }, `No words: ${error.message}`));
  }
}

const deck = new Deck(document.getElementById("deck"));
const names = "ABCDEFGH";
let answers = 0;

for (const section of document.querySelectorAll("section[data-clip]")) {
  const isAnswer = "answer" in section.dataset;
  if (!section.dataset.clip) continue;
  const query = new URLSearchParams({ run: section.dataset.run, name: section.dataset.clip });
  const heading = section.querySelector("h2"), title = isAnswer ? `${names[answers]} ${heading.textContent}` : heading.textContent;
  answers += isAnswer;
  const { box, ready } = waveBox(`/clip?${query}`, title, deck, isAnswer);
  const details = element("details", {}, element("summary", {}, "Pitch and loudness"));
  const words = element("button", { type: "button", hidden: true }, "Words in their places");
  // What was said and judged comes first.
  section.append(box);
  box.append(words, details);
  details.addEventListener("toggle", () => showMeasured(details, query), { once: true });
  ready.then((clip) => {
    if (!clip) return;
    words.hidden = false;
    words.addEventListener("click", () => showWords(words, clip, query), { once: true });
  });
}

for (const [key, id] of [["p", "previous"], ["n", "next"]]) onKey(key, () => document.getElementById(id)?.click());
