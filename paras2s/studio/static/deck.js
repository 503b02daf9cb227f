// The clips of a page that are open: one plays at a time, at equal loudness, with one loop, and x changes to another at the same position.

import { element, onKey } from "./studio.js";
import { TARGET_LUFS, describeLevel, gainOf, isEqual, setEqual, volumeOf, wireLevel } from "./level.js";

export class Deck {
  /** A deck with its bar in `place`. `playKey`: whether Space belongs to it. */
  constructor(place, playKey = true) {
    this.entries = [];
    this.current = null;
    this.loop = null;
    this.begin = null;
    this.chosen = false;
    const button = (text, label, action) => element("button", { type: "button", "aria-label": label, onclick: action }, text);
    this.choices = element("span", { class: "choices", role: "group", "aria-label": "Clip" });
    this.position = element("span", { class: "soft small number" });
    this.level = button("Equal loudness", null, () => {});
    wireLevel(this.level);
    this.bar = element("div", { class: "bar deck", role: "group", "aria-label": "Listening", hidden: true }, this.choices,
      button("Play", "Play or stop the chosen clip", () => this.toggle()), button("[ Loop", "Begin a loop here", () => this.mark()),
      button("Loop ]", "End the loop here", () => this.close()), button("No loop", null, () => this.setLoop(null)), this.level, this.position);
    place.replaceChildren(this.bar);
    document.addEventListener("levelchange", () => this.#match());
    document.addEventListener("clipplay", (event) => this.entries.forEach((one) => { if (one !== event.detail) one.player.pause(); }));
    if (playKey) onKey(" ", (event) => { const control = event.target.closest("button, summary"); if (control) control.click(); else this.toggle(); });
    onKey("x", () => this.next());
    onKey("[", () => this.mark());
    onKey("]", () => this.close());
    onKey("\\", () => this.setLoop(null));
    onKey("e", () => setEqual(!isEqual()));
    onKey("+", () => this.zoom(1));
    onKey("-", () => this.zoom(-1));
  }

  /** Add a clip that is drawn; a question is played, and x passes over it. */
  add(entry) {
    this.entries.push(entry);
    entry.choice = element("button", { type: "button", onclick: () => this.choose(entry) }, entry.title);
    // Clips come as they are loaded, and stand as on the page.
    this.entries.sort((one, other) => (one.wave.compareDocumentPosition(other.wave) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1));
    this.choices.replaceChildren(...this.#answers().map((one) => one.choice));
    if (!this.chosen) this.current = this.#answers()[0] ?? null;
    entry.player.on("play", () => {
      document.dispatchEvent(new CustomEvent("clipplay", { detail: entry }));
      this.#take(entry);
    });
    entry.player.on("interaction", () => this.#take(entry));
    entry.player.on("timeupdate", () => { if (entry === this.current) this.#show(); });
    entry.regions.on("region-created", (region) => this.#looped(region));
    entry.regions.on("region-updated", (region) => this.#looped(region));
    entry.regions.on("region-out", (region) => { if (entry.player.isPlaying()) region.play(); });
    entry.regions.on("region-clicked", (region, event) => { event.stopPropagation(); this.setLoop(null); });
    if (this.loop) this.#draw(entry);
    this.#match();
  }

  /** Forget the clips whose boxes are gone from the page. */
  prune() {
    for (const entry of this.entries.filter((one) => !one.wave.isConnected)) {
      entry.player.destroy();
      entry.choice.remove();
      this.entries = this.entries.filter((one) => one !== entry);
    }
    if (!this.entries.includes(this.current)) this.current = this.#answers()[0] ?? null;
    this.#match();
  }

  #answers() { return this.entries.filter((one) => one.isAnswer); }

  /** Change to a clip at the position of the one before; it goes on playing if that one did. */
  choose(entry) {
    const before = this.current;
    if (before && before !== entry) {
      const playing = before.player.isPlaying(), at = before.player.getCurrentTime();
      before.player.pause();
      entry.player.setTime(Math.min(at, Math.max(0, entry.player.getDuration() - 0.01)));
      if (playing) entry.player.play();
    }
    this.#take(entry);
  }

  /** From now on the keys are this clip's. */
  #take(entry) {
    this.current = entry;
    this.chosen = true;
    this.#show();
  }

  next() {
    const answers = this.#answers();
    if (answers.length) this.choose(answers[(answers.indexOf(this.current) + 1) % answers.length]);
  }

  toggle() { this.current?.toggle(); }

  mark() { if (this.current) { this.begin = this.current.player.getCurrentTime(); this.#show(); } }

  close() {
    if (!this.current) return;
    const end = this.current.player.getCurrentTime(), start = this.begin ?? 0;
    if (end - start > 0.02) this.setLoop({ start, end });
  }

  /** One loop on all clips, in seconds; null for none. */
  setLoop(loop) {
    this.loop = loop;
    this.begin = null;
    this.entries.forEach((entry) => this.#draw(entry));
    this.#show();
  }

  #draw(entry) {
    this.drawing = true;
    entry.regions.clearRegions();
    const length = entry.player.getDuration();
    if (this.loop && this.loop.start < length) entry.regions.addRegion({ start: this.loop.start, end: Math.min(this.loop.end, length), color: entry.tint });
    this.drawing = false;
  }

  #looped(region) { if (!this.drawing) this.setLoop({ start: region.start, end: region.end }); }

  zoom(way) {
    for (const entry of this.entries) {
      entry.zoom.value = Number(entry.zoom.value) + way;
      entry.zoom.dispatchEvent(new Event("input"));
    }
  }

  /** All clips at the loudness of the quietest, or at the common one where all are louder. */
  #match() {
    const measured = this.entries.map((entry) => entry.loudness).filter((value) => value !== null);
    const target = Math.min(TARGET_LUFS, ...measured);
    for (const entry of this.entries) {
      entry.player.setVolume(volumeOf(gainOf(entry.loudness, target)));
      entry.level.textContent = describeLevel(entry.loudness, target);
    }
    this.#show();
  }

  #show() {
    this.bar.hidden = !this.#answers().length;
    for (const entry of this.entries) entry.choice.setAttribute("aria-pressed", String(entry === this.current));
    const loop = this.loop ? `, loop ${this.loop.start.toFixed(2)} to ${this.loop.end.toFixed(2)} s` : this.begin === null ? "" : `, loop from ${this.begin.toFixed(2)} s`;
    this.position.textContent = this.current ? `${this.current.title}, ${this.current.player.getCurrentTime().toFixed(2)} s${loop}` : "";
  }
}
