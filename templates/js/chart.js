// Error along the network, on one canvas: a million marks are drawn in a moment, and no library is carried along.
const drawChart = () => {
  const canvas = find("#chart canvas");
  const tip = find("#chart .tip");
  const [low, high] = data.chart.decades;
  const bands = [["steps", data.chart.steps], ["phases", data.chart.phases]].filter(([, spans]) => spans.length > 1);
  const band = 18; // height of a row above the picture that says where a step or a phase begins
  const lane = 28; // above the scale: no number; below it: no difference at all
  const margin = { left: 84, right: 14, top: 12 + band * bands.length, bottom: 52 };
  const MANY = 6000; // marks; with more of them, those that would cover each other are drawn once
  const CELL = 3; // pixels that one such mark stands for
  const rows = every.filter(drawn);
  // Where an element is NaN, or the shapes differ, what else was measured is not the error. Integers have no such metric; equal
  // bits are no difference all the same.
  const errors = Float64Array.from(rows, (row) => {
    const status = word("status", row);
    if (kinds[status] === "bad" && status !== "fail") return NaN;
    return metric(data.chart.metric, row) ?? (kept.equal[row] ? 0 : NaN);
  });
  const roleOf = rows.map((row) => kept.texts.role.entryOf(row));
  const shown = { first: 0, end: 0, across: new Float32Array(0), up: new Float32Array(0) }; // the marks in view, by their place in `rows`
  const still = document.createElement("canvas"); // everything but what follows the pointer
  let pointed = null; // place in `rows`
  let dragged = null; // [x where the drag began, x now]
  let box = null;
  let dots = 2;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const range = () => [view.from ?? 0, view.to ?? Math.max(size - 1, 1)];
  const inner = () => box.width - margin.left - margin.right - 12;
  const acrossOf = (row) => {
    const [from, to] = range();
    return margin.left + 6 + ((row - from) / Math.max(to - from, 1)) * inner();
  };
  const rowAt = (x) => {
    const [from, to] = range();
    return Math.round(from + Math.min(1, Math.max(0, (x - margin.left - 6) / inner())) * (to - from));
  };
  const scaleTop = () => margin.top + lane;
  const scaleBottom = () => box.height - margin.bottom - lane;
  const upOf = (error) => {
    if (!Number.isFinite(error)) return margin.top + lane / 2 - 2;
    if (error <= 0) return scaleBottom() + lane / 2 + 2;
    const share = (Math.log10(error) - low) / (high - low);
    return scaleBottom() - Math.min(1, Math.max(0, share)) * (scaleBottom() - scaleTop());
  };
  // The place in `rows` of the first record that is this one or comes behind it.
  const placeFrom = (row) => {
    let [first, end] = [0, rows.length];
    while (first < end) {
      const middle = (first + end) >> 1;
      if (rows[middle] < row) first = middle + 1;
      else end = middle;
    }
    return first;
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
    if (errors.some((error) => !Number.isFinite(error))) label(pen, "no number", margin.left - 4, upOf(NaN), "right");
    if (errors.some((error) => error <= 0)) label(pen, "equal", margin.left - 8, upOf(0), "right");
    parts(pen);
    bands.forEach(([name, spans], number) => strip(pen, name, spans, 8 + band * number));
    label(pen, "records in order of the network", margin.left + inner() / 2, box.height - 12, "center");
    pen.save();
    pen.translate(12, (scaleTop() + scaleBottom()) / 2);
    pen.rotate(-Math.PI / 2);
    label(pen, `${data.chart.metric}, logarithmic`, 0, 0, "center");
    pen.restore();
  };

  const parts = (pen) => {
    let free = margin.left;
    let ruled = -Infinity;
    for (const [name, first] of data.chart.groups) {
      const x = acrossOf(first);
      if (x < margin.left || x > box.width - margin.right) continue;
      if (x - ruled > 5) line(pen, [[x, margin.top], [x, box.height - margin.bottom + 4]], colour("line"));
      ruled = Math.max(x, ruled);
      if (x < free) continue;
      const text = shortened(name, 22);
      const width = pen.measureText(text).width;
      if (x + width > box.width) continue;
      label(pen, text, x, box.height - margin.bottom + 16, "left", (said) => said);
      free = x + width + 12;
    }
  };

  // Steps or phases above the picture: a bar for each, every second one darker, with its name where that fits.
  const strip = (pen, name, spans, top) => {
    label(pen, name, margin.left - 8, top + band / 2 - 2, "right");
    const end = box.width - margin.right;
    spans.forEach(([said, first], number) => {
      const [from, to] = [acrossOf(first), number + 1 < spans.length ? acrossOf(spans[number + 1][1]) : end].map((x) => Math.min(end, Math.max(margin.left, x)));
      if (to - from < 0.5) return;
      pen.fillStyle = colour(number % 2 ? "hover" : "line");
      pen.fillRect(from, top, to - from, band - 4);
      if (pen.measureText(translate(said)).width + 8 < to - from) label(pen, said, from + 4, top + band / 2 - 2, "left", translate, "ink");
    });
  };

  const label = (pen, text, x, y, align, say = translate, ink = "soft") => {
    pen.fillStyle = colour(ink);
    pen.textAlign = align;
    pen.fillText(say(text), x, y);
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
    const points = [];
    for (let place = shown.first; place < shown.end; place += 1) {
      const x = shown.across[place - shown.first];
      const last = points.at(-1);
      if ((last && x - last[0] < 1) || word("metric", rows[place]) !== data.chart.metric) continue;
      const y = upOf(figure("limit", rows[place]));
      if (last && last[1] !== y) points.push([x, last[1]]);
      if (!last || last[1] !== y) points.push([x, y]);
    }
    if (!points.length) return;
    line(pen, [...points, [box.width - margin.right, points.at(-1)[1]]], colour("soft"), [6, 4]);
  };

  const marks = { // those that are drawn later lie on top
    unknown: (pen) => { pen.lineWidth = 1.4; pen.strokeRect(-2.5, -2.5, 5, 5); },
    agrees: (pen) => { pen.beginPath(); pen.arc(0, 0, 2.2, 0, 7); pen.fill(); },
    accepted: (pen) => { pen.lineWidth = 1.6; pen.beginPath(); pen.moveTo(0, -4.5); pen.lineTo(4.5, 0); pen.lineTo(0, 4.5); pen.lineTo(-4.5, 0); pen.closePath(); pen.stroke(); },
    inherits: (pen) => { pen.lineWidth = 1.4; pen.beginPath(); pen.arc(0, 0, 3.4, 0, 7); pen.stroke(); },
    introduces: (pen) => {
      pen.lineWidth = 3;
      pen.beginPath();
      for (const side of [-1, 1]) { pen.moveTo(-6, -6 * side); pen.lineTo(6, 6 * side); }
      pen.stroke();
    },
  };
  const colours = { unknown: "quiet", agrees: "good", accepted: "known", inherits: "doubt", introduces: "bad" };

  // A mark as a small picture, which is copied to all of its places.
  const stamp = (role) => {
    const picture = document.createElement("canvas");
    picture.width = picture.height = 16 * dots;
    const pen = picture.getContext("2d");
    pen.scale(dots, dots);
    pen.translate(8, 8);
    pen.fillStyle = pen.strokeStyle = colour(colours[role]);
    marks[role](pen);
    return picture;
  };

  const points = (pen) => {
    const crowded = shown.end - shown.first > MANY;
    const [columns, lines] = [Math.ceil(box.width / CELL), Math.ceil(box.height / CELL)];
    for (const role of Object.keys(marks)) {
      const entry = Array.from({ length: kept.texts.role.entries }, (_, place) => kept.texts.role.entry(place)).indexOf(role);
      if (entry < 0) continue;
      const picture = stamp(role);
      const taken = crowded ? new Uint8Array(columns * lines) : null;
      for (let place = shown.first; place < shown.end; place += 1) {
        if (roleOf[place] !== entry) continue;
        const [x, y] = [shown.across[place - shown.first], shown.up[place - shown.first]];
        if (taken) {
          const cell = Math.floor(y / CELL) * columns + Math.floor(x / CELL);
          if (taken[cell]) continue;
          taken[cell] = 1;
        }
        pen.drawImage(picture, x - 8, y - 8, 16, 16);
      }
    }
  };

  const sized = (sheet) => {
    if (sheet.width !== Math.round(box.width * dots)) sheet.width = Math.round(box.width * dots);
    if (sheet.height !== Math.round(box.height * dots)) sheet.height = Math.round(box.height * dots);
    const pen = sheet.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, sheet.width, sheet.height);
    return pen;
  };

  const draw = () => {
    box = { width: canvas.clientWidth, height: canvas.clientHeight };
    dots = Math.max(window.devicePixelRatio || 1, 2); // paper shows more than a plain screen
    const [from, to] = range();
    [shown.first, shown.end] = [placeFrom(from), placeFrom(to + 1)];
    shown.across = Float32Array.from(rows.subarray(shown.first, shown.end), acrossOf);
    shown.up = Float32Array.from(errors.subarray(shown.first, shown.end), upOf);
    const pen = sized(still);
    pen.scale(dots, dots);
    frame(pen);
    limits(pen);
    points(pen);
    follow();
  };

  // Draws again what follows the pointer, over the rest.
  const follow = () => {
    const pen = sized(canvas);
    if (still.width && still.height) pen.drawImage(still, 0, 0);
    pen.scale(dots, dots);
    if (dragged) {
      pen.fillStyle = colour("link");
      pen.globalAlpha = 0.18;
      pen.fillRect(Math.min(...dragged), margin.top, Math.abs(dragged[1] - dragged[0]), box.height - margin.top - margin.bottom);
      pen.globalAlpha = 1;
    }
    const marked = view.record === null ? rows.length : placeFrom(view.record);
    for (const place of [pointed, rows[marked] === view.record ? marked : null]) {
      if (place === null || place < shown.first || place >= shown.end) continue;
      pen.strokeStyle = colour("ink");
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.arc(shown.across[place - shown.first], shown.up[place - shown.first], 9, 0, 7);
      pen.stroke();
    }
  };

  const nearest = (x, y) => {
    let best = null;
    let distance = 16 ** 2;
    for (let place = Math.max(shown.first, placeFrom(rowAt(x - 16))); place < shown.end; place += 1) {
      const across = shown.across[place - shown.first] - x;
      if (across > 16) break;
      const away = across ** 2 + (shown.up[place - shown.first] - y) ** 2;
      if (away < distance) [best, distance] = [place, away];
    }
    return best;
  };

  const point = (place) => {
    pointed = place !== null && place >= shown.first && place < shown.end ? place : null;
    tip.hidden = pointed === null;
    follow();
    if (pointed === null) return;
    const row = rows[place];
    const [x, y] = [shown.across[place - shown.first], shown.up[place - shown.first]];
    const error = `${data.chart.metric} ${number(metric(data.chart.metric, row) ?? null)}`;
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
    if (place !== null) look({ record: rows[place] });
    else follow();
  });
  canvas.addEventListener("pointerleave", () => { if (!dragged) point(null); });
  canvas.addEventListener("pointercancel", () => { dragged = null; point(null); });
  canvas.addEventListener("dblclick", all);
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) point(Math.min(shown.end - 1, Math.max(shown.first, (pointed ?? shown.first - 1) + step)));
    else if (event.key === "Enter" && pointed !== null) look({ record: rows[pointed] });
    else if (event.key === "Escape") all();
    else return;
    event.preventDefault();
  });
  find("#zoom-out").addEventListener("click", all);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(draw).observe(canvas);
  matchMedia("print").addEventListener("change", draw); // paper has another width, and no dark colours
  let drawnFor = "";
  watch(() => {
    find("#zoom-out").hidden = view.from === null;
    pointed = null;
    tip.hidden = true;
    const wanted = `${view.from} ${view.to}`;
    if (wanted === drawnFor) follow();
    else draw();
    drawnFor = wanted;
  });
};
