// The module tree: coloured by its worst status, opened where the error starts; a click on a module filters the table.
// Modules may be nested by the thousand, more than a browser lays out: so the rows lie side by side, moved in by their depth.
const treeNodes = () => {
  const around = [];
  return data.tree.map(([name, worst, wrong, judged, introduces, depth]) => {
    const outer = depth ? around[depth - 1] : null;
    const path = outer && outer.depth ? outer.path + "." + name : depth ? name : "";
    const node = { name, worst, wrong, judged, introduces, depth, path, children: [] };
    if (outer) outer.children.push(node);
    around[depth] = node;
    return node;
  });
};

const drawTree = () => {
  const nodes = treeNodes();
  for (const node of nodes) {
    node.starts = node.introduces > 0;
    node.open = node.depth === 0 || node.starts || (node.children.length === 1 && node.judged > 0 && node.depth < 3);
  }

  const rowOf = (node) => {
    const { name, worst, wrong, judged, depth, path, children, starts } = node;
    const title = path.length > 1000 ? "…" + path.slice(-1000) : path || name;
    node.label = element("button", { type: "button", class: "name", title, "data-path": path, onclick: () => look({ module: view.module === path ? "" : path, page: 0 }) }, ...breakable(name, /(?<=_)/));
    node.twist = element("button", { type: "button", class: "twist", "aria-label": "inside " + name, disabled: children.length === 0, onclick: () => { node.open = !node.open; spread(node); } });
    const kind = starts ? "bad" : kinds[worst];
    const dot = element("span", { class: "dot " + kind, title: starts ? "the error starts here" : words(worst) }, starts ? "✗" : data.symbols[worst] === "✗" ? "○" : data.symbols[worst]);
    const sum = element("span", { class: "sum " + (wrong ? kind : "soft"), title: `${wrong} of ${judged} records are wrong or missing` }, wrong && judged < 1000 ? `${wrong}/${judged}` : count(wrong || judged));
    const row = element("div", { class: wrong || depth === 0 ? "node" : "node same", "data-depth": depth }, node.twist, dot, node.label, sum);
    row.style.paddingLeft = 12 * Math.min(depth, 24) + "px";
    turn(node);
    press(node);
    return row;
  };
  const turn = (node) => {
    node.twist.setAttribute("aria-expanded", String(node.open && node.children.length > 0));
    node.twist.textContent = node.children.length ? (node.open ? "▾" : "▸") : "";
  };
  const press = (node) => node.label.setAttribute("aria-pressed", String(node.path === view.module && view.module !== ""));

  // Puts the rows of all that is open inside a module behind its own row, or takes them away.
  const spread = (node) => {
    turn(node);
    while (Number(node.row.nextSibling?.dataset.depth) > node.depth) node.row.nextSibling.remove();
    const rows = document.createDocumentFragment();
    const waiting = node.open ? [...node.children].reverse() : [];
    while (waiting.length) {
      const inner = waiting.pop();
      rows.append((inner.row ??= rowOf(inner)));
      if (inner.open) for (const child of [...inner.children].reverse()) waiting.push(child);
    }
    node.row.after(rows);
  };

  if (size) {
    nodes[0].row = rowOf(nodes[0]);
    find("#tree").replaceChildren(nodes[0].row);
    spread(nodes[0]);
  } else find("#tree").replaceChildren(element("p", { class: "soft" }, "No module was recorded."));
  watch(() => { for (const node of nodes) if (node.label) press(node); });
};
