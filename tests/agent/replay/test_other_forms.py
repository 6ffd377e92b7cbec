"""An output that has the bits of GELU's other form is told from one of a correct chip, however that chip rounds."""

import math
from types import MappingProxyType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from precflow.agent.replay import evaluate as evaluating
from precflow.agent.replay.calls import RecordedCall
from precflow.agent.replay.evaluate import evaluate_call
from precflow.agent.replay.other_forms import count_bits, find_other_form
from precflow.diagnosis.introduced import Evaluated, SideNumbers, decide_introduced

TYPES = [torch.bfloat16, torch.float16]
FORMS = {"none": "tanh", "tanh": "none"}


def call(operator="gelu", phase="forward", **arguments):
    return RecordedCall("a/gelu.0", "api", operator, "", phase, arguments, {})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, {"approximate": "'tanh'"}),
        ({"approximate": "'none'"}, {"approximate": "'tanh'"}),
        ({"approximate": "'tanh'"}, {"approximate": "'none'"}),
        ({"1": "'tanh'"}, {"1": "'none'"}),
    ],
)
def test_the_other_form_is_found_from_the_recorded_one(arguments, expected):
    assert find_other_form(call(**arguments)).arguments == expected


def test_other_functions_and_backwards_have_no_other_form():
    assert find_other_form(call("silu")) is None
    assert find_other_form(call(phase="backward")) is None


def test_places_are_counted_against_rounding_by_torch():
    x = torch.linspace(-2, 3, 4001).bfloat16()
    own, other = functional.gelu(x.double()), functional.gelu(x.double(), approximate="tanh")
    found = count_bits(other.bfloat16(), own, other)
    usable = own.bfloat16().abs() >= 2.0**-8
    differs = (own.bfloat16() != other.bfloat16()) & usable
    assert differs.any()
    assert found == {
        "places": int(differs.sum()),
        "as_own": 0,
        "as_other": int(differs.sum()),
        "elsewhere": int((usable & ~differs).sum()),
        "as_both": int((usable & ~differs).sum()),
    }


@pytest.mark.parametrize("shape", [(0,), (), (3, 0)])
def test_empty_and_single_outputs_are_counted(shape):
    ones = torch.ones(shape, dtype=torch.float64)
    assert sum(count_bits(ones.half(), ones, ones).values()) == 2 * ones.numel()


def test_what_is_not_finite_is_left_out():
    values = torch.tensor([math.nan, math.inf, 1.0, 7e4], dtype=torch.float64)
    assert count_bits(values.half(), values, values) == {
        "places": 0,
        "as_own": 0,
        "as_other": 0,
        "elsewhere": 1,
        "as_both": 1,
    }


def judge_gelu(dumped, x, form, made):
    """Return what is said of a recorded GELU in whose place the target gave something else."""
    (recorded,) = dumped(lambda _: functional.gelu(x, approximate=form)).calls("gelu")
    output = recorded.sides["target"].outputs[0]

    class Replacing(evaluating.TensorFiles):
        def read(self, stored):
            return made if stored is output else super().read(stored)

    (line,) = evaluate_call(recorded, Replacing())
    sides = {
        side: SideNumbers(**{name: value for name, value in numbers.items() if value is not None})
        for side, numbers in line["sides"].items()
    }
    return decide_introduced(Evaluated("a/gelu.0", "0", line["kind"], evaluated=True, sides=sides), operator="gelu")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form", FORMS)
def test_a_target_in_the_other_form_is_found_where_its_error_is_two_units(dumped, form, dtype):
    x = (torch.randn(64, 256, generator=torch.Generator().manual_seed(3)) * 0.6).to(dtype)
    right = functional.gelu(x, approximate=form)
    found = judge_gelu(dumped, x, form, functional.gelu(x, approximate=FORMS[form]))
    assert found.is_fault
    assert not judge_gelu(dumped, x, form, right).is_fault
    if dtype is torch.bfloat16:
        assert found.measure == "other_form"
        assert "other form" in found.text


def test_float32_is_judged_by_the_size_of_its_error(dumped):
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(3))
    assert judge_gelu(dumped, x, "none", functional.gelu(x, approximate="tanh")).measure == "rho"


def _towards(values, dtype, up):
    """Round float64 values in one direction; ``up`` is a mask."""
    near = values.to(dtype)
    wrong = torch.where(up, near.double() < values, near.double() > values)
    end = torch.where(up, torch.tensor(math.inf), torch.tensor(-math.inf)).to(dtype)
    return torch.where(wrong, torch.nextafter(near, end), near)


def _by_chance(values, dtype, draw):
    low, high = (_towards(values, dtype, torch.full_like(values, up, dtype=torch.bool)).double() for up in (False, True))
    share = torch.where(high > low, (values - low) / (high - low), torch.zeros_like(values))
    return torch.where(torch.rand(values.shape, generator=draw, dtype=torch.float64) < share, high, low).to(dtype)


def _off_by_units(values, dtype, draw):
    near = values.to(dtype).view(torch.int16)
    return (near + torch.randint(-2, 3, near.shape, generator=draw, dtype=torch.int16)).view(dtype)


CHIPS = MappingProxyType(
    {
        "towards zero": lambda values, dtype, _: _towards(values, dtype, values < 0),
        "away from zero": lambda values, dtype, _: _towards(values, dtype, values > 0),
        "down": lambda values, dtype, _: _towards(values, dtype, torch.zeros_like(values, dtype=torch.bool)),
        "up": lambda values, dtype, _: _towards(values, dtype, torch.ones_like(values, dtype=torch.bool)),
        "by chance": _by_chance,
        "two units": _off_by_units,
        "float32, two units": lambda values, dtype, draw: (
            (values * (1 + 2.0**-22 * (2 * torch.rand(values.shape, generator=draw) - 1))).float().to(dtype)
        ),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    chip=st.sampled_from(sorted(CHIPS)),
    form=st.sampled_from(sorted(FORMS)),
    dtype=st.sampled_from(TYPES),
    size=st.sampled_from([0.01, 0.1, 0.5, 1.0, 2.0, 5.0]),
    shift=st.sampled_from([-2.0, -0.5, 0.0, 0.5, 2.0]),
    seed=st.integers(0, 2**31),
)
def test_no_correct_chip_has_the_bits_of_the_other_form(chip, form, dtype, size, shift, seed):
    draw = torch.Generator().manual_seed(seed)
    x = (torch.randn(4096, generator=draw) * size + shift).to(dtype).double()
    own, other = (functional.gelu(x, approximate=each) for each in (form, FORMS[form]))
    numbers = SideNumbers("bfloat16", 4096, 0.001, 1.0, 2.0**-9, other_form=count_bits(own.to(dtype), own, other))
    target = SideNumbers(
        "bfloat16", 4096, 0.001, 1.0, 2.0**-9, other_form=count_bits(CHIPS[chip](own, dtype, draw), own, other)
    )
    found = decide_introduced(Evaluated("a", "0", evaluated=True, sides={"reference": numbers, "target": target}))
    assert found.measure != "other_form"
