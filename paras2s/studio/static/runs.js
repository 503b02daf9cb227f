// The list of runs: keys, and the choice of runs to compare.

import { onKey } from "./studio.js";

const rows = [...document.querySelectorAll("#runs tbody tr")];
const boxes = rows.map((row) => row.querySelector("input"));
const compare = document.getElementById("compare");
let at = -1;

function show() {
  const count = boxes.filter((box) => box.checked).length;
  if (!compare) return;
  compare.disabled = count < 2 || count > 6;
  document.getElementById("chosen").textContent = count ? `${count} chosen` : "choose two to six runs";
}

function move(by) {
  if (!rows.length) return;
  rows[at]?.classList.remove("at");
  at = Math.min(rows.length - 1, Math.max(0, at + by));
  rows[at].classList.add("at");
  rows[at].querySelector("a.open").focus();
}

boxes.forEach((box) => box.addEventListener("change", show));
onKey("j", () => move(1));
onKey("k", () => move(-1));
onKey("x", () => { if (boxes[at]) { boxes[at].checked = !boxes[at].checked; show(); } });
onKey("c", () => { if (compare && !compare.disabled) document.getElementById("choose").requestSubmit(); });
onKey("/", () => document.getElementById("find")?.focus());
show();
