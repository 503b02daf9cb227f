// The report of a run: its players, and the choice of a category.

import "./player.js";

for (const side of document.querySelectorAll(".side")) side.style.setProperty("--rows", side.children.length);

const buttons = document.querySelectorAll("[data-filter]");
for (const button of buttons) {
  button.addEventListener("click", () => {
    for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
    for (const card of document.querySelectorAll(".card")) {
      card.hidden = button.dataset.filter !== "" && card.dataset.category !== button.dataset.filter;
    }
  });
}
