// The records by row number, and which of them the reader wants to see.
const size = data.columns.order.length;
const word = (column, row) => data.texts[data.columns[column][row]];
const figure = (column, row) => Number(data.columns[column][row]);
const metric = (name, row) => {
  const value = data.metrics[name]?.[row];
  return value === null || value === undefined ? null : Number(value);
};
const kinds = data.colours;

const statusTag = (status) => element("span", { class: "tag " + kinds[status] }, `${data.symbols[status]} ${words(status)}`);
const drawn = (row) => !["not_judged", "sampled_out"].includes(word("status", row));
// Of an undecided record the value is one end of a range, and no share of its limit.
const decided = (row) => word("metric", row) && word("status", row) !== "undecided";
const inside = (module, path) => path === "" || module === path || module.startsWith(path + ".");

const matches = (row, view, needle) =>
  (view.status === "" || view.status === word("status", row) || view.status === word("role", row)) &&
  (view.from === null || row >= view.from) &&
  (view.to === null || row <= view.to) &&
  inside(word("module", row), view.module) &&
  (needle === "" || ["name", "record", "reason"].some((column) => word(column, row).toLowerCase().includes(needle)));

// What a column sorts by; null (cannot be had) stays last in both directions, NaN counts as the largest.
const sortKey = (column) => {
  const order = (value) => (Number.isNaN(value) ? Infinity : value);
  if (column === "order") return (row) => row;
  if (column === "name") return (row) => word("name", row);
  if (column === "status") return (row) => -data.severity.indexOf(word("status", row));
  if (column === "role") return (row) => word("role", row);
  if (column === "ratio" || column === "limit") return (row) => (decided(row) ? order(figure(column, row)) : null);
  return (row) => { const value = metric(column, row); return value === null ? null : order(value); };
};

// The order of `importance` in precflow/report/highlights.py: introduces, fails, in doubt, passes, not judged.
const importance = (row) => {
  const status = word("status", row);
  const ratio = figure("ratio", row);
  const wrong = kinds[status] === "bad";
  const place = wrong ? (word("role", row) === "introduces" ? 0 : 1) : { pass: 3, covered: 4, sampled_out: 4, not_judged: 4 }[status] ?? 2;
  const used = Number.isNaN(ratio) || (wrong && status !== "fail") ? Infinity : Number(ratio.toPrecision(4));
  return [place, place === 2 ? data.severity.indexOf(status) : 0, -used];
};

// Row numbers in that order: sorted once, however often the reader filters.
let ranked = null;
const worstFirst = () => {
  if (ranked) return ranked;
  const keys = Array.from({ length: size }, (_, row) => importance(row));
  ranked = [...keys.keys()].sort((one, other) => {
    const [a, b] = [keys[one], keys[other]];
    const place = a.findIndex((value, index) => value !== b[index]);
    return place < 0 ? one - other : a[place] < b[place] ? -1 : 1;
  });
  return ranked;
};

const chosen = (view) => {
  const needle = view.find.trim().toLowerCase();
  const every = view.sort === "worst" ? worstFirst() : [...Array(size).keys()];
  const rows = every.filter((row) => matches(row, view, needle));
  if (view.sort === "worst" || (view.sort === "order" && !view.down)) return rows;
  const key = sortKey(view.sort);
  const keys = new Map(rows.map((row) => [row, key(row)]));
  const sign = view.down ? -1 : 1;
  return rows.sort((one, other) => {
    const [a, b] = [keys.get(one), keys.get(other)];
    if (a === b) return one - other;
    if (a === null || b === null) return a === null ? 1 : -1;
    return a < b ? -sign : sign;
  });
};
