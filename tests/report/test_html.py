import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from precflow import numbers
from precflow.report import highlights, html, page_data, templating, wording
from precflow.report.model import SideView
from precflow.resources import directory

MODELS = ["aligned", "misaligned", "inconclusive", "nasty", "empty", "trained"]
VOID = {"meta", "input", "br", "img", "link", "circle", "path", "wbr"}


class Page(HTMLParser):
    """Elements, attributes and balance of a page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.problems, self.ids = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(tag)


@pytest.mark.parametrize("name", MODELS)
def test_every_element_is_closed_and_every_id_is_unique(name, request):
    page = Page(html.render(request.getfixturevalue(name)))
    assert page.problems == []
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))


@pytest.mark.parametrize("name", MODELS)
def test_in_chinese_and_in_both_languages_the_elements_are_those_of_english(name, request):
    english, chinese, both = (
        Page(html.render(replace(request.getfixturevalue(name), language=one))) for one in ("en", "zh", "both")
    )
    plain = [tag for tag, _ in english.elements if tag not in {"script", "style"}]
    # A page in both languages waits in a template with its own title.
    assert [tag for tag, _ in chinese.elements if tag not in {"script", "style"}] == plain
    assert both.problems == chinese.problems == []
    assert [dict(attributes).get("lang") for tag, attributes in both.elements if tag in {"html", "template"}] == ["en", "zh-CN"]
    assert chinese.ids == english.ids


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_loaded_from_anywhere(name, request):
    text = html.render(request.getfixturevalue(name))
    page = Page(text)
    loading = {"src", "srcset", "data", "action", "poster", "background", "formaction"}
    assert [attributes for _, attributes in page.elements if loading & set(attributes)] == []
    assert all(attributes["href"].startswith("#") for _, attributes in page.elements if "href" in attributes)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.elements}
    own = "".join(
        path.read_text(encoding="utf-8") for folder in ("css", "js") for path in (directory("templates") / folder).iterdir()
    )
    assert not re.search(r"https?:|url\(|@import|\bfetch\(|XMLHttpRequest|WebSocket|\bimport\(|innerHTML|eval\(", own)


def test_only_our_own_style_and_script_may_run(misaligned):
    text = html.render(misaligned)
    policy = next(a["content"] for _, a in Page(text).elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        source = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert len(source) == 1
        assert base64.b64encode(hashlib.sha256(source[0].encode()).digest()).decode() in policy


def test_nothing_of_a_run_becomes_markup(nasty):
    page = Page(html.render(nasty))
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert not any("style" in attributes for _, attributes in page.elements)
    assert "\x1b" not in html.render(nasty)


def test_a_template_in_a_name_is_not_rendered(nasty):
    assert "{{ 7 * 7 }}" in html.render(nasty)


def test_a_name_that_is_missing_in_a_template_is_an_error():
    with pytest.raises(Exception, match="undefined"):
        templating.load_templates().from_string("{{ nobody_knows }}").render()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "aligned",
            ["Aligned", "Every record that was compared stays within its limits", "EMULATED target", "Nothing. No rule"],
        ),
        (
            "misaligned",
            [
                "Misaligned",
                "The first difference is at",
                "encoder.layers.4.layer_norm1 / layer_norm",
                "PF214",
                "3 facts differ",
            ],
        ),
        ("inconclusive", ["Inconclusive", "does not repeat itself", "1 blind", "2 unpaired", "1 unreadable", "1 accepted"]),
        ("empty", ["Inconclusive", "no record was in scope", "0 of 0 records", "No record"]),
    ],
)
def test_the_letter_stands_in_the_page_itself(name, words, request):
    text = html.render(request.getfixturevalue(name)).replace("<wbr>", "")
    before_the_data = text[: text.index('<script type="application/json"')] + text[text.index("</body>") - 1 :]
    missing = [word for word in words[:-1] if word not in before_the_data]
    assert missing == []


def test_a_real_target_is_not_called_emulated(misaligned):
    assert "EMULATED" not in html.render(misaligned)


def test_an_open_run_has_no_failed_standard_and_is_not_told_to_do_the_same_again(undecided):
    page = html.render(undecided)
    assert "? open: default" in page
    assert "not met" not in page
    assert "Supply or change what is named above" in page


def test_what_differs_comes_first_and_is_marked(misaligned):
    facts = html.list_facts(misaligned)
    assert [fact.differs for fact in facts] == sorted((fact.differs for fact in facts), reverse=True)
    assert facts[0].differs
    assert facts[0].name in misaligned.differences


def test_a_difference_without_a_fact_is_shown(empty):
    side = SideView("reference", "", emulated=False, device="cpu", dtype="float32")
    model = type(empty)(**{**vars(empty), "sides": (side,), "differences": {"only.here": ("1", "2")}})
    assert [(fact.name, fact.target) for fact in html.list_facts(model)] == [("only.here", "2")]


def test_every_status_has_a_colour():
    assert wording.STATUS_COLOURS["fail"] == "bad"
    assert wording.STATUS_COLOURS["blind"] == "doubt"
    assert wording.STATUS_COLOURS["pass"] == "good"
    assert wording.STATUS_COLOURS["not_judged"] == "quiet"


def test_sizes(medium, large):
    assert len(medium.rows) >= 1200
    assert len(html.render(medium).encode()) < 1_000_000
    assert len(large.rows) >= 20_000
    assert len(html.render(large).encode()) < 2_000_000


@pytest.mark.parametrize("name", ["misaligned", "inconclusive", "undecided", "aligned"])
def test_the_rows_that_matter_most_stand_in_the_page_itself(name, request):
    model = request.getfixturevalue(name)
    shown = re.findall(r'<span class="record">(.*?)</span>', html.render(model))
    assert len(shown) == 50
    wanted = [row.measure.name for _, row in highlights.find_first_rows(model, 50)]
    assert [one.replace("<wbr>", "") for one in shown] == wanted


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_text_has_enough_contrast_in_both_modes():
    """WCAG AA: 4.5 for text."""
    style = (directory("templates") / "css" / "base.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6})", part))
        for part in style.split("@media screen and (prefers-color-scheme: dark)")
    )
    pairs = [(word, back) for word in ("ink", "soft", "link", "bad", "doubt", "good") for back in ("page", "card")]
    pairs += [(word, f"{word}-soft") for word in ("bad", "doubt", "good", "quiet")] + [("soft", "quiet-soft"), ("ink", "hover")]
    weak = [
        (word, back) for mode in (light, {**light, **dark}) for word, back in pairs if contrast(mode[word], mode[back]) < 4.5
    ]
    assert weak == []


def test_a_page_without_all_records_says_which_it_has_and_where_the_others_are(large, misaligned, monkeypatch):
    monkeypatch.setattr(page_data, "MOST_ROWS", 1000)
    told = html.render(large)
    assert f"1 000 of {numbers.count(len(large.rows))} records are on this page" in told
    assert "All are in result.csv of the run, and in the table precflow.read(" in told
    assert f"{numbers.count(large.verdict.total)} records</strong> compared" in told
    assert 'id="left-out"' not in html.render(misaligned)


def test_accepted_records_have_a_mark_a_colour_and_a_number_of_their_own(inconclusive, misaligned):
    page = html.render(inconclusive)
    assert re.search(r'class="accepted"><path d="[^"]+"/></svg> accepted <b>1</b>', page)
    assert wording.STATUS_COLOURS["accepted"] not in {
        wording.STATUS_COLOURS[status] for status in ("pass", "fail", "undecided", "not_judged")
    }
    assert 'class="accepted"><path' not in html.render(misaligned)


def test_each_phase_of_training_says_why_it_is_guilty_or_aligned(trained):
    text = html.render(trained)
    assert 'title="3 of 60 records over their limits, first a">✗ backward: starts here</span>' in text
    assert '<p class="phases">' in text


def test_the_procedure_names_the_first_check_that_differs(trained):
    text = html.render(trained)
    assert text.count("differs: it starts here") == 1
    assert text.index("loss of step 1") > text.index("gradients, from the loss backwards")
    assert '<svg class="gradients"' in text


def test_a_run_that_trains_nothing_has_no_section_on_training(misaligned):
    assert 'id="training"' not in html.render(misaligned)
