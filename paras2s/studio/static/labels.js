// The labels of a run: title, tags, notes, and whether it is archived.

const form = document.getElementById("labels");

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { title, tags, notes, archived } = form.elements;
  const labels = {
    title: title.value.trim(), tags: tags.value.split(",").map((tag) => tag.trim()).filter(Boolean), notes: notes.value.trim(), archived: archived.checked,
  };
  const message = document.getElementById("labels-message");
  try {
    const response = await fetch(`/api/labels?run=${encodeURIComponent(form.dataset.run)}`, { method: "POST", body: JSON.stringify(labels) });
    if (response.ok) location.reload();
    else message.textContent = (await response.json()).error;
  } catch { message.textContent = "The studio does not answer."; }
});
