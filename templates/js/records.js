// The records by row number, and which of them the reader wants to see.
const word = (column, row) => kept.texts[column].of(row);
// A metric of a record: null if it cannot be had, undefined if this page has no room for it.
const metric = (name, row) => {
  const value = kept.metrics[name]?.(row);
  return value === undefined && word("metric", row) === name ? figure("value", row) : value;
};
// What is the same as a metric, or follows from limit and value, is not in the data a second time.
const figure = (column, row) => {
  if (column === "order") return kept.order[row];
  const value = kept.figures[column](row);
  if (column === "value" && value === null) return kept.metrics[data.chart.metric](row) ?? NaN;
  if (column !== "ratio" || value !== undefined) return value ?? NaN;
  const [limit, found] = [figure("limit", row), figure("value", row)];
  return data.atLeast.includes(word("metric", row)) ? (1 - found) / (1 - limit) : found / limit;
};
const kinds = data.colours;

const statusTag = (status) => element("span", { class: "tag " + kinds[status] }, `${data.symbols[status]} ${words(status)}`);
const drawn = (row) => !["not_judged", "sampled_out"].includes(word("status", row));
// Of an undecided record the value is one end of a range, and no share of its limit.
const decided = (row) => word("metric", row) && word("status", row) !== "undecided";
const inside = (module, path) => path === "" || module === path || module.startsWith(path + ".");

// Which records a reader wants to see. Texts that many records share are looked at once.
const matching = (view) => {
  const needle = view.find.trim().toLowerCase();
  const tests = [];
  const ofEntries = (column, wanted) => {
    const { entries, entry, entryOf } = kept.texts[column];
    const hit = Uint8Array.from({ length: entries }, (_, place) => Number(wanted(entry(place))));
    tests.push((row) => hit[entryOf(row)]);
  };
  if (data.severity.includes(view.status)) ofEntries("status", (status) => status === view.status);
  else if (view.status !== "") ofEntries("role", (role) => role === view.status);
  if (view.only) ofEntries("status", (status) => ["bad", "doubt", "known"].includes(kinds[status]));
  if (view.module !== "") ofEntries("module", (module) => inside(module, view.module));
  if (view.from !== null) tests.push((row) => row >= view.from);
  if (view.to !== null) tests.push((row) => row <= view.to);
  if (needle !== "") {
    const hits = ["name", "record", "reason"].map((column) => [kept.texts[column].holding(needle), kept.texts[column].entryOf]);
    tests.push((row) => hits.some(([hit, entryOf]) => hit[entryOf(row)]));
  }
  return (row) => tests.every((test) => test(row));
};

// Sorts records by a number, smallest first; those of the same number keep their order, and null comes last. By the bits of the
// numbers, sixteen at a time: twenty times as fast as comparing a million records with each other.
const sortBy = (rows, key) => {
  const keys = new Float64Array(rows.length);
  rows.forEach((row, place) => { keys[place] = (key(row) ?? NaN) + 0; });
  const bits = new Uint32Array(keys.buffer);
  for (let low = 0; low < bits.length; low += 2) { // so that whole numbers are in the order of the numbers that their bits stand for
    const negative = bits[low + 1] >>> 31 && !Number.isNaN(keys[low / 2]);
    bits[low + 1] = negative ? ~bits[low + 1] : bits[low + 1] | 0x80000000;
    if (negative) bits[low] = ~bits[low];
  }
  let order = Uint32Array.from(rows, (_, place) => place);
  for (let digit = 0; digit < 4; digit += 1) {
    const digitOf = (place) => (bits[2 * place + (digit >> 1)] >>> (16 * (digit & 1))) & 0xffff;
    const starts = new Uint32Array(0x10001);
    for (const place of order) starts[digitOf(place) + 1] += 1;
    if (starts.includes(order.length)) continue; // all the same
    for (let value = 0; value < 0x10000; value += 1) starts[value + 1] += starts[value];
    const sorted = new Uint32Array(order.length);
    for (const place of order) sorted[starts[digitOf(place)]++] = place;
    order = sorted;
  }
  return order.map((place) => rows[place]);
};

// What a column sorts by; null (cannot be had) stays last in both directions, NaN counts as the largest.
const sortKey = (column) => {
  const order = (value) => (Number.isNaN(value) ? Infinity : value ?? null);
  const ranks = (name, before) => {
    const { entries, entry, entryOf } = kept.texts[name];
    const places = [...Array(entries).keys()];
    const said = places.map(entry);
    const rank = new Uint32Array(entries);
    places.sort((one, other) => before(said[one], said[other])).forEach((place, at) => { rank[place] = at; });
    return (row) => rank[entryOf(row)];
  };
  const alphabetic = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
  if (column === "order") return (row) => row;
  if (column === "name" || column === "role") return ranks(column, alphabetic);
  if (column === "status") return ranks(column, (one, other) => data.severity.indexOf(other) - data.severity.indexOf(one));
  if (column === "ratio" || column === "limit") return (row) => (decided(row) ? order(figure(column, row)) : null);
  return (row) => order(metric(column, row));
};

// The order of `importance` in precflow/report/highlights.py: introduces, fails, in doubt, passes, not judged.
const placeOf = (row) => {
  const status = word("status", row);
  if (kinds[status] === "bad") return word("role", row) === "introduces" ? 0 : 1;
  return { pass: 103, covered: 104, sampled_out: 104, not_judged: 104 }[status] ?? 2 + data.severity.indexOf(status);
};
const shareUsed = (row) => {
  const [status, ratio] = [word("status", row), figure("ratio", row)];
  return Number.isNaN(ratio) || (kinds[status] === "bad" && status !== "fail") ? Infinity : Number(ratio.toPrecision(4));
};

const every = Uint32Array.from({ length: size }, (_, row) => row);
let ranked = null; // all records, the most important first: sorted once, however often the reader filters
const worstFirst = () => (ranked ??= sortBy(sortBy(every, (row) => -shareUsed(row)), placeOf));

const chosen = (view) => {
  const rows = (view.sort === "worst" ? worstFirst() : every).filter(matching(view));
  if (view.sort === "worst" || (view.sort === "order" && !view.down)) return rows;
  const key = sortKey(view.sort);
  return sortBy(rows, view.down ? (row) => { const value = key(row); return value === null ? null : -value; } : key);
};
