"""Gradients that may be nothing but rounding have a remark, and nothing else has one; no status changes."""

import math

import numpy as np
import pytest

from precflow.comparison.metrics import measure_all
from precflow.comparison.remarks import counts
from precflow.comparison.summarize import summarize

RNG = np.random.default_rng(3)
REMARK = "it may be zero but for rounding"


@pytest.fixture
def gradient(measure):
    """Return a function that measures a gradient of a parameter on both sides."""

    def make(parameter, reference, target, *, module="layers.0.self_attn.k_proj", phase="gradient", step="", dtype="float32"):
        summary = summarize(np.asarray(reference, np.float32), np.asarray(target, np.float32))
        return measure(
            module,
            "",
            record=f"{module}/{phase}.output.{parameter}{step}",
            phase=phase,
            reference_dtype=dtype,
            target_dtype=dtype,
            metrics=measure_all(summary),
            counts=counts(summary),
        )

    return make


def noise(size):
    return [RNG.standard_normal(64) * size for _ in range(2)]


def weight(factor=1 + 1e-6):
    whole = RNG.standard_normal((64, 64)) / 64  # of norm 1
    return whole, whole * factor


def reasons(judged):
    return [one.reason for one in judged]


def test_noise_beside_a_weight_is_told_and_fails_all_the_same(gradient, run):
    judged, verdict = run([gradient("weight", *weight()), gradient("bias", *noise(1e-9))])
    assert [one.status for one in judged] == ["pass", "fail"]
    assert REMARK in judged[1].reason
    assert "relative_l2" in judged[1].reason
    assert verdict.verdict == "misaligned"
    assert verdict.warnings[0].startswith("1 record over their limits may be zero but for rounding, first layers.0.self_attn")


@pytest.mark.parametrize(("reference", "target"), [(1e-9, 1e-3), (1e-3, 1e-9), (1e-3, 1e-3), (0.0, 1e-3)])
def test_a_side_that_is_more_than_noise_has_no_remark(gradient, run, reference, target):
    one, other = RNG.standard_normal(64) * reference, RNG.standard_normal(64) * target
    judged, _ = run([gradient("weight", *weight()), gradient("bias", one, other)])
    assert judged[1].status == "fail"
    assert REMARK not in judged[1].reason


@pytest.mark.parametrize("factor", [0.0, -1.0, 1.01, 2.0])
def test_a_fault_of_the_weights_gradient_has_no_remark(gradient, run, factor):
    judged, _ = run([gradient("weight", *weight(factor)), gradient("bias", *noise(1e-9))])
    assert judged[0].status == "fail"
    assert REMARK not in judged[0].reason


def test_a_zero_reference_is_noise_on_the_target_alone(gradient, run):
    judged, _ = run([gradient("weight", *weight()), gradient("bias", np.zeros(64), noise(1e-10)[0])])
    assert math.isinf(judged[1].value)
    assert (judged[1].status, REMARK in judged[1].reason) == ("fail", True)


def test_what_is_noise_depends_on_the_type(gradient, run):
    both = noise(1e-5)
    for dtype, told in (("float32", False), ("bfloat16", True)):
        records = [gradient("weight", *weight(), dtype=dtype), gradient("bias", *both, dtype=dtype)]
        judged, _ = run(records, dtypes=(dtype, dtype))
        assert (REMARK in judged[1].reason) == told


@pytest.mark.parametrize("elsewhere", [{"module": "layers.1.self_attn.k_proj"}, {"step": "@1.0"}, {"phase": "backward"}])
def test_only_gradients_of_the_same_module_and_step_are_a_measure(gradient, run, elsewhere):
    judged, _ = run([gradient("weight", *weight(), **elsewhere), gradient("bias", *noise(1e-9))])
    assert not any(REMARK in reason for reason in reasons(judged))
