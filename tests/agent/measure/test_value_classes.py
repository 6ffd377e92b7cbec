import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from precflow.agent.contract import FILLS
from precflow.agent.measure import value_classes
from precflow.agent.measure.value_classes import Cleaning, bands_in, fills_of, sort_into_kinds
from precflow.comparison.fused.value_classes import (
    FIRST_FILL,
    INFINITY,
    MINUS_INFINITY,
    NOT_A_NUMBER,
    ORDINARY,
    classify_values,
)
from precflow.comparison.fused.value_classes import fills_of as judges_fills
from precflow.dumps.dtypes import FLOATS, float_facts

TYPES = ["float32", "float64", "bfloat16", "float16"]
SPECIAL = [0.0, -0.0, 1.0, math.nan, math.inf, -math.inf, 1e8, -1e8, -9.9e7, -65504.0, -64900.0, -66000.0, -70000.0, 65504.0]
SPECIAL += [-32752.0, 32752.0, 1e3, -1e4, -10050.0, -10200.0, 1.7e38, -1.8e38, 3.3e38, 1e-40, 1300.0, *FILLS]


def judges_classes(values, fills):
    """Return the class that the judge gives each value of a whole tensor."""
    found = classify_values(values, fills)
    return found.kinds if found.least >= found.floor else classify_values(values, fills, found.floor).kinds


@pytest.fixture
def known_only():
    yield
    value_classes.add_constants(())


@pytest.mark.parametrize("name", FLOATS)
def test_fills_are_those_of_the_judge(name):
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    mine, judges = fills_of(getattr(torch, name)), judges_fills(float_facts(name))
    assert [band.low for band in mine.bands] == judges.lows[:-1].tolist()
    assert [band.high for band in mine.bands] == judges.highs[:-1].tolist()
    assert mine.plain >= judges.plain
    assert mine.largest == float_facts(name).largest


@given(
    st.sampled_from(["float32", "float64", "bfloat16", "float16"]), st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=12)
)
def test_every_value_is_sorted_as_by_the_judge(name, special):
    dtype = getattr(torch, name)
    values = torch.tensor(special, dtype=torch.float64).to(dtype)
    values = values.to(torch.float64 if name == "float64" else torch.float32)
    bands = bands_in([values], fills_of(dtype))
    found = sort_into_kinds(values, bands)
    judges = judges_fills(float_facts(name))
    kinds = judges_classes(values.double().numpy(), judges)
    for mine, kind in (
        (found.nan, NOT_A_NUMBER),
        (found.positive_infinity, INFINITY),
        (found.negative_infinity, MINUS_INFINITY),
    ):
        assert mine.tolist() == (kinds == kind).tolist()
    assert found.low.tolist() == judges.low[kinds].tolist()
    assert found.high.tolist() == ((kinds >= FIRST_FILL) & ~judges.low[kinds]).tolist()
    kept = np.where(kinds == ORDINARY, values.numpy(), 0)
    assert found.ordinary.tolist() == kept.tolist()
    numbers = values.numpy()[kinds == ORDINARY]
    ends = (float(numbers.min()), float(numbers.max())) if numbers.size else (math.inf, -math.inf)
    assert Cleaning(*ends)(values).tolist() == kept.tolist()


def test_sorting_leaves_the_values_as_they_were():
    values = torch.tensor(SPECIAL, dtype=torch.float32)
    before = values.clone()
    sort_into_kinds(values, bands_in([values], fills_of(torch.float32)))
    Cleaning(-1.0, 1.0)(values)
    assert torch.equal(values.view(torch.int32), before.view(torch.int32))


@pytest.mark.usefixtures("known_only")
def test_a_constant_of_the_recipe_is_a_fill_from_then_on():
    values = torch.tensor([1.0, -12345.0])
    assert not bands_in([values], fills_of(values.dtype))
    value_classes.add_constants([-12345.0])
    assert [band.constant for band in bands_in([values], fills_of(values.dtype))] == [-12345.0]
    assert value_classes.constants() == (*FILLS, -12345.0)


@pytest.mark.parametrize(
    ("dtype", "exponent"), [(torch.float32, 126), (torch.float32, -140), (torch.float64, 1020), (torch.float64, -1070)]
)
def test_cleaning_divides_by_powers_of_two_out_of_the_range_of_the_type(dtype, exponent):
    values = torch.tensor([math.ldexp(1.0, exponent), math.ldexp(1.0, exponent - 1), math.nan], dtype=dtype)
    assert Cleaning(0.0, math.inf, exponent)(values).tolist() == [1.0, 0.5, 0.0]
