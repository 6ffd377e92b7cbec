// All records: one page of rows at a time, so that 20 000 of them stay quick.
const pageSize = 50;
let listed = []; // rows in the order in which the table shows them

const drawTable = () => {
  const columns = [
    ["order", "order"], ["name", "module / operator"], ["status", "status"], ["role", "role"],
    ["ratio", "of its limit"], ...data.shown.map((name) => [name, name]),
  ];
  const figures = new Set(["order", "ratio", ...data.shown]);
  const heads = columns.map(([column, title]) => {
    const sorter = () => look({ sort: column, down: view.sort === column ? !view.down : figures.has(column) && column !== "order" && !data.atLeast.includes(column), page: 0 });
    return element("th", { scope: "col", role: "columnheader", class: figures.has(column) ? "figure" : null, "data-column": column, "data-title": title.replaceAll("_", "_\u200b") }, element("button", { type: "button", onclick: sorter }));
  });
  find("#table thead").replaceChildren(element("tr", { role: "row" }, ...heads));

  const rowOf = (row) => {
    const name = word("name", row);
    const open = (event) => { event.stopPropagation(); look({ record: row }); };
    const button = element("button", { type: "button", class: "record", title: word("record", row), onclick: open }, ...breakable(shortened(name, 400)));
    const cell = (label, kind, ...inner) => element("td", { role: "cell", class: kind, "data-label": label }, ...inner);
    const cells = [
      cell("order", "figure soft order", String(figure("order", row))),
      cell(null, "name", button),
      cell("status", null, statusTag(word("status", row))),
      cell("role", "role-" + word("role", row), drawn(row) ? word("role", row) : ""),
      decided(row)
        ? element("td", { role: "cell", class: "figure", "data-label": "of its limit", title: use(row) }, factor(figure("ratio", row)), element("br"), element("small", { class: "soft" }, word("metric", row)))
        : cell("of its limit", "figure", "–"),
      ...data.shown.map((name) => cell(name, "figure", number(metric(name, row)))),
    ];
    return element("tr", { role: "row", "data-row": row, class: row === view.record ? "selected" : null, onclick: open }, ...cells);
  };

  const chips = () => {
    const counts = new Map();
    for (const row of every) counts.set(word("status", row), (counts.get(word("status", row)) ?? 0) + 1);
    const starts = every.filter((row) => word("role", row) === "introduces").length;
    const of = (shown, total) => (shown === total ? count(total) : translate(`${count(shown)} of ${count(total)}`));
    const all = data.severity.reduce((sum, status) => sum + (data.totals[status] ?? 0), 0);
    const choices = [["", `all ${of(size, all)}`], ...(data.totals.introduces ? [["introduces", `✗ starts here ${of(starts, data.totals.introduces)}`]] : [])];
    for (const status of data.severity) if (data.totals[status]) choices.push([status, `${translate(`${data.symbols[status]} ${words(status)}`)} ${of(counts.get(status) ?? 0, data.totals[status])}`]);
    const press = (status) => () => look({ status, page: 0 });
    find("#chips").replaceChildren(...choices.map(([status, text]) => element("button", { type: "button", "data-status": status, onclick: press(status) }, text)));
  };

  const orders = [["worst", "worst first"], ["order", "in order of the network"]];
  find("#sorts").replaceChildren(translate("Sorted"), " ", ...orders.map(([sort, text]) =>
    element("button", { type: "button", "data-sort": sort, onclick: () => look({ sort, down: false, page: 0 }) }, text)));

  const active = () => {
    const drop = (changes, text) => element("button", { type: "button", title: text, onclick: () => look({ ...changes, page: 0 }) }, `${shortened(text, 60)} ✕`);
    const parts = [];
    if (view.module) parts.push(drop({ module: "" }, "module " + view.module));
    if (view.only) parts.push(drop({ only: false }, "only differences"));
    if (view.from !== null) parts.push(drop({ from: null, to: null }, `records ${count(view.from)} to ${count(view.to ?? size)} of the picture`));
    find("#active").replaceChildren(...parts);
  };

  let last = "";
  watch(() => {
    const wanted = JSON.stringify([view.only, view.status, view.module, view.find, view.from, view.to, view.sort, view.down]);
    if (wanted !== last) listed = chosen(view);
    const place = listed.indexOf(view.record);
    const pages = Math.max(1, Math.ceil(listed.length / pageSize));
    const page = place >= 0 ? Math.floor(place / pageSize) : Math.min(view.page, pages - 1);
    last = wanted;
    view.page = page;
    const shown = [...listed.slice(page * pageSize, (page + 1) * pageSize)];
    const nothing = element("tr", { role: "row" }, element("td", { role: "cell", class: "empty", colspan: columns.length }, size ? "No record matches." : "No record was compared."));
    find("#table tbody").replaceChildren(...(shown.length ? shown.map(rowOf) : [nothing]));
    find("#page-text").textContent = translate(shown.length ? `${count(page * pageSize + 1)} to ${count(page * pageSize + shown.length)} of ${count(listed.length)}` : "0 of " + count(size));
    const sorted = orders.find(([sort]) => sort === view.sort)?.[1] ?? "by " + view.sort;
    find("#listing").textContent = `${find("#page-text").textContent} ${translate("records")}, ${translate(sorted)}${listed.length < size ? translate(", as filtered") : ""}`;
    find("#page-back").disabled = page === 0;
    find("#page-on").disabled = page >= pages - 1;
    for (const head of heads) {
      if (head.dataset.column === view.sort) head.setAttribute("aria-sort", view.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
      const title = translate(columns.find(([column]) => column === head.dataset.column)[1]);
      head.firstChild.replaceChildren(...breakable(title, /(?<=_)/), head.dataset.column === view.sort ? (view.down ? " ↓" : " ↑") : "");
    }
    for (const button of find("#sorts").children) button.setAttribute("aria-pressed", String(button.dataset.sort === view.sort));
    for (const chip of find("#chips").children) chip.setAttribute("aria-pressed", String(chip.dataset.status === view.status));
    if (find("#find").value !== view.find) find("#find").value = view.find;
    active();
  });

  chips();
  let waiting = 0;
  find("#find").addEventListener("input", (event) => { clearTimeout(waiting); waiting = setTimeout(() => look({ find: event.target.value, page: 0 }), 120); });
  find("#page-back").addEventListener("click", () => look({ page: view.page - 1, record: null }));
  find("#page-on").addEventListener("click", () => look({ page: view.page + 1, record: null }));
};
