"""Limits at and beside their edge, missing steps, NaN, and limits that repeats widen."""

import math

import numpy as np
import pytest

from precflow.config.sections.standard_sections import Deviation, LossLimits
from precflow.curves.deviations import Deviations, measure
from precflow.curves.joining import join
from precflow.curves.limits import LIMITS, hold_to_limit, hold_to_standard
from precflow.curves.outcome import HeldStandard, choose_points, examine, find_shift
from precflow.curves.series import make_series
from precflow.judgement import standards


def series(values, start=0):
    return make_series(range(start, start + len(values)), values)


def outcome(reference, target, **settings):
    return examine("loss", series(reference), series(target), **{"limits": {"max_abs_error": 1.0}, **settings})


def standard(name):
    return HeldStandard(name, standards.load(name).losses)


@pytest.mark.parametrize("limit", LIMITS)
def test_each_limit_at_its_edge(limit):
    found = measure(join(series([1.0, 2.0]), series([1.25, 2.75])))
    value = getattr(found, limit)
    assert not hold_to_limit("loss", limit, value, found).failed
    assert hold_to_limit("loss", limit, float(np.nextafter(value, 0)), found).failed


def test_each_limit_is_judged_alone():
    met = outcome(
        [1.0, 1.0], [1.001, 1.0], limits={"max_abs_error": 1e-4, "mean_rel_error": 0.1}, standard=standard("loss_1_percent")
    ).met
    assert met == {"max_abs_error": False, "mean_rel_error": True, "loss_1_percent": True}
    cut = outcome([1.0, 1.0, 1.0], [1.001, 1.0], limits={"max_abs_error": 1.0}, standard=standard("loss_1_percent"))
    assert not any(cut.met.values())  # a curve that is cut meets nothing


def test_a_curve_within_its_limits_is_aligned_and_one_beyond_is_not():
    assert outcome([1.0, 1.0], [1.5, 1.0]).verdict == "aligned"
    beyond = outcome([1.0, 1.0], [1.0, 2.5])
    assert (beyond.verdict, beyond.failed) == ("misaligned", ("the largest difference of the loss is 1.5, at most 1",))


@pytest.mark.parametrize(
    ("reference", "target", "verdict", "words"),
    [
        ([], [], "inconclusive", "has no step in common"),
        ([1.0], [], "inconclusive", "has no step in common"),
        ([1.0, 1.0, 1.0], [1.0, 1.0], "inconclusive", "the target's loss stops at step 1, and the other side goes on"),
        ([1.0, math.nan], [1.0, 1.0], "misaligned", "not finite on one side alone at 1 step, first on the reference at step 1"),
        ([1.0, math.nan], [1.0, math.inf], "inconclusive", "not finite on both sides at 1 step"),
        ([math.nan, math.nan], [math.nan, math.nan], "inconclusive", "not finite on both sides at 2 steps"),
    ],
)
def test_what_is_missing_never_passes(reference, target, verdict, words):
    found = outcome(reference, target)
    assert found.verdict == verdict
    assert words in "; ".join((*found.failed, *found.missing))


def test_a_gap_is_missing():
    target = make_series([0, 1, 2, 5, 6], np.ones(5))
    found = examine("loss", series(np.ones(7)), target, limits={"max_abs_error": 1.0})
    assert found.missing == ("the target's loss lacks 2 steps that the other side has: 3, 4",)


def test_a_side_that_begins_later_is_missing():
    found = examine("loss", series(np.ones(9)), series(np.ones(5), start=4), limits={"max_abs_error": 1.0})
    assert found.missing == ("the target's loss begins at step 4, and the other side before",)
    asked = examine("loss", series(np.ones(9)), series(np.ones(5), start=4), steps=5, limits={"max_abs_error": 1.0})
    assert (asked.missing, asked.notes) == ((), ("compared from step 4 on, where the target's loss begins",))
    every_tenth = make_series(range(10, 101, 10), np.ones(10))
    assert not examine("loss", series(np.ones(101)), every_tenth, limits={"max_abs_error": 1.0}).missing[1:]


def test_steps_that_begin_anew_in_each_epoch_are_not_taken_for_the_whole():
    reference, target = np.ones(30), np.array([9.0] * 20 + [1.0] * 10)
    epochs = [*range(10)] * 3
    sides = (make_series(epochs, reference), make_series(epochs, target))
    found = examine("loss", *sides, limits={"max_abs_error": 1.0})
    assert found.verdict == "inconclusive"
    assert found.missing[0].startswith("the reference's loss goes back to its first step 2 times, and only what follows")
    assert examine("loss", *sides, steps=10, limits={"max_abs_error": 1.0}).verdict == "aligned"  # they were asked for
    resumed = make_series([0, 1, 2, 1, 2, 3], np.ones(6))
    assert examine("loss", resumed, series(np.ones(4)), limits={"max_abs_error": 1.0}).verdict == "aligned"


def test_only_the_steps_that_are_asked_for_count():
    reference, target = np.ones(10), np.array([1.0] * 5 + [9.0] * 5)
    assert outcome(reference, target, steps=5).verdict == "aligned"
    assert outcome(reference, target[:5], steps=5).verdict == "aligned"  # it stops, after all that was asked for
    assert outcome(reference, target, steps=6).verdict == "misaligned"
    short = outcome(reference, target[:4], steps=5)
    assert short.missing == ("the loss has 4 of 5 steps on both sides: the target stops at step 3",)


@pytest.mark.parametrize("name", ["mindformers_migration", "verl_npu", "loss_1_percent", "msprobe_triage"])
def test_standards_of_curves(name):
    reference = 2 + np.exp(-np.arange(1200) / 300)
    noise = 1e-4 * np.random.default_rng(0).normal(size=1200)
    assert outcome(reference, reference + noise, standard=standard(name)).verdict == "aligned"
    wrong = outcome(reference, 1.03 * reference, standard=standard(name))
    assert wrong.verdict == "misaligned"
    assert wrong.failed[0].startswith(f"{name}: ")


def test_the_reference_s_own_fluctuation_widens_the_limits_of_the_migration_standard():
    random = np.random.default_rng(0)
    reference = np.full(1200, 0.5)
    off = 0.02 * np.where(random.random(1200) > 0.5, 1.0, -1.0)  # 4 % of it, to either side
    repeats = [series(reference + 0.03 * np.where(random.random(1200) > 0.5, 1.0, -1.0)) for _ in range(2)]
    alone = outcome(reference, reference + off, standard=standard("mindformers_migration"))
    assert alone.verdict == "misaligned"
    assert any("asks for 2 repeats: 0 given" in note for note in alone.notes)
    repeated = outcome(reference, reference + off, standard=standard("mindformers_migration"), repeats=repeats)
    assert repeated.verdict == "aligned"
    assert any("the loss, on average, has the relative limit 0.06" in note for note in repeated.notes)
    assert repeated.fluctuation == pytest.approx(0.03)
    # A standard whose source says nothing of repeats is not widened by them.
    assert outcome(reference, reference + off, standard=standard("verl_npu"), repeats=repeats).verdict == "misaligned"


def test_either_of_two_limits_is_enough():
    limits = LossLimits(first=Deviation(absolute=0.1, relative=0.1))
    near = Deviations(compared=1, first_abs_error=0.2, first_rel_error=0.05)
    assert not hold_to_standard("loss", limits, near).failed
    assert hold_to_standard("loss", limits, Deviations(compared=1, first_abs_error=0.2, first_rel_error=0.2)).failed


def test_steps_that_are_counted_from_another_number():
    curve = 2 + np.exp(-np.arange(50) / 5)
    assert find_shift(series(curve), series(curve, start=1)) == -1
    assert find_shift(series(curve, start=1), series(curve)) == 1
    assert find_shift(series(curve), series(curve + 0.01)) == 0
    assert find_shift(series(np.ones(50)), series(np.ones(50), start=1)) == 0
    found = examine("loss", series(curve), series(curve, start=1), limits={"max_abs_error": 1.0})
    assert any("-1 added to the target's steps" in note for note in found.notes)


def test_the_scale_of_the_loss():
    found = examine("loss_scale", series([4.0, 4.0, 4.0]), series([4.0, 2.0, 2.0]), limits={"max_abs_error": 4.0})
    assert found.scale_drops == {"reference": (), "target": (1,)}
    assert outcome([1.0, 0.5], [1.0, 0.5]).scale_drops == {}


def test_the_picture_has_few_points_and_every_spike():
    reference = np.ones(100_000)
    target = reference.copy()
    target[[777, 50_001]] = 3.0
    target[60_000] = math.nan
    points = choose_points(join(series(reference), series(target)))
    assert len(points) < 610
    chosen = {point.step: point.target for point in points}
    assert (chosen[777], chosen[50_001], math.isnan(chosen[60_000])) == (3.0, 3.0, True)
    assert {0, 99_999} <= chosen.keys()
    assert [point.step for point in points] == sorted(chosen)


def test_a_jump_behind_equal_steps_is_noted_where_the_limits_allow_it():
    reference = np.array([2.363, 2.439, 2.360, 2.452])
    target = reference * [1.0, 1.0, 1.0, 1.02]
    (note,) = examine("loss", series(reference), series(target), limits={"max_abs_error": 1.0}).notes
    assert note.startswith("the same numbers up to step 2, then 2 % apart from step 3 on: capture.step=[3] ")
    assert not examine("loss", series(reference), series(target), limits={"max_abs_error": 0.01}).notes, "a finding says it"
