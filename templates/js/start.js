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
    await copyText(button.previousElementSibling.textContent);
    button.textContent = translate("Copied");
    setTimeout(() => { button.textContent = translate("Copy"); }, 1500);
  });
}
addEventListener("hashchange", () => { view = readView(); tell(); });
tell();
