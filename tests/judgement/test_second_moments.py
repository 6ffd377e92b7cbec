"""A mean of squared gradients is off by twice what its gradients are off by, which is no error of the optimizer."""

import numpy as np
import pytest

from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.summarize import summarize
from precflow.comparison.reading import count_classes

RNG = np.random.default_rng(5)
GRADIENT = RNG.standard_normal((32, 32))
APART = 1.2e-5  # the limit of float32 is 1.5e-5


@pytest.fixture
def record(measure):
    """Return a function that measures a record of ``fc.weight`` on both sides."""

    def make(phase, reference, target, *, state="", step=0):
        summary = summarize(np.asarray(reference, np.float32), np.asarray(target, np.float32))
        return measure(
            "fc",
            "",
            record=f"fc/{phase}.output.weight{state}" + (f"@{step}.0" if step else ""),
            phase=phase,
            metrics=measure_all(summary),
            counts=count_classes(summary),
        )

    return make


def statuses(run, records):
    return [one.status for one in run(records)[0]]


def test_a_second_moment_that_follows_from_its_gradient_passes(record, run):
    other = GRADIENT * (1 + APART)
    moment = record("optimizer", 1e-3 * GRADIENT**2, 1e-3 * other**2, state=".exp_avg_sq")
    judged, verdict = run([record("gradient", GRADIENT, other), moment])
    assert [one.status for one in judged] == ["pass", "pass"]
    assert verdict.verdict == "aligned"
    assert judged[1].ratio == pytest.approx(2 / 2.5, rel=0.01)
    assert statuses(run, [moment]) == ["fail"]  # nothing is known of its gradient


@pytest.mark.parametrize("state", [".exp_avg_sq", ".exp_avg"])
def test_one_that_differs_by_more_than_its_gradient_fails(record, run, state):
    moment = record("optimizer", GRADIENT**2, GRADIENT**2 * (1 + (1e-4 if state == ".exp_avg_sq" else 2 * APART)), state=state)
    assert statuses(run, [record("gradient", GRADIENT, GRADIENT * (1 + APART)), moment]) == ["pass", "fail"]


def test_one_of_a_gradient_that_fails_fails_too(record, run):
    other = GRADIENT * (1 + 1e-3)
    moment = record("optimizer", GRADIENT**2, other**2, state=".exp_avg_sq")
    assert statuses(run, [record("gradient", GRADIENT, other), moment]) == ["fail", "fail"]


def test_gradients_of_earlier_steps_count_too(record, run):
    other = GRADIENT * (1 + APART)
    moment = record("optimizer", GRADIENT**2, other**2, state=".exp_avg_sq", step=1)
    steps = [record("gradient", GRADIENT, other), record("gradient", GRADIENT, GRADIENT * (1 + 1e-7), step=1)]
    assert statuses(run, [*steps, moment]) == ["pass", "pass", "pass"]
    wrong_before = record("gradient", GRADIENT, GRADIENT * (1 + 1e-3))
    assert statuses(run, [wrong_before, steps[1], moment]) == ["fail", "pass", "fail"]
