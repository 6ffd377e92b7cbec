// Numbers as precflow/report/wording.py writes them; tests hold both to the same texts.
const count = (value) => String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, " ");

const INFINITY = 1e300; // stands for infinity in the files of stages, because JSON has none

const number = (value) => {
  if (value === undefined) return "…"; // there is one, and no room for it on the page
  if (value === null) return "–";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value) || Math.abs(value) === INFINITY) return value > 0 ? "infinity" : "-infinity";
  if (value > 0.99 && value < 1) {
    const digits = Math.min(16, 1 - Math.floor(Math.log10(1 - value)));
    return value.toFixed(digits).replace(/0+$/, "");
  }
  const size = Math.abs(value);
  if (size >= 999.5 && size < 1e7) return (value < 0 ? "-" : "") + count(size);
  if (size === 0 || (size >= 0.1 && size < 999.5)) return String(Number(value.toPrecision(3)) + 0);
  return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
};

const share = (value) => {
  if (!Number.isFinite(value)) return number(value);
  const percent = value * 100;
  if (percent > 0 && percent < 1) return Math.max(percent, 0.1).toFixed(1) + " %";
  if (percent > 99 && percent < 100) return Math.floor(percent * 10) / 10 + " %";
  return count(percent) + " %";
};

const moderate = (ratio) => ratio <= 2 || !Number.isFinite(ratio);
const factor = (ratio) => (moderate(ratio) ? share(ratio) : number(ratio) + " ×");
const used = (ratio) => (moderate(ratio) ? share(ratio) + " of its limit" : number(ratio) + " times its limit");

// The condition that decides a record, as `describe_use` of wording.py says it.
const use = (row) => {
  const ratio = figure("ratio", row);
  const floor = Number.isNaN(figure("floor", row)) ? "" : `, noise floor ${number(figure("floor", row))}`;
  return `${word("metric", row)} ${number(figure("value", row))}, ${Number.isFinite(ratio) ? used(ratio) : "limit"} ${number(figure("limit", row))}${floor}`;
};

const words = (name) => name.replaceAll("_", " ");

// A name that may break behind its dots and slashes, as `breakable` of precflow/report/templating.py writes it.
const breakable = (text, places = /(?<=[./])/) => text.split(places).flatMap((part, index) => (index ? [element("wbr"), part] : [part]));

const shortened = (text, width) => {
  const letters = [...text];
  if (letters.length <= width) return text;
  const head = Math.floor((width - 1) / 4);
  return letters.slice(0, head).join("") + "…" + letters.slice(letters.length - (width - 1 - head)).join("");
};
