"""Gradients that went to another element at a near tie of their forward, on hand-made dumps."""

from dataclasses import replace

import numpy as np
import pytest

from precflow.diagnosis.choices import make_settler
from precflow.judgement.verdicts import Judged

VALUES = np.array([[0.3, 0.7, 0.1], [0.5, 0.49999, 0.1], [0.1, 0.2, 0.9], [0.8, 0.2, 0.1]], np.float32)
OTHER = np.array([[0.3, 0.7, 0.1], [0.49999, 0.5, 0.1], [0.1, 0.2, 0.9], [0.8, 0.2, 0.1]], np.float32)  # row 1 takes another


def training(hand_made, values, *, operator="amax"):
    """Return a dump: proj -> amax -> head, and backward through all of them; another branch beside proj."""
    dump = hand_made()
    linear = dump.operator("proj", "linear", {"value": values}, value=values)
    dump.module("proj", {"value": values}, value=values)
    dump.module("beside", {"value": values}, value=values * 3)
    largest = dump.operator("", operator, linear, value=values.max(-1), arguments={"dim": "-1"})
    dump.module("head", largest, value=values.max(-1) * 2)
    gradient = np.float32([1.0, 2.0, 3.0, 4.0])
    dump.module("head", {"value": gradient}, value=gradient, phase="backward")
    dump.module("proj", {"value": values}, value=values, phase="backward")
    dump.module("proj", value=values, phase="gradient")
    dump.module("beside", {"value": values * 5}, value=values * 7, phase="backward")
    return dump


FAILING = {"proj (backward)": "fail", "proj.0 (gradient)": "fail", "beside (backward)": "fail", "head (backward)": "fail"}


@pytest.fixture
def settle(hand_made, judge_calls):
    """Return a function that settles the statuses of two such dumps: name of a call -> status and reason."""

    def run(target=OTHER, *, reference=VALUES, error=0.3, inputs="pass", statuses=FAILING, **options):
        sides = [training(hand_made, values, **options) for values in (reference, target)]
        measures, judged = judge_calls(sides[0], statuses)
        phases = {call.outputs[0].text: call.phase for call in sides[0].made}
        measures = [replace(one, phase=phases[one.record], metrics={"relative_l2": error}) for one in measures]
        settled = make_settler(*sides, lambda left, _: Judged(left.text, inputs))(measures, judged)
        return {measure.name: record for measure, record in zip(measures, settled, strict=True)}

    return run


def test_a_gradient_that_went_to_another_element_at_a_near_tie_is_not_comparable(settle):
    settled = settle()
    tie = settled["(model) / amax"]
    assert tie.status == "near_tie"
    assert "1 of 4 choices differs" in tie.reason
    for name in ("proj (backward)", "proj.0 (gradient)"):
        assert settled[name].status == "not_comparable"
        assert settled[name].reason == "depends on the near tie at (model) / amax"


def test_gradients_that_do_not_go_through_the_choice_keep_their_faults(settle):
    settled = settle()
    assert (settled["head (backward)"].status, settled["beside (backward)"].status) == ("fail", "fail")


def test_a_difference_that_so_few_flips_cannot_make_stays_a_fault(settle):
    settled = settle(error=3.0)
    assert (settled["proj (backward)"].status, settled["proj.0 (gradient)"].status) == ("fail", "fail")


def test_a_difference_of_unknown_size_stays_a_fault(settle):
    settled = settle(error=None)
    assert (settled["proj (backward)"].status, settled["proj.0 (gradient)"].status) == ("fail", "fail")


@pytest.mark.parametrize("status", ["shape", "nonfinite"])
def test_no_flip_gives_a_gradient_another_shape_or_infinity(settle, status):
    settled = settle(statuses={**FAILING, "proj.0 (gradient)": status})
    assert (settled["proj (backward)"].status, settled["proj.0 (gradient)"].status) == ("not_comparable", status)


def test_a_flip_beyond_the_noise_stays_a_fault(settle):
    reference = np.tile(VALUES, (64, 1))
    wrong = reference.copy()
    wrong[1, 2] = 5.0  # stands out of what else differs
    assert {record.status for record in settle(wrong, reference=reference).values()} == {"pass", "fail"}


def test_a_flip_behind_a_fault_stays_a_fault(settle):
    assert {record.status for record in settle(inputs="fail").values()} == {"pass", "fail"}


@pytest.mark.parametrize("operator", ["amax", "linear"])
def test_without_a_flip_nothing_is_touched(settle, operator):
    settled = settle(VALUES if operator == "amax" else OTHER, operator=operator)
    assert {name for name, record in settled.items() if record.status == "fail"} == set(FAILING)


def test_nothing_is_named_where_gradients_agree(settle):
    assert {record.status for record in settle(statuses={}).values()} == {"pass"}
