// Error along the network, on one canvas: 20 000 marks are drawn in some milliseconds, and no library is carried along.
const drawChart = () => {
  const canvas = find("#chart canvas");
  const tip = find("#chart .tip");
  const [low, high] = data.chart.decades;
  const margin = { left: 72, right: 14, top: 14, bottom: 34 };
  const lane = 28; // above the scale: no number; below it: no difference at all
  const rows = [...Array(size).keys()].filter(drawn);
  // Integers have no such metric; equal bits are no difference all the same.
  const errors = rows.map((row) => metric(data.chart.metric, row) ?? (data.columns.equal[row] ? 0 : null));
  let places = []; // where each mark was drawn: [x, y, row]
  let pointed = null; // index into places
  let dragged = null; // [x where the drag began, x now]
  let box = null;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const range = () => [view.from ?? 0, view.to ?? Math.max(size - 1, 1)];
  const acrossOf = (row) => {
    const [from, to] = range();
    return margin.left + 6 + ((row - from) / Math.max(to - from, 1)) * (box.width - margin.left - margin.right - 12);
  };
  const rowAt = (x) => {
    const [from, to] = range();
    const share = (x - margin.left - 6) / (box.width - margin.left - margin.right - 12);
    return Math.round(from + Math.min(1, Math.max(0, share)) * (to - from));
  };
  const scaleTop = () => margin.top + lane;
  const scaleBottom = () => box.height - margin.bottom - lane;
  const upOf = (error) => {
    if (error === null || !Number.isFinite(error)) return margin.top + lane / 2 - 2;
    if (error <= 0) return scaleBottom() + lane / 2 + 2;
    const share = (Math.log10(error) - low) / (high - low);
    return scaleBottom() - Math.min(1, Math.max(0, share)) * (scaleBottom() - scaleTop());
  };

  const frame = (pen) => {
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    if (!rows.length) return label(pen, "no record to draw", box.width / 2, box.height / 2, "center");
    const step = Math.ceil((high - low) / 8);
    for (let decade = low; decade <= high; decade += step) {
      const y = upOf(10 ** decade);
      line(pen, [[margin.left, y], [box.width - margin.right, y]], colour("line"));
      label(pen, "1e" + decade, margin.left - 8, y, "right");
    }
    if (errors.some((error) => error === null || !Number.isFinite(error))) label(pen, "no number", margin.left - 2, upOf(null), "right");
    if (errors.some((error) => error !== null && error <= 0)) label(pen, "equal", margin.left - 8, upOf(0), "right");
    parts(pen);
  };

  const parts = (pen) => {
    let free = margin.left;
    let ruled = -Infinity;
    for (const [name, first] of data.chart.groups) {
      const x = acrossOf(first);
      if (x < margin.left || x > box.width - margin.right) continue;
      if (x - ruled > 5) line(pen, [[x, margin.top], [x, box.height - margin.bottom + 4]], colour("line"));
      ruled = Math.max(x, ruled);
      const text = shortened(name, 22);
      const width = pen.measureText(text).width;
      if (x < free || x + width > box.width) continue;
      label(pen, text, x, box.height - margin.bottom + 16, "left");
      free = x + width + 12;
    }
  };

  const label = (pen, text, x, y, align) => {
    pen.fillStyle = colour("soft");
    pen.textAlign = align;
    pen.fillText(translate(text), x, y);
  };

  const line = (pen, points, stroke, dash = []) => {
    pen.strokeStyle = stroke;
    pen.lineWidth = 1;
    pen.setLineDash(dash);
    pen.beginPath();
    points.forEach(([x, y], index) => (index ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.stroke();
    pen.setLineDash([]);
  };

  const limits = (pen) => {
    const [from, to] = range();
    const points = [];
    for (const row of rows) {
      if (row < from || row > to || word("metric", row) !== data.chart.metric) continue;
      const y = upOf(figure("limit", row));
      const last = points.at(-1);
      if (last && last[1] !== y) points.push([acrossOf(row), last[1]]);
      if (!last || last[1] !== y || row === rows.at(-1)) points.push([acrossOf(row), y]);
    }
    if (!points.length) return;
    line(pen, [...points, [box.width - margin.right, points.at(-1)[1]]], colour("soft"), [6, 4]);
  };

  const marks = {
    unknown: (pen, x, y) => { pen.lineWidth = 1.4; pen.strokeRect(x - 2.5, y - 2.5, 5, 5); },
    agrees: (pen, x, y) => { pen.beginPath(); pen.arc(x, y, 2.2, 0, 7); pen.fill(); },
    accepted: (pen, x, y) => { pen.lineWidth = 1.6; pen.beginPath(); pen.moveTo(x, y - 4.5); pen.lineTo(x + 4.5, y); pen.lineTo(x, y + 4.5); pen.lineTo(x - 4.5, y); pen.closePath(); pen.stroke(); },
    inherits: (pen, x, y) => { pen.lineWidth = 1.4; pen.beginPath(); pen.arc(x, y, 3.4, 0, 7); pen.stroke(); },
    introduces: (pen, x, y) => {
      pen.lineWidth = 3;
      pen.beginPath();
      for (const side of [-1, 1]) { pen.moveTo(x - 6, y - 6 * side); pen.lineTo(x + 6, y + 6 * side); }
      pen.stroke();
    },
  };
  const colours = { unknown: "quiet", agrees: "good", accepted: "known", inherits: "doubt", introduces: "bad" };

  const points = (pen) => {
    const [from, to] = range();
    places = [];
    rows.forEach((row, index) => {
      if (row >= from && row <= to) places.push([acrossOf(row), upOf(errors[index]), row]);
    });
    for (const [role, mark] of Object.entries(marks)) {
      pen.fillStyle = pen.strokeStyle = colour(colours[role]);
      for (const [x, y, row] of places) if (word("role", row) === role) mark(pen, x, y);
    }
  };

  const draw = () => {
    box = { width: canvas.clientWidth, height: canvas.clientHeight };
    const dots = Math.max(window.devicePixelRatio || 1, 2); // paper shows more than a plain screen
    canvas.width = Math.round(box.width * dots);
    canvas.height = Math.round(box.height * dots);
    const pen = canvas.getContext("2d");
    pen.scale(dots, dots);
    frame(pen);
    limits(pen);
    points(pen);
    if (dragged) {
      pen.fillStyle = colour("link");
      pen.globalAlpha = 0.18;
      pen.fillRect(Math.min(...dragged), margin.top, Math.abs(dragged[1] - dragged[0]), box.height - margin.top - margin.bottom);
      pen.globalAlpha = 1;
    }
    ring(pen);
  };

  const ring = (pen) => {
    const marked = places.findIndex(([, , row]) => row === view.record);
    for (const place of [pointed, marked]) {
      if (place === null || !places[place]) continue;
      pen.strokeStyle = colour("ink");
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.arc(places[place][0], places[place][1], 9, 0, 7);
      pen.stroke();
    }
  };

  const nearest = (x, y) => {
    let best = null;
    let distance = 16 ** 2;
    places.forEach(([across, up], index) => {
      const away = (across - x) ** 2 + (up - y) ** 2;
      if (away < distance) [best, distance] = [index, away];
    });
    return best;
  };

  const point = (place) => {
    pointed = place;
    tip.hidden = place === null;
    draw();
    if (place === null || !places[place]) return;
    const [x, y, row] = places[place];
    const error = `${data.chart.metric} ${number(metric(data.chart.metric, row))}`;
    const decision = decided(row) ? use(row) : "";
    tip.replaceChildren(element("b", { class: "name" }, shortened(word("name", row), 90)), `${translate(words(word("status", row)))}, ${translate(word("role", row))}: ${decision.startsWith(error) ? translate(decision) : [error, translate(decision)].filter(Boolean).join("; ")}`);
    tip.style.left = Math.max(0, Math.min(x + 14, box.width - tip.offsetWidth - 4)) + "px";
    tip.style.top = (y + 16 + tip.offsetHeight > box.height ? Math.max(0, y - tip.offsetHeight - 14) : y + 16) + "px";
  };

  const zoom = (from, to) => look({ from: Math.min(from, to), to: Math.max(from, to), page: 0 });
  const all = () => look({ from: null, to: null, page: 0 });

  canvas.addEventListener("pointerdown", (event) => { dragged = [event.offsetX, event.offsetX]; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (dragged) dragged[1] = event.offsetX;
    point(dragged && Math.abs(dragged[1] - dragged[0]) > 4 ? null : nearest(event.offsetX, event.offsetY));
  });
  canvas.addEventListener("pointerup", (event) => {
    const [began, ended] = dragged ?? [0, 0];
    dragged = null;
    if (Math.abs(ended - began) > 4) return zoom(rowAt(began), rowAt(ended));
    const place = nearest(event.offsetX, event.offsetY);
    if (place !== null) look({ record: places[place][2] });
    else draw();
  });
  canvas.addEventListener("pointerleave", () => { if (!dragged) point(null); });
  canvas.addEventListener("pointercancel", () => { dragged = null; point(null); });
  canvas.addEventListener("dblclick", all);
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) point(Math.min(places.length - 1, Math.max(0, (pointed ?? -1) + step)));
    else if (event.key === "Enter" && pointed !== null) look({ record: places[pointed][2] });
    else if (event.key === "Escape") all();
    else return;
    event.preventDefault();
  });
  find("#zoom-out").addEventListener("click", all);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(draw).observe(canvas);
  matchMedia("print").addEventListener("change", draw); // paper has another width, and no dark colours
  watch(() => { find("#zoom-out").hidden = view.from === null; pointed = null; tip.hidden = true; draw(); });
};
