// A clip in detail: waveform and spectrogram by wavesurfer.js, the words or the tokens in their places.

import WaveSurfer from "./vendor/wavesurfer.esm.js";
import Regions from "./vendor/wavesurfer-regions.esm.js";
import Spectrogram from "./vendor/wavesurfer-spectrogram.esm.js";
import Timeline from "./vendor/wavesurfer-timeline.esm.js";
import { readSound } from "./data.js";
import { element, fetchJson } from "./studio.js";
import { colour, ink } from "./plots.js";
import { measure } from "./level.js";

const nonce = document.querySelector('meta[name="style-nonce"]').content;
// wavesurfer.js decodes at this rate for its pictures; what is played is the file.
const PICTURE_RATE_HZ = 16000;

/** Fill a box with the sound at one address and the tokens at another; the clip that was added to the deck, or null. */
export async function showSound(box, sound, tokens, title, deck) {
  const list = element("div", { class: "tokens" });
  const clip = waveBox(sound, title, deck);
  box.replaceChildren(element("div", { class: "detail-box" }, clip.box, list));
  try {
    showTokens(list, await fetchJson(tokens));
  } catch (error) {
    list.replaceChildren(element("p", { class: "notice bad" }, error.message));
  }
  return clip.ready;
}

/** Controls, waveform and spectrogram of the sound at an address; `ready` is the deck's clip, null where there is no sound. */
export function waveBox(sound, title, deck, isAnswer = true) {
  const wave = element("div", { class: "wave", role: "img", "aria-label": "Waveform and spectrogram" });
  const play = element("button", { type: "button" }, "Play");
  const zoom = element("input", { type: "range", min: "0", max: "6", step: "0.25", value: "0", "aria-label": "Zoom" });
  const top = element("select", { "aria-label": "Highest frequency" }, ...[8, 4, 2].map((value) => element("option", { value: 1000 * value }, `to ${value} kHz`)));
  const level = element("span", { class: "soft small number level" });
  const bar = element("div", { class: "bar tight" }, play, element("label", { class: "small" }, "Zoom ", zoom), top, level,
    element("span", { class: "soft small" }, "drag over the waveform to loop a part"));
  return { box: element("div", { class: "sound" }, bar, wave), ready: drawWave({ wave, play, zoom, top, level }, sound, title, deck, isAnswer) };
}

function spectrogram(top) {
  // Its labels would cover the beginning of the clip; the list above it names the highest frequency.
  return Spectrogram.create({ height: 150, labels: false, fftSamples: 512, scale: "linear", frequencyMax: top, useWebWorker: false });
}

async function drawWave({ wave, play, zoom, top, level }, sound, title, deck, isAnswer) {
  let blob;
  try {
    blob = await readSound(sound);
  } catch (error) {
    wave.replaceChildren(element("p", { class: "notice" }, error.message));
    for (const control of [play, zoom, top]) control.disabled = true;
    return null;
  }
  const regions = Regions.create();
  // A clip of 8 kHz has nothing in the upper half.
  const header = new DataView(await blob.slice(0, 28).arrayBuffer());
  if (header.byteLength === 28 && header.getUint32(0) === 0x52494646 && header.getUint32(24, true) <= 8000) top.value = "4000";
  const { loudness, duration } = await measure(blob), labels_s = duration < 15 ? 1 : duration < 60 ? 5 : 10;
  let picture = spectrogram(Number(top.value));
  const player = WaveSurfer.create({
    container: wave, height: 84, waveColor: colour(0), progressColor: colour(1), cursorColor: colour(1), normalize: true, cspNonce: nonce, sampleRate: PICTURE_RATE_HZ,
    plugins: [regions, Timeline.create({ height: 18, timeInterval: labels_s / 5, primaryLabelInterval: labels_s, style: { fontSize: "11px", color: ink("--soft") } }), picture],
  });
  player.on("play", () => { play.textContent = "Stop"; });
  player.on("pause", () => { play.textContent = "Play"; });
  const toggle = () => {
    if (player.isPlaying()) { player.pause(); return; }
    const region = regions.getRegions()[0];
    if (region) region.play(); else player.play();
  };
  play.addEventListener("click", toggle);
  await player.loadBlob(blob);
  // Each step of 1 doubles the length of the picture, from the one that fits.
  zoom.addEventListener("input", () => player.zoom(Number(zoom.value) ? (2 ** Number(zoom.value) * wave.clientWidth) / player.getDuration() : 0));
  top.addEventListener("change", () => {
    picture.destroy();
    picture = player.registerPlugin(spectrogram(Number(top.value)));
    picture.render?.();
  });
  regions.enableDragSelection({ color: `${colour(1)}33` });
  const clip = { title, isAnswer, player, regions, zoom, level, loudness, toggle, wave, tint: `${colour(1)}33` };
  deck.add(clip);
  return clip;
}

/** Words under the spectrogram, each from its start to its end; they grow with the zoom. */
export function placeWords(clip, words, duration) {
  const line = document.createElement("div");
  line.dataset.words = words.length;
  Object.assign(line.style, { position: "relative", height: "24px", overflow: "hidden" });
  for (const word of words) {
    const part = document.createElement("span");
    part.textContent = word.text;
    part.title = `${word.start_s.toFixed(2)} to ${word.end_s.toFixed(2)} s${word.p === null ? "" : `, probability ${word.p.toFixed(2)}`}`;
    Object.assign(part.style, {
      position: "absolute", left: `${(100 * word.start_s) / duration}%`, width: `${(100 * Math.max(0, word.end_s - word.start_s)) / duration}%`, top: "2px", bottom: "2px",
      boxSizing: "border-box", padding: "0 3px", overflow: "hidden", whiteSpace: "nowrap", font: "12px/20px system-ui, sans-serif", color: ink("--ink"), borderLeft: `2px solid ${ink("--accent")}`, background: ink("--tint"),
    });
    line.append(part);
  }
  clip.player.getWrapper().append(line);
  clip.wave.setAttribute("aria-label", `Waveform and spectrogram, with the words ${words.map((word) => `${word.text} at ${word.start_s.toFixed(2)} s`).join(", ")}`);
}

/** How surprising a token was: the darker, the smaller its probability. */
function surprise(logprob) { return Math.min(1, -logprob / 6); }

function showTokens(list, view) {
  const texts = view.steps.flatMap((step, number) => step.text.map((token) => ({ ...token, number })));
  const chips = element("div", { class: "chips" }, ...texts.map((token) => {
    const chip = element("span", { class: "token", title: `step ${token.number}, log-prob ${token.logprob.toFixed(3)}, probability ${Math.exp(token.logprob).toFixed(3)}` }, token.token.replace(/^##/, "·"));
    chip.style.setProperty("--surprise", surprise(token.logprob).toFixed(2));
    return chip;
  }));
  const audio = view.steps.map((step) => step.audio);
  const deepest = Math.min(-0.1, ...audio.filter((value) => value !== null));
  const bars = element("div", { class: "audio-bars", role: "img", "aria-label": "Mean log-prob of the audio tokens, step by step" }, ...audio.map((value, number) => {
    const bar = element("i", { title: value === null ? `step ${number}: none sampled` : `step ${number}: ${value.toFixed(2)} nats` });
    bar.style.height = value === null ? "0" : `${(100 * value) / deepest}%`;
    return bar;
  }));
  list.replaceChildren(
    element("h3", {}, "Text tokens ", element("span", { class: "soft small" }, "the darker, the less probable")), chips,
    element("h3", {}, "Audio tokens ", element("span", { class: "soft small" }, `mean −log p of a step, up to ${(-deepest).toFixed(1)} nats a token${view.step_s ? `; a step is ${1000 * view.step_s} ms` : ""}`)), bars);
}
