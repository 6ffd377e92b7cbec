import base64
import dataclasses
import json
import shutil
import subprocess

import pytest

from precflow import numbers
from precflow.metrics import METRICS
from precflow.report import highlights, page_data, wording
from precflow.resources import directory

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]  # one browser, and each large page is made once
MODELS = ["aligned", "misaligned", "inconclusive", "nasty", "empty"]


@pytest.mark.parametrize("name", MODELS)
def test_the_page_is_quiet_and_asks_nothing_of_the_network(name, request, show):
    page = show(request.getfixturevalue(name))
    assert page.run("document.documentElement.classList.contains('has-script')")
    assert page.named("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled") == []
    asked = {sent["request"]["url"].split("#")[0] for sent in page.named("Network.requestWillBeSent")}
    assert len(asked) == 1, asked
    assert asked.pop().startswith("file:")


CUT = """[...document.querySelectorAll('#table td, #table th, #tree .name, #tree .sum')].filter((one) => {
  const own = one.getBoundingClientRect(), room = (one.closest('.scroll, #tree')).getBoundingClientRect();
  return own.width && (own.right > room.right + 1 || one.scrollWidth > Math.ceil(own.width) + 1);
}).map((one) => one.textContent)"""


@pytest.mark.parametrize("name", MODELS)
def test_nothing_sticks_out_and_no_name_or_number_is_cut(name, request, show):
    page = show(request.getfixturevalue(name), width=390)
    for width in (390, 800, 1280, 1440, 1920):
        page.resize(width)
        assert page.run("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
        assert page.run(CUT) == [], width


def test_more_columns_than_fit_scroll_and_a_shadow_says_so(misaligned, show):
    page = show(dataclasses.replace(misaligned, columns=tuple(METRICS)), width=1280)
    assert page.run("document.documentElement.scrollWidth") <= 1280
    scroller = "document.querySelector('.table-card .scroll')"
    assert page.run(f"{scroller}.scrollWidth > {scroller}.clientWidth")
    assert page.run(f"getComputedStyle({scroller}).backgroundImage").count("gradient") == 4
    page = show(dataclasses.replace(misaligned, columns=tuple(METRICS)), width=390)
    assert page.run(CUT) == []


def test_on_a_phone_each_value_has_its_label(misaligned, show):
    page = show(misaligned, width=390)
    first = "document.querySelector('#table tbody tr')"
    labels = page.run(f"[...{first}.children].map((one) => getComputedStyle(one, '::before').content)")
    wanted = ["order", "status", "role", "of its limit", *misaligned.columns]
    assert [label.strip('"') for label in labels if label != "none"] == wanted
    name = f"{first}.querySelector('.name').getBoundingClientRect()"
    assert page.run(f"[...{first}.children].every((one) => one.getBoundingClientRect().top >= {name}.top)")


def rows_of(page):
    """Names of the records that the table shows, in its order."""
    return page.run("[...document.querySelectorAll('#table .record')].map((one) => one.textContent)")


def most_important(model):
    return [row.measure.name for _, row in highlights.find_first_rows(model, 50)]


@pytest.mark.parametrize("name", ["aligned", "misaligned", "inconclusive", "undecided"])
def test_what_is_wrong_comes_first_and_the_order_of_the_network_is_a_choice(name, request, show):
    model = request.getfixturevalue(name)
    page = show(model)
    assert rows_of(page) == most_important(model)
    assert page.run("""document.querySelector('[data-sort="worst"]').ariaPressed""") == "true"
    page.click('[data-sort="order"]')
    assert rows_of(page) == [row.measure.name for row in model.rows[:50]]
    assert page.run("location.hash") == "#sort=order"
    page.click('[data-sort="worst"]')
    assert rows_of(page) == most_important(model)
    assert page.run("location.hash") == ""


def test_the_bar_of_a_full_coverage_reaches_the_end_of_its_row(misaligned, show):
    page = show(misaligned)
    assert page.run("document.querySelector('meter').value") == 1
    ends = "[...document.querySelectorAll('meter, dd:has(meter)')].map((one) => one.getBoundingClientRect().right)"
    row, bar = page.run(ends)
    assert abs(row - bar) < 2


@pytest.mark.parametrize("name", MODELS)
def test_paper_has_every_name_that_the_page_has(name, request, show):
    model = request.getfixturevalue(name)
    page = show(model, width=720, media="print")
    told = page.text("body").replace("\xa0", " ")
    missing = [
        row.measure.name for _, row in highlights.find_first_rows(model, 50) if wording.printable(row.measure.name) not in told
    ]
    assert missing == []
    modules = page.run("[...document.querySelectorAll('#tree .name')].map((one) => one.textContent)")
    assert [module for module in modules if module not in page.text("#tree")] == []
    assert all(wording.printable(finding.fix) in told for finding in model.findings), "also of findings that are folded up"
    assert page.run("document.documentElement.scrollWidth") <= 720
    assert page.run(CUT) == []
    pressed = "[...document.querySelectorAll('button')].filter((one) => one.offsetWidth && !one.matches('.name, .record'))"
    assert page.run(f"{pressed}.map((one) => one.textContent)") == []


def test_paper_is_white_for_those_who_read_in_the_dark(misaligned, show):
    page = show(misaligned, dark=True, media="print")
    colours = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    assert page.run(colours) == ["rgb(255, 255, 255)", "rgb(27, 31, 36)"]


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="needs Debian's poppler-utils")
def test_a_pdf_holds_modules_and_failing_records(misaligned, show, tmp_path):
    page = show(misaligned)
    printed = page.call("Page.printToPDF", printBackground=True)["data"]
    (tmp_path / "report.pdf").write_bytes(base64.b64decode(printed))
    text = subprocess.run(["pdftotext", tmp_path / "report.pdf", "-"], capture_output=True, check=True, text=True).stdout
    told = "".join(text.split())
    assert [name for name in most_important(misaligned) if "".join(name.split()) not in told] == []
    assert {"(model)", "embeddings", "layer_norm1", "final_layer_norm"} <= set(text.split())
    assert "Turn it off to rule it out." in text


def test_nasty_names_are_shown_and_never_run(nasty, show):
    page = show(nasty, "sort=order")
    assert page.named("Page.javascriptDialogOpening") == []
    assert page.run("document.querySelectorAll('script').length") == 2
    assert page.run("document.images.length") == 0
    assert "<script>alert(1)</script>.0 / linear" in page.text("#table tbody")
    assert "文本编码器.层.零.2 / linear" in page.text("#table tbody")
    page.click("#table tbody tr:nth-child(6)")
    assert "</script><img src=x onerror=alert(2)>.5 / linear" in page.text("#detail-title")
    assert "49" not in page.text("#what-to-do").replace("1 49", "")


def test_the_table_sorts_by_every_column(misaligned, show):
    page = show(misaligned)
    page.click("th[data-column=relative_l2] button")
    assert page.run("document.querySelector('th[data-column=relative_l2]').ariaSort") == "descending"
    worst = max(misaligned.rows, key=lambda row: row.measure.metrics.get("relative_l2", -1))
    assert worst.measure.name in page.text("#table tbody tr")
    page.click("th[data-column=relative_l2] button")
    assert "embedding" in page.text("#table tbody tr")
    page.click("th[data-column=status] button")
    assert page.run("location.hash") == "#sort=status"


def test_records_without_a_value_sort_last_in_both_directions(misaligned, show):
    for address in ("sort=relative_l2", "sort=relative_l2&down=1"):
        page = show(misaligned, address + "&page=99")
        assert page.text("#table tbody tr:last-child td:nth-child(7)") == "–"


def test_an_undecided_record_has_no_share_of_its_limit(undecided, show):
    first = next(index for index, row in enumerate(undecided.rows) if row.judged.status == "undecided")
    page = show(undecided, f"record={first}&status=undecided")
    assert page.text("#table tbody tr td:nth-child(5)") == "–"
    assert "of its limit" not in page.text("#detail")


def test_chips_filter_by_status(misaligned, show):
    page = show(misaligned)
    page.click("[data-status=introduces]")
    assert page.run("document.querySelectorAll('#table tbody tr').length") == 1
    assert misaligned.region.start in page.text("#table tbody")
    page.click("[data-status=fail]")
    failed = sum(row.judged.status == "fail" for row in misaligned.rows)
    assert page.text("#page-text") == f"1 to 50 of {failed}"
    assert page.run("document.querySelector('[data-status=fail]').ariaPressed") == "true"


def test_text_filters_and_empty_results_say_so(misaligned, show):
    page = show(misaligned)
    page.run("{const box = document.querySelector('#find'); box.value = 'SOFTMAX'; box.dispatchEvent(new Event('input'))}")
    page.wait("document.querySelector('#page-text').textContent === '1 to 12 of 12'")
    page.run("{const box = document.querySelector('#find'); box.value = 'nothing'; box.dispatchEvent(new Event('input'))}")
    page.wait("document.querySelector('#table tbody').textContent === 'No record matches.'")
    assert page.run("document.querySelectorAll('#table tbody tr').length") == 1
    assert page.run("location.hash") == "#find=nothing"


def test_a_module_filters_the_table_and_is_taken_off_again(misaligned, show):
    page = show(misaligned)
    page.click('[data-path="encoder.layers.4"]')
    assert page.text("#page-text") == "1 to 23 of 23"
    assert page.text("#active").startswith("module encoder.layers.4")
    page.click("#active button")
    assert page.text("#page-text").endswith(f"of {len(misaligned.rows)}")


def test_the_tree_opens_where_the_error_starts(misaligned, show):
    page = show(misaligned)
    assert page.run("""document.querySelector('[data-path="encoder.layers.4.layer_norm1"]') !== null""")
    assert page.run("""document.querySelector('[data-path="encoder.layers.5.layer_norm1"]') === null""")


def test_a_record_opens_steps_and_closes(misaligned, show):
    page = show(misaligned, "sort=order")
    page.click("#table tbody tr:nth-child(3)")
    assert page.text("#detail-title") == misaligned.rows[2].measure.name
    assert page.run("location.hash") == "#record=2&sort=order"
    page.click("#detail .on")
    assert page.text("#detail-title") == misaligned.rows[3].measure.name
    page.key("ArrowLeft")
    page.wait("location.hash === '#record=2&sort=order'")
    page.key("Escape")
    page.wait("!document.querySelector('#detail').open && location.hash === '#sort=order'")


def test_the_detail_tells_arguments_limit_and_sites(misaligned, show):
    start = next(index for index, row in enumerate(misaligned.rows) if row.role == "introduces")
    page = show(misaligned, f"record={start}")
    told = page.text("#detail")
    assert "argument eps" in told
    assert "≠ differs" in told
    assert "times its limit 1.53e-5 (at most, default)" in told
    assert "modeling_clip.py" in told
    assert wording.ROLE_MEANINGS["introduces"] in told


def test_an_address_brings_back_what_was_looked_at(misaligned, show):
    page = show(misaligned, "module=encoder.layers.4&status=fail&sort=ratio&down=1")
    assert page.text("#page-text").endswith("of 21")
    assert page.run("document.querySelector('th[data-column=ratio]').ariaSort") == "descending"


def test_a_foreign_address_does_no_harm(misaligned, show):
    page = show(misaligned, "record=999999&sort=nonsense&page=-4&status=%3Cscript%3E")
    assert page.named("Runtime.exceptionThrown") == []
    assert page.text("#table tbody") == "No record matches."


def canvas_box(page):
    page.run("document.querySelector('canvas').scrollIntoView()")
    return page.run(
        "(({x, y, width, height}) => [x, y, width, height])(document.querySelector('canvas').getBoundingClientRect())"
    )


def test_dragging_zooms_and_double_click_resets(misaligned, show):
    page = show(misaligned)
    x, y, width, height = canvas_box(page)
    page.mouse("mousePressed", x + width * 0.3, y + height / 2, pressed=1)
    page.mouse("mouseMoved", x + width * 0.6, y + height / 2, pressed=1)
    page.mouse("mouseReleased", x + width * 0.6, y + height / 2)
    page.wait("location.hash.includes('from=')")
    assert "of the picture" in page.text("#active")
    assert page.run("document.querySelector('#zoom-out').hidden") is False
    page.run("document.querySelector('canvas').dispatchEvent(new MouseEvent('dblclick'))")
    assert page.run("location.hash") == ""


def test_pointing_at_a_mark_tells_it_and_clicking_opens_it(misaligned, show):
    page = show(misaligned)
    x, y, width, height = canvas_box(page)
    start = next(index for index, row in enumerate(misaligned.rows) if row.role == "introduces")
    across = x + 78 + start / (len(misaligned.rows) - 1) * (width - 98)
    for step in range(10, int(height), 8):
        page.mouse("mouseMoved", across, y + step)
        if page.run("!document.querySelector('.tip').hidden") and "introduces" in page.text(".tip"):
            break
    assert misaligned.region.start in page.text(".tip")
    page.mouse("mousePressed", across, y + step, pressed=1)
    page.mouse("mouseReleased", across, y + step)
    page.wait("document.querySelector('#detail').open")
    assert page.text("#detail-title") == misaligned.region.start


def test_the_picture_works_by_keyboard(misaligned, show):
    page = show(misaligned)
    page.run("document.querySelector('canvas').focus()")
    page.key("ArrowRight")
    page.key("ArrowRight")
    page.wait("!document.querySelector('.tip').hidden")
    assert misaligned.rows[1].measure.name in page.text(".tip")
    page.key("Enter")
    page.wait("document.querySelector('#detail').open")
    assert page.text("#detail-title") == misaligned.rows[1].measure.name


def test_the_environment_filter_needs_no_script(misaligned, show):
    page = show(misaligned, script=False)
    assert page.run("getComputedStyle(document.querySelector('tr.same')).display") == "none"
    assert page.run("getComputedStyle(document.querySelector('tr.differs')).display") == "table-row"


def test_without_script_the_letter_still_stands(misaligned, show):
    page = show(misaligned, script=False)
    told = page.text("body")
    assert "Misaligned" in told
    assert misaligned.region.start in told
    assert misaligned.findings[0].fix in told
    assert "257 of 257 records" in told
    assert rows_of(page) == most_important(misaligned)
    hidden = [".filters", ".tree-card", ".pages", ".chart"]
    assert [page.run(f"getComputedStyle(document.querySelector('{one}')).display") for one in hidden] == ["none"] * 4


def test_dark_mode_follows_the_reader(misaligned, show):
    colours = [show(misaligned, dark=dark).run("getComputedStyle(document.body).backgroundColor") for dark in (False, True)]
    assert colours == ["rgb(245, 246, 248)", "rgb(14, 17, 22)"]


def test_numbers_read_the_same_in_the_page_and_elsewhere(misaligned, show):
    values = [0, 1, 0.5, 0.0999, 0.1, 0.014, 1.5e-5, 4.213e-2, 999.4, 999.6, 1214, 344912, 9.99e6, 1e7, 1e300, -3.2, -20604]
    values += [0.99, 0.9901, 0.995, 0.99998, 0.9999987, 1 - 1e-11, 1 - 2e-16, 5e-324, 123.456, 12.3456]
    ratios = [0, 1e-5, 0.004, 0.62, 0.995, 0.99996, 1, 1.5, 2, 2.01, 75.2, 1836.2, 1e9]
    page = show(misaligned)
    source = (directory("templates") / "js" / "format.js").read_text(encoding="utf-8")
    calls = f"[{json.dumps(values)}.map(number), {json.dumps(ratios)}.map(factor), {json.dumps(ratios)}.map(used)]"
    wanted = f"(() => {{{source}; return {calls}}})()"
    here = [list(map(numbers.number, values)), list(map(numbers.factor, ratios)), list(map(wording.used, ratios))]
    assert page.run(wanted) == here
    special = (
        f"(() => {{{source}; return [number(NaN), number(Infinity), number(-Infinity), shortened('a'.repeat(40), 21)]}})()"
    )
    assert page.run(special) == ["NaN", "infinity", "-infinity", wording.shorten("a" * 40, 21)]


def test_twenty_thousand_records_stay_light(large, show):
    page = show(large)
    assert page.run("document.querySelectorAll('#table tbody tr').length") == 50
    assert page.run("document.querySelectorAll('*').length") < 12_000
    page.click("[data-status=fail]")
    page.click("th[data-column=ratio] button")
    worst = max((row for row in large.rows if row.judged.status == "fail"), key=lambda row: row.judged.ratio)
    assert worst.measure.name in page.text("#table tbody tr")


def test_three_thousand_nested_modules_are_drawn_and_opened_where_the_error_starts(deep, show):
    page = show(deep)
    assert page.named("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled") == []
    assert page.run("document.querySelectorAll('#tree .name').length") == 3001
    assert page.run("document.querySelector('#tree').scrollWidth") < 1000
    page.run("[...document.querySelectorAll('#tree .name')].at(-1).click()")
    assert "1 to 1 of 1" in page.text("#page-text")


def test_accepted_records_are_drawn_with_their_own_mark(inconclusive, show):
    page = show(inconclusive)
    page.run("CanvasRenderingContext2D.prototype.closePath = function () { window.diamonds = (window.diamonds ?? 0) + 1; }")
    page.run("location.hash = 'from=0&to=200'")
    page.wait("window.diamonds === 1")
    assert page.named("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled") == []


# What the picture says, and where: `fillText` is heard from before the page's own script on.
HEAR = """window.said = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const at = this.getTransform().transformPoint({x, y});
  window.said.push([text, at.x, at.y]);
  fill.call(this, text, x, y);
}"""


@pytest.fixture
def heard(chromium):
    """Hear what is written on canvases of pages opened from now on."""
    number = chromium.call("Page.addScriptToEvaluateOnNewDocument", source=HEAR)["identifier"]
    yield lambda: chromium.run("window.said")
    chromium.call("Page.removeScriptToEvaluateOnNewDocument", identifier=number)


def test_the_picture_names_its_axes_its_steps_and_its_phases(misaligned, show, heard):
    half = len(misaligned.rows) // 2
    rows = [
        dataclasses.replace(row, measure=dataclasses.replace(row.measure, phase="forward" if number < half else "backward"))
        for number, row in enumerate(misaligned.rows)
    ]
    show(dataclasses.replace(misaligned, rows=tuple(rows)))
    places = {text: (x, y) for text, x, y in heard()}
    assert {"relative_l2, logarithmic", "records in order of the network", "phases", "forward", "backward"} <= set(places)
    assert places["forward"][0] < places["backward"][0]
    assert places["relative_l2, logarithmic"][0] < min(places["phases"])
    assert places["records in order of the network"][1] > places["forward"][1]
    assert "steps" not in places, "there is one only"


def test_a_record_with_nan_is_not_drawn_as_equal(nasty, show, heard):
    """What was measured of its other elements may be 0."""
    rows = [
        dataclasses.replace(row, measure=dataclasses.replace(row.measure, metrics={"relative_l2": 0.0}))
        for row in nasty.rows
        if row.judged.status == "nonfinite"
    ]
    show(dataclasses.replace(nasty, rows=tuple(rows)))
    said = {text for text, _, _ in heard()}
    assert "no number" in said
    assert "equal" not in said


CLIPBOARD = "window.copied = []; navigator.clipboard.writeText = async (text) => { window.copied.push(text); }"


def test_command_finding_and_prompt_are_copied_and_a_link_opens_the_finding(misaligned, show):
    page = show(misaligned)
    page.run("Object.defineProperty(navigator, 'clipboard', {value: {}, configurable: true})")
    page.run(CLIPBOARD)
    for button in ("[data-copies=text-1]", "[data-copies=prompt-2]", "[data-link=finding-2]", "#recipe .copy"):
        page.click(button)
    page.wait("window.copied.length === 4")
    finding, prompt, link, command = page.run("window.copied")
    assert finding.startswith("PF214 (certain)")
    assert "HF32 is on" in prompt
    assert link.endswith("report.html#finding-2")
    assert command == misaligned.command
    page = show(misaligned, "finding-2")
    assert page.run("document.querySelector('#finding-2').open")


def test_only_differences_hides_what_agrees_everywhere(misaligned, show):
    page = show(misaligned)
    page.click("#only")
    assert page.run("location.hash") == "#only=1"
    failed = sum(row.judged.status == "fail" for row in misaligned.rows)
    assert page.text("#page-text") == f"1 to 50 of {failed}"
    shown = "[...document.querySelectorAll('#tree .node')].filter((one) => one.offsetHeight)"
    titles = page.run(f"{shown}.map((one) => one.querySelector('.sum').title)")
    assert [title for title in titles if title.startswith("0 of")] == []
    page.click("#active button")
    assert page.run("[document.querySelector('#only').checked, location.hash]") == [False, ""]
    page = show(misaligned, "only=1")
    assert page.run("document.querySelector('#only').checked")


def test_what_a_page_has_no_room_for_is_said(misaligned, show, monkeypatch):
    monkeypatch.setattr(page_data, "_make_plan", lambda model, *_: page_data.Plan(len(model.rows), 20, 10, 3))
    page = show(misaligned, f"record={len(misaligned.rows) - 1}&sort=order")
    assert "This page has no room for the other metrics" in page.text("#detail")
    assert "times its limit" in page.text("#detail")
    page = show(misaligned)
    assert rows_of(page)[:10] == most_important(misaligned)[:10]
    assert "…" in page.text("#table tbody tr:last-child")
