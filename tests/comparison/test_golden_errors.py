"""Errors against a golden: the agent measures the same with torch."""

import pytest
import torch

from precflow.agent.replay.errors import measure_errors
from precflow.comparison.golden_errors import measure_golden_errors
from precflow.comparison.nested_values import as_array

DTYPES = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64"]


@pytest.mark.parametrize("name", DTYPES)
def test_the_agent_measures_the_same(name):
    dtype = getattr(torch, name)
    generator = torch.Generator().manual_seed(3)
    exact = torch.randn(500, dtype=torch.float64, generator=generator) * torch.logspace(-9, 3, 500, dtype=torch.float64)
    exact[:4] = torch.tensor([0.0, torch.nan, torch.inf, 1e300])
    if dtype.is_complex:
        exact = torch.complex(exact, exact.flip(0))
    output = (exact * 1.001).to(dtype)
    real = {"complex64": "float32"}.get(name, name)
    asked = {real: {"within": {"a": [1e-3, 1e-3], "b": [0.0, 1e-4]}, "small": {"c": [0.01, 1e-6]}}}
    expected = measure_errors(output, exact, asked)
    assert expected["count"] > 300
    assert expected["small"]["c"]["small"] > 100
    measured = measure_golden_errors(as_array(output), as_array(exact), asked)
    assert measured.pop("within") == pytest.approx(expected.pop("within"))
    assert measured.pop("small") == {"c": pytest.approx(expected.pop("small")["c"])}
    assert measured == pytest.approx(expected)
    assert measure_golden_errors(as_array(output), as_array(exact), {}) == {}
