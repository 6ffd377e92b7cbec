import math

import pytest
import torch

from precflow.agent.measure.sketch import SUMS, Sketches, added, row_norms, sized, sketch
from precflow.agent.measure.value_classes import Cleaning


class Kept:
    """Stands in for a writer: keeps what it is given."""

    def __init__(self):
        self.tensors = {}

    def stored(self, key):
        return key in self.tensors

    def tensor(self, key, tensor, *, owned):
        assert owned
        self.tensors[key] = tensor.clone()
        return True


def gaussian(seed, count):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("fine", [False, True])
def test_each_is_what_it_is_alone(fine):
    writer = Kept()
    sketches, expected = Sketches(writer), {}
    for number, count in enumerate([5000, 5000, 70_000, 5000, 2000]):
        scale = 1e-30 if number == 3 else 1.0
        values = gaussian(number, count) * scale
        clean = Cleaning(-100.0, 100.0, -99 if number == 3 else 0)
        largest = float(clean(values).abs().max()) if fine else 0.0
        parts, rows = sketch(values, clean, largest=largest), row_norms(values, 100, clean)
        sketches.add(str(number), parts, rows, clean)
        expected[f"{number}.sketch"], expected[f"{number}.rows"] = added(parts, clean), sized(rows, clean)
    sketches.store()
    assert list(writer.tensors) == list(expected)
    assert all(torch.equal(writer.tensors[key], each) for key, each in expected.items())
    assert writer.tensors["0.sketch"].shape == (1 + fine, SUMS)


def test_a_content_is_sketched_once():
    writer = Kept()
    sketches = Sketches(writer)
    assert sketches.lacks("one")
    sketches.add("one", torch.ones(1, 2, SUMS), torch.ones(3))
    assert not sketches.lacks("one")
    sketches.store()
    assert not sketches.lacks("one")
    assert sketches.lacks("other")
    before = dict(writer.tensors)
    sketches.store()
    assert list(writer.tensors) == list(before) == ["one.sketch", "one.rows"]


def test_what_float32_cannot_hold_is_left_out():
    """Values that are finite are kept, also where their float32 sum is not."""
    writer = Kept()
    sketches = Sketches(writer)
    sketches.add("large", torch.full((1, 1, SUMS), 3e38), torch.full((9,), 3e38))
    sketches.add("infinite", torch.full((1, 1, SUMS), math.inf), torch.full((9,), math.nan))
    sketches.add("wide", torch.full((1, 1, SUMS), 1e300, dtype=torch.float64), torch.ones(9, dtype=torch.float64))
    sketches.store()
    assert sorted(writer.tensors) == ["large.rows", "large.sketch", "wide.rows"]
    assert writer.tensors["wide.rows"].dtype == torch.float32


def test_without_a_writer_nothing_is_lacking():
    sketches = Sketches(None)
    assert not sketches.lacks("one")
    sketches.add("one", torch.ones(1, 2, SUMS), torch.ones(3))
    sketches.store()
    assert sketches._gathered == {}
