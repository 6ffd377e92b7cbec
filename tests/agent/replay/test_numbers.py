"""The numbers of an evaluation, against NumPy in one piece with ml_dtypes' rounding, and against exact fractions."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from precflow.agent.replay import numbers
from precflow.agent.replay.numbers import format_of, measure, round_once, ulp_of

ml_dtypes = pytest.importorskip("ml_dtypes")

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float64": np.float64}
DIGITS = {"float32": (24, -126), "bfloat16": (8, -126), "float16": (11, -14), "float64": (53, -1022)}


def exact_values(shape=(40, 96), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64) * 3


def by_numpy(output, exact, name, terms=None):
    """Return the numbers of ordinary values, computed plainly: one array, no blocks."""
    y, g = (np.asarray(each.reshape(-1).tolist(), dtype=np.float64) for each in (output.double(), exact))
    digits, least = DIGITS[name]
    exponent = np.where(g == 0, least, np.maximum(np.floor(np.log2(np.abs(np.where(g == 0, 1, g)))), least))
    ulp = np.exp2(exponent - (digits - 1))
    rms = np.sqrt(np.mean(g**2))
    t = g if terms is None else np.asarray(terms.reshape(-1).tolist())
    usual = np.full_like(g, rms) if terms is None else np.maximum(t, rms)
    inner = 2.0 ** -max(digits, 24)
    deviation = np.sqrt(ulp**2 / 12 + (inner * usual) ** 2)
    e = y - g

    def residue(values):
        z = (values - g) / deviation / np.where(np.abs(values) >= 2.0 * 2.0**exponent, 2.0, 1.0)
        clipped = np.clip(z, -8, 8)
        w = g / deviation
        order = np.sort(g[:: -(-len(g) // 4096)])
        edges = np.unique(order[np.arange(1, 32) * len(order) // 32])
        bins = np.searchsorted(edges, g, side="left")
        curve = max(abs(clipped[bins == k].sum()) / math.sqrt((bins == k).sum()) for k in np.unique(bins))
        return np.mean(np.clip(z, -32, 32) ** 2), abs((clipped * w).sum()) / np.linalg.norm(w), curve, np.abs(z).max()

    rounded = g.astype(DTYPES[name]).astype(np.float64)
    rows, scales = (np.linalg.norm(each.reshape(-1, output.shape[-1]), axis=1) for each in (e, t))
    filled = np.sort(scales[scales > 0])
    worst = (rows / np.maximum(scales, filled[(len(filled) - 1) // 2])).max()
    return {
        "eta": np.linalg.norm(e) / np.linalg.norm(t),
        "scale": np.linalg.norm(t),
        "worst_row": worst,
        "cosine": (e @ y) / (np.linalg.norm(e) * np.linalg.norm(y)),
        "residue": residue(y),
        "control": residue(rounded),
    }


def four(found):
    return [found[name] for name in ("variance", "slope", "curve", "largest")]


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("block", [1 << 20, 1000])
@pytest.mark.parametrize("summed", [False, True])
def test_all_numbers_are_those_of_numpy(name, block, summed, monkeypatch):
    monkeypatch.setattr(numbers, "BLOCK", block)
    dtype = getattr(torch, name)
    exact = exact_values()
    output = (exact * (1 + 3 * torch.finfo(dtype).eps) + exact.roll(1) * torch.finfo(dtype).eps).to(dtype)
    terms = exact.abs() * 2 + 1 if summed else None
    found, expected = measure(output, exact, terms), by_numpy(output, exact, name, terms)
    for key in ("eta", "scale", "worst_row", "cosine"):
        assert found[key] == pytest.approx(expected[key], rel=1e-9), key
    assert four(found) == pytest.approx(expected["residue"], rel=1e-7)
    assert four(found["control"]) == pytest.approx(expected["control"], rel=1e-7)
    assert (found["dtype"], found["elements"], found["equal"]) == (name, exact.numel(), False)
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_a_result_that_was_rounded_once_is_its_own_control(name):
    exact = exact_values((200, 500))
    found = measure(round_once(exact, getattr(torch, name)).to(getattr(torch, name)), exact)
    assert four(found) == four(found["control"])
    assert found["variance"] == pytest.approx(1, abs=0.05)
    assert found["slope"] < 4
    assert found["curve"] < 4
    assert found["largest"] < 1.8  # half an ulp is 1.73 deviations
    assert found["eta"] < found["unit"]


@pytest.mark.parametrize(
    ("spoil", "number"),
    [
        (lambda exact: exact * 1.001, "slope"),
        (lambda exact: torch.where(exact > 4, exact * 0.997, exact), "curve"),
        (lambda exact: exact + 0.01 * torch.sin(1e4 * exact), "variance"),
    ],
)
def test_each_kind_of_fault_in_bfloat16_raises_its_number(spoil, number):
    exact = exact_values((200, 500))
    found = measure(round_once(spoil(exact), torch.bfloat16).bfloat16(), exact)
    assert found[number] > 3 * max(found["control"][number], {"variance": 1, "slope": 6, "curve": 8}[number])


def test_one_wrong_element_is_the_largest():
    exact = exact_values((200, 500))
    output = round_once(exact, torch.bfloat16).bfloat16()
    output[3, 4] *= 1.1
    found = measure(output, exact)
    assert found["largest"] > 20
    assert found["variance"] < 1.1


def rounded(value, digits, least, largest):
    """Return a value rounded to nearest, ties to even, with fractions: exact, and once."""
    size, power = abs(Fraction(value)), Fraction(2) ** least
    while power * 2 <= size:
        power *= 2
    step = power / 2 ** (digits - 1)
    result = round(size / step) * step  # of Fractions: to even
    return math.copysign(math.inf if result > largest else float(result), value)


@pytest.mark.parametrize(("name", "largest"), [("float16", 65504.0), ("bfloat16", 3.3895313892515355e38)])
def test_rounding_once_rounds_the_exact_value(name, largest):
    steps = [1.0, 1 + 2.0**-9, 65504.0, 65519.999, 65520.0, 1e-7, 6e-8, 1e-45, 3.3e38, 3.4e38, 1e300, 0.0]
    near = [sign * (value + nudge * value) for value in steps for nudge in (0, 1e-15, -1e-15, 2.0**-26) for sign in (1, -1)]
    # halfway between two neighbours but for a bit that float32 cannot hold: by way of float32 these go wrong
    near += [1 + 2.0**-8 + 2.0**-30, 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8 - 2.0**-40, 1 + 3 * 2.0**-11 - 2.0**-45]
    found = round_once(torch.tensor(near, dtype=torch.float64), getattr(torch, name)).tolist()
    assert found == [rounded(value, *DIGITS[name], largest) for value in near]


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64"])
def test_ulps_are_distances_of_neighbours(name):
    form = format_of(getattr(torch, name))
    for value in (1.0, 1.75, 2.0, 3e-5, 0.0, 1e-40 if name in ("float32", "bfloat16") else 1e-7):
        (found,) = ulp_of(torch.tensor([value], dtype=torch.float64), form).tolist()
        least = Fraction(2) ** form.least
        power = least
        while power * 2 <= Fraction(value):
            power *= 2
        while power > Fraction(value) and power > least:
            power /= 2
        assert Fraction(found) == power / 2 ** (form.digits - 1)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0)])
def test_small_and_empty_tensors(name, shape):
    exact = torch.full(shape, 1.5, dtype=torch.float64)
    found = measure(exact.to(getattr(torch, name)), exact)
    assert (found["eta"], found["equal"], found["worst_row"], found["elements"]) == (0, True, 0, exact.numel())
    assert four(found) == four(found["control"]) == [0, 0, 0, 0]


def test_0_against_0_is_equal_and_anything_against_0_is_the_largest_float():
    zeros = torch.zeros(4, dtype=torch.float64)
    assert measure(zeros.float(), zeros)["eta"] == 0
    found = measure(torch.ones(4), zeros)
    assert found["eta"] == torch.finfo(torch.float64).max
    assert not found["equal"]
    assert json.loads(json.dumps(found))["eta"] == found["eta"]


def test_huge_and_subnormal_values():
    for factor, name in ((2e38, "float32"), (1e-41, "float32"), (3e-7, "float16"), (6e4, "float16"), (1e300, "float64")):
        exact = exact_values((30, 30)).clamp(-1, 1) * factor
        found = measure(round_once(exact, getattr(torch, name)).to(getattr(torch, name)), exact)
        assert found["misplaced"] == 0
        assert all(math.isfinite(each) for each in (found["eta"], *four(found)))
        assert four(found) == four(found["control"])


def test_complex_values_count_as_two():
    parts = exact_values((20, 8, 2))
    exact = torch.view_as_complex(parts)
    output = (exact * (1 + 1e-6)).to(torch.complex64)
    found, plain = measure(output, exact), measure(torch.view_as_real(output).reshape(20, 16), parts.reshape(20, 16))
    assert found["elements"] == 160
    assert {**found, "dtype": "", "elements": 0} == {**plain, "dtype": "", "elements": 0}
    assert found["eta"] == pytest.approx(float((output - exact).norm() / exact.norm()))


def test_values_that_are_not_finite_are_left_out_and_counted():
    exact = exact_values((10, 10))
    output = exact.float()
    output[0, :3] = math.nan
    output[1, 0] = exact[1, 0] = math.inf
    output[1, 1] = exact[1, 1] = -math.inf
    found = measure(output, exact)
    assert (found["nonfinite"], found["misplaced"], found["equal"]) == (5, 3, False)
    assert found["eta"] < 1e-7


def test_a_nan_of_float64_alone_is_misplaced_and_no_infinite_error():
    exact = torch.tensor([1.0, math.nan, 1.0, 1.0], dtype=torch.float64)
    found = measure(torch.ones(4), exact)
    assert (found["nonfinite"], found["misplaced"], found["eta"]) == (1, 1, 0)
    found = measure(torch.full((4,), math.nan), torch.ones(4, dtype=torch.float64))
    assert (found["nonfinite"], found["misplaced"]) == (4, 4)


def test_what_the_type_cannot_hold_overflows_on_a_correct_side_too():
    exact = torch.tensor([1e5, -1e5, 1.0], dtype=torch.float64)
    found = measure(exact.to(torch.float16), exact)
    assert (found["nonfinite"], found["misplaced"], found["eta"]) == (2, 0, 0)
    assert measure(torch.tensor([65504.0, -math.inf, 1.0], dtype=torch.float16), exact)["misplaced"] == 1


def test_a_score_added_to_a_float16_mask_is_still_masked():
    scores = torch.linspace(-0.2, 0.2, 50, dtype=torch.float64).reshape(5, 10)
    exact = scores.clone()
    exact[:, 5:] += -65504.0  # beyond the largest float16, until it is rounded
    output = scores.to(torch.float16)
    output[:, 5:] = -65504.0
    found = measure(output, exact)
    assert (found["filled"], found["misplaced"]) == (25, 0)


@pytest.mark.parametrize("fill", [-1e9, -3.4028234663852886e38, -65504.0])
def test_mask_fills_are_left_out_and_counted(fill):
    exact = exact_values((10, 10))
    exact[:, 5:] = fill
    output = exact.float()
    output[0, 0] *= 1.5
    found = measure(output, exact)
    assert (found["filled"], found["misplaced"]) == (50, 0)
    kept = exact[:, :5]
    assert found["eta"] == pytest.approx(float((output[:, :5] - kept).norm() / kept.norm()))
    output[2, 7] = 0.5  # seen, where it should be masked
    assert measure(output, exact)["misplaced"] == 1
    output[2, 7] = -math.inf  # masked in another way
    assert measure(output, exact)["misplaced"] == 0


def test_whole_numbers_are_equal_or_not():
    exact = torch.tensor([1, 2, 3])
    assert measure(exact.clone(), exact)["equal"]
    found = measure(torch.tensor([1, 2, 4]), exact)
    assert (found["equal"], found["misplaced"], found["eta"], found["control"]) == (False, 1, None, None)
    assert measure(torch.tensor([True, False]), torch.tensor([True, False]))["equal"]


def test_the_scale_of_a_sum_that_cancels_is_that_of_its_terms():
    exact, terms = torch.tensor([1e-9, -1e-9], dtype=torch.float64), torch.tensor([3.0, 4.0], dtype=torch.float64)
    found = measure(torch.tensor([2e-7, -1e-9]), exact, terms)
    assert found["scale"] == 5
    assert found["eta"] == pytest.approx(1.99e-7 / 5, rel=1e-6)


def test_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"shape \(2,\) is recorded, float64 gives \(3,\)"):
        measure(torch.zeros(2), torch.zeros(3, dtype=torch.float64))


def test_without_the_residue_all_else_is_the_same():
    exact = torch.linspace(-3, 3, 60, dtype=torch.float64).reshape(6, 10)
    output = exact.float() * (1 + 1e-6)
    whole, short = measure(output, exact), measure(output, exact, residue=False)
    residues = {"variance", "slope", "curve", "largest", "control"}
    assert {name for name, value in short.items() if value is None} == residues
    assert {name: value for name, value in whole.items() if name not in residues} == {
        name: value for name, value in short.items() if name not in residues
    }


def test_what_rounds_a_value_in_the_same_way_a_thousand_times_counts_it_once():
    values = torch.linspace(0.5, 4.0, 200, dtype=torch.float64).bfloat16().double()
    exact = values.tanh().repeat(500)
    off = torch.tensor([0.0, 1.0, 0.0, -1.0], dtype=torch.float64).repeat(50).repeat(500)  # one ulp, here and there
    coarse = (exact + off * ulp_of(exact.clone(), format_of(torch.bfloat16))).to(torch.bfloat16)
    found = measure(coarse, exact)
    assert found["slope"] < 6
    assert found["curve"] < 16
    assert found["control"]["curve"] < 8
    scaled = measure((exact * 1.003).to(torch.bfloat16), exact)
    assert scaled["slope"] > 20


def test_without_repeated_values_each_element_counts():
    exact = exact_values((100, 100))
    found = measure((exact * 1.001).to(torch.bfloat16), exact)
    assert found["slope"] > 50
