// The page of a site: live progress, the review queue, decisions and keys.
import { part, say, send } from "/static/common.js";
import { brush } from "/static/brush.js";

const site = document.getElementById("site"), id = site.dataset.id, address = `/sites/${id}`;
const queue = document.getElementById("queue"), viewer = document.getElementById("viewer");
const narrow = matchMedia("(max-width: 60rem)");
const layers = { source: true, adapted: true };
const rows = new Map([...queue.children].map(row => [row.dataset.key, row]));
let following = true, selected = null, painter = null, decided = {};

const visible = () => [...queue.children].filter(row => !row.hidden);
const before = (a, b) => b.dataset.risk - a.dataset.risk || (a.dataset.file < b.dataset.file ? -1 : 1);

function insert(row) {
  rows.get(row.dataset.key)?.remove();
  rows.set(row.dataset.key, row);
  let low = 0, high = queue.children.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (before(queue.children[middle], row) < 0) low = middle + 1; else high = middle;
  }
  queue.insertBefore(row, queue.children[low] ?? null);
}

function addRows(html) {
  const holder = document.createElement("template");
  holder.innerHTML = html;
  [...holder.content.children].forEach(insert);
  if (selected) current(selected);
  filter();
}

function bar(name, value, total) {
  const box = document.getElementById(name);
  box.querySelector("progress").value = total ? value / total : 0;
  box.querySelector("output").textContent = total ? `${value} of ${total}` : `${value}`;
}

function update(news) {
  const tag = document.querySelector("#state .tag"), running = ["waiting", "running"].includes(news.state);
  tag.textContent = news.state;
  tag.className = `tag ${news.state}`;
  document.getElementById("state-text").textContent = news.message
    || (news.state === "waiting" && news.ahead ? `${news.ahead} sites are before this one` : "");
  document.getElementById("learning").hidden = !news.steps;
  bar("learning", news.learned, news.steps);
  bar("answering", Math.max(news.done, running ? 0 : news.answers), Math.max(news.total, running ? 0 : news.answers));
  for (const [act, shown] of [["start", !running && news.state !== "done"], ["stop", running], ["delete", !running]])
    site.querySelector(`[data-act=${act}]`).hidden = !shown;
  document.getElementById("count").textContent = news.answers;
  if (news.reset) { queue.replaceChildren(); rows.clear(); }
  if (news.case && following) put(news.case);
  if (news.live && following) viewer.innerHTML = news.live;
  if (news.rows) addRows(news.rows);
  if (news.decided) {
    decided = news.decided;
    const count = Object.keys(decided).length;
    document.getElementById("decided").textContent = count ? `${count} decided.` : "";
  }
  if (news.decided || news.rows) for (const [key, row] of rows) mark(row, decided[key] ?? "undecided");
  findings(news.findings);
}

function mark(row, verdict) {
  if (row.dataset.verdict === verdict || !row.querySelector("img")) return;
  row.dataset.verdict = verdict;
  row.querySelector(".verdict").textContent = verdict;
}

function filter() {
  const wanted = document.getElementById("filter").value;
  for (const row of queue.children) row.hidden = Boolean(wanted) && row.dataset.verdict !== wanted;
}
document.getElementById("filter").addEventListener("change", filter);

function current(key) {
  for (const link of queue.querySelectorAll("[aria-current]")) link.removeAttribute("aria-current");
  const link = rows.get(key)?.querySelector("a");
  link?.setAttribute("aria-current", "true");
  return link;
}

let told = "";
async function findings(stamp) {
  if (stamp === told) return;
  told = stamp;
  const box = document.getElementById("findings"), open = [...box.querySelectorAll("details[open]")].map(d => d.id);
  try { box.innerHTML = await part(`${address}/findings`); } catch { told = ""; return; }  // asked for again at the next event
  box.hidden = false;
  for (const name of open) document.getElementById(name)?.setAttribute("open", "");
}

function put(html) {
  viewer.innerHTML = html;
  painter = null;
  selected = viewer.firstElementChild.dataset.key;
  current(selected);
  for (const [name, on] of Object.entries(layers)) layer(name, on);
}

async function show(key, chosen = true) {
  if (chosen) following = false;
  selected = key;
  const link = current(key);
  if (chosen) {
    if (narrow.matches) viewer.scrollIntoView(); else link?.scrollIntoView({ block: "nearest" });
    history.replaceState(null, "", `#${key}`);
  }
  const text = await part(`${address}/images/${key}`);
  if (selected === key) put(text);
}

function layer(name, on) {
  layers[name] = on;
  viewer.querySelector(`g.${name}`)?.toggleAttribute("hidden", !on);
  const box = viewer.querySelector(`input[data-layer=${name}]`);
  if (box) box.checked = on;
}

function move(step) {
  const shown = visible(), at = shown.findIndex(row => row.dataset.key === selected);
  const row = shown[Math.min(shown.length - 1, Math.max(0, at + step))];
  if (row) { row.querySelector("a").focus({ preventScroll: true }); return show(row.dataset.key); }
}

async function decide(verdict) {
  if (!selected || !viewer.querySelector(".decide")) return;
  try {
    await send("POST", `${address}/images/${selected}/verdict`, { verdict });
    mark(rows.get(selected), verdict);
    say(`${rows.get(selected).dataset.file}: ${verdict}`);
    if (verdict === "undecided") await show(selected); else await move(1);
  } catch (error) { say(error.message); }
}

function correct() {
  const canvas = viewer.querySelector("canvas"), fixed = viewer.querySelector("[data-fixed]");
  if (fixed) return say(fixed.textContent);
  if (!canvas) return;
  const on = canvas.hidden;
  following = false;  // the next answer must not replace the image
  viewer.querySelector(".brush").hidden = canvas.hidden = !on;
  viewer.querySelector("[data-correct]").setAttribute("aria-pressed", String(on));
  if (on) { painter = brush(viewer, { save, leave: correct }); canvas.focus(); } else { painter = null; }
}

async function save(strokes) {
  if (!strokes.length) return say("Nothing is painted yet.");
  try {
    const key = selected;
    await send("POST", `${address}/images/${key}/strokes`, { strokes });
    mark(rows.get(key), "corrected");
    say(`${rows.get(key).dataset.file}: corrected`);
    await show(key);
  } catch (error) { say(error.message); }
}

queue.addEventListener("click", event => {
  const row = event.target.closest("li");
  if (row) { event.preventDefault(); show(row.dataset.key).catch(error => say(error.message)); }
});
viewer.addEventListener("click", event => {
  const button = event.target.closest("button");
  if (button?.dataset.verdict) decide(button.dataset.verdict);
  else if (button && "correct" in button.dataset) correct();
});
viewer.addEventListener("change", event => {
  if (event.target.dataset.layer) layer(event.target.dataset.layer, event.target.checked);
});
site.addEventListener("click", async event => {
  const act = event.target.closest("[data-act]")?.dataset.act;
  if (!act || (act === "delete" && !confirm("Delete the masks, uploads and decisions of this site?"))) return;
  try {
    if (act === "delete") { await send("DELETE", address); location.assign("/"); } else await send("POST", `${address}/${act}`);
  } catch (error) { say(error.message); }
});
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || painter?.key(event)) return;
  if (event.target.matches("input:not([type=checkbox]), select, textarea")) return;
  const acts = {
    j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
    a: () => decide("accepted"), f: () => decide("flagged"), u: () => decide("undecided"), c: correct,
    s: () => layer("source", !layers.source), d: () => layer("adapted", !layers.adapted),
  };
  if (acts[event.key]) { event.preventDefault(); acts[event.key]()?.catch?.(error => say(error.message)); }
});

const events = new EventSource(`${address}/events?since=${site.dataset.known}`);  // rows that come twice are replaced
events.onmessage = event => update(JSON.parse(event.data));
events.addEventListener("gone", () => { events.close(); say("This site was deleted."); });
const first = location.hash.slice(1) || (site.dataset.state === "done" && queue.firstElementChild?.dataset.key);
if (first) show(first, Boolean(location.hash.slice(1))).catch(() => {});
const refused = sessionStorage.getItem(`refused-${id}`);
if (refused) say(`Not uploaded: ${refused}`);
