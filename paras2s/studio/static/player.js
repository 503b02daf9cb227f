// One clip plays at a time, at equal loudness where that is on; a button starts its clip and stops it.

import { live, readSound, soundSource } from "./data.js";
import { describeLevel, gainOf, loudnessAt, volumeOf } from "./level.js";

const audio = new Audio();
let playing = null;

function stop() {
  audio.pause();
  if (playing) { playing.setAttribute("aria-pressed", "false"); playing.textContent = "▶"; }
  playing = null;
}

/** Play or stop the clip of a button (its data-clip). */
export async function toggle(button) {
  const same = playing === button;
  stop();
  if (same) return;
  playing = button;
  button.setAttribute("aria-pressed", "true");
  button.textContent = "■";
  // An export has no loudness of clips that no page draws.
  const loudness = live ? await loudnessAt(button.dataset.clip) : null;
  if (playing !== button) return;
  button.title = loudness === null ? "" : describeLevel(loudness);
  audio.volume = volumeOf(gainOf(loudness));
  document.dispatchEvent(new CustomEvent("clipplay", { detail: audio }));
  try {
    audio.src = soundSource(button.dataset.clip);
    await audio.play();
  } catch (error) {
    if (playing !== button || error.name === "AbortError") return;
    stop();
    button.title = await readSound(button.dataset.clip).then(() => "cannot be played", (reason) => reason.message);
    button.setAttribute("aria-label", button.title);
    button.textContent = "⚠";
  }
}

/** Whether a clip begins again at its end. */
export function setLoop(on) { audio.loop = on; }

audio.addEventListener("ended", stop);
// A clip that is drawn elsewhere on the page begins.
document.addEventListener("clipplay", (event) => { if (event.detail !== audio) stop(); });
document.addEventListener("click", (event) => {
  const button = event.target.closest("button.play");
  if (button?.dataset.clip) toggle(button);
});
