// The list of studies: makes a study of a run.

const form = document.getElementById("new-study");

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const { run, kind, first, second, limit, people, name, title } = form.elements;
  const listed = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);
  const study = {
    run: run.value, kind: kind.value, systems: [first, second].map((field) => field.value.trim()).filter(Boolean),
    limit: limit.value ? Number(limit.value) : null, people: listed(people.value), name: name.value.trim(), title: title.value,
  };
  const message = document.getElementById("message");
  message.textContent = "Being made …";
  try {
    const response = await fetch("/api/studies", { method: "POST", body: JSON.stringify(study) });
    const made = await response.json();
    if (response.ok) location.href = `/study/${made.address.split("/").map(encodeURIComponent).join("/")}`;
    else message.textContent = made.error;
  } catch { message.textContent = "The studio does not answer."; }
});
