"""Judge and agent make the same sketch, statistics and row norms of a tensor, to the rounding of float32."""

import numpy as np
import pytest
import torch

from precflow.agent.contract import LARGEST, STATISTICS
from precflow.agent.measure import sketch as agent_sketch
from precflow.agent.measure import statistics as agent_statistics
from precflow.comparison.estimated.kept_evidence import KeptTensor, group_length, sum_tensor
from precflow.comparison.estimated.sketch import BLOCK, BUCKETS
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.records import Statistics

TYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
SPECIAL = (float("nan"), float("inf"), -float("inf"), -1e30, -65504.0, LARGEST["bfloat16"], 0.0)


def tensors(name, shape, special):
    """Return one tensor as torch and as NumPy have it."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)
    for number, value in enumerate(special):
        values.view(-1)[number * 7] = value
    made = values.to(getattr(torch, name))
    raw = made.contiguous().view(torch.uint8).numpy() if shape else made.view(1).view(torch.uint8).numpy()
    return made.reshape(-1), raw.reshape(-1).view(NUMPY_DTYPES[name]).reshape(shape)


def by_agent(flat, shape, *, fine):
    counted = Statistics(*agent_statistics.measure_any(flat))
    clean = agent_statistics.choose_cleaning(flat.dtype, counted.minimum, counted.maximum)
    largest = max(-(counted.minimum or 0.0), counted.maximum or 0.0) * 2.0**-clean.exponent
    parts = agent_sketch.add_pieces(agent_sketch.sketch(flat, clean, largest=largest if fine else 0.0), clean)
    rows = agent_sketch.row_norms(flat, agent_sketch.row_length(list(shape), flat.numel()), clean)
    return counted, parts.double().sum(0).numpy(), agent_sketch.undo_scaling(rows, clean).double().numpy()


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("special", [(), SPECIAL], ids=["ordinary", "special"])
@pytest.mark.parametrize("shape", [(300, 700), (3, 77, 64), (5000,), (3000, 5), (1,)], ids=str)
@pytest.mark.parametrize("name", TYPES)
def test_both_programs_know_the_same_of_a_tensor(name, shape, special, fine):
    flat, array = tensors(name, shape, special if len(shape) > 1 or shape[0] > 100 else ())
    known = sum_tensor(array, KeptTensor(name, shape))
    counted, sums, rows = by_agent(flat, shape, fine=fine)
    norm = np.sqrt(known.statistics.square)
    assert np.abs(known.sketch - sums).max() <= 2**-22 * norm
    assert rows == pytest.approx(known.rows, rel=1e-5, abs=1e-6)
    for field in STATISTICS[4:]:
        assert getattr(counted, field) == getattr(known.statistics, field), field
    for field in ("minimum", "maximum"):
        assert getattr(counted, field) == getattr(known.statistics, field), field
    assert counted.square == pytest.approx(known.statistics.square, rel=1e-6)
    assert counted.sum == pytest.approx(known.statistics.sum, abs=1e-6 * norm * np.sqrt(array.size))


def test_both_programs_group_rows_and_cut_blocks_alike():
    assert (agent_sketch.BUCKETS, agent_sketch.BLOCK) == (BUCKETS, BLOCK)
    for shape in [(3, 77, 768), (2048, 4), (5,), (), (1, 9), (1 << 21, 2), (7, 0)]:
        count = int(np.prod(shape))
        assert agent_sketch.row_length(list(shape), count) == group_length(shape, count)
        assert agent_sketch.row_length(list(shape), 2 * count) == group_length(shape, 2 * count)


def test_the_low_part_makes_differences_below_single_precision_visible():
    flat = torch.randn(100_000, generator=torch.Generator().manual_seed(3))
    other = flat * (1 + 1e-7)
    largest = float(flat.abs().max())
    fine, coarse = (
        [agent_sketch.add_pieces(agent_sketch.sketch(one, largest=size)).double().sum(0) for one in (flat, other)]
        for size in (largest, 0.0)
    )
    true = float((flat.double() - other.double()).norm())
    assert float((fine[0] - fine[1]).norm()) == pytest.approx(true, rel=0.15)
    assert float((coarse[0] - coarse[1]).norm()) < 2**-22 * float(flat.norm())
