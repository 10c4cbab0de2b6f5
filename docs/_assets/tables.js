// Sort a table by a click on a column heading. On pages with a .table-filter, filter tables by title and rows by method.
"use strict";

function numberIn(text) {
  const found = text.replace(/[−–]/g, "-").match(/^[^\d+-]*([+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)/i);
  return found ? parseFloat(found[1].replace(/,/g, "")) : NaN;
}

function compare(a, b, column) {
  if (column === 0) return b.localeCompare(a); // names: the first click sorts from a to z
  const [x, y] = [numberIn(a), numberIn(b)];
  if (Number.isNaN(x) && Number.isNaN(y)) return a.localeCompare(b);
  if (Number.isNaN(x)) return 1;
  if (Number.isNaN(y)) return -1;
  return x - y;
}

function sortBy(table, column, heading) {
  const order = heading.dataset.order === "-1" ? 1 : -1; // the first click shows the largest value first
  table.querySelectorAll("th").forEach((th) => delete th.dataset.order);
  heading.dataset.order = order;
  const body = table.tBodies[0];
  const text = (row) => (row.cells[column] ? row.cells[column].textContent.trim() : "");
  const empty = (row) => (text(row) === "" ? 1 : 0);
  [...body.rows]
    .sort((a, b) => empty(a) - empty(b) || order * compare(text(a), text(b), column))
    .forEach((row) => body.append(row));
}

function field(box, label, apply) {
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = label;
  input.setAttribute("aria-label", label);
  input.addEventListener("input", apply);
  box.append(input);
  return input;
}

function addFilter(box) {
  const apply = () => {
    const [title, method] = [titles.value.toLowerCase(), methods.value.toLowerCase()];
    document.querySelectorAll(".md-content table").forEach((table) => {
      const outer = table.closest(".md-typeset__scrollwrap") || table;
      const heading = headingOf(outer);
      let left = 0;
      [...table.tBodies[0].rows].forEach((row) => {
        row.hidden = !row.cells[0].textContent.toLowerCase().includes(method);
        left += row.hidden ? 0 : 1;
      });
      const shown = left > 0 && (!heading || heading.textContent.toLowerCase().includes(title));
      outer.hidden = !shown;
      if (heading) heading.hidden = !shown;
      const note = outer.nextElementSibling;
      if (note && note.tagName === "P") note.hidden = !shown;
    });
  };
  const titles = field(box, "filter tables, e.g. Dice", apply);
  const methods = field(box, "filter methods, e.g. judge", apply);
}

function headingOf(element) {
  let before = element.previousElementSibling;
  while (before && !/^H[1-6]$/.test(before.tagName)) before = before.previousElementSibling;
  return before && before.tagName === "H3" ? before : null;
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".md-content table:not([class])").forEach((table) => {
    table.querySelectorAll("thead th").forEach((th, column) => {
      th.title = "sort";
      th.addEventListener("click", () => sortBy(table, column, th));
    });
  });
  document.querySelectorAll(".table-filter").forEach(addFilter);
});
