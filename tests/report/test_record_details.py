import dataclasses
import re
from html import unescape

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.comparison.detail.description import describe
from precflow.comparison.detail.detail import examine
from precflow.comparison.detail.quantiles import ErrorQuantiles
from precflow.comparison.detail.record import InputComparison, RecordDetail
from precflow.report import html, record_details
from precflow.report.record_details import HEIGHT, WIDTH, draw_bars, draw_outline
from precflow.report.templating import load_templates

NASTY = "</script><img src=x onerror=alert(2)>"
X = np.random.default_rng(0).standard_normal((3, 7, 16)).astype(np.float32)


def detail_of(record, target, **changes):
    fields = {
        "name": "name",
        "detail": examine(X, target),
        "inputs": (InputComparison("0", "weight", "equal bits"),),
        "feeds": ("next",),
    }
    return RecordDetail(record, **{**fields, **changes})


def cards(model):
    return [card for cards in record_details.render(model, load_templates()).values() for card in cards]


@pytest.fixture
def column():
    changed = X.copy()
    changed[:, :, 5] *= 2
    return changed


@pytest.fixture
def detailed(misaligned, column):
    failing = [row.measure.record for row in misaligned.rows if row.judged.status == "fail"]
    return dataclasses.replace(misaligned, details=tuple(detail_of(record, column) for record in failing[:3]))


def test_records_are_shown_in_full(detailed):
    page = html.render(detailed)
    assert page.count('class="card closest-record ') == 3
    assert "one position (index 5 of axis 2) carries 100 %" in page
    assert "equal bits" in page
    assert 'href="#closer"' in page
    assert page.count("<svg viewBox") > 3 * 5
    assert "style=" not in page.partition("<style>")[2].partition("</style>")[2]


def test_without_details_there_is_no_section(misaligned):
    page = html.render(misaligned)
    assert 'id="closer"' not in page
    assert 'href="#closer"' not in page


def test_a_record_that_no_row_has_is_left_out(detailed):
    lost = dataclasses.replace(detailed, details=(*detailed.details, detail_of("gone/forward.output.0", X)))
    assert len(cards(lost)) == 3


def test_all_records_together_stay_small(detailed, monkeypatch):
    sizes = [len(one.encode()) for one in cards(detailed)]
    assert max(sizes) < record_details.MOST_BYTES / 20
    monkeypatch.setattr(record_details, "MOST_BYTES", sum(sizes[:2]))
    assert len(cards(detailed)) == 2


def test_names_are_escaped(nasty):
    rows = nasty.rows[:3]
    details = tuple(
        detail_of(row.measure.record, X * 2, inputs=(InputComparison(NASTY, NASTY, "differs"),), feeds=(NASTY,), note=NASTY)
        for row in rows
    )
    for shown in cards(dataclasses.replace(nasty, details=details)):
        assert "<img" not in shown
        assert "&lt;img" in shown
        assert "\x1b" not in shown


def test_what_cannot_be_laid_side_by_side_says_why(misaligned):
    row = misaligned.rows[30]
    alone = RecordDetail(row.measure.record, row.measure.name, None, describe([X])[0], None, "the shapes differ")
    view = record_details.view_detail(30, row, alone)
    assert (view.where, view.values, view.axes) == ("the shapes differ", None, ())
    norm = next(line for line in view.sides if line[0] == "norm")
    assert norm[2:] == ("-", "")
    assert float(norm[1]) == pytest.approx(np.linalg.norm(X), rel=1e-5)
    shown = cards(dataclasses.replace(misaligned, details=(alone,)))
    assert "the shapes differ" in shown[0]


def test_errors_against_float64_are_said_to_be_that(misaligned):
    row = misaligned.rows[30]
    known = detail_of(row.measure.record, X * 1.001)
    measured = ErrorQuantiles((0.5, 1.0), (1e-8, 2e-8), (1e-3, 2e-3), X.size, measured=True)
    (rounding,) = cards(dataclasses.replace(misaligned, details=(known,)))
    assert "those of one rounding of the reference's values" in unescape(rounding)
    (shown,) = cards(
        dataclasses.replace(
            misaligned, details=(dataclasses.replace(known, detail=dataclasses.replace(known.detail, quantiles=measured)),)
        )
    )
    assert "against those of the reference, both from float64 at their own inputs" in shown
    assert (
        "Half of the errors are above 1e-3, 100 000 times those of the reference; the largest is 2e-3, 100 000 times." in shown
    )


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        (np.zeros((0, 3)), np.zeros((0, 3))),
        (np.array(1.0), np.array(2.0)),
        (np.array([np.nan, 1.0]), np.array([1.0, 1.0])),
        (np.array([1, 2]), np.array([1, 3])),
        (np.array([1j, 2]), np.array([1j, 3])),
        (np.array([np.inf]), np.array([np.nan])),
    ],
)
def test_every_kind_of_pair_is_drawn(misaligned, reference, target):
    row = misaligned.rows[30]
    of = RecordDetail(row.measure.record, row.measure.name, examine(reference, target))
    (shown,) = cards(dataclasses.replace(misaligned, details=(of,)))
    assert "nan" not in shown.partition('d="')[2].partition('"')[0]
    assert "Infinity" not in shown


COUNTS = st.lists(st.integers(0, 10**12), max_size=60)


def coordinates(path):
    across = [float(number) for number in re.findall(r"[MH]([-\d.]+)", path)]
    down = [float(number) for number in re.findall(r"V([-\d.]+)", path)]
    return across, down


@given(COUNTS, st.booleans())
def test_every_path_stays_in_its_box(counts, logarithmic):
    for path in (draw_bars(counts, logarithmic=logarithmic), draw_outline(counts, logarithmic=logarithmic)):
        assert re.fullmatch(r"[MVHZ\d. ]*", path)
        across, down = coordinates(path)
        assert all(0 <= number <= WIDTH for number in across)
        assert all(0 <= number <= HEIGHT for number in down)


@given(COUNTS)
def test_what_is_not_0_is_a_bar(counts):
    assert draw_bars(counts).count("M") == sum(count > 0 for count in counts)


@pytest.mark.parametrize("counts", [[], [0, 0]])
def test_nothing_is_flat(counts):
    assert draw_bars(counts) == ""
    assert set(coordinates(draw_outline(counts))[1]) <= {HEIGHT}


def test_two_outlines_share_a_scale():
    _, down = coordinates(draw_outline([1], 3, logarithmic=False))
    assert down[0] == 48
