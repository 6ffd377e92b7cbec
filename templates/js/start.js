// Everything is drawn once, then follows what the reader looks at.
document.documentElement.classList.add("has-script");
drawTable();
drawTree();
drawDetail();
drawChart();
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    await copyText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
addEventListener("hashchange", () => { view = readView(); tell(); });
tell();
