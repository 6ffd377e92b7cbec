// The page's data: a head of JSON, and behind it columns of bytes, as precflow/report/packing.py writes them. A value is read
// where it is needed; opening the page reads none.
const bytes = await (async () => {
  const letters = atob(document.getElementById("data").textContent);
  const packed = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place += 1) packed[place] = letters.charCodeAt(place);
  const inflated = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(inflated).arrayBuffer());
})();
const headEnd = 4 + new DataView(bytes.buffer).getUint32(0, true);
const data = JSON.parse(new TextDecoder().decode(bytes.subarray(4, headEnd)));

const wholes = ([offset, many, width, steps]) => {
  const plane = (byte) => bytes.subarray(headEnd + offset + byte * many, headEnd + offset + (byte + 1) * many);
  if (width === 1 && !steps) return plane(0);
  const found = Uint32Array.from(width ? plane(0) : new Uint8Array(many));
  for (let byte = 1; byte < width; byte += 1) {
    const from = plane(byte);
    for (let place = 0; place < many; place += 1) if (from[place]) found[place] |= from[place] << (8 * byte);
  }
  let last = 0;
  if (steps) for (let place = 0; place < many; place += 1) found[place] = last += (found[place] >>> 1) ^ -(found[place] & 1);
  return found;
};
const later = (make) => { let made; return () => (made ??= make()); }; // most columns are never looked at

// A column of texts: `entries` of them that differ, `entryOf` a record, and `of` a record the text itself.
const textColumn = ({ patterns, pattern, numbers, index }) => {
  const entries = pattern[1];
  const patternOf = later(() => wholes(pattern));
  const columns = later(() => numbers.map(wholes));
  const indices = later(() => wholes(index));
  const known = entries <= 1 << 18 ? new Array(entries) : null; // of more, texts are put together again each time
  const written = (place) => {
    const parts = patterns[patternOf()[place]];
    let text = parts[0];
    for (let slot = 1; slot < parts.length; slot += 1) text += columns()[slot - 1][place] + parts[slot];
    if (known) known[place] = text;
    return text;
  };
  const entry = (place) => known?.[place] ?? written(place);
  // Which entries hold a text. One without digits can only be in the words between numbers, which many entries share.
  const holding = (needle) => {
    const hit = new Uint8Array(entries);
    const ofPattern = /\d/.test(needle) ? null : patterns.map((parts) => parts.some((part) => part.toLowerCase().includes(needle)));
    for (let place = 0; place < entries; place += 1) hit[place] = ofPattern ? ofPattern[patternOf()[place]] : entry(place).toLowerCase().includes(needle);
    return hit;
  };
  const entryOf = index ? (row) => indices()[row] : (row) => row;
  return { entries, entry, holding, entryOf, of: (row) => entry(entryOf(row)) };
};

// A column of numbers: of a place the number, null if there is none.
const POWERS = Float64Array.from({ length: 309 }, (_, power) => Number("1e" + power));
const numberColumn = (parts) => {
  const planes = later(() => parts.map(wholes));
  const plain = [null, NaN, Infinity, -Infinity, 0];
  const scaled = (figures, power) => (power >= 0 ? figures * POWERS[power] : power >= -308 ? figures / POWERS[-power] : figures / 1e300 / POWERS[-power - 300]);
  return (place) => {
    const [kindOf, tensOf, unitsOf] = planes();
    const kind = kindOf[place];
    if (kind < plain.length) return plain[kind];
    const sort = Math.floor(kind / 1000);
    const size = scaled(tensOf[place] * 100 + unitsOf[place], kind - sort * 1000 - 503);
    return sort === 1 ? size : sort === 2 ? -size : 1 - size;
  };
};

const size = data.size;
const levels = wholes(data.levels);
// The place of a record among those that are kept to a level at least; -1 for one that is not.
const placesOf = [0, 1, 2].map((level) => {
  const places = new Int32Array(size);
  let next = 0;
  for (let row = 0; row < size; row += 1) places[row] = levels[row] >= level ? next++ : -1;
  return next === size ? null : places;
});
const ofRow = (level, read) => {
  const places = placesOf[level];
  return places ? (row) => (places[row] < 0 ? undefined : read(places[row])) : read;
};

const mapped = (columns, read) => Object.fromEntries(Object.entries(columns).map(([name, column]) => [name, read(column)]));
const numbersOf = ({ level, numbers }) => ofRow(level, numberColumn(numbers));
const kept = { // by record, whatever is kept of it
  texts: mapped(data.texts, textColumn),
  figures: mapped(data.figures, numbersOf),
  metrics: mapped(data.metrics, numbersOf),
  counts: mapped(data.counts, ({ level, texts }) => ofRow(level, textColumn(texts).of)),
  order: wholes(data.order),
  equal: wholes(data.equal), // 1 where the bits of both sides are the same
};
