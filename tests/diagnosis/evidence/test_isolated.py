"""A few wrong places among right ones, and what rules of other kinds say of them."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from precflow import resources
from precflow.config.schema import RunConfig
from precflow.diagnosis.advice.rule_files import load_rules
from precflow.diagnosis.advice.rules import advise
from precflow.diagnosis.comparison import Comparison
from precflow.diagnosis.evidence.collect import collect
from precflow.diagnosis.evidence.isolated import find_isolated
from precflow.diagnosis.localize import localize

GENERATOR = np.random.default_rng(0)
RIGHT = GENERATOR.standard_normal((4, 12, 40))
NOISE = 1 + 2.0**-22 * GENERATOR.standard_normal(RIGHT.shape)


def spoil(place, change=lambda values: 1.5 * values):
    target = RIGHT * NOISE
    target[place] = change(target[place])
    return find_isolated(RIGHT, target, [], 24)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ((1, 2, 3), "1 of 1920 elements: [1, 2, 3]"),
        (([0, 1, 3, 3], [5, 5, 1, 2], [7, 8, 9, 1]), "4 of 1920 elements: [0, 5, 7], [1, 5, 8], [3, 1, 9], ..."),
        ((2, 7), "1 of 48 rows: [2, 7]"),
        ((slice(None), slice(None), 11), "1 of 40 columns: 11"),
        ((slice(None), 4), "1 of 12 slices along axis 1: 4"),
    ],
)
def test_what_is_wrong_alone_is_told(place, text):
    assert spoil(place).text == text
    assert spoil(place, lambda values: 0 * values).text == text


@pytest.mark.parametrize(
    "place",
    [(0,), (slice(None), slice(None), slice(0, 9)), (slice(None), slice(None, None, 2)), (Ellipsis,), (slice(0), 0)],
    ids=["a sample of four", "many columns", "half of the rows", "everything", "nothing"],
)
def test_what_is_wrong_at_many_places_is_not_isolated(place):
    assert spoil(place) is None


def test_columns_of_two_rows_are_columns_and_no_elements():
    right = np.concatenate(RIGHT[:, :2], axis=-1)
    target = right.copy()
    target[:, -2:] = 0.0
    assert find_isolated(right, target, [], 24).text == "2 of 160 columns: 158, 159"
    target = right.copy()
    target[0, [3, 7, 50]] = 0.0
    target[1, 9] = 0.0
    assert find_isolated(right, target, [], 24).text.startswith("4 of 320 elements")


def test_scattered_elements_of_two_rows_are_no_columns():
    """Four of 128 are more than a few, and three of them are columns of two of which one is right."""
    right = GENERATOR.standard_normal((2, 64))
    for values in ([2.0, 2.0, 2.0, 2.0], [3.0, 2.0, 3.0, 0.01]):
        target = right * (1 + 2.0**-22 * GENERATOR.standard_normal(right.shape))
        target[[0, 1, 0, 1], [3, 17, 40, 55]] += values
        found = find_isolated(right, target, [], 24)
        assert found is None or "columns" not in found.text


def test_noise_of_every_size_is_not_isolated():
    heavy = RIGHT + 1e-3 * GENERATOR.standard_cauchy(RIGHT.shape)
    assert find_isolated(RIGHT, heavy, [], 24) is None
    assert find_isolated(RIGHT, RIGHT * (1 + 2.0**-8 * GENERATOR.uniform(-1, 1, RIGHT.shape)), [], 8) is None


def test_decisions_and_few_elements_say_nothing():
    whole = np.rint(10 * RIGHT)
    flipped = whole.copy()
    flipped[0, 0, 0] += 1
    assert find_isolated(whole, flipped, [], 24) is None
    assert find_isolated(np.arange(1.0, 9.0) + 0.5, np.arange(1.0, 9.0) + 0.5 * (np.arange(8) != 3), [], 24) is None


def test_the_largest_values_are_extreme():
    x = RIGHT.copy()
    x[1, 1, 1] = 9.0
    target = np.exp(x) * NOISE
    target[1, 1, 1] *= 2.0
    assert find_isolated(np.exp(x), target, [x], 24).is_extreme
    assert find_isolated(np.exp(x), target, [], 24).is_extreme
    assert not spoil((1, 2, 3)).is_extreme


def test_the_fill_of_a_mask_hides_nothing():
    masked = RIGHT + np.where(np.arange(40) > np.arange(12)[:, None] + 20, -3.4e38, 0.0)
    target = masked * NOISE
    target[2, 3, 4] = 5.0
    assert find_isolated(masked, target, [], 24).text == "1 of 1920 elements: [2, 3, 4]"


RULES = load_rules([resources.directory("conf") / "rule"])
KIN = {"PF215", "PF221", "PF228", "PF501", "PF601"}  # movement, borders, single places, NaN; and how the run looks
WEIGHT, GAIN = torch.rand(48, 40, generator=torch.Generator().manual_seed(1)) - 0.5, torch.linspace(0.5, 1.5, 40)
OPERATORS = {  # name: how it is computed from the first input, its other inputs, its arguments
    "gelu": (functional.gelu, {}, {}),
    "silu": (functional.silu, {}, {}),
    "rsqrt": (lambda x: (x.abs() + 0.1).rsqrt(), {}, {}),
    "exp": (torch.exp, {}, {}),
    "cos": (torch.cos, {}, {}),
    "cumsum": (lambda x: x.cumsum(1), {}, {}),
    "mul": (lambda x, gain: x * gain, {1: GAIN}, {}),
    "add": (lambda x, gain: x + gain, {1: GAIN}, {}),
    "linear": (functional.linear, {1: WEIGHT}, {}),
    "softmax": (lambda x: x.softmax(-1), {}, {"dim": "-1"}),
    "layer_norm": (
        lambda x, gain: functional.layer_norm(x, (40,), gain),
        {2: GAIN},
        {"normalized_shape": "(40,)", "eps": "1e-05"},
    ),
    "rms_norm": (lambda x, gain: functional.rms_norm(x, (40,), gain, 1e-6), {2: GAIN}, {"1": "(40,)", "3": "1e-06"}),
}
CHANGES = {
    "larger": lambda values: 1.5 * values,
    "doubled": lambda values: 2.0 * values,
    "zero": torch.zeros_like,
    "negative": torch.neg,
    "shifted": lambda values: values + 1.0,
    "huge": lambda values: values * 1e6,
    "other": lambda values: 3.0 * torch.sin(50.0 * values + 1.0),
    "missing": lambda values: torch.full_like(values, torch.nan),
}
PLACES = {"element": (1,), "two elements": (2,), "three elements": (3,), "row": ()}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])  # makes new dumps
@given(
    operator=st.sampled_from([*OPERATORS]),
    change=st.sampled_from([*CHANGES]),
    places=st.sampled_from([*PLACES]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 1000),
)
@example(operator="add", change="huge", places="element", dtype=torch.float16, seed=214)  # becomes -inf, as masks are
def test_no_rule_of_another_kind_is_sure_of_a_wrong_place(hand_made, judge_calls, operator, change, places, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    compute, others, arguments = OPERATORS[operator]
    x = torch.randn(4, 12, 40, generator=generator).to(dtype)
    right = compute(x.double(), *(one.to(dtype).double() for one in others.values()))
    wrong = right * (1 + 2.0**-24 * torch.randn(right.shape, generator=generator))
    rows = wrong.view(-1, wrong.shape[-1])
    if PLACES[places]:
        at = torch.randperm(rows.numel(), generator=generator)[: PLACES[places][0]]
        rows.view(-1)[at] = CHANGES[change](rows.view(-1)[at])
    else:
        row = seed % len(rows)
        rows[row] = CHANGES[change](rows[row])
    sides = []
    for output in (right, wrong):
        dump = hand_made()
        given = {0: dump.operator("layers.0", "contiguous", value=to_numpy(x))}
        given |= {at: {"value": to_numpy(one.to(dtype)), "weight": f"w{at}"} for at, one in others.items()}
        places_given = [given.get(at, {"shape": (), "content": "none"}) for at in range(max(given) + 1)]
        dump.operator("layers.0", operator, *places_given, value=to_numpy(output.to(dtype)), arguments=arguments)
        sides.append(dump)
    measures, judged = judge_calls(sides[0], {f"layers.0 / {operator}": "fail"}, equal={"layers.0 / contiguous"})
    region = localize(*sides, measures, judged)
    evidence = collect(Comparison(*sides, RunConfig(recipe="demo"), region=region, measures=measures, judged=judged))
    found = advise(evidence, RULES)
    assert {one.rule for one in found if one.certainty in {"certain", "likely"}} <= KIN, evidence["suspects"][0]


def to_numpy(tensor):
    return tensor.numpy() if tensor.dtype != torch.bfloat16 else tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
