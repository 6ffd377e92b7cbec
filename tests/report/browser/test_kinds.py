"""Ten kinds of report: where their parts stand, what they say, and whether everybody can read and use them."""

import importlib.util
import itertools
from pathlib import Path

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
ALWAYS = ["environment", "recipe", "how"]
RECORDS = ["network", "records"]
# Kind -> its headline, its sections in order, and words of it.
KINDS = {
    "aligned": ("Aligned", ["what-to-do", *RECORDS], ["EMULATED target", "Nothing. No rule found anything to fix."]),
    "misaligned": (
        "Misaligned",
        ["what-to-do", "network", "groups", "closer", "records"],
        [
            "eps of layer_norm differs",
            "one position (index 3 of axis 1) carries",
            "squared error: axis 1, 6 positions, downwards",
        ],
    ),
    "inconclusive": (
        "Inconclusive",
        ["what-to-do", *RECORDS],
        ["does not repeat itself", "Modules that only one side has", "pooler"],
    ),
    "undecided": ("Inconclusive", ["what-to-do", *RECORDS], ["undecided"]),
    "trained": (
        "Misaligned",
        ["what-to-do", "curves", "training", *RECORDS],
        ["differs: it starts here", "apart from step 121 on", "Smoothing"],
    ),
    "curves alone": ("Misaligned", ["what-to-do", "curves"], ["A curve is beyond its limits.", "signed difference"]),
    "task metrics": (
        "Misaligned",
        ["what-to-do", "task-metrics", *RECORDS],
        ["psnr", "token 2 of 4 is the first that differs"],
    ),
    "parts": ("Misaligned", ["what-to-do", "parts", *RECORDS], ["to blame", "smallest that passes"]),
    "operators": (
        "Misaligned",
        ["what-to-do", "operators", *RECORDS],
        ["2 operators by phase and type, 132 calls: 1 with faults"],
    ),
    "golden": ("Misaligned", ["what-to-do", "what-if", "golden", *RECORDS], ["confirmed", "Against the golden run"]),
}

# Sections one below the other and inside the window; nothing wider than the window; no letters over the edge of their picture.
STANDS = """(() => {
  const boxes = [...document.querySelectorAll('main > section')].map((one) => [one.id, one.getBoundingClientRect()]);
  const wrong = boxes.filter(([, box], place) => box.left < 0 || box.right > innerWidth + 1 || box.height < 20
    || (place && box.top < boxes[place - 1][1].bottom - 1)).map(([id]) => id);
  const cards = [...document.querySelectorAll('.card')].filter((one) => one.scrollWidth > one.clientWidth + 1);
  const headline = document.querySelector('h1').getBoundingClientRect();
  return {
    sections: boxes.map(([id]) => id), wrong, wide: document.documentElement.scrollWidth - innerWidth,
    cards: cards.map((one) => one.className), headline: headline.bottom < innerHeight,
  };
})()"""

# What the rules for accessible pages ask for: names, labels, order of headings, contrast, and everything within reach of keys.
UNREADABLE = """(() => {
  const faults = [];
  const shown = (one) => one.checkVisibility({ visibilityProperty: true });
  const all = [...document.querySelectorAll('body *')].filter(shown);
  const say = (what, one) => faults.push(what + ': ' + one.outerHTML.slice(0, 120));
  const ids = [...document.querySelectorAll('[id]')].map((one) => one.id);
  if (new Set(ids).size < ids.length) faults.push('an id twice: ' + ids.filter((id, place) => ids.indexOf(id) < place));
  const named = (one) => (one.getAttribute('aria-label') || one.getAttribute('alt') || one.title || one.labels?.[0]?.textContent
    || one.textContent || '').trim();
  const needy = 'button, a, input, summary, [role=img], [role=region], meter, img, th';
  for (const one of all.filter((each) => each.matches(needy))) if (!named(one)) say('no name', one);
  let level = 0;
  for (const one of all.filter((each) => /^H[1-6]$/.test(each.tagName))) {
    const next = Number(one.tagName[1]);
    if (next > level + 1) say('a level of headings is left out', one);
    level = next;
  }
  for (const one of all.filter((each) => /auto|scroll/.test(getComputedStyle(each).overflow) && !each.matches('.tree-card'))) {
    const over = one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1;
    if (over && one.tabIndex < 0 && !one.querySelector('a, button, input, [tabindex]')) say('cannot be scrolled by keys', one);
  }
  const channels = (colour) => (colour.match(/[0-9.]+/g) ?? []).map(Number);
  const light = ([red, green, blue]) => [red, green, blue].map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  for (const one of all.filter((each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))) {
    if (one.closest('svg, .tip, :disabled, canvas')) continue;
    let behind = one;
    const clear = () => (channels(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0;
    while (behind.parentElement && clear()) behind = behind.parentElement;
    const [dark, bright] = [getComputedStyle(one).color, getComputedStyle(behind).backgroundColor]
      .map((colour) => light(channels(colour))).sort((left, right) => left - right);
    if ((bright + 0.05) / (dark + 0.05) < 4.5) say('too little contrast', one);
  }
  return faults;
})()"""


# Of each finding of axe: its rule, and the first element. What it cannot decide is not asked.
ASK_AXE = """axe.run(document, { resultTypes: ['violations'] })
  .then((found) => found.violations.map((one) => one.id + ': ' + one.nodes[0].html.slice(0, 120)))"""


@pytest.mark.parametrize("kind", ["misaligned", "trained", "parts", "golden"])
def test_axe_finds_nothing(kind, kinds, show):
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None:
        pytest.skip("axe is not installed: make .venv/.ready")
    page = show(kinds[kind], width=1440)
    page.run("for (const one of document.querySelectorAll('details')) one.open = true")
    page.run((Path(spec.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8") + ";0")
    assert page.run(ASK_AXE) == []
    page.run("document.querySelector('main').insertAdjacentHTML('beforeend', '<img src=x>')")
    assert [found.split(":")[0] for found in page.run(ASK_AXE)] == ["image-alt"], "it would have found something"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_report_stands_says_and_can_be_read(kind, kinds, show):
    headline, sections, words = KINDS[kind]
    page = show(kinds[kind], width=1440)
    assert page.text("h1") == headline
    told = page.text("body").replace("\xa0", " ")
    assert [said for said in words if said not in told] == []
    page.run("for (const one of document.querySelectorAll('details')) one.open = true")
    for width in (1440, 390):
        page.resize(width)
        stands = page.run(STANDS)
        assert stands["sections"] == [*sections, *ALWAYS]
        assert (stands["wrong"], stands["wide"], stands["cards"]) == ([], 0, []), width
        assert stands["headline"]
        assert page.run(UNREADABLE) == [], width
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.call("Emulation.setEmulatedMedia", features=dark)
    assert page.run(UNREADABLE) == []
    assert page.named("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled") == []


def test_everything_can_be_reached_and_done_by_keys(kinds, show):
    """Tab goes through every control in the order of the page, each is seen where it is, and Enter and space use it."""
    page = show(kinds["misaligned"], width=1440)
    page.call("Page.bringToFront")
    visited = []
    for _ in range(150):
        page.key("Tab")
        visited.append(
            page.run(
                "(() => { const one = document.activeElement;"
                " return [one.className + '#' + one.id + one.textContent.slice(0, 30),"
                " one.getBoundingClientRect().top + scrollY, getComputedStyle(one).outlineStyle] })()"
            )
        )
        if visited[-1][0].startswith("#\n"):  # the body, behind the last control
            visited.pop()
            break
    names = " | ".join(name for name, _, _ in visited)
    for wanted in ("skip", "What to do", "#only", "Copy finding", "Copy prompt", "#find"):
        assert wanted in names, wanted
    assert [name for name, _, outline in visited if outline not in {"solid", "auto"}] == []
    tops = [top for name, top, _ in visited if "skip" not in name]
    assert sum(later < earlier - 40 for earlier, later in itertools.pairwise(tops)) <= 4, "beside each other, no jumps"
    page.run("document.querySelector('#finding-2 summary').focus()")
    page.key("Enter")
    page.wait("document.querySelector('#finding-2').open")
    page.run("document.querySelector('#only').focus()")
    page.key(" ")
    page.wait("location.hash === '#only=1'")
