// The form of a new site: methods of the model, dropped files, uploads.
import { send } from "/static/common.js";

const form = document.getElementById("new-site"), files = document.getElementById("files");
const drop = document.getElementById("drop"), chosen = document.getElementById("chosen");
const trouble = document.getElementById("trouble"), sent = document.getElementById("sent");
const about = Object.fromEntries([...document.querySelectorAll("#summaries option")].map(o => [o.value, o.label]));
const limits = chosen.textContent, most = Number(form.dataset.megabytes);
let waiting = [];

function explain() { document.getElementById("method-help").textContent = about[form.method_.value] ?? ""; }
form.method_ = form.elements.namedItem("method");
form.elements.namedItem("model").addEventListener("change", event => {
  const names = event.target.selectedOptions[0].dataset.methods.split(" ");
  form.method_.replaceChildren(...names.map(name => new Option(name, name)));
  explain();
});
form.method_.addEventListener("change", explain);
explain();

function choose(list) {
  waiting = [...list];
  const bytes = waiting.reduce((sum, file) => sum + file.size, 0);
  chosen.textContent = waiting.length ? `${waiting.length} files, ${(bytes / 1e6).toFixed(1)} MB` : limits;
}
files.addEventListener("change", () => choose(files.files));

async function filesOf(entry) {  // of a dropped folder, at any depth
  if (entry.isFile) return [await new Promise((found, failed) => entry.file(found, failed))];
  const reader = entry.createReader(), inside = [];
  for (let some = null; some === null || some.length;)
    inside.push(...(some = await new Promise((found, failed) => reader.readEntries(found, failed))));
  return (await Promise.all(inside.map(filesOf))).flat();
}
for (const name of ["dragover", "dragleave", "drop"]) drop.addEventListener(name, event => {
  event.preventDefault();
  drop.classList.toggle("over", name === "dragover");
  if (name !== "drop") return;
  const dropped = [...event.dataTransfer.items].map(item => [item.webkitGetAsEntry(), item.getAsFile()]);
  Promise.all(dropped.map(([entry, file]) => (entry ? filesOf(entry) : [file]))).then(found => choose(found.flat()));
});

for (const button of form.querySelectorAll("[data-folder]")) button.addEventListener("click", () => {
  form.elements.namedItem("folder").value = button.dataset.folder;
  for (const other of form.querySelectorAll("[data-folder]")) other.setAttribute("aria-pressed", String(other === button));
});

async function upload(id) {
  const queue = [...waiting], refused = [];
  let done = 0;
  sent.hidden = false;
  const worker = async () => {
    for (let file = queue.shift(); file; file = queue.shift()) {
      try {
        if (file.size > most * 1e6) throw new Error(`the file has more than ${most} MB; name a folder instead`);
        await send("PUT", `/sites/${id}/images?name=${encodeURIComponent(file.name)}`, file);
      } catch (error) { refused.push(`${file.name}: ${error.message}`); }
      sent.value = ++done / waiting.length;
    }
  };
  await Promise.all([worker(), worker(), worker()]);
  return refused;
}

form.addEventListener("submit", async event => {
  event.preventDefault();
  const button = form.querySelector("button.primary"), values = Object.fromEntries(new FormData(form));
  trouble.textContent = "";
  if (!waiting.length && !values.folder) { trouble.textContent = "Choose images, or name a folder."; return; }
  button.disabled = true;
  try {
    const folder = waiting.length ? "" : values.folder;
    const { id } = await send("POST", "/sites", { title: values.title, model: values.model, method: values.method, folder });
    if (waiting.length) {
      const refused = await upload(id);
      if (refused.length === waiting.length) throw new Error(refused.join("; "));
      if (refused.length) sessionStorage.setItem(`refused-${id}`, refused.join("; "));
      await send("POST", `/sites/${id}/start`);
    }
    location.assign(`/sites/${id}`);
  } catch (error) { trouble.textContent = error.message; button.disabled = false; }
});
