"""Norms of rows: of which rows they are taken, and where tickets find theirs."""

from types import SimpleNamespace

import pytest
import torch

from precflow.agent.measure.row_norms import RowNorms, shared_row
from precflow.agent.measure.sketch import row_length, row_norms
from precflow.agent.measure.statistics import ROW


class Written:
    """A writer that keeps what it is given."""

    def __init__(self):
        self.entries = {}

    def tensor(self, key, tensor, *, owned):
        assert owned
        assert key not in self.entries
        self.entries[key] = tensor


def gathered(norms, shape, seed=0):
    """Add the norms of a random tensor; return its ticket and the norms that are to be found."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).reshape(-1)
    ticket, row = SimpleNamespace(row_norms=None), shared_row(shape, values.numel())
    norms.add(ticket, row_norms(values, row or 1), shape, values.numel(), row)
    return ticket, row_norms(values, row_length(shape, values.numel()))


@pytest.mark.parametrize("shape", [(300, 100), (4, 2048), (10, 3000), (2500, 4), (2048, 2, 3), (3, 77, 768), (70400,)])
def test_norms_of_a_tensor_s_rows_follow_from_the_rows_that_statistics_add_up(shape):
    count = torch.Size(shape).numel()
    row = shared_row(shape, count)
    assert 0 < row <= ROW
    assert row_length(shape, count) % row == 0


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (32, 32), (3, 5003), (0, 700)])
def test_small_tensors_and_rows_that_cannot_be_cut_have_none(shape):
    assert shared_row(shape, torch.Size(shape).numel()) == 0


def test_a_complex_row_has_two_values_an_element():
    assert row_length((300, 100), 60_000) == 2 * row_length((300, 100), 30_000)
    assert shared_row((300, 100), 60_000) == 200


@pytest.mark.parametrize("shape", [(300, 100), (4, 2048), (10, 3000), (2500, 4)])
def test_a_ticket_finds_the_norms_of_its_rows(shape):
    norms, writer = RowNorms(), Written()
    ticket, expected = gathered(norms, shape)
    norms.store(writer)
    key, start, count = ticket.row_norms
    found = writer.entries[f"{key}.rows"]
    assert (start, count, found.dtype) == (0, expected.numel(), torch.float32)
    assert torch.allclose(found, expected, rtol=1e-6)


def test_all_tensors_of_a_flush_share_one_entry_whatever_their_rows_are_made_of():
    norms, writer = RowNorms(), Written()
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
        norms, writer = RowNorms(), Written()
        gathered(norms, (300, 100), seed)
        norms.store(writer)
        keys += writer.entries
    assert keys[0] == keys[1] != keys[2]


def test_what_has_been_stored_is_not_stored_again():
    norms, first, second = RowNorms(), Written(), Written()
    gathered(norms, (300, 100))
    norms.store(first)
    norms.store(second)
    assert (len(first.entries), second.entries) == (1, {})


def test_without_a_writer_they_are_let_go():
    norms, writer = RowNorms(), Written()
    ticket, _ = gathered(norms, (300, 100))
    norms.store(None)
    norms.store(writer)
    assert (ticket.row_norms, writer.entries) == (None, {})


def test_a_tensor_without_rows_adds_nothing():
    norms, writer = RowNorms(), Written()
    ticket, _ = gathered(norms, (2, 3))
    norms.store(writer)
    assert (ticket.row_norms, writer.entries) == (None, {})
