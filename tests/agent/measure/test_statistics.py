import math

import ml_dtypes
import numpy as np
import pytest
import torch

from precflow.agent.contract import STATISTICS
from precflow.agent.measure import scratch
from precflow.agent.measure.statistics import (
    ROW,
    choose_row,
    finish_batch,
    finish_tensors,
    measure_any,
    measure_integers,
    reduce_batch,
    reduce_on_host,
)
from precflow.comparison.estimated import bounds
from precflow.comparison.estimated.bounds import ROUNDING
from precflow.comparison.estimated.kept_evidence import KeptTensor, sum_tensor
from precflow.dumps.records import Statistics

FLOATS = ["float32", "float64", "float16", "bfloat16"]
SHAPES = [(1,), (5,), (ROW,), (ROW + 1,), (3, 77, 200), (3, 5 * ROW)]
LARGE = {"float32": 1e25, "bfloat16": 1e25, "float16": 1000.0, "float64": 1e200}


def plant(**kinds):
    """Return a function that puts values into a flat tensor, by step and value."""

    def planted(flat, dtype):
        for place, (name, step) in enumerate(kinds.items()):
            flat[place::step] = {"least": torch.finfo(dtype).min, "most": torch.finfo(dtype).max}.get(name, 0.0)
        return flat

    return planted


def _nonfinite(flat, dtype):
    flat[::7], flat[1::9], flat[2::11] = math.nan, math.inf, -math.inf
    return flat


def _band(flat, dtype):
    flat[::3], flat[1::5], flat[2::13] = -65504.0, -65100.0, -64900.0
    return flat


def _no_band(flat, dtype):
    flat[::3], flat[1::5] = -65504.0, -60000.0
    return flat


def _positive_with_fill(flat, dtype):
    flat.abs_().add_(1)
    flat[0] = -torch.finfo(dtype).max
    return flat


def _negative_with_fill(flat, dtype):
    flat.abs_().add_(1).neg_()
    flat[0] = torch.finfo(dtype).max
    return flat


CONTENTS = {
    "ordinary": lambda flat, dtype: flat,
    "zeros": lambda flat, dtype: flat.zero_(),
    "minus zeros": lambda flat, dtype: flat.mul_(0).neg_(),
    "masked": plant(least=3, zero=7),
    "both ends": plant(least=3, most=4),
    "nonfinite": _nonfinite,
    "all NaN": lambda flat, dtype: flat.fill_(math.nan),
    "all masked": lambda flat, dtype: flat.fill_(torch.finfo(dtype).min),
    "16 bit fills": _band,
    "among numbers of their size": _no_band,
    "several constants": lambda flat, dtype: plant(least=3)(flat.index_fill_(0, torch.tensor([flat.numel() - 1]), -1e4), dtype),
    "1e8": lambda flat, dtype: flat.mul_(1e4 if dtype == torch.float16 else 1e8),
    "positive": _positive_with_fill,
    "negative": _negative_with_fill,
    "tiny": lambda flat, dtype: flat.mul_(1e-30),
    "tiny and masked": lambda flat, dtype: plant(least=3)(flat.mul_(1e-25), dtype),
    "huge": lambda flat, dtype: flat.mul_(LARGE[str(dtype).rpartition(".")[2]]),
    "infinite once": lambda flat, dtype: flat.index_fill_(0, torch.tensor([flat.numel() - 1]), math.inf),
}


def tensor(name, content, shape):
    dtype = getattr(torch, name)
    values = torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
    return CONTENTS[content](values.view(-1), dtype).view(shape)


def in_a_batch(flat):
    """Return the statistics as they are taken on a device."""
    (known,) = finish_batch(reduce_batch(flat.view(1, -1)))
    return measure_any(flat) if known is None else known


def on_the_host(flat):
    """Return the statistics as they are taken of a large tensor of the host."""
    sums = reduce_on_host(flat)
    return measure_any(flat) if sums is None else finish_tensors([sums])[0][0]


def named(known):
    """Return statistics by name; those of fills are left off where there are none."""
    return dict(zip(STATISTICS, [*known, None, None][: len(STATISTICS)], strict=True))


def found(values):
    return on_the_host(values.reshape(-1))


def expected(values):
    name = str(values.dtype).rpartition(".")[2]
    array = values.float().numpy().astype(ml_dtypes.bfloat16) if name == "bfloat16" else values.numpy()
    return sum_tensor(array, KeptTensor(name, tuple(values.shape))).statistics


def near(value, other, scale):
    if value is None or other is None:
        return value is None and (other is None or math.isinf(other))
    return abs(value - other) <= 3e-7 * abs(other) + scale


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("taken", [in_a_batch, on_the_host])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_kinds_and_sums_are_those_of_the_judge(name, content, taken):
    for shape in SHAPES:
        values = tensor(name, content, shape)
        mine, judges = named(taken(values.reshape(-1))), expected(values)
        if mine["zero"] is None:  # not counted: there are both signs, and nothing else that is special
            mine["zero"] = judges.zero
            assert judges.minimum <= 0 <= judges.maximum
        assert [mine[key] for key in STATISTICS[4:]] == [getattr(judges, key) for key in STATISTICS[4:]], shape
        assert (mine["minimum"], mine["maximum"]) == (judges.minimum, judges.maximum)
        assert near(mine["square"], judges.square, 0.0)  # 3e-7: a row is 512 values
        assert near(mine["sum"], judges.sum, 1e-7 * math.sqrt((judges.square or 0.0) * values.numel()) + 1e-45)


@pytest.mark.parametrize("name", FLOATS)
def test_both_ways_agree_on_ordinary_values(name):
    values = tensor(name, "ordinary", (3, 77, 200)).reshape(-1)
    (rows,), exact = finish_batch(reduce_batch(values.view(1, -1))), measure_any(values)
    assert rows[:2] == exact[:2]
    assert rows[4:8] + rows[9:] == exact[4:8] + exact[9:]
    assert rows[2:4] == pytest.approx(exact[2:4], rel=1e-7, abs=1e-3)


def test_only_what_is_not_ordinary_is_sorted():
    batch = torch.randn(6, 5000)
    batch[1, 7], batch[2, 4999], batch[3, 0], batch[4] = math.nan, -math.inf, torch.finfo(torch.float32).min, 1e-30
    assert [each is None for each in finish_batch(reduce_batch(batch))] == [False, True, True, True, True, False]


def test_a_batch_is_as_if_each_were_alone():
    batch = torch.randn(40, 5000)
    alone = [finish_batch(reduce_batch(row.view(1, -1)))[0] for row in batch]
    assert finish_batch(reduce_batch(batch)) == alone


@pytest.mark.parametrize("name", FLOATS)
def test_pieces_change_nothing(name, monkeypatch):
    values = tensor(name, "ordinary", (3, 5 * ROW)).view(-1)
    batch, alone = in_a_batch(values), on_the_host(values)
    monkeypatch.setattr("precflow.agent.measure.statistics.PIECE", 2 * ROW)
    assert in_a_batch(values) == batch == alone == on_the_host(values)


@pytest.mark.parametrize("place", [0, 3000, 4999])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e9])
def test_nothing_special_is_passed_over_in_any_piece(monkeypatch, place, value):
    monkeypatch.setattr("precflow.agent.measure.statistics.PIECE", 2 * ROW)
    values = torch.randn(5000)
    values[place] = value
    assert reduce_on_host(values) is None
    assert finish_batch(reduce_batch(values.view(1, -1))) == [None]


def test_zeros_are_told_where_they_cost_nothing():
    place = STATISTICS.index("zero")
    assert [found(values)[place] for values in (torch.ones(700), -torch.ones(700), torch.zeros(700))] == [0, 0, 700]
    assert found(torch.tensor([-1.0, 0.0, 1.0]))[place] is None


def test_tensors_of_many_sizes_are_added_up_as_if_alone():
    tensors = [torch.randn(size) for size in (1, 5000, 512, 5000, 70001, 1)] + [torch.randn(5000).double()]
    together = finish_tensors([reduce_on_host(each) for each in tensors])
    assert together == [finish_tensors([reduce_on_host(each)])[0] for each in tensors]
    assert len({data for _, data in together}) == len(tensors)


def test_constant_values_keep_their_sums():
    """Where every addition rounds the same way, float32 alone loses 1e-5 over a few thousand of them."""
    for value in (0.1, 1 / 3, 1e-5):
        values = torch.full((4, 77, 512), value)
        square = values.double().square().sum().item()
        assert found(values)[3] == pytest.approx(square, rel=2**-20)
        assert found(values)[2] == pytest.approx(values.double().sum().item(), rel=2**-20)


@pytest.mark.parametrize("row", [500, ROW])
def test_the_judge_allows_for_what_rows_of_few_bits_lose(row):
    """Constant values round the same way at every addition: nothing is worse for sums in float32."""
    generator = torch.Generator().manual_seed(row)
    for scale in torch.rand(100, generator=generator).tolist():
        values = torch.full((20 * row,), scale)
        sums = reduce_on_host(values, row)
        norms = values.double().view(-1, row).norm(dim=1)
        assert ((sums.norms - norms).abs() <= ROUNDING * norms).all()
        known = finish_tensors([sums])[0][0]
        kept = Statistics(*known[:8], zero=0, saturated=0)
        side = bounds.sum_side(KeptTensor("float32", (20 * row,), statistics=kept), 20 * row)
        norm = norms.square().sum().sqrt().item()
        assert abs(side.norm - norm) <= side.rounding * norm
        assert abs(side.total - values.double().sum().item()) <= side.rounding * abs(side.total)


@pytest.mark.parametrize("size", [1, 31, 32, 512, 513, 1000, 157696])
def test_rows_leave_a_rest_only_where_there_is_no_way_around(size):
    row = choose_row(size)
    assert 32 <= row <= ROW
    assert size % row == 0 or size % 32


def test_what_is_kept_between_calls_serves_in_and_out_of_inference_mode(monkeypatch):
    monkeypatch.setattr(scratch, "_thread", scratch._Thread())
    values = torch.randn(1, 5000).bfloat16()
    with torch.inference_mode():
        inside = finish_batch(reduce_batch(values))
    assert finish_batch(reduce_batch(values)) == inside


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_has_no_fills(name):
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    largest = torch.finfo(dtype).max
    values = torch.tensor([largest, -largest, 1.0, 0.0]).to(dtype)
    statistics = named(found(values))
    assert (statistics["maximum"], statistics["sentinel"], statistics["saturated"]) == (largest, 0, 2)


def test_large_means_do_not_cost_precision():
    """torch.norm in float32 is off by 4 % at 64 Mi values around 100."""
    values = torch.randn(4 << 20, generator=torch.Generator().manual_seed(0)) + 100
    exact = values.double()
    statistics = found(values)
    assert statistics[2] == pytest.approx(exact.sum().item(), rel=3e-8)
    assert statistics[3] == pytest.approx(exact.square().sum().item(), rel=3e-8)


@pytest.mark.parametrize("name", ["int64", "int32", "int16", "int8", "uint8", "bool", "uint16", "uint64"])
def test_whole_numbers_are_exact(name):
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this torch has no {name}")
    array = np.random.default_rng(0).integers(0, 2 if name == "bool" else 100, 70001).astype(name)
    numbers = [int(each) for each in array]
    found = measure_integers(torch.from_numpy(array))
    assert found[:4] == [min(numbers), max(numbers), sum(numbers), float(sum(each * each for each in numbers))]
    assert found[8] == numbers.count(0)
    assert found[4:8] + found[9:] == [0] * 7


def test_sums_of_large_whole_numbers_do_not_wrap():
    numbers = [2**62, 2**62, 2**62, -5]
    assert measure_integers(torch.tensor(numbers))[:3] == [-5, 2**62, sum(numbers)]
    if hasattr(torch, "uint64"):
        assert measure_integers(torch.tensor([2**64 - 1, 1], dtype=torch.uint64))[:3] == [1, 2**64 - 1, 2**64]
