// Equal loudness: every clip is measured after ITU-R BS.1770-4, and louder ones are turned down. Nothing is turned up: it might clip.

export const TARGET_LUFS = -30;
const RATE_HZ = 48000, BLOCK = 4, ABSOLUTE_GATE = -70, RELATIVE_GATE = -10;
// The norm's two filters at 48 kHz, to which the browser resamples: the head's shelf, then the high-pass.
const FILTERS = [
  { b: [1.53512485958697, -2.69169618940638, 1.19839281085285], a: [-1.69065929318241, 0.73248077421585] },
  { b: [1, -2, 1], a: [-1.99004745483398, 0.99007225036621] },
];

function weighted(samples) {
  let from = Float64Array.from(samples);
  for (const { b, a } of FILTERS) {
    const to = new Float64Array(from.length);
    let x1 = 0, x2 = 0, y1 = 0, y2 = 0;
    for (let place = 0; place < from.length; place += 1) {
      const x = from[place], y = b[0] * x + b[1] * x1 + b[2] * x2 - a[0] * y1 - a[1] * y2;
      to[place] = y;
      x2 = x1; x1 = x; y2 = y1; y1 = y;
    }
    from = to;
  }
  return from;
}

const lufs = (power) => -0.691 + 10 * Math.log10(power);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** Integrated loudness in LUFS of channels at 48 kHz; null for less than 0.4 s, or nothing above the gate. */
export function integratedLoudness(channels) {
  const hop = RATE_HZ / 10, hops = Math.floor(channels[0].length / hop), powers = new Float64Array(hops);
  for (const channel of channels) {
    const samples = weighted(channel);
    for (let number = 0; number < hops; number += 1) {
      let sum = 0;
      for (let place = number * hop; place < (number + 1) * hop; place += 1) sum += samples[place] ** 2;
      powers[number] += sum / hop;
    }
  }
  const blocks = [];
  for (let number = 0; number + BLOCK <= hops; number += 1) blocks.push(mean([...powers.subarray(number, number + BLOCK)]));
  const loud = blocks.filter((power) => lufs(power) >= ABSOLUTE_GATE);
  if (!loud.length) return null;
  const gate = lufs(mean(loud)) + RELATIVE_GATE;
  return lufs(mean(loud.filter((power) => lufs(power) > gate)));
}

/** A file of sound: its loudness in LUFS, null where it has none, and its length in seconds; both null where it cannot be decoded. */
export async function measure(blob) {
  try {
    const sound = await new OfflineAudioContext(1, 1, RATE_HZ).decodeAudioData(await blob.arrayBuffer());
    const channels = Array.from({ length: sound.numberOfChannels }, (_, number) => sound.getChannelData(number));
    return { loudness: integratedLoudness(channels), duration: sound.duration };
  } catch { return { loudness: null, duration: null }; }
}

const known = new Map();

/** The loudness of the clip at an address; measured once. */
export function loudnessAt(address) {
  const load = async () => {
    const response = await fetch(address);
    return response.ok ? (await measure(await response.blob())).loudness : null;
  };
  if (!known.has(address)) known.set(address, load().catch(() => null));
  return known.get(address);
}

/** Whether clips are played at equal loudness. */
export function isEqual() {
  try { return localStorage.getItem("equal-loudness") !== "no"; } catch { return true; }
}

export function setEqual(on) {
  try { localStorage.setItem("equal-loudness", on ? "yes" : "no"); } catch { /* private windows */ }
  document.dispatchEvent(new CustomEvent("levelchange"));
}

/** The change in LU that takes a clip to a loudness: at most 0. */
export function gainOf(loudness, target = TARGET_LUFS) {
  return loudness === null || !isEqual() ? 0 : Math.min(0, target - loudness);
}

/** The volume of a media element for a change in LU. */
export function volumeOf(gain) { return 10 ** (gain / 20); }

const signed = (value) => `${value < 0 ? "−" : ""}${Math.abs(value).toFixed(1)}`;

/** What is done to a clip's loudness, in words. */
export function describeLevel(loudness, target = TARGET_LUFS) {
  if (loudness === null) return "loudness not measured: under 0.4 s, or silent";
  if (!isEqual()) return `${signed(loudness)} LUFS, as it is`;
  const gain = gainOf(loudness, target);
  if (loudness < target - 0.05) return `${signed(loudness)} LUFS, ${(target - loudness).toFixed(1)} LU under the others`;
  return `${signed(loudness)} LUFS, played at ${signed(gain)} LU`;
}

/** A button that turns equal loudness on and off. */
export function wireLevel(button) {
  const show = () => button.setAttribute("aria-pressed", String(isEqual()));
  button.addEventListener("click", () => setEqual(!isEqual()));
  document.addEventListener("levelchange", show);
  show();
}
