for (const head of document.querySelectorAll("th")) head.onclick = () => {
  const body = head.closest("table").tBodies[0], column = head.cellIndex, down = head.dataset.down !== "1";
  const value = row => { const cell = row.cells[column]; return cell.dataset.v !== undefined ? Number(cell.dataset.v) : cell.textContent; };
  const rows = [...body.rows].sort((a, b) => {
    const x = value(a), y = value(b);
    if (typeof x === "number" && typeof y === "number") return x - y;
    if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1;
    return x.localeCompare(y);
  });
  for (const row of down ? rows.reverse() : rows) body.append(row);
  for (const other of head.parentNode.cells) delete other.dataset.down;
  if (down) head.dataset.down = "1";
};
