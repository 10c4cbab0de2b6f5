// A run: filters act at once, the tables follow a run that is going on, and a picture of the worst images on demand.
import { part, say } from "/static/common.js";

const run = document.getElementById("run"), PAUSE = 2000;
document.getElementById("filters")?.addEventListener("change", event => {
  if (event.target.id === "benchmark") location.assign(event.target.value); else event.currentTarget.submit();
});

async function follow() {
  const { done, total } = JSON.parse(await part(`/runs/${run.dataset.number}/state`));
  if (String(done) !== run.dataset.done) {
    const fresh = new DOMParser().parseFromString(await part(location.href), "text/html");
    for (const plots of fresh.querySelectorAll("details")) plots.open = document.getElementById(plots.id)?.open ?? plots.open;
    for (const id of ["run", "tables"]) document.getElementById(id).innerHTML = fresh.getElementById(id).innerHTML;
    run.dataset.done = done;
  }
  if (done < total) setTimeout(() => follow().catch(() => setTimeout(follow, PAUSE)), PAUSE);
}
if (run && run.dataset.done !== run.dataset.total) setTimeout(follow, PAUSE);

document.getElementById("draw")?.addEventListener("click", event => {
  const button = event.currentTarget, picture = new Image();
  button.disabled = true;
  say("The picture is being drawn.");
  picture.alt = "The worst images: image, truth, and the contour of each method";
  picture.onload = () => { picture.className = "complete"; say(""); };
  picture.onerror = () => { say("The picture could not be drawn."); button.disabled = false; };
  picture.src = button.dataset.src;
  document.getElementById("drawn").replaceChildren(picture);
});
