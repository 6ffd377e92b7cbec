import math

import numpy as np
import pytest
import torch

from precflow.agent.fills import Cleaning, fills_of, ordinary, sort
from precflow.comparison.values import (
    HIGH_FILL,
    INFINITY,
    LOW_FILL,
    MINUS_INFINITY,
    NOT_A_NUMBER,
    ORDINARY,
    classes,
    fill_range,
)
from precflow.dumps.dtypes import FLOATS, float_facts

SPECIAL = [
    0.0,
    -0.0,
    1.0,
    math.nan,
    math.inf,
    -math.inf,
    1e8,
    -1e8,
    -9.9e7,
    -65504.0,
    -64000.0,
    -66000.0,
    -70000.0,
    65504.0,
    3e4,
]
SPECIAL += [-32752.0, 32752.0, -32000.0, 1.7e38, 1.8e38, -1.8e38, 3.3e38, 1e-40]


@pytest.mark.parametrize("name", FLOATS)
def test_fills_are_those_of_the_judge(name):
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    mine, judges = fills_of(getattr(torch, name)), fill_range(float_facts(name))
    assert (mine.high, mine.low, mine.plain_low) == (judges.high, judges.low, judges.plain_low)
    assert mine.largest == float_facts(name).largest
    if mine.band is not None:
        assert mine.band == judges.band


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "float16"])
def test_every_value_is_sorted_as_by_the_judge(name):
    dtype = getattr(torch, name)
    values = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
    values = torch.cat([values, torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=dtype)])
    values = values.to(torch.float64 if name == "float64" else torch.float32)
    kinds = sort(values, fills_of(dtype))
    judges = classes(values.double().numpy(), fill_range(float_facts(name)))
    for found, kind in zip(kinds, (NOT_A_NUMBER, INFINITY, MINUS_INFINITY, HIGH_FILL, LOW_FILL), strict=False):
        assert found.tolist() == (judges == kind).tolist()
    kept = np.where(judges == ORDINARY, values.numpy(), 0)
    assert kinds.ordinary.tolist() == kept.tolist()
    assert ordinary(values, fills_of(dtype)).tolist() == kept.tolist()


def test_sorting_leaves_the_values_as_they_were():
    values = torch.tensor(SPECIAL, dtype=torch.float32)
    before = values.clone()
    sort(values, fills_of(torch.float32))
    ordinary(values, fills_of(torch.float32))
    assert torch.equal(values.view(torch.int32), before.view(torch.int32))


@pytest.mark.parametrize(
    ("dtype", "exponent"), [(torch.float32, 126), (torch.float32, -140), (torch.float64, 1020), (torch.float64, -1070)]
)
def test_cleaning_divides_by_powers_of_two_out_of_the_range_of_the_type(dtype, exponent):
    values = torch.tensor([math.ldexp(1.0, exponent), math.ldexp(1.0, exponent - 1), math.nan], dtype=dtype)
    assert Cleaning(fills_of(dtype), exponent)(values).tolist() == [1.0, 0.5, 0.0]
