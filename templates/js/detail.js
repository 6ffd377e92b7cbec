// One record in full, in a dialog: both sides, every metric, the limit, what differs, where it was called.
const drawDetail = () => {
  const dialog = find("#detail");
  const cell = (...inner) => element("td", {}, ...inner);
  const head = (text) => element("th", { scope: "row" }, text);
  const table = (name, titles, lines) => element("div", { class: "scroll", role: "region", "aria-label": name, tabindex: "0" }, element("table", {},
    element("thead", {}, element("tr", {}, ...titles.map((title) => (title ? element("th", { scope: "col" }, title) : element("td"))))), element("tbody", {}, ...lines)));

  const sides = (row) => {
    const line = (title, reference, target) => {
      const same = reference === target;
      return element("tr", { class: same ? "same" : "differs" }, head(title), cell(reference || "–"), cell(target || "–"), element("td", { class: "same" }, same ? "same" : "≠ differs"));
    };
    return table("Both sides", ["", "reference", "target", ""], [
      line("shape", word("referenceShape", row), word("targetShape", row)),
      line("element type", word("referenceType", row), word("targetType", row)),
      ...(data.details[row]?.arguments ?? []).map(([name, reference, target]) => line("argument " + name, reference, target)),
    ]);
  };

  const metrics = (row) => {
    const decides = word("metric", row);
    const limit = () => (decided(row) ? use(row) : `${decides} not decided, limit ${number(figure("limit", row))}`) +
      ` (${data.atLeast.includes(decides) ? "at least" : "at most"}, ${word("standard", row)})`;
    const lines = Object.keys(data.metrics).filter((name) => (metric(name, row) ?? null) !== null).map((name) =>
      element("tr", { class: name === decides ? "deciding" : null }, head(name), element("td", { class: "figure" }, number(metric(name, row)))));
    if (!lines.length) return [element("p", { class: "soft" }, "No metric can be had for this record.")];
    const more = levels[row] < 2 ? [element("p", { class: "soft" }, "This page has no room for the other metrics of this record; result.csv of the run has them.")] : [];
    return [...(decides ? [element("p", {}, limit())] : []), table("Metrics", ["metric", "value"], lines), ...more];
  };

  const meaning = (row) => {
    const lines = [element("p", {}, statusTag(word("status", row)), " ", data.meanings[word("status", row)])];
    if (drawn(row)) lines.push(element("p", {}, element("strong", {}, word("role", row)), ": ", data.roles[word("role", row)]));
    if (word("reason", row)) lines.push(element("p", { class: "soft" }, word("reason", row)));
    if (kept.equal[row]) lines.push(element("p", {}, "The bits of both sides are the same."));
    for (const warning of data.details[row]?.warnings ?? []) lines.push(element("p", { class: "doubt" }, "Note: " + warning));
    return lines;
  };

  const sites = (row) => {
    const [reference, target] = [word("site", row), word("targetSite", row)];
    const lines = reference === target ? [reference] : [`reference: ${reference || "–"}`, `target: ${target || "–"}`];
    return reference || target ? [element("h3", {}, "Called at"), ...lines.map((site) => element("p", {}, element("code", {}, site)))] : [];
  };

  const counts = (row) => {
    const pairs = Object.entries(kept.counts).map(([name, of]) => [name, Number(of(row) ?? 0)]).filter(([, value]) => value > 0);
    return pairs.length ? [element("h3", {}, "Elements"), element("p", {}, pairs.map(([name, value]) => `${name} ${count(value)}`).join(" · "))] : [];
  };

  const inFull = (row) => {
    const found = document.querySelector(`.closest-record[data-row="${row}"] .closest-body`);
    return found ? [found.cloneNode(true)] : [];
  };

  const step = (by) => {
    const place = listed.indexOf(view.record);
    const next = listed[place + by];
    if (place >= 0 && next !== undefined) look({ record: next });
  };

  const show = (row) => {
    const place = listed.indexOf(row);
    const steps = element("div", { class: "steps" },
      element("button", { type: "button", class: "back", disabled: place <= 0, onclick: () => step(-1) }, "Previous"),
      element("button", { type: "button", class: "on", disabled: place < 0 || place >= listed.length - 1, onclick: () => step(1) }, "Next"),
      element("button", { type: "button", class: "link", onclick: async (event) => { await copyText(location.href); event.target.textContent = translate("Copied"); } }, "Copy link"),
      element("button", { type: "button", class: "close", onclick: () => dialog.close() }, "Close"));
    const when = [word("phase", row), "order " + figure("order", row)].join(" · ");
    const focused = document.activeElement?.className; // stepping on replaces the very button that was pressed
    dialog.replaceChildren(
      element("div", { class: "detail-head" }, element("h2", { id: "detail-title" }, word("name", row)), steps),
      element("div", { class: "detail-body" }, element("p", { class: "soft" }, element("code", {}, word("record", row)), ` · ${when}`),
        ...meaning(row), element("h3", {}, "Both sides"), sides(row), element("h3", {}, "Metrics"), ...metrics(row), ...counts(row), ...sites(row), ...inFull(row)));
    if (!dialog.open) dialog.showModal();
    else (dialog.querySelector(`.steps .${focused || "on"}:not(:disabled)`) ?? dialog.querySelector(".close")).focus();
    dialog.scrollTop = 0;
  };

  dialog.addEventListener("close", () => look({ record: null }));
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.addEventListener("keydown", (event) => {
    if (!dialog.open) return;
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  });
  watch(() => {
    if (view.record !== null && view.record < size) show(view.record);
    else if (dialog.open) dialog.close();
  });
};
