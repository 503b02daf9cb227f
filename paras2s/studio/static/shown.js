// A list that may be long: its first items are drawn, the next as the reader comes near, so that thousands take no longer than a screen.

import { element } from "./studio.js";

const AT_ONCE = 20;

export class Shown {
  /** A list in `place`; `make` draws an item. */
  constructor(place, make) {
    this.place = place;
    this.make = make;
    this.more = element("button", { type: "button", class: "more", hidden: true, onclick: () => this.grow() });
    place.after(this.more);
    new IntersectionObserver((seen) => { if (seen.some((one) => one.isIntersecting)) this.grow(); }, { rootMargin: "600px" }).observe(this.more);
  }

  show(items) {
    this.items = items;
    this.drawn = 0;
    this.place.replaceChildren();
    this.grow();
  }

  grow() {
    if (!this.items) return;
    const next = this.items.slice(this.drawn, this.drawn + AT_ONCE);
    this.place.append(...next.map(this.make));
    this.drawn += next.length;
    this.more.hidden = this.drawn >= this.items.length;
    this.more.textContent = `${this.items.length - this.drawn} more`;
  }
}
