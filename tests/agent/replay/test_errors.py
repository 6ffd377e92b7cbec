"""Errors as standards define them, against NumPy in the plainest form, in every element type and over awkward values."""

import json
import math

import numpy as np
import pytest
import torch

from precflow.agent.replay.calls import TensorFiles
from precflow.agent.replay.errors import BLOCK, measure_errors, read_asked
from precflow.agent.replay.evaluate import evaluate_call

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
ASKED = {"within": {"loose": [2.0**-7, 2.0**-7], "equal": [0.0, 0.0]}, "small": {"dual": [0.25, 2.0**-12]}}


def ask(dtype):
    return {str(dtype).removeprefix("torch."): ASKED}


def spacing(value, dtype):
    """Return the unit in the last place, by the next number above in the type itself."""
    if dtype == torch.float64:
        return math.ulp(value)
    facts = torch.finfo(dtype)
    exponent = max(math.floor(math.log2(value)) if value else -2000, round(math.log2(facts.smallest_normal)))
    return 2.0**exponent * facts.eps


def plainly(output, exact, dtype):
    """Return the same numbers by NumPy over one flat array."""
    values, golden = output.double().numpy().ravel(), exact.double().numpy().ravel()
    with np.errstate(all="ignore"):
        finite = np.isfinite(values) & np.isfinite(exact.to(dtype).double().numpy().ravel())
        values, golden = values[finite], golden[finite]
        d, g = np.abs(values - golden), np.abs(golden)
        relative = d / (g + 1e-7)
        small = g < 0.25
        rest = relative[~small]
        at = np.flatnonzero(d == d.max())
        return {
            "count": d.size,
            "mare": relative.max(),
            "mere": relative.mean(),
            "rmse": np.sqrt(np.mean(np.square(d.astype(np.longdouble)))),
            "largest": d.max(),
            "ulp": min(spacing(g[index], dtype) for index in at) if d.max() else 0.0,
            "loose": np.mean(d <= 2.0**-7 + 2.0**-7 * g),
            "equal": np.mean(d == 0),
            "small": small.sum(),
            "wrong": np.sum(d[small] > 2.0**-12),
            "rest_mare": rest.max(initial=0.0),
            "rest_mere": rest.mean() if rest.size else 0.0,
        }


def flat(found):
    dual = found["small"]["dual"]
    numbers = {name: found[name] for name in ("count", "mare", "mere", "rmse", "largest", "ulp")}
    rest = {"small": dual["small"], "wrong": dual["wrong"], "rest_mare": dual["mare"], "rest_mere": dual["mere"]}
    return numbers | found["within"] | rest


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["plain", "strided", "scalar", "denormal", "huge", "zeros", "many"])
def test_errors_are_those_of_numpy(dtype, kind):
    generator = torch.Generator().manual_seed(len(kind))
    facts = torch.finfo(dtype)
    exact = torch.randn(6, 10, dtype=torch.float64, generator=generator)
    if kind == "many":
        exact = torch.randn(BLOCK + 17, dtype=torch.float64, generator=generator)
    if kind == "scalar":
        exact = exact[0, 0]
    if kind == "denormal":
        exact = exact.clamp(-1, 1) * facts.smallest_normal / 4
    if kind == "huge":
        exact = exact.clamp(-0.9, 0.9) * facts.max
    if kind == "zeros":
        exact = torch.zeros_like(exact)
    output = (exact * (1 + 3 * facts.eps * torch.randn(exact.shape, dtype=torch.float64, generator=generator))).to(dtype)
    if kind == "strided":
        exact, output = exact.T[::2], output.T[::2]
    found, expected = flat(measure_errors(output, exact, ask(dtype))), plainly(output, exact, dtype)
    assert found == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-9, abs=1e-300)


def test_only_finite_pairs_count_and_the_golden_is_narrowed_first():
    exact = torch.tensor([1.0, math.nan, 1e9, 2.0, -math.inf, 4.0], dtype=torch.float64)
    output = torch.tensor([1.5, 1.0, math.inf, math.nan, -math.inf, 4.0], dtype=torch.float16)
    found = measure_errors(output, exact, ask(torch.float16))
    assert (found["count"], found["largest"], found["within"]["equal"]) == (2, 0.5, 0.5)
    assert found["mere"] == pytest.approx(0.25)


def test_an_empty_output_has_no_errors():
    found = measure_errors(torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.float64), ask(torch.float32))
    assert (found["count"], found["mare"], found["within"]["loose"]) == (0, 0.0, 0.0)


def test_complex_numbers_count_as_two():
    exact = torch.tensor([1 + 1j, 2 - 2j], dtype=torch.complex128)
    output = torch.tensor([1 + 1.5j, 2 - 2j], dtype=torch.complex64)
    found = measure_errors(output, exact, ask(torch.float32))
    assert (found["count"], found["largest"], found["within"]["equal"]) == (4, 0.5, 0.75)


def test_what_was_not_asked_for_is_not_measured(tmp_path):
    assert measure_errors(torch.ones(2), torch.ones(2, dtype=torch.float64), ask(torch.float16)) == {}
    assert measure_errors(torch.ones(2, dtype=torch.int64), torch.ones(2), {"int64": {}}) == {}
    assert read_asked(str(tmp_path)) == {}
    (tmp_path / "errors.json").write_text(json.dumps(ask(torch.float32)))
    assert read_asked(str(tmp_path)) == ask(torch.float32)


def test_of_equal_largest_differences_the_smallest_ulp_counts():
    exact = torch.tensor([64.0, 1.0], dtype=torch.float64)
    output = torch.tensor([64.5, 1.5])
    assert measure_errors(output, exact, ask(torch.float32))["ulp"] == 2.0**-23


def test_the_evaluation_adds_them_to_both_sides(dumped):
    recorded = dumped(lambda side: torch.ones(3) * (1.5 if side == "target" else 1.0) + 0.25)
    (call,) = recorded.calls("add")
    (line,) = evaluate_call(call, TensorFiles(), ask(torch.float32))
    assert {side: found["errors"]["count"] for side, found in line["sides"].items()} == {"reference": 3, "target": 3}
    (line,) = evaluate_call(call, TensorFiles())
    assert "errors" not in line["sides"]["target"]
