// Everything is drawn once, then follows what the reader looks at.
document.documentElement.classList.add("has-script");
const hasRecords = document.querySelector("#chart") !== null; // a run that compares curves alone has none
if (hasRecords) {
  drawTable();
  drawTree();
  drawDetail();
  drawChart();
}
drawCurves();
find("#only").addEventListener("change", (event) => look({ only: event.target.checked, page: 0 }));
watch(() => {
  find("#only").checked = view.only;
  document.documentElement.classList.toggle("only-differences", view.only);
});
// A link to a finding opens it.
const openLinked = () => {
  const linked = document.getElementById(location.hash.slice(1));
  if (linked?.matches("details")) linked.open = true;
  if (linked) linked.scrollIntoView();
};
addEventListener("hashchange", openLinked);
openLinked();
for (const choice of document.querySelectorAll(".languages a")) {
  if (document.documentElement.lang === choice.lang) choice.setAttribute("aria-current", "true");
  choice.addEventListener("click", (event) => {
    event.preventDefault();
    look({ lang: choice.lang.slice(0, 2) });
    location.reload();
  });
}
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const { copies, link } = button.dataset;
    const here = location.href.split("#")[0];
    await copyText(link ? `${here}#${link}` : (copies ? document.getElementById(copies) : button.previousElementSibling).textContent);
    const said = button.textContent;
    button.textContent = translate("Copied");
    setTimeout(() => { button.textContent = said; }, 1500);
  });
}
addEventListener("hashchange", () => { view = readView(); tell(); });
tell();
