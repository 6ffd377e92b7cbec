// Curves of a training run: what the page draws without script too, with hover, zoom over all of them, smoothing and the signed
// difference. A picture is as wide as its place, so that its letters have their size on a phone as well.
const drawCurves = () => {
  const margin = { left: 76, right: 26, top: 14, bottom: 42 };
  const heights = { upper: 300, lower: 200 };
  const svg = (name, attributes, ...children) => {
    const made = document.createElementNS(find("svg").namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };

  // Round numbers between two, at most six.
  const roundSteps = (low, high) => {
    if (!(high > low)) return [low];
    const size = 10 ** Math.floor(Math.log10((high - low) / 5));
    const width = [1, 2, 5, 10].map((factor) => factor * size).find((step) => (high - low) / step <= 5.001);
    return Array.from({ length: Math.floor(high / width) - Math.ceil(low / width) + 1 }, (_, place) => (Math.ceil(low / width) + place) * width);
  };

  // The mean of what came before, which counts the less the longer ago it was; the first values are not pulled to 0.
  const smoothed = (values, weight) => {
    let [sum, total] = [0, 0];
    return values.map((value) => {
      if (!Number.isFinite(value)) return value;
      [sum, total] = [weight * sum + (1 - weight) * value, weight * total + (1 - weight)];
      return sum / total;
    });
  };

  const interactive = (card) => {
    const curve = data.curves[Number(card.dataset.curve)];
    const [steps, reference, target] = ["steps", "reference", "target"].map((side) => curve[side].map(Number));
    const [upper, lower] = card.querySelectorAll("svg.overlay");
    const tip = card.querySelector(".tip");
    const weight = card.querySelector("input[type=range]");
    const signed = card.querySelector("input[type=checkbox]");
    const whole = card.querySelector("button");
    let pointed = null; // place in `steps`
    let dragged = null; // [x where the drag began, x now]
    let width = 1000;
    let shown = []; // places in `steps` that are in view

    const range = () => {
      const [first, last] = [steps[0], steps.at(-1)];
      const [from, to] = [Math.max(view.begin ?? first, first), Math.min(view.end ?? last, last)];
      return from < to ? [from, to] : [first, last]; // another curve's steps were chosen
    };
    const across = (step) => {
      const [from, to] = range();
      return margin.left + (width - margin.left - margin.right) * (to > from ? (step - from) / (to - from) : 0.5);
    };
    const stepAt = (x) => {
      const [from, to] = range();
      return from + Math.min(1, Math.max(0, (x - margin.left) / (width - margin.left - margin.right))) * (to - from);
    };
    const scale = (low, high, height) => (value) => height - margin.bottom - (height - margin.top - margin.bottom) * ((value - low) / (high - low || 1));

    const lines = (kind, values, up) => {
      const parts = [[]];
      for (const place of shown) {
        if (Number.isFinite(values[place]) && Number.isFinite(up(values[place]))) parts.at(-1).push([across(steps[place]), up(values[place])]);
        else parts.push([]);
      }
      return parts.filter((part) => part.length).map((part) => {
        const [[x, y]] = part;
        const points = part.length > 1 ? part : [[x - 3, y], [x + 3, y]];
        return svg("polyline", { class: kind, points: points.map((point) => point.map((number) => number.toFixed(1)).join(",")).join(" ") });
      });
    };
    const mark = (kind, x, height) => svg("path", { class: kind, d: `M${x} ${margin.top} V${height - margin.bottom}` });
    const level = (kind, y) => svg("path", { class: kind, d: `M${margin.left} ${y} H${width - margin.right}` });
    const text = (x, y, anchor, said, more = {}) => svg("text", { x, y, "text-anchor": anchor, ...more }, said);

    const frame = (picture, height, ticks, up, title, ...inside) => {
      const [from, to] = range();
      const wide = roundSteps(from, to).filter((step, place, every) => Number.isInteger(step) && (width > 600 || every.length < 4 || place % 2 === 0));
      picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
      picture.replaceChildren(
        ...ticks.flatMap(([value, said]) => [level("grid", up(value)), text(margin.left - 8, up(value) + 4, "end", said)]),
        ...wide.flatMap((step) => [mark("grid", across(step), height), text(across(step), height - margin.bottom + 18, "middle", String(step))]),
        text(margin.left + (width - margin.left - margin.right) / 2, height - 6, "middle", translate("step"), { class: "axis-title" }),
        text(0, 0, "middle", title, { class: "axis-title", transform: `translate(12 ${(height - margin.bottom + margin.top) / 2}) rotate(-90)` }),
        ...inside, svg("g", { class: "pointer" }));
    };

    const draw = () => {
      width = Math.max(upper.clientWidth, 280);
      const [from, to] = range();
      shown = [...steps.keys()].filter((place) => steps[place] >= from && steps[place] <= to);
      const smooth = Number(weight.value);
      const sides = [reference, target].map((values) => (smooth ? smoothed(values, smooth) : values));
      const apart = steps.map((_, place) => sides[1][place] - sides[0][place]);
      const finite = shown.flatMap((place) => [reference[place], target[place]]).filter(Number.isFinite);
      const [least, most] = finite.length ? [Math.min(...finite), Math.max(...finite)] : [0, 1];
      const room = (most - least) * 0.05 || Math.abs(most) * 0.05 || 1;
      const up = scale(least - room, most + room, heights.upper);
      const broken = shown.filter((place) => !Number.isFinite(apart[place])).map((place) => mark("broken", across(steps[place]), heights.upper));
      const parted = curve.parted !== null && curve.parted >= from && curve.parted <= to ? [mark("parting", across(curve.parted), heights.upper)] : [];
      const faint = smooth ? [...lines("of-reference raw", reference, up), ...lines("of-target raw", target, up)] : [];
      frame(upper, heights.upper, roundSteps(least - room, most + room).map((value) => [value, number(Number(value.toPrecision(12)))]), up, curve.name,
        ...broken, ...parted, ...faint, ...lines("of-reference", sides[0], up), ...lines("of-target", sides[1], up));
      drawApart(apart);
      upper.style.touchAction = lower.style.touchAction = "pan-y";
      whole.hidden = view.begin === null;
      follow();
    };

    const drawApart = (apart) => {
      const sizes = shown.map((place) => Math.abs(apart[place])).filter((size) => Number.isFinite(size) && size > 0);
      const bounds = curve.limit ? [...sizes, curve.limit] : sizes;
      if (signed.checked) {
        const most = Math.max(...bounds, Number.MIN_VALUE) * 1.05;
        const up = scale(-most, most, heights.lower);
        const limits = curve.limit ? [level("limit", up(curve.limit)), level("limit", up(-curve.limit))] : [];
        return frame(lower, heights.lower, roundSteps(-most, most).map((value) => [value, number(Number(value.toPrecision(12)))]), up, translate("target − reference"),
          level("zero", up(0)), ...limits, ...lines("of-difference", apart, up));
      }
      const top = bounds.length ? Math.ceil(Math.log10(Math.max(...bounds))) : 0;
      const bottom = Math.min(bounds.length ? Math.floor(Math.log10(Math.min(...bounds))) : -6, top - 2);
      const up = (value) => scale(bottom, top, heights.lower)(Math.log10(value));
      const every = Math.max(1, Math.floor((top - bottom + 3) / 4));
      const ticks = Array.from({ length: Math.floor((top - bottom) / every) + 1 }, (_, place) => bottom + place * every);
      const equal = shown.filter((place) => apart[place] === 0).map((place) => svg("path", { class: "of-difference", d: `M${across(steps[place])} ${heights.lower - margin.bottom - 6} v6` }));
      return frame(lower, heights.lower, ticks.map((exponent) => [10 ** exponent, "1e" + exponent]), up, translate("|difference|"),
        ...(curve.limit ? [level("limit", up(curve.limit))] : []), ...lines("of-difference", apart.map(Math.abs), up), ...equal);
    };

    // What follows the pointer: a line through both pictures, and the numbers of the step; or the part that is being chosen.
    const follow = () => {
      tip.hidden = pointed === null;
      for (const [picture, height] of [[upper, heights.upper], [lower, heights.lower]]) {
        const chosen = dragged ? [svg("rect", { class: "chosen", x: Math.min(...dragged), y: margin.top, width: Math.abs(dragged[1] - dragged[0]), height: height - margin.top - margin.bottom })] : [];
        picture.querySelector(".pointer").replaceChildren(...chosen, ...(pointed === null ? [] : [mark("pointed", across(steps[pointed]), height)]));
      }
      if (pointed === null) return;
      const rows = [["reference", reference[pointed]], ["target", target[pointed]], ["target − reference", target[pointed] - reference[pointed]]];
      tip.replaceChildren(element("b", {}, `step ${steps[pointed]}`), ...rows.map(([said, value]) => element("div", {}, `${translate(said)} ${number(value)}`)));
      const x = across(steps[pointed]);
      tip.style.left = (x + 14 + tip.offsetWidth > width ? Math.max(0, x - tip.offsetWidth - 14) : x + 14) + "px";
      tip.style.top = "24px";
    };

    const nearest = (x) => shown.reduce((best, place) => (best === null || Math.abs(across(steps[place]) - x) < Math.abs(across(steps[best]) - x) ? place : best), null);
    const all = () => look({ begin: null, end: null });
    const placed = (event) => event.clientX - upper.getBoundingClientRect().left;
    for (const picture of [upper, lower]) {
      picture.addEventListener("pointerdown", (event) => { dragged = [placed(event), placed(event)]; picture.setPointerCapture(event.pointerId); });
      picture.addEventListener("pointermove", (event) => { if (dragged) dragged[1] = placed(event); pointed = nearest(placed(event)); follow(); });
      picture.addEventListener("pointerup", () => {
        const [began, ended] = dragged ?? [0, 0];
        dragged = null;
        if (Math.abs(ended - began) > 4) look({ begin: Math.floor(stepAt(Math.min(began, ended))), end: Math.ceil(stepAt(Math.max(began, ended))) });
        else follow();
      });
      picture.addEventListener("pointerleave", () => { if (!dragged) { pointed = null; follow(); } });
      picture.addEventListener("pointercancel", () => { dragged = pointed = null; follow(); });
      picture.addEventListener("dblclick", all);
    }
    upper.setAttribute("tabindex", "0");
    upper.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by && shown.length) pointed = Math.min(shown.at(-1), Math.max(shown[0], (pointed ?? shown[0] - 1) + by));
      else if (event.key === "Escape") return all();
      else return;
      event.preventDefault();
      follow();
    });
    upper.addEventListener("blur", () => { pointed = null; follow(); });
    weight.addEventListener("input", draw);
    signed.addEventListener("change", draw);
    whole.addEventListener("click", all);
    new ResizeObserver(() => { if (Math.max(upper.clientWidth, 280) !== width) draw(); }).observe(upper);
    watch(draw);
  };
  document.querySelectorAll("[data-curve]").forEach(interactive);
};
