// The matching of some images: nodes as glyphs, one colour and shape a universe point, and lines between partners.
import { part } from "/static/common.js";

const root = document.getElementById("matching");
const SVG = "http://www.w3.org/2000/svg", CELL = 300, GAP = 14, TITLE = 20;
// Okabe and Ito's colours, without black and the grey of the points that are not marked.
const COLOURS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#ffffff"];
const SHAPES = [
  "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0Z", "M-4.5 -4.5H4.5V4.5H-4.5Z", "M0 -6L5.5 4.5H-5.5Z",
  "M0 -6.5L5 0L0 6.5L-5 0Z", "M-2 -6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z", "M0 6L5.5 -4.5H-5.5Z",
];
const MARKED = COLOURS.length * 3;
let data = null, way = "prior", style = new Map(), pinned = null;

const make = (name, attributes = {}, ...children) => {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};
const glyph = point => {
  const number = style.get(point);
  if (number === undefined) return { d: "M-2 0a2 2 0 1 0 4 0a2 2 0 1 0 -4 0Z", fill: "none", stroke: "#fff", "stroke-opacity": ".55" };
  return { d: SHAPES[(number + Math.floor(number / COLOURS.length) * 2) % SHAPES.length], fill: COLOURS[number % COLOURS.length], stroke: "#000", "stroke-width": "1.2" };
};

function choosePoints() {
  const seen = new Map();
  for (const image of data.images)
    for (const node of image.nodes) if (node.tissue && node.point >= 0) {
      const entry = seen.get(node.point) ?? { count: 0, tissue: node.tissue };
      seen.set(node.point, { ...entry, count: entry.count + 1 });
    }
  const byTissue = new Map();
  for (const [point, { count, tissue }] of [...seen].sort((a, b) => b[1].count - a[1].count || a[0] - b[0]))
    if (count > 1) byTissue.set(tissue, [...(byTissue.get(tissue) ?? []), point]);
  const chosen = [], lists = [...byTissue.values()];
  for (let i = 0; chosen.length < MARKED && lists.some(list => list[i] !== undefined); i++)  // every tissue in turn
    for (const list of lists) if (list[i] !== undefined && chosen.length < MARKED) chosen.push(list[i]);
  style = new Map(chosen.map((point, number) => [point, number]));
}

function layout() {
  const columns = Math.min(data.images.length, root.clientWidth < 700 ? 2 : 4);
  data.images.forEach((image, i) => {
    const scale = CELL / Math.max(image.width, image.height);
    Object.assign(image, { w: image.width * scale, h: image.height * scale });
    image.left = (i % columns) * (CELL + GAP) + (CELL - image.w) / 2;
    image.top = Math.floor(i / columns) * (CELL + GAP + TITLE) + TITLE;
  });
  return [columns * (CELL + GAP) - GAP, Math.ceil(data.images.length / columns) * (CELL + GAP + TITLE)];
}
const place = (image, node) => [image.left + node.x * image.w, image.top + node.y * image.h];

function contours(image, paths, kind) {
  const frame = `translate(${image.left} ${image.top}) scale(${image.w / data.side} ${image.h / data.side})`;
  return make("g", { transform: frame, class: kind }, ...Object.entries(paths).map(([name, d]) => make("path", { d, class: `r${data.colours[name]}` })));
}

function line(a, b, same, strong) {
  const [x1, y1] = a, [x2, y2] = b;
  return make("line", { x1, y1, x2, y2, class: `match${same ? "" : " other"}${strong ? " strong" : ""}` });
}

function partners(i, n, to) {
  const k = data.ways[way].matches[i][to]?.[n] ?? -1;
  return k >= 0 && i !== to && data.images[to].nodes[k].tissue ? k : null;
}

function draw() {
  const [width, height] = layout();
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Images with their nodes and matches" });
  data.images.forEach((image, i) => {
    const carried = data.carried[way]?.[i], title = carried ? `${image.file} · ${carried.sure ? "sure" : "unsure"}, ${carried.expected.toFixed(2)}` : image.file;
    svg.append(make("text", { x: image.left, y: image.top - 6 }, title.length > 38 ? `${title.slice(0, 37)}…` : title));
    svg.append(make("image", { href: `/sites/${root.dataset.site}/images/${image.key}.large.jpg`, x: image.left, y: image.top, width: image.w, height: image.h }));
    svg.append(contours(image, image.contours, "before"));
    if (document.getElementById("carried").checked && carried) svg.append(contours(image, carried.contours, "carried"));
  });
  const lines = make("g", { class: "lines" });
  if (document.getElementById("lines").checked) data.images.forEach((image, i) => {
    if (i + 1 < data.images.length) image.nodes.forEach((node, n) => {
      const k = node.tissue ? partners(i, n, i + 1) : null;
      if (k !== null) lines.append(line(place(image, node), place(data.images[i + 1], data.images[i + 1].nodes[k]), node.tissue === data.images[i + 1].nodes[k].tissue, false));
    });
  });
  svg.append(lines, make("g", { class: "nodes" }), make("g", { class: "chosen" }));
  data.images.forEach((image, i) => image.nodes.forEach((node, n) => {
    if (!node.tissue) return;
    const [x, y] = place(image, node), item = make("g", { transform: `translate(${x} ${y})`, "data-at": `${i} ${n}` });
    item.append(make("circle", { r: 8, fill: "transparent" }), make("path", { ...glyph(node.point), class: "glyph" }));
    svg.querySelector(".nodes").append(item);
  }));
  svg.addEventListener("pointerover", event => {
    const at = event.target.closest("[data-at]")?.dataset.at;
    highlight(at ? at.split(" ").map(Number) : pinned);
  });
  document.getElementById("board").replaceChildren(svg);
  highlight(pinned);
}

function highlight(at) {
  const group = root.querySelector("g.chosen");
  group.replaceChildren();
  if (!at) return;
  const [i, n] = at, image = data.images[i], node = image.nodes[n], from = place(image, node);
  const ring = ([x, y]) => make("circle", { cx: x, cy: y, r: 11, class: "ring" });
  const found = data.images.map((other, j) => [other, j === i ? n : partners(i, n, j)]).filter(([other, k]) => other !== image && k !== null);
  for (const [other, k] of found) group.append(line(from, place(other, other.nodes[k]), node.tissue === other.nodes[k].tissue, true), ring(place(other, other.nodes[k])));
  group.append(ring(from));
  const same = found.filter(([other, k]) => other.nodes[k].tissue === node.tissue).length;
  const name = way === "prior" && node.point >= 0 ? `Universe point ${node.point}, ` : "Node in ";
  document.getElementById("lands").textContent = `${name}${data.tissues[node.tissue - 1]} of ${image.file}: `
    + (found.length ? `lands in ${found.length} of ${data.images.length - 1} other images, in the same tissue in ${same}.` : "lands in no other image.");
}

function measures() {
  const percent = value => (value === null ? "not defined" : `${Math.round(100 * value)} %`);
  const text = name => `${percent(data.ways[name].same_tissue)} of the pairs in one tissue, ${percent(data.ways[name].broken_cycles)} of the cycles over three images broken`;
  document.getElementById("measures").textContent = `With the prior: ${text("prior")}. Without: ${text("features")}. Orange lines join different tissues.`;
}

function legend() {
  const box = document.getElementById("points");
  box.replaceChildren(...[...style.keys()].map(point => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("aria-label", `Universe point ${point}`);
    button.append(make("svg", { viewBox: "-8 -8 16 16", width: 22, height: 22, "aria-hidden": "true" }, make("path", { ...glyph(point), class: "glyph" })), String(point));
    button.onclick = () => {
      const i = data.images.findIndex(image => image.nodes.some(node => node.point === point));
      pinned = pinned?.point === point ? null : Object.assign([i, data.images[i].nodes.findIndex(node => node.point === point)], { point });
      for (const other of box.children) other.setAttribute("aria-pressed", String(other === button && Boolean(pinned)));
      highlight(pinned);
    };
    button.setAttribute("aria-pressed", "false");
    return button;
  }));
}

if (root) {
  const query = root.dataset.images.split(" ").map(key => `image=${key}`).join("&");
  part(`/matching/${root.dataset.site}/data?${query}`).then(text => {
    data = JSON.parse(text);
    choosePoints();
    measures();
    legend();
    draw();
    const wide = () => root.clientWidth < 700;
    let narrow = wide();
    part(`/matching/${root.dataset.site}/carried?${query}`).then(found => {
      data.carried = JSON.parse(found);
      document.getElementById("carried").closest("label").hidden = !data.carried.prior;
      draw();
    }).catch(() => {});  // the box stays hidden
    addEventListener("resize", () => { if (wide() !== narrow) { narrow = wide(); draw(); } });
  }).catch(error => { document.getElementById("measures").textContent = `The images could not be matched: ${error.message}`; });
  for (const button of root.querySelectorAll("[data-way]")) button.addEventListener("click", () => {
    way = button.dataset.way;
    for (const other of root.querySelectorAll("[data-way]")) other.setAttribute("aria-pressed", String(other === button));
    if (data) draw();
  });
  for (const name of ["lines", "carried"]) document.getElementById(name).addEventListener("change", () => data && draw());
}
document.getElementById("site-choice")?.addEventListener("change", event => location.assign(`/matching?site=${event.target.value}`));
