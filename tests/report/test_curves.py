"""Curves in words and as a picture."""

import math
from dataclasses import replace

import numpy as np
import pytest

from precflow.curves.growth import KINDS, Growth
from precflow.curves.outcome import examine
from precflow.curves.series import make_series
from precflow.report import html, terminal
from precflow.report.curves import HALF, HEIGHT, LOWER, WIDTH, choose_axes, describe_curve, describe_growth, draw_curve

LOSS = 2 + 8 * np.exp(-np.arange(200) / 40)


def outcome(target, **settings):
    series = [make_series(range(1, len(values) + 1), values) for values in (LOSS, target)]
    return examine("loss", *series, **{"limits": {"max_abs_error": 0.5}, **settings})


def places(line):
    return [tuple(map(float, pair.split(","))) for pair in line.split()]


def test_a_curve_in_one_line():
    apart = np.where(np.arange(200) >= 100, 1.0, 0.0)
    assert describe_curve(outcome(LOSS)) == "equal at 200 steps"
    said = describe_curve(outcome(LOSS + apart)).split("   ")
    assert said[0] == "max |difference| 1 at step 101"
    assert said[-2:] == ["apart from step 101 on", "200 steps"]
    assert describe_curve(outcome(LOSS * math.nan)) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_every_growth_has_words(kind):
    said = describe_growth(Growth(kind=kind, steps=100, per_step=1e-4, per_step_uncertainty=1e-5, chance=0.03))
    assert said
    assert ("±" in said) is (kind in {"bias", "unknown"})
    assert describe_growth(Growth(steps=12)) == "cannot be told from 12 steps; 30 are needed"


def test_higher_numbers_are_drawn_higher_and_all_inside():
    picture = draw_curve(outcome(LOSS + 0.1))
    (reference,), (target,), (difference,) = map(list, (picture.reference, picture.target, picture.difference))
    assert [x for x, _ in places(reference)] == sorted({x for x, _ in places(reference)})
    assert all(y < other for (_, y), (_, other) in zip(places(target), places(reference), strict=True))
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in places(reference) + places(target))
    assert {round(y) for _, y in places(difference)} == {round(places(difference)[0][1])}  # the same everywhere
    assert 0 < picture.limit < places(difference)[0][1] < LOWER  # the limit of 0.5 is above the difference of 0.1


def test_a_hole_breaks_the_line_and_is_marked():
    target = LOSS + 0.1
    target[100] = math.nan
    picture = draw_curve(outcome(target))
    assert (len(picture.reference), len(picture.target), len(picture.difference), len(picture.broken)) == (1, 2, 2, 1)


def test_a_logarithmic_scale_has_no_zero():
    target = LOSS.copy()
    target[50:] += 0.1
    picture = draw_curve(outcome(target))
    assert len(picture.equal) == 50
    alone = np.where(np.arange(200) == 100, 0.1, 0.0)
    ((left, height), (right, same)) = places(draw_curve(outcome(LOSS + alone)).difference[0])
    assert (right > left + 1, height) == (True, same)  # a line of no length would be invisible
    assert draw_curve(outcome(LOSS)).difference == ()


def test_two_pictures_on_the_same_axes_can_be_compared():
    before, after = outcome(LOSS + 0.1, limits={}), outcome(LOSS[:100] + 1e-4, limits={})
    axes = choose_axes([before, after])
    far, near = (draw_curve(one, axes, HALF) for one in (before, after))
    assert (far.steps, far.values, far.decades) == (near.steps, near.values, near.decades)
    assert draw_curve(after).decades != near.decades
    assert places(far.reference[0])[99] == places(near.reference[0])[99]  # the same point at the same place
    assert min(y for _, y in places(near.difference[0])) > max(y for _, y in places(far.difference[0]))
    assert all(0 < x < HALF for x, _ in places(far.target[0]))


def test_nothing_to_draw():
    assert draw_curve(outcome([])) is None
    assert draw_curve(outcome([]), choose_axes([outcome(LOSS), outcome([])])) is None
    assert draw_curve(examine("x", make_series([5], [1.0]), make_series([5], [1.0]), limits={})) is not None  # a single step


def test_the_page_and_the_screen_have_curves_beside_records(misaligned):
    model = replace(misaligned, curves=(outcome(LOSS + 1),))
    page = html.render(model)
    assert page.count('<svg class="overlay"') == 2
    assert 'id="network"' in page
    assert 'href="#curves"' in page
    for columns in (60, 80, 88):
        said = terminal.render_summary(model, report_path="report.html", exit_code=1, columns=columns)
        assert "max |difference| 1 at step" in " ".join(said.split())
        assert all(len(line) <= columns for line in said.splitlines())


def test_the_name_of_a_curve_is_text(misaligned):
    evil = replace(
        outcome(LOSS + 1), name="<script>alert(1)</script>", notes=("<b>",), sources={"reference": "<i>", "target": "x"}
    )
    page = html.render(replace(misaligned, curves=(evil,)))
    assert "<script>alert" not in page
    assert "<b>" not in page.partition('id="curves"')[2].partition("</section>")[0]
