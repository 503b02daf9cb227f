// A question to two checkpoints: by microphone, file or typing; answers side by side, and a vote.

import { onKey } from "./studio.js";
import "./player.js";

const RATE_HZ = 48000;
// What a browser does for calls would change loudness and tone, which are what the policies are to hear.
const AS_IT_IS = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };
const at = (id) => document.getElementById(id);
const form = at("ask"), asked = at("asked");

function say(text, bad = false) {
  at("status").textContent = text;
  at("status").className = bad ? "notice bad" : "spaced";
}

/** Send something to the studio, and show the question that it answers with. */
async function send(address, body, waiting) {
  at("fields").disabled = true;
  say(waiting);
  try {
    const response = await fetch(address, { method: "POST", body });
    const text = await response.text();
    const refused = response.headers.get("content-type").includes("json");
    if (!response.ok) throw new Error(refused ? JSON.parse(text).error : `The studio failed (${response.status}).`);
    // The studio's own template, with every value escaped.
    const made = document.createRange().createContextualFragment(text).querySelector("article");
    const before = at(made.id);
    if (before) before.replaceWith(made); else asked.prepend(made);
    say("");
    made.focus();
  } catch (error) {
    say(error instanceof TypeError ? "The studio does not answer." : error.message, true);
  }
  at("fields").disabled = false;
}

const ask = (body, name) => send(`/api/talk/spoken?${new URLSearchParams({ name, style: at("style").value })}`, body, "Both are answering …");

/** Samples of one channel as a WAV file. */
function asWav(samples) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const write = (place, word) => [...word].forEach((letter, number) => view.setUint8(place + number, letter.charCodeAt(0)));
  write(0, "RIFF"); view.setUint32(4, 36 + 2 * samples.length, true);
  write(8, "WAVEfmt "); view.setUint32(16, 16, true); view.setUint16(20, 1, true); view.setUint16(22, 1, true);
  view.setUint32(24, RATE_HZ, true); view.setUint32(28, 2 * RATE_HZ, true); view.setUint16(32, 2, true); view.setUint16(34, 16, true);
  write(36, "data"); view.setUint32(40, 2 * samples.length, true);
  samples.forEach((value, number) => view.setInt16(44 + 2 * number, 32767 * Math.max(-1, Math.min(1, value)), true));
  return view.buffer;
}

let recorder = null;

async function record() {
  if (recorder) { recorder.stop(); return; }
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: AS_IT_IS });
  } catch (error) {
    say(`The browser gives no microphone (${error.message}); choose a file, or type a question.`, true);
    return;
  }
  const parts = [], longest = Number(form.dataset.longest), began = performance.now();
  recorder = new MediaRecorder(stream);
  const tick = setInterval(() => say(`Recording: ${Math.round((performance.now() - began) / 1000)} of at most ${longest} s`), 500);
  // A little before the limit: the encoder rounds up.
  const end = setTimeout(() => recorder?.stop(), 1000 * longest - 500);
  recorder.addEventListener("dataavailable", (event) => parts.push(event.data));
  recorder.addEventListener("stop", async () => {
    clearInterval(tick);
    clearTimeout(end);
    stream.getTracks().forEach((track) => track.stop());
    recorder = null;
    show(false);
    try {
      const sound = await new OfflineAudioContext(1, 1, RATE_HZ).decodeAudioData(await new Blob(parts).arrayBuffer());
      await ask(asWav(sound.getChannelData(0)), "the recording");
    } catch { say("Nothing was recorded; speak a little longer.", true); }
  });
  recorder.start();
  show(true);
}

function show(recording) {
  at("record").setAttribute("aria-pressed", String(recording));
  at("record").textContent = recording ? "Stop and ask" : "Record";
}

function wire() {
  const heard = window.isSecureContext && navigator.mediaDevices?.getUserMedia && window.MediaRecorder;
  at("no-microphone").hidden = Boolean(heard);
  at("record").disabled = !heard;
  at("record").addEventListener("click", record);
  onKey("m", () => at("record").click());
  onKey("/", () => at("text")?.focus());
  at("file").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    if (file) await ask(file, file.name);
    event.target.value = "";
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (at("text")) send("/api/talk/typed", JSON.stringify({ text: at("text").value, style: at("style").value }), "It is being spoken, and both are answering …");
  });
  at("example")?.addEventListener("change", (event) => {
    const [chosen] = event.target.selectedOptions;
    if (!chosen.value) return;
    at("text").value = chosen.value;
    at("style").value = chosen.dataset.style;
  });
  asked.addEventListener("click", (event) => {
    const button = event.target.closest("[data-number]");
    if (!button) return;
    const number = Number(button.dataset.number), { better } = button.dataset;
    if (better === undefined) send("/api/talk/names", JSON.stringify({ number }), "");
    else send("/api/talk/vote", JSON.stringify({ number, better: Number(better) }), "");
  });
}

// An export has the answers alone.
if (form) wire();
