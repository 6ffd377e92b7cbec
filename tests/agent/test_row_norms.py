import hashlib

import pytest
import torch

from precflow.agent.measuring import Ticket
from precflow.agent.row_norms import RowNorms, shared_row
from precflow.agent.sketch import STORED_WHOLE, row_length
from precflow.agent.statistics import ROW, at_once


class Kept:
    """Stands in for a writer: keeps what it is given."""

    def __init__(self):
        self.tensors = {}

    def tensor(self, key, tensor, *, owned):
        assert owned
        self.tensors[key] = tensor
        return True


def gathered(shapes):
    norms, tickets, expected = RowNorms(), [], []
    for seed, shape in enumerate(shapes):
        each = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        row = shared_row(each.shape, each.numel())
        sums = at_once(each.reshape(-1), row)
        tickets.append(Ticket("statistics", None))
        norms.add(tickets[-1], sums.norms, each.shape, each.numel(), row)
        expected.append(each.double().reshape(-1, row_length(each.shape, each.numel())).norm(dim=1))
    return norms, tickets, expected


def test_each_ticket_finds_the_norms_of_its_own_rows():
    norms, tickets, expected = gathered([(40, 300), (8, 2048), (30, 300), (4, 1536), (9, 512)])
    writer = Kept()
    norms.store(writer)
    (whole,) = writer.tensors.values()
    assert whole.dtype == torch.float32
    for ticket, rows in zip(tickets, expected, strict=True):
        key, start, count = ticket.row_norms
        assert key + ".rows" in writer.tensors
        assert torch.allclose(whole[start : start + count].double(), rows, rtol=1e-6)
    assert sum(ticket.row_norms[2] for ticket in tickets) == whole.numel()


def test_the_key_is_a_checksum_of_the_bytes():
    norms, tickets, _ = gathered([(40, 300), (8, 2048)])
    writer = Kept()
    norms.store(writer)
    ((key, whole),) = writer.tensors.items()
    assert key == hashlib.blake2b(whole.numpy().tobytes(), digest_size=16).hexdigest() + ".rows"
    assert {ticket.row_norms[0] + ".rows" for ticket in tickets} == {key}


def test_nothing_is_written_twice_or_where_there_is_nothing():
    norms, _, _ = gathered([(40, 300)])
    writer = Kept()
    norms.store(writer)
    norms.store(writer)
    RowNorms().store(writer)
    assert len(writer.tensors) == 1


def test_without_a_writer_what_is_gathered_is_let_go():
    norms, tickets, _ = gathered([(40, 300)])
    norms.store(None)
    writer = Kept()
    norms.store(writer)
    assert (writer.tensors, tickets[0].row_norms) == ({}, None)


@pytest.mark.parametrize(
    ("shape", "row"),
    [
        ((40, 300), 300),
        ((8, 2048), 512),
        ((8, 1000), 500),
        ((8, 509), 509),
        ((8, 521), 0),
        ((STORED_WHOLE,), 0),
        ((1536,), 512),
    ],
)
def test_rows_are_as_long_as_float32_can_add_up(shape, row):
    count = torch.Size(shape).numel()
    found = shared_row(shape, count)
    assert found == row
    assert found <= ROW
    assert not found or row_length(shape, count) % found == 0
