// The brush: strokes in shares of the image, drawn on a canvas above it; the server draws them into the mask.
const TINTS = ["rgba(0,0,0,.65)", "rgba(64,196,255,.6)", "rgba(255,196,0,.6)", "rgba(255,82,127,.6)", "rgba(105,240,174,.6)"];

export function brush(viewer, { save, leave }) {
  const canvas = viewer.querySelector("canvas"), pen = canvas.getContext("2d");
  const label = viewer.querySelector("[data-label]"), size = viewer.querySelector("[data-radius]");
  const strokes = [], cursor = [0.5, 0.5];
  let current = null;

  const side = () => Math.max(canvas.width, canvas.height);
  function draw() {
    pen.clearRect(0, 0, canvas.width, canvas.height);
    for (const stroke of strokes) {
      const points = stroke.points.map(([x, y]) => [x * canvas.width, y * canvas.height]);
      pen.strokeStyle = TINTS[stroke.label % TINTS.length];
      pen.lineCap = pen.lineJoin = "round";
      pen.lineWidth = 2 * stroke.radius * side();
      pen.beginPath();
      points.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
      if (points.length === 1) pen.lineTo(points[0][0] + 0.01, points[0][1]);
      pen.stroke();
    }
    for (const [colour, width] of [["#000", 4], ["#fff", 2]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = width;
      pen.beginPath();
      pen.arc(cursor[0] * canvas.width, cursor[1] * canvas.height, size.value * side(), 0, 7);
      pen.stroke();
    }
  }
  function place(event) {
    const box = canvas.getBoundingClientRect(), scale = Math.min(box.width / canvas.width, box.height / canvas.height);
    const left = box.left + (box.width - scale * canvas.width) / 2, top = box.top + (box.height - scale * canvas.height) / 2;
    cursor[0] = (event.clientX - left) / (scale * canvas.width);  // the canvas is fitted into its box
    cursor[1] = (event.clientY - top) / (scale * canvas.height);
    return [...cursor];
  }
  const begin = point => {
    current = { label: Number(label.value), radius: Number(size.value), points: [point] };
    strokes.push(current);
  };
  const undo = () => { strokes.pop(); draw(); };

  canvas.onpointerdown = event => { canvas.setPointerCapture(event.pointerId); begin(place(event)); draw(); };
  canvas.onpointermove = event => { const point = place(event); if (event.buttons && current) current.points.push(point); draw(); };
  canvas.onpointerup = () => { current = null; };
  viewer.querySelector("[data-undo]").onclick = undo;
  viewer.querySelector("[data-save]").onclick = () => save(strokes);
  size.oninput = draw;
  draw();

  // Returns whether the key was for the brush.
  function key(event) {
    if (event.key === "Escape") { leave(); return true; }
    if (document.activeElement !== canvas) return false;
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (steps[event.key]) {
      const by = Number(size.value) / 2;
      cursor[0] = Math.min(1, Math.max(0, cursor[0] + by * steps[event.key][0]));
      cursor[1] = Math.min(1, Math.max(0, cursor[1] + by * steps[event.key][1]));
    } else if (event.key === " ") { begin([...cursor]); current = null; }
    else if (event.key === "[" || event.key === "]") size.value = Number(size.value) + (event.key === "]" ? 0.01 : -0.01);
    else if (event.key === "Enter") save(strokes);
    else if (event.key === "z") undo();
    else return false;
    event.preventDefault();
    draw();
    return true;
  }
  return { key };
}
