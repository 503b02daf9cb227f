// The overview of a study: adding a person, and copying a link.

const form = document.getElementById("add");
const message = document.getElementById("message");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const address = form.dataset.address.split("/").map(encodeURIComponent).join("/");
  try {
    const response = await fetch(`/api/study/${address}`, { method: "POST", body: JSON.stringify({ name: document.getElementById("name").value.trim() }) });
    if (response.ok) location.reload();
    else message.textContent = (await response.json()).error;
  } catch { message.textContent = "The studio does not answer."; }
});

const results = document.getElementById("results");

async function showResults() {
  const address = results.dataset.address.split("/").map(encodeURIComponent).join("/");
  try {
    const response = await fetch(`/study-results/${address}`);
    const text = await response.text();
    if (!response.ok) throw new Error(new DOMParser().parseFromString(text, "text/html").querySelector("[role=alert]")?.textContent || "The results cannot be shown.");
    // The studio's own template, with every value escaped.
    results.innerHTML = text;
  } catch (error) { results.querySelector("p").textContent = error.message; }
}
showResults();

for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch { button.textContent = "Not copied"; }
  });
}
