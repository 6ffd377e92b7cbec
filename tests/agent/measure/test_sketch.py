import importlib.util
import math
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from precflow.agent.measure.checksums import mix32, mix32_of
from precflow.agent.measure.sketch import (
    BLOCK,
    BUCKETS,
    MOST_ROWS,
    STRETCH,
    add_pieces,
    join_rows,
    row_length,
    row_norms,
    shared_row_length,
    sketch,
    undo_scaling,
)
from precflow.agent.measure.statistics import ROW, choose_cleaning, measure_any
from precflow.agent.measure.value_classes import Cleaning
from precflow.comparison.estimated.kept_evidence import KeptTensor, group_length, sum_tensor

SCRIPT = Path(__file__).parents[3] / "benchmarks/sketch.py"
SPEC = importlib.util.spec_from_file_location("sketch_benchmark", SCRIPT)
BENCHMARK = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(BENCHMARK)
PAGE = Path(__file__).parents[3] / "docs/estimates.md"
ONE = 1 / math.sqrt(2 * BUCKETS)


def gaussian(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_there_are_seventeen_structured_differences():
    assert len(BENCHMARK.DIFFERENCES) == 17


@pytest.mark.parametrize("name", BENCHMARK.DIFFERENCES)
def test_the_norm_of_structured_differences_is_estimated(name):
    found = BENCHMARK.errors(name)
    assert BENCHMARK.rms(found) <= 1.25 * ONE
    assert max(map(abs, found)) <= 5 * ONE
    told = re.search(rf"^\| {re.escape(name)} \| (\S+)% \| (\S+)% \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [float(number) for number in told.groups()] == pytest.approx(
        [100 * BENCHMARK.rms(found), 100 * max(map(abs, found))], abs=0.1
    )


@pytest.mark.parametrize("size", [1, BUCKETS, BUCKETS + 1, 5000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
def test_sums_are_those_of_the_judge(name, size):
    values = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(getattr(torch, name))
    array = values.float().numpy().astype(ml_dtypes.bfloat16) if name == "bfloat16" else values.numpy()
    judges = sum_tensor(array, KeptTensor(name, (size,))).sketch
    found = add_pieces(sketch(values))
    assert (found.dtype, found.shape) == (torch.float32, (1, BUCKETS))
    assert np.abs(found.double().numpy()[0] - judges).max() <= 1e-6 * max(np.abs(judges).max(), 1e-3)


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_is_sketched_as_the_same_values_in_a_wider_type(name, fine):
    values = gaussian(0, 3000).to(getattr(torch, name))
    largest = float(values.float().abs().max()) if fine else 0.0
    assert torch.equal(sketch(values, largest=largest), sketch(values.float(), largest=largest))


def test_a_sketch_is_linear():
    one, other = gaussian(0, 3 * BLOCK + 5), gaussian(1, 3 * BLOCK + 5)
    difference = add_pieces(sketch(one)) - add_pieces(sketch(other))
    assert torch.allclose(difference, add_pieces(sketch(one - other)), atol=1e-3)


@pytest.mark.parametrize("relative", [1e-5, 1e-6, 3e-7])
@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_small_differences_are_held_by_plain_sums(relative, mean):
    one = gaussian(0, 473088) + mean
    other = one + gaussian(1, 473088) * relative * one.norm() / one.numel() ** 0.5
    true = float((one.double() - other.double()).norm())
    found = float((add_pieces(sketch(one)) - add_pieces(sketch(other))).double().norm())
    assert 0.85 < found / true < 1.25


@pytest.mark.parametrize("mean", [0.0, 3.0])
def test_a_grid_holds_differences_of_one_part_in_ten_million(mean):
    one = gaussian(0, 473088) + mean
    other = one + gaussian(1, 473088) * 1e-7 * one.norm() / one.numel() ** 0.5
    largest = float(max(one.abs().max(), other.abs().max()))
    true = float((one.double() - other.double()).norm())
    parts = [add_pieces(sketch(each, largest=largest)).double() for each in (one, other)]
    assert parts[0].shape == (2, BUCKETS)
    assert 0.85 < float((parts[0] - parts[1]).sum(0).norm()) / true < 1.15


def test_both_parts_of_a_grid_are_the_whole():
    values = gaussian(0, BLOCK + 100)
    parts = add_pieces(sketch(values, largest=float(values.abs().max()))).double().sum(0)
    assert torch.allclose(parts, add_pieces(sketch(values))[0].double(), atol=1e-4)


@pytest.mark.parametrize("other", [math.nan, math.inf, -math.inf, -3.4e38, -65504.0])
def test_only_ordinary_values_enter(other):
    values = gaussian(0, BLOCK + 9)
    values[::13] = 0
    clean = add_pieces(sketch(values))
    values[::13] = other
    fills = Cleaning(-100.0, 100.0)
    assert torch.equal(add_pieces(sketch(values, fills), fills), clean)
    length = row_length([77, 847], 77 * 847)
    norms = row_norms(torch.where(values == other, 0.0, values).nan_to_num(0.0, 0.0, 0.0)[: 77 * 847], length)
    assert torch.equal(row_norms(values[: 77 * 847], length, fills), norms)


@pytest.mark.parametrize("scale", [1e-30, 1e25])
def test_values_whose_squares_leave_the_range_are_sized(scale):
    values = gaussian(0, BLOCK + 9) * scale
    clean = choose_cleaning(values.dtype, *measure_any(values)[:2])
    assert clean.exponent != 0
    wanted = sum_tensor(values.numpy(), KeptTensor("float32", (values.numel(),)))
    assert add_pieces(sketch(values, clean), clean)[0].double().numpy() == pytest.approx(
        wanted.sketch, rel=1e-4, abs=1e-4 * scale
    )
    assert undo_scaling(row_norms(values, values.numel(), clean), clean).tolist() == pytest.approx(
        wanted.rows.tolist(), rel=1e-6
    )


SHAPES = [(), (5,), (3, 77, 200), (2048, 4), (70000, 3), (1, 300000), (5000, 1), ((1 << 20) + 9, 1), (2, 0)]


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_grouped_as_by_the_judge(shape):
    size = math.prod(shape)
    assert row_length(list(shape), size) == group_length(shape, size)
    assert row_length(list(shape), 2 * size) == group_length(shape, 2 * size)
    assert -(-size // row_length(list(shape), size)) <= MOST_ROWS


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_norms_of_rows_are_those_of_the_judge(shape, name):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(getattr(torch, name))
    array = values.float().numpy().astype(ml_dtypes.bfloat16) if name == "bfloat16" else values.numpy()
    judges = sum_tensor(np.asarray(array), KeptTensor(name, shape)).rows
    found = row_norms(values.reshape(-1), row_length(list(shape), values.numel()))
    assert found.double().numpy() == pytest.approx(judges, rel=1e-6)


def test_norms_of_long_rows_are_taken_in_pieces(monkeypatch):
    values = gaussian(3, 2, 5000) + 10
    monkeypatch.setattr("precflow.agent.measure.sketch._AT_ONCE", 700)
    assert row_norms(values.view(-1), 5000).tolist() == pytest.approx(values.double().norm(dim=1).tolist(), rel=1e-6)


def test_the_table_has_a_line_for_each_difference(monkeypatch):
    monkeypatch.setattr(BENCHMARK, "SEEDS", 2)
    lines = list(BENCHMARK.table())
    assert len(lines) == 2 + len(BENCHMARK.DIFFERENCES) == 19
    assert all(line.startswith(("| ", "|---")) for line in lines)


@pytest.mark.parametrize("length", [1, 7, 512, 2048, 3000])
def test_norms_of_longer_rows_follow_from_those_of_their_parts(length):
    values = torch.randn(6 * length)
    parts = row_norms(values, max(1, length // 2) if length % 2 == 0 else length)
    number = len(parts) // 6
    assert torch.allclose(join_rows(parts, number).float(), row_norms(values, length), rtol=1e-6)


@pytest.mark.parametrize("size", [1, 508, 65151, STRETCH - 1, STRETCH, STRETCH + 1, 5 * STRETCH + 70001])
def test_stretches_are_as_if_each_block_were_alone(size):
    values = torch.randn(size, generator=torch.Generator().manual_seed(1))
    signs = (1 - 2 * (mix32(torch.arange((1 << 20) + BLOCK, dtype=torch.int32)) & 1)).double()
    expected = torch.zeros(BUCKETS, dtype=torch.float64)
    for number, start in enumerate(range(0, size, BLOCK)):
        some, offset = values[start : start + BLOCK].double(), mix32_of(number) % (1 << 20)
        signed = some * signs[offset : offset + len(some)]
        expected.index_add_(0, torch.arange(len(some)) % BUCKETS, signed)
    assert add_pieces(sketch(values))[0].double() == pytest.approx(expected, rel=1e-5, abs=1e-3)


def test_memory_that_is_used_again_holds_nothing_of_before():
    first = sketch(torch.full((3000,), 1e30))
    assert first.abs().max() > 0
    assert sketch(torch.zeros(2999)).abs().max() == 0


@pytest.mark.parametrize("shape", [(300, 100), (4, 2048), (10, 3000), (2500, 4), (2048, 2, 3), (3, 77, 768), (70400,)])
def test_norms_of_a_tensor_s_rows_follow_from_the_rows_that_statistics_add_up(shape):
    count = torch.Size(shape).numel()
    row = shared_row_length(shape, count)
    assert 0 < row <= ROW
    assert row_length(shape, count) % row == 0


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (32, 32), (3, 5003), (0, 700)])
def test_small_tensors_and_rows_that_cannot_be_cut_have_none(shape):
    assert shared_row_length(shape, torch.Size(shape).numel()) == 0


def test_a_complex_row_has_two_values_an_element():
    assert row_length((300, 100), 60_000) == 2 * row_length((300, 100), 30_000)
    assert shared_row_length((300, 100), 60_000) == 200
