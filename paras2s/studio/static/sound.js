// An answer in detail: waveform and spectrogram by wavesurfer.js, and its tokens in their places below.

import WaveSurfer from "./vendor/wavesurfer.esm.js";
import Regions from "./vendor/wavesurfer-regions.esm.js";
import Spectrogram from "./vendor/wavesurfer-spectrogram.esm.js";
import { element, fetchJson } from "./studio.js";
import { colour } from "./plots.js";

const nonce = document.querySelector('meta[name="style-nonce"]').content;

/** Fill a box with the sound at one address and the tokens at another. */
export async function showSound(box, sound, tokens) {
  const wave = element("div", { class: "wave", role: "img", "aria-label": "Waveform and spectrogram" });
  const list = element("div", { class: "tokens" });
  const play = element("button", { type: "button" }, "Play");
  const zoom = element("input", { type: "range", min: "0", max: "800", value: "0", "aria-label": "Zoom" });
  const note = element("span", { class: "soft small" }, "drag over the waveform to loop a part");
  box.replaceChildren(element("div", { class: "detail-box" }, element("div", { class: "bar tight" }, play, element("label", { class: "small" }, "Zoom ", zoom), note), wave, list));
  showWave(wave, sound, play, zoom);
  try {
    showTokens(list, await fetchJson(tokens));
  } catch (error) {
    list.replaceChildren(element("p", { class: "notice bad" }, error.message));
  }
}

/** Draw the sound at an address into a box, with a button that plays and a slider that zooms; a reason where it is missing. */
export async function showWave(wave, sound, play, zoom) {
  const response = await fetch(sound);
  if (!response.ok) {
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    wave.replaceChildren(element("p", { class: "notice" }, page.querySelector("[role=alert]")?.textContent || "This sound cannot be shown."));
    play.disabled = true;
    return;
  }
  const regions = Regions.create();
  const player = WaveSurfer.create({
    container: wave, height: 84, waveColor: colour(0), progressColor: colour(1), cursorColor: colour(1), normalize: true, cspNonce: nonce,
    plugins: [regions, Spectrogram.create({ height: 130, labels: false, fftSamples: 256, scale: "linear", useWebWorker: false })],
  });
  player.on("play", () => { play.textContent = "Stop"; });
  player.on("pause", () => { play.textContent = "Play"; });
  play.addEventListener("click", () => {
    if (player.isPlaying()) { player.pause(); return; }
    const region = regions.getRegions()[0];
    if (region) region.play(); else player.play();
  });
  zoom.addEventListener("input", () => player.zoom(Number(zoom.value)));
  regions.enableDragSelection({ color: `${colour(1)}33` });
  regions.on("region-created", (region) => { regions.getRegions().forEach((one) => { if (one !== region) one.remove(); }); });
  regions.on("region-out", (region) => { if (player.isPlaying()) region.play(); });
  regions.on("region-clicked", (region, event) => { event.stopPropagation(); region.remove(); });
  await player.loadBlob(await response.blob());
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
