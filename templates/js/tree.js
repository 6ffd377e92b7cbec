// The module tree: coloured by its worst status, opened where the error starts; a click on a module filters the table.
const drawTree = () => {
  const names = [];
  const branchOf = (nodes, path) => element("div", { class: "branch" }, ...nodes.map((node) => nodeOf(node, path ? path + "." + node[0] : node[0])));

  const nodeOf = ([name, worst, wrong, judged, introduces, children], path) => {
    const starts = introduces > 0;
    const label = element("button", { type: "button", class: "name", title: path || name, "data-path": path, onclick: () => look({ module: view.module === path ? "" : path, page: 0 }) }, name);
    const twist = element("button", { type: "button", class: "twist", "aria-expanded": "false", "aria-label": "inside " + name, disabled: children.length === 0 }, children.length ? "▸" : "");
    const kind = starts ? "bad" : kinds[worst];
    const dot = element("span", { class: "dot " + kind, title: starts ? "the error starts here" : words(worst) }, starts ? "✗" : data.symbols[worst] === "✗" ? "○" : data.symbols[worst]);
    const sum = element("span", { class: "sum " + (wrong ? kind : "soft"), title: `${wrong} of ${judged} records are wrong or missing` }, wrong && judged < 1000 ? `${wrong}/${judged}` : count(wrong || judged));
    const holder = element("div", {}, element("div", { class: "node" }, twist, dot, label, sum));
    names.push(label);
    const toggle = () => {
      const open = twist.getAttribute("aria-expanded") !== "true";
      twist.setAttribute("aria-expanded", String(open));
      twist.textContent = open ? "▾" : "▸";
      if (!open) holder.lastChild.hidden = true;
      else if (holder.children.length > 1) holder.lastChild.hidden = false;
      else holder.append(branchOf(children, path));
    };
    twist.addEventListener("click", toggle);
    if (children.length && (path === "" || starts || (children.length === 1 && judged > 0 && path.split(".").length < 3))) toggle();
    return holder;
  };

  find("#tree").replaceChildren(size ? nodeOf(data.tree, "") : element("p", { class: "soft" }, "No module was recorded."));
  watch(() => { for (const name of names) name.setAttribute("aria-pressed", String(name.dataset.path === view.module && view.module !== "")); });
};
