// The one place where pages get data, sounds and other pages: from the server, or of an export from the files beside the page.

const site = globalThis.paras2sSite;

/** Whether a server answers; an export has files alone, and nothing in it changes. */
export const live = !site;

// How much of a growing log a page has already. An export has the log at once.
const SO_FAR = ["offset", "file"];
// Pages of a run whose other parameters are read by their scripts: a filter, a step.
const SCRIPTED = ["/answers", "/rollouts"];

/** The name of an address in an export's index, the same as that of `name_of` in `export/requests.py`. */
function nameOf(address) {
  const { pathname, searchParams } = new URL(address, "http://studio");
  const given = [...searchParams].filter(([key]) => !SO_FAR.includes(key) && (key === "run" || !SCRIPTED.includes(pathname)));
  return JSON.stringify([pathname, ...given.sort(([one], [other]) => (one < other ? -1 : one > other ? 1 : 0))]);
}

function fileOf(address) {
  const found = site.files[nameOf(address)];
  if (found === undefined) throw new Error("This is not part of the export; the studio shows it.");
  if (Array.isArray(found)) throw new Error(found[0]);
  return found;
}

/** The text that a data file of the export registers. */
function readFile(file) {
  // A report in one file holds its data itself.
  const text = site.take(file);
  if (text !== undefined) return Promise.resolve(text);
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = file;
    script.addEventListener("load", () => { script.remove(); resolve(site.take(file)); });
    script.addEventListener("error", () => { script.remove(); reject(new Error(`${file} is missing in this export.`)); });
    document.head.append(script);
  });
}

/** JSON from the studio; an error's message is the server's. */
export async function fetchJson(address) {
  if (!live) return JSON.parse(await readFile(fileOf(address)));
  const response = await fetch(address);
  const value = await response.json().catch(() => ({ error: `${response.status} ${response.statusText}` }));
  if (!response.ok) throw new Error(value.error || response.statusText);
  return value;
}

/** Where a player finds the sound at an address; an export without it throws the reason. */
export function soundSource(address) { return live ? address : fileOf(address); }

/** The sound at an address as a blob, for who draws it; an error's message says in plain words why there is none. */
export async function readSound(address) {
  if (!live) {
    const bytes = atob(await readFile(`${fileOf(address)}.js`));
    return new Blob([Uint8Array.from(bytes, (one) => one.charCodeAt(0))]);
  }
  const response = await fetch(address);
  if (response.ok) return response.blob();
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  throw new Error(page.querySelector("[role=alert]")?.textContent || "This sound cannot be shown.");
}

/** Whether a page can be opened: of an export only what it holds. */
export const exists = (address) => live || typeof site.files[nameOf(address)] === "string";

/** Open another page of the studio. */
export function openPage(address) {
  try {
    location.href = live ? address : fileOf(address) + new URL(address, "http://studio").search;
  } catch (error) { note(error.message); }
}

/** Keep where the reader is in the page's address (a query string), for a reload or a link. */
export function keepPlace(query) {
  // The address of a file can be changed behind the # alone.
  history.replaceState(null, "", live ? query : query.replace("?", "#"));
}

/** What the page's address says about the place in it. */
export function placeOf() {
  return new URLSearchParams(live || location.hash.length < 2 ? location.search : location.hash.slice(1));
}

function note(text) {
  document.getElementById("not-exported")?.remove();
  const notice = document.createElement("p");
  Object.assign(notice, { id: "not-exported", className: "notice", textContent: text });
  notice.setAttribute("role", "alert");
  document.getElementById("main").prepend(notice);
  notice.scrollIntoView({ block: "nearest" });
}

// A form, or a link that a script wrote, leads to another page, which an export has or has not.
if (!live) {
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="/"]');
    if (!link) return;
    event.preventDefault();
    openPage(link.getAttribute("href"));
  });
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "get" || !event.target.hasAttribute("action")) return;
    event.preventDefault();
    openPage(`${event.target.getAttribute("action")}?${new URLSearchParams(new FormData(event.target))}`);
  });
}
