// One way to make elements (never from markup), and what the reader looks at, kept in the address.
// A page in two languages has its body a second time: the address says which of them is shown, else the browser does.
const otherBody = document.querySelector("template[lang]");
if (otherBody) {
  const wanted = new URLSearchParams(location.hash.slice(1)).get("lang") || navigator.language.slice(0, 2);
  if (otherBody.lang.startsWith(wanted)) {
    const pictures = [...document.querySelectorAll("img")].map((picture) => picture.src);
    const shown = document.createElement("div");
    shown.append(otherBody.content);
    document.querySelector("title").replaceWith(shown.querySelector("title"));
    shown.querySelectorAll("img").forEach((picture, index) => { picture.src = pictures[index]; });
    while (document.body.firstElementChild !== otherBody) document.body.firstElementChild.remove();
    document.body.prepend(...shown.childNodes);
    document.documentElement.lang = otherBody.lang;
  }
}

// What the script writes itself, in the language of the page, as precflow/language.py translates it: words and values.
const translate = (() => {
  if (!data.words || !document.documentElement.lang.startsWith("zh")) return (text) => text;
  const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const patterns = Object.entries(data.words).filter(([text]) => /\{#?\}/.test(text)).map(([text, said]) =>
    [new RegExp("^" + text.split(/(\{#?\})/).map((part) => (part === "{}" ? "(.+?)" : part === "{#}" ? "([-+\\d., %×eE]+|infinity|NaN)" : escaped(part))).join("") + "$"), said]);
  patterns.sort(([one], [other]) => other.source.length - one.source.length);
  const known = new Map();
  const look = (text) => {
    if (Object.hasOwn(data.words, text)) return data.words[text];
    for (const [pattern, said] of patterns) {
      const found = text.match(pattern);
      if (found) return said.replace(/\{(\d)(!?)\}/g, (_, place, always) => { const value = found[Number(place) + 1]; return always || value.includes(" ") ? translate(value) : value; });
    }
    return text;
  };
  return (text) => {
    if (typeof text !== "string" || !/[a-z]/i.test(text)) return text;
    const core = text.trim();
    if (!known.has(core)) known.set(core, look(core));
    return text.replace(core, () => known.get(core));
  };
})();
const find = (selector) => document.querySelector(selector);

const spoken = new Set(["title", "aria-label", "data-label", "data-title"]); // attributes with text for people
const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : spoken.has(key) ? translate(value) : value);
  }
  const isName = name === "code" || /^(record|name)$/.test(attributes.class ?? "");
  made.append(...(isName ? children : children.map(translate)));
  return made;
};

// #lang=zh&record=17&module=encoder.layers.0&status=fail&find=softmax&from=10&to=90&sort=ratio&down=1&page=2, and of curves
// begin=100&end=200, of everything only=1; or the id of a finding, #finding-2
const readView = () => {
  const address = new URLSearchParams(location.hash.slice(1));
  const whole = (key) => (/^\d+$/.test(address.get(key) ?? "") ? Number(address.get(key)) : null);
  const text = (key) => address.get(key) ?? "";
  return {
    lang: text("lang"), record: whole("record"), module: text("module"), status: text("status"), find: text("find"),
    from: whole("from"), to: whole("to"), begin: whole("begin"), end: whole("end"), only: text("only") === "1", sort: text("sort") || "worst", down: text("down") === "1", page: whole("page") ?? 0,
  };
};

let view = readView();
const watchers = [];
const watch = (watcher) => watchers.push(watcher);
const tell = () => watchers.forEach((watcher) => watcher(view));

const look = (changes) => {
  view = { ...view, ...changes };
  const address = new URLSearchParams();
  for (const [key, value] of Object.entries(view)) {
    if (value === null || value === "" || value === false || (key === "sort" && value === "worst") || (key === "page" && !value)) continue;
    address.set(key, value === true ? "1" : value);
  }
  const hash = address.toString();
  history.replaceState(null, "", hash ? "#" + hash : location.pathname + location.search);
  tell();
};

const copyText = async (text) => {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = element("textarea", { "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
};
