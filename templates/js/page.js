// The page's data, one way to make elements (never from markup), and what the reader looks at, kept in the address.
const unpacked = (text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
};
const written = document.getElementById("data").textContent;
const data = JSON.parse(written.startsWith("{") ? written : await unpacked(written));
const find = (selector) => document.querySelector(selector);

const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
};

// #record=17&module=encoder.layers.0&status=fail&find=softmax&from=10&to=90&sort=ratio&down=1&page=2
const readView = () => {
  const address = new URLSearchParams(location.hash.slice(1));
  const whole = (key) => (/^\d+$/.test(address.get(key) ?? "") ? Number(address.get(key)) : null);
  const text = (key) => address.get(key) ?? "";
  return {
    record: whole("record"), module: text("module"), status: text("status"), find: text("find"),
    from: whole("from"), to: whole("to"), sort: text("sort") || "worst", down: text("down") === "1", page: whole("page") ?? 0,
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
