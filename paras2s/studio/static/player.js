// One clip plays at a time; a button starts its clip and stops it.

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
  audio.src = button.dataset.clip;
  try {
    await audio.play();
  } catch (error) {
    if (playing !== button || error.name === "AbortError") return;
    stop();
    const response = await fetch(button.dataset.clip).catch(() => null);
    const reason = response && !response.ok ? await response.text() : "cannot be played";
    button.title = reason.startsWith("<") ? "this clip is missing" : reason;
    button.setAttribute("aria-label", button.title);
    button.textContent = "⚠";
  }
}

/** Whether a clip begins again at its end. */
export function setLoop(on) { audio.loop = on; }

audio.addEventListener("ended", stop);
document.addEventListener("click", (event) => {
  const button = event.target.closest("button.play");
  if (button?.dataset.clip) toggle(button);
});
