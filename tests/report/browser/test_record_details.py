import dataclasses

import numpy as np
import pytest

from precflow.comparison.detail.detail import examine
from precflow.comparison.detail.record import InputComparison, RecordDetail

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
X = np.random.default_rng(0).standard_normal((3, 7, 16)).astype(np.float32)


@pytest.fixture
def detailed(misaligned):
    changed = X.copy()
    changed[:, :, 5] *= 2
    failing = [row.measure.record for row in misaligned.rows if row.judged.status == "fail"][:20]
    inputs = (InputComparison("0", "</script><img src=x onerror=alert(2)>", "equal bits"),)
    return dataclasses.replace(
        misaligned, details=tuple(RecordDetail(record, "n", examine(X, changed), inputs=inputs) for record in failing)
    )


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_closer_look_is_quiet_and_fits(detailed, show, width, dark):
    page = show(detailed, width=width, dark=dark)
    page.run("for (const one of document.querySelectorAll('.closest-record, .group')) one.open = true")
    assert page.run("document.querySelectorAll('.closest-record').length") == 20
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.named("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled") == []
    assert page.run("document.images.length") == 0


def test_each_card_tells_its_record_role_and_status_and_the_others_are_folded_up(detailed, show):
    page = show(detailed)
    shown = page.run(
        "[...document.querySelectorAll('.closest-record')].map((one) => [one.querySelector('h3').textContent,"
        " [...one.querySelectorAll('summary .tag')].map((tag) => tag.textContent).join(', '), one.open])"
    )
    by_record = {row.measure.record: row for row in detailed.rows}
    assert sorted(name for name, _, _ in shown) == sorted(by_record[of.record].measure.name for of in detailed.details)
    start = detailed.region.start
    assert shown[0] == [start, "✗ fail, ✗ introduces the error", True]
    assert {(tags, opened) for _, tags, opened in shown[1:]} == {("✗ fail, ○ inherits the error", False)}
    assert (
        page.text(".group > summary").split()
        == "19 records that inherit the error of 170: those furthest over their limits".split()
    )
    assert page.run("document.querySelector('.group').open") is False
    assert "20 of 171 failing records in full" in page.text("#closer")
    border = "getComputedStyle(document.querySelector('.closest-record.introduces')).borderLeftColor"
    assert page.run(border) == "rgb(180, 35, 24)"


def test_pictures_have_a_size_and_words(detailed, show):
    page = show(detailed)
    boxes = page.run(
        "[...document.querySelectorAll('.closest-record[open] svg')]"
        ".map((one) => [one.clientWidth, one.clientHeight, one.ariaLabel])"
    )
    assert len(boxes) >= 5
    assert all(width > 150 and height > 30 and label for width, height, label in boxes)
    filled = page.run("getComputedStyle(document.querySelector('.picture.errors path')).fill")
    assert filled == "rgb(180, 35, 24)"


def test_it_stands_without_script(detailed, show):
    page = show(detailed, script=False)
    assert "one position (index 5 of axis 2) carries 100 %" in page.text("#closer")


def test_the_dialog_shows_it_too(detailed, show):
    row = next(index for index, row in enumerate(detailed.rows) if row.measure.record == detailed.details[1].record)
    page = show(detailed, f"record={row}")
    assert page.text("#detail-title") == detailed.rows[row].measure.name
    assert "Where the error is: one position (index 5 of axis 2) carries 100 %" in page.text("#detail")
    assert page.run("document.querySelectorAll('#detail svg').length") >= 5
    page.click("#detail .close")
    page.wait("!document.querySelector('#detail').open && !location.hash.includes('record')")
    page.run("location.hash = '#record=0'")
    page.wait("document.querySelector('#detail').open")
    assert page.run("document.querySelectorAll('#detail svg').length") == 0
