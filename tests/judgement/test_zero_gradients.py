"""Gradients that are nothing but rounding are blind, those that may be are told, and nothing else changes."""

import math
from dataclasses import replace

import numpy as np
import pytest

from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.summarize import summarize
from precflow.comparison.reading import count_classes
from precflow.config.schema import Tolerance
from precflow.judgement.carried import CarriedTypes

RNG = np.random.default_rng(3)
IS, MAY_BE = "it is zero apart from rounding", "it may be zero apart from rounding"


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
            counts=count_classes(summary),
        )

    return make


def noise(size):
    return [RNG.standard_normal(64) * size for _ in range(2)]


def test_autocast_keeps_in_float32_what_it_computed_in_16_bits(gradient, run):
    pairs = [gradient("weight", *weight()), gradient("bias", *noise(1e-4))]
    plain, _ = run(pairs)
    carried, _ = run(pairs, carried=CarriedTypes({one.record: "bfloat16" for one in pairs}))
    assert [one.status for one in plain] == ["pass", "fail"]
    assert [one.status for one in carried] == ["pass", "blind"]


def weight(factor=1 + 1e-6):
    whole = RNG.standard_normal((64, 64)) / 64  # of norm 1
    return whole, whole * factor


def test_noise_beside_a_weight_is_blind(gradient, run):
    judged, verdict = run([gradient("weight", *weight()), gradient("bias", *noise(1e-9))])
    assert [one.status for one in judged] == ["pass", "blind"]
    assert IS in judged[1].reason
    assert (verdict.verdict, verdict.compared, verdict.could_fail) == ("aligned", 2, 1)
    assert verdict.standards == {"default": True}


def test_what_is_small_beside_equal_weights_does_not_depend_on_their_number_or_order(gradient, run):
    """The median is of what was measured: not of what other modules with equal weights were given for want of it."""
    whole = RNG.standard_normal((64, 64)) / 64
    others = [gradient("weight", size * whole, size * whole * (1 + 1e-6), module=f"layers.{size}.q_proj") for size in (1, 1e3)]
    equal = [replace(gradient("weight", whole, whole, module=f"layers.{number}.o_proj"), equal=True) for number in range(5)]
    reasons = set()
    for number in range(5):
        bias = gradient("bias", *(np.full(64, size) for size in (1e-9, -1e-9)), module=f"layers.{number}.o_proj")
        reasons.add(run([*equal, bias, *others])[0][5].reason.partition("; it is")[0])
    (reason,) = reasons
    assert reason.endswith("times 5e+02)")


def test_beside_a_weight_that_is_equal_the_gradients_of_other_modules_say_what_is_small(gradient, run):
    whole = weight(1)[0]
    equal = replace(gradient("weight", whole, whole), equal=True)
    others = [gradient("weight", *weight(), module=f"layers.{number}.mlp") for number in range(1, 4)]
    assert [one.status for one in run([equal, gradient("bias", *noise(1e-10)), *others])[0]][1] == "blind"
    assert [one.status for one in run([equal, gradient("bias", *noise(1e-3)), *others])[0]][1] == "fail"
    assert [one.status for one in run([equal, gradient("bias", *noise(1e-10))])[0]][1] == "fail"  # nothing to measure it by


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_low_precision_it_is_blind_beside_a_gradient_that_passes(gradient, run, dtype):
    records = [gradient("weight", *weight(), dtype=dtype), gradient("bias", *noise(1e-5), dtype=dtype)]
    judged, verdict = run(records, dtypes=(dtype, dtype))
    assert [one.status for one in judged] == ["pass", "blind"]
    assert IS in judged[1].reason
    assert verdict.verdict == "aligned"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_low_precision_it_fails_and_is_told_beside_a_gradient_that_fails(gradient, run, dtype):
    records = [gradient("weight", *weight(1.1), dtype=dtype), gradient("bias", *noise(1e-5), dtype=dtype)]
    judged, verdict = run(records, dtypes=(dtype, dtype))
    assert judged[1].status == "fail"
    assert "relative_l2" in judged[1].reason
    assert MAY_BE in judged[1].reason
    assert verdict.verdict == "misaligned"
    assert verdict.warnings[0].startswith(
        "1 record over their limits may be zero apart from rounding, first layers.0.self_attn"
    )


@pytest.mark.parametrize(("reference", "target"), [(1e-9, 1e-3), (1e-3, 1e-9), (1e-3, 1e-3), (0.0, 1e-3), (1e-9, 1e-6)])
def test_a_side_that_is_more_than_noise_fails(gradient, run, reference, target):
    one, other = RNG.standard_normal(64) * reference, RNG.standard_normal(64) * target
    judged, verdict = run([gradient("weight", *weight()), gradient("bias", one, other)])
    assert judged[1].status == "fail"
    assert "apart from rounding" not in judged[1].reason
    assert verdict.verdict == "misaligned"


@pytest.mark.parametrize("factor", [0.0, -1.0, 1.01, 2.0])
def test_a_fault_of_the_weights_gradient_fails(gradient, run, factor):
    judged, verdict = run([gradient("weight", *weight(factor)), gradient("bias", *noise(1e-9))])
    assert judged[0].status == "fail"
    assert verdict.verdict == "misaligned"


def test_a_weight_that_one_side_lacks_vouches_for_nothing(gradient, run):
    judged, _ = run([gradient("weight", *weight(0.0)), gradient("bias", *noise(1e-9))])
    assert [one.status for one in judged] == ["fail", "fail"]


def test_a_reference_of_zeros_and_a_target_of_noise_are_the_same(gradient, run):
    judged, _ = run([gradient("weight", *weight()), gradient("bias", np.zeros(64), noise(1e-10)[0])])
    assert math.isinf(judged[1].value)
    assert judged[1].status == "blind"


def test_a_limit_in_the_gradients_own_unit_is_meant(gradient, run):
    records = [gradient("weight", *weight(1)), gradient("bias", *noise(1e-9))]
    judged, _ = run(records, tolerance=Tolerance(max_abs_error=1e-12))
    assert judged[1].status == "fail"


@pytest.mark.parametrize("elsewhere", [{"module": "layers.1.self_attn.k_proj"}, {"step": "@1.0"}, {"phase": "backward"}])
def test_only_gradients_of_the_same_module_and_step_are_a_measure(gradient, run, elsewhere):
    judged, _ = run([gradient("weight", *weight(), **elsewhere), gradient("bias", *noise(1e-9))])
    assert judged[1].status == "fail"


def test_only_gradients_are_of_rounding(gradient, run):
    judged, _ = run([gradient("weight", *weight(), phase="forward"), gradient("bias", *noise(1e-9), phase="forward")])
    assert judged[1].status == "fail"


def stepped(gradient, *, bias=1e-3, state=1e-10):
    """Return the records of a step: gradients, states and weights of a weight and of a bias that has no gradient."""
    one, other = (RNG.standard_normal(64) for _ in range(2))
    return [
        gradient("weight", *weight()),
        gradient("bias", *noise(1e-9)),
        gradient("weight", *weight(), phase="optimizer"),
        gradient("weight.exp_avg", *weight(), phase="optimizer"),
        gradient("bias", one * bias, other * bias, phase="optimizer"),
        gradient("bias.exp_avg", *noise(state), phase="optimizer"),
    ]


def test_what_an_optimizer_makes_of_noise_is_blind(gradient, run):
    judged, verdict = run(stepped(gradient))
    assert [one.status for one in judged] == ["pass", "blind", "pass", "pass", "blind", "blind"]
    assert judged[4].reason == "the optimizer steps by a gradient that is zero apart from rounding"
    assert verdict.verdict == "aligned"


def test_a_state_that_is_more_than_noise_fails(gradient, run):
    judged, verdict = run(stepped(gradient, state=1e-3))
    assert [one.status for one in judged] == ["pass", "blind", "pass", "pass", "fail", "fail"]
    assert verdict.verdict == "misaligned"


@pytest.mark.parametrize(("off", "status"), [(1e-7, "blind"), (1e-4, "fail")])
def test_a_momentum_of_decay_and_noise_is_blind_if_it_is_off_by_no_more_than_noise(gradient, run, off, status):
    """The bias of a layer before a batch norm: its gradient is zero, and decay alone fills the momentum of SGD."""
    decay = RNG.standard_normal(64) * 1e-4
    momentum = gradient("bias.momentum_buffer", decay, decay + off / 8 * RNG.standard_normal(64), phase="optimizer")
    records = [gradient("weight", *weight()), gradient("bias", *noise(1e-9)), momentum]
    judged, verdict = run(records)
    assert [one.status for one in judged] == ["pass", "blind", status]
    assert verdict.verdict == ("aligned" if status == "blind" else "misaligned")
    assert run([records[0], gradient("bias", *weight()), momentum])[0][2].status == "fail"  # behind a gradient that is one


def test_a_weight_behind_a_gradient_fails(gradient, run):
    records = stepped(gradient)
    records[1] = gradient("bias", *[values * 1e6 for values in noise(1e-9)])
    judged, _ = run(records)
    assert [judged[number].status for number in (1, 4)] == ["fail", "fail"]


def test_the_weight_of_another_step_fails(gradient, run):
    records = [*stepped(gradient)[:4], gradient("bias", *noise(1e-3), phase="optimizer", step="@1.0")]
    assert run(records)[0][4].status == "fail"
