import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from precflow.agent.measure import masked as one_fill
from precflow.agent.measure import scratch
from precflow.agent.measure.checksums import BLOCK
from precflow.agent.measure.masked import remove_fill
from precflow.agent.measure.statistics import _measure_by_kind, measure_any
from precflow.agent.measure.value_classes import fills_of

FLOATS = ["float32", "float64", "float16", "bfloat16"]
FILLS = {"least": lambda dtype: torch.finfo(dtype).min, "most": lambda dtype: torch.finfo(dtype).max}
FILLS |= {"minus infinity": lambda dtype: -math.inf, "infinity": lambda dtype: math.inf}


def scores(name, fill, shape=(3, 37, 37), move=0.0):
    dtype = getattr(torch, name)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0)).add_(move).to(dtype)
    mask = torch.ones(shape[-2:], dtype=torch.bool).triu(1)
    return values.masked_fill(mask, FILLS[fill](dtype)).view(-1)


def same(found, expected):
    """Tell whether two ways came to the same statistics: counts and extremes exactly, sums up to their rounding."""
    near = [one == other or one == pytest.approx(other, rel=1e-6, abs=1e-4) for one, other in zip(found, expected, strict=True)]
    return found[4:] == expected[4:] and found[:2] == expected[:2] and all(near)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("fill", list(FILLS))
@pytest.mark.parametrize("move", [0.0, 5.0, -5.0])
def test_a_masked_tensor_has_the_statistics_that_sorting_gives(name, fill, move):
    values = scores(name, fill, move=move)
    found = remove_fill(values.float() if name != "float64" else values, fills_of(values.dtype))
    assert found is not None
    assert found.number == 3 * 37 * 36 // 2
    assert same(measure_any(values), _measure_by_kind(values, fills_of(values.dtype)))


@pytest.mark.parametrize("constant", [-1e4, -1e9, -1e30, -65504.0, -66000.0])
@pytest.mark.parametrize("score", [0.0, 3.0])
def test_customary_constants_are_fills_with_a_score_and_without(constant, score):
    values = torch.tensor([1.0, constant, 0.0, -3.0, constant - score])
    found = remove_fill(values, fills_of(torch.float32))
    assert (found.number, found.zero, found.least, found.most, found.code) == (2, 1, -3.0, 1.0, 4)
    assert found.spread == max(abs(float(value) - found.fill) for value in values[[1, 4]])
    assert same(measure_any(values), _measure_by_kind(values, fills_of(torch.float32)))


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 2.0],
        [1.0, math.nan],
        [-math.inf, math.nan],
        [-math.inf, math.inf, 1.0],
        [-1e30, -1e9, 1.0],
        [-1e9, 3e38],
        [-70000.0, -65504.0],
        [-70000.0, 2.0],
        [-1e4, 1300.0],
        [-1e4, -1e9],
    ],
)
def test_what_is_not_one_fill_is_left_to_others(values):
    assert remove_fill(torch.tensor(values), fills_of(torch.float32)) is None
    assert same(
        measure_any(torch.tensor([*values, 0.5])), _measure_by_kind(torch.tensor([*values, 0.5]), fills_of(torch.float32))
    )


@pytest.mark.parametrize("count", [1, 7, BLOCK, BLOCK + 1])
def test_nothing_but_fills(count):
    values = torch.full((count,), -math.inf)
    assert measure_any(values) == _measure_by_kind(values, fills_of(values.dtype))
    assert measure_any(values)[:4] == [None] * 4


@given(st.lists(st.sampled_from([0.0, -0.0, 1.5, -2.0, 1e-42, -math.inf, 7.0]), min_size=1, max_size=40), st.booleans())
def test_of_any_content(values, mirrored):
    content = torch.tensor(values).mul_(-1 if mirrored else 1)
    assert same(measure_any(content), _measure_by_kind(content, fills_of(content.dtype)))


def test_squares_that_cannot_be_added_up_as_they_are_are_left_to_sorting():
    values = torch.tensor([1e-30, -math.inf, 2e-30])
    assert remove_fill(values, fills_of(values.dtype)).number == 1
    assert measure_any(values)[3] == pytest.approx(5e-60, rel=1e-6)


def test_larger_tensors_are_left_to_sorting(monkeypatch):
    values = scores("float32", "least")
    expected = measure_any(values)
    monkeypatch.setattr(one_fill, "MOST", 100)
    monkeypatch.setattr(one_fill, "remove_fill", lambda *_: pytest.fail("too large"))
    assert same(measure_any(values), expected)


def test_memory_serves_every_size_in_and_out_of_inference_mode(monkeypatch):
    monkeypatch.setattr(scratch, "_thread", scratch._Thread())
    monkeypatch.setattr(one_fill, "_known_weights", [])
    found = []
    for shape in [(2, 20, 20), (9, 60, 60), (1, 5, 5), (9, 60, 60)]:
        values = scores("float32", "minus infinity", shape)
        with torch.inference_mode():
            inside = measure_any(values)
        found.append(measure_any(values))
        assert inside == found[-1]
    assert found[1] == found[3]
