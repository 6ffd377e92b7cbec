"""What waits for a flush: sketches, and norms of rows, of which each ticket finds its own."""

import math
from types import SimpleNamespace

import pytest
import torch

from precflow.agent.measure.pending import PendingRowNorms, PendingSketches
from precflow.agent.measure.sketch import BUCKETS, add_pieces, row_length, row_norms, shared_row_length, sketch, undo_scaling
from precflow.agent.measure.value_classes import Cleaning


class Written:
    """A writer that keeps what it is given."""

    def __init__(self):
        self.entries = {}

    def stored(self, key):
        return key in self.entries

    def tensor(self, key, tensor, *, owned):
        assert owned
        assert key not in self.entries
        self.entries[key] = tensor.clone()


def gathered(norms, shape, seed=0):
    """Add the norms of a random tensor; return its ticket and the norms that are to be found."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).reshape(-1)
    ticket, row = SimpleNamespace(row_norms=None), shared_row_length(shape, values.numel())
    norms.add(ticket, row_norms(values, row or 1), shape, values.numel(), row)
    return ticket, row_norms(values, row_length(shape, values.numel()))


@pytest.mark.parametrize("shape", [(300, 100), (4, 2048), (10, 3000), (2500, 4)])
def test_a_ticket_finds_the_norms_of_its_rows(shape):
    norms, writer = PendingRowNorms(), Written()
    ticket, expected = gathered(norms, shape)
    norms.store(writer)
    key, start, count = ticket.row_norms
    found = writer.entries[f"{key}.rows"]
    assert (start, count, found.dtype) == (0, expected.numel(), torch.float32)
    assert torch.allclose(found, expected, rtol=1e-6)


def test_all_tensors_of_a_flush_share_one_entry_whatever_their_rows_are_made_of():
    norms, writer = PendingRowNorms(), Written()
    shapes = [(4, 2048), (300, 100), (10, 3000), (40, 50), (4, 2048)]
    made = [gathered(norms, shape, seed) for seed, shape in enumerate(shapes)]
    norms.store(writer)
    ((key, found),) = writer.entries.items()
    taken = []
    for ticket, expected in made:
        name, start, count = ticket.row_norms
        assert f"{name}.rows" == key
        assert torch.allclose(found[start : start + count], expected, rtol=1e-6)
        taken += range(start, start + count)
    assert sorted(taken) == list(range(found.numel())), "every norm is one ticket's"


def test_equal_norms_have_an_equal_key_and_others_another():
    keys = []
    for seed in (0, 0, 1):
        norms, writer = PendingRowNorms(), Written()
        gathered(norms, (300, 100), seed)
        norms.store(writer)
        keys += writer.entries
    assert keys[0] == keys[1] != keys[2]


def test_what_has_been_stored_is_not_stored_again():
    norms, first, second = PendingRowNorms(), Written(), Written()
    gathered(norms, (300, 100))
    norms.store(first)
    norms.store(second)
    assert (len(first.entries), second.entries) == (1, {})


def test_without_a_writer_they_are_let_go():
    norms, writer = PendingRowNorms(), Written()
    ticket, _ = gathered(norms, (300, 100))
    norms.store(None)
    norms.store(writer)
    assert (ticket.row_norms, writer.entries) == (None, {})


def test_a_tensor_without_rows_adds_nothing():
    norms, writer = PendingRowNorms(), Written()
    ticket, _ = gathered(norms, (2, 3))
    norms.store(writer)
    assert (ticket.row_norms, writer.entries) == (None, {})


def gaussian(seed, count):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("fine", [False, True])
def test_each_is_what_it_is_alone(fine):
    writer = Written()
    sketches, expected = PendingSketches(writer), {}
    for number, count in enumerate([5000, 5000, 70_000, 5000, 2000]):
        scale = 1e-30 if number == 3 else 1.0
        values = gaussian(number, count) * scale
        clean = Cleaning(-100.0, 100.0, -99 if number == 3 else 0)
        largest = float(clean(values).abs().max()) if fine else 0.0
        parts, rows = sketch(values, clean, largest=largest), row_norms(values, 100, clean)
        sketches.add(str(number), parts, rows, clean)
        expected[f"{number}.sketch"], expected[f"{number}.rows"] = add_pieces(parts, clean), undo_scaling(rows, clean)
    sketches.store()
    assert list(writer.entries) == list(expected)
    assert all(torch.equal(writer.entries[key], each) for key, each in expected.items())
    assert writer.entries["0.sketch"].shape == (1 + fine, BUCKETS)


def test_a_content_is_sketched_once():
    writer = Written()
    sketches = PendingSketches(writer)
    assert sketches.lacks("one")
    sketches.add("one", torch.ones(1, 2, BUCKETS), torch.ones(3))
    assert not sketches.lacks("one")
    sketches.store()
    assert not sketches.lacks("one")
    assert sketches.lacks("other")
    before = dict(writer.entries)
    sketches.store()
    assert list(writer.entries) == list(before) == ["one.sketch", "one.rows"]


def test_what_float32_cannot_hold_is_left_out():
    """Values that are finite are kept, also where their float32 sum is not."""
    writer = Written()
    sketches = PendingSketches(writer)
    sketches.add("large", torch.full((1, 1, BUCKETS), 3e38), torch.full((9,), 3e38))
    sketches.add("infinite", torch.full((1, 1, BUCKETS), math.inf), torch.full((9,), math.nan))
    sketches.add("wide", torch.full((1, 1, BUCKETS), 1e300, dtype=torch.float64), torch.ones(9, dtype=torch.float64))
    sketches.store()
    assert sorted(writer.entries) == ["large.rows", "large.sketch", "wide.rows"]
    assert writer.entries["wide.rows"].dtype == torch.float32


def test_without_a_writer_nothing_is_lacking():
    sketches = PendingSketches(None)
    assert not sketches.lacks("one")
    sketches.add("one", torch.ones(1, 2, BUCKETS), torch.ones(3))
    sketches.store()
    assert sketches._gathered == {}
