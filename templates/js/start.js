// Everything is drawn once, then follows what the reader looks at.
document.documentElement.classList.add("has-script");
const hasRecords = document.querySelector("#chart") !== null; // a run that compares curves alone has none
if (hasRecords) {
  drawTable();
  drawTree();
  drawDetail();
  drawChart();
}
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    await copyText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
if (hasRecords) {
  addEventListener("hashchange", () => { view = readView(); tell(); });
  tell();
}
