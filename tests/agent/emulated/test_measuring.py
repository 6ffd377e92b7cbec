"""BatchMeasurer on a device that computes behind the program's back: one copy a flush, the same numbers as on the CPU."""

import math

import pytest
import safetensors.torch
import torch

from precflow.agent.contract import STATISTICS
from precflow.agent.dump.writer import Writer
from precflow.agent.measure import batching
from precflow.agent.measure.batching import BatchMeasurer
from precflow.agent.measure.checksums import block_checksums, wraps
from precflow.agent.measure.content_id import content_id
from precflow.agent.measure.parts import choose_part

# Terms of random sign cancel in a sum: its rounding goes with their norm (46 000 of them: 4e-5 where the sum happens to be 2).
SUM, SQUARE = STATISTICS.index("sum"), STATISTICS.index("square")
TENSORS = [
    torch.linspace(-3, 5, 7),
    torch.randn(33, 77),
    torch.randn(33, 77).t(),
    torch.randn(3, 77, 200),
    torch.randn(3, 77, 200).half(),
    torch.randn(5, 999).bfloat16(),
    torch.arange(40).reshape(5, 8),
    torch.tensor([True, False, True]),
    torch.randn(6, 600, dtype=torch.complex64),
    torch.full((70, 70), torch.finfo(torch.float32).min).triu(1) + torch.randn(70, 70),
    torch.randn(60, 60).masked_fill(torch.eye(60).bool(), float("nan")),
    torch.zeros(0, 4),
]


@pytest.fixture
def copies(monkeypatch):
    """Count what comes from the device to the host."""
    seen = []
    cpu = torch.Tensor.cpu

    def counted(self, *positional, **named):
        if self.device.type != "cpu":
            seen.append(tuple(self.shape))
        return cpu(self, *positional, **named)

    monkeypatch.setattr(torch.Tensor, "cpu", counted)
    return seen


def measured(folder, device, detail):
    folder.mkdir()
    writer = Writer(str(folder))
    writer.open_step(0, 0)
    measuring = BatchMeasurer(writer)
    tickets = [measuring.measure(tensor.to(device), detail) for tensor in TENSORS]
    measuring.flush()
    writer.seal({})
    stored = {}
    for shard in folder.glob("rank0/step0/*.safetensors"):
        stored.update(safetensors.torch.load_file(str(shard)))
    return tickets, stored


@pytest.mark.parametrize("detail", ["digest", "statistics", "sketch", "tensors"])
def test_a_device_measures_as_the_processor_does(npu, tmp_path, detail):
    (mine, kept), (others, expected) = (measured(tmp_path / device, device, detail) for device in ("npu", "cpu"))
    assert [ticket.content for ticket in mine] == [ticket.content for ticket in others]
    for ticket, other in zip(mine, others, strict=True):
        assert (ticket.statistics is None) == (other.statistics is None)
        if ticket.statistics is not None:
            numbers = list(other.statistics)
            if numbers[SUM] is not None:
                rounding = 2.0**-20 * math.sqrt(numbers[SQUARE] or 0)
                numbers[SUM] = pytest.approx(numbers[SUM], rel=1e-5, abs=rounding)
                assert ticket.statistics[SUM] == numbers[SUM]
                numbers[SUM] = ticket.statistics[SUM]
            assert ticket.statistics == pytest.approx(numbers, rel=1e-5)
    if detail == "statistics":  # norms of rows are named by their own bytes, and gathered in another order
        kept, expected = norms(mine, kept), norms(others, expected)
        assert len(kept) > 1
    assert kept.keys() == expected.keys()
    for key, tensor in kept.items():
        assert torch.allclose(tensor, expected[key], rtol=1e-5, atol=1e-5, equal_nan=True)


def norms(tickets, stored):
    """Return the norms of rows of each ticket that has some, by its place."""
    found = {}
    for place, ticket in enumerate(tickets):
        if ticket.row_norms is not None:
            key, start, count = ticket.row_norms
            found[place] = stored[key + ".rows"][start : start + count]
    return found


def test_ordinary_tensors_come_with_one_copy_a_flush(npu, copies):
    tensors = [tensor.to("npu") for tensor in TENSORS[:6]]
    wraps(tensors[0].device)
    copies.clear()
    measuring = BatchMeasurer(None)
    for tensor in tensors * 3:
        measuring.measure(tensor, "statistics")
    assert copies == []
    measuring.flush()
    assert len(copies) == 1


def test_a_tensor_may_be_written_to_before_the_flush(npu):
    tensor = torch.ones(5000, device="npu")
    measuring = BatchMeasurer(None)
    ticket = measuring.measure(tensor, "sketch")
    tensor.zero_()
    measuring.flush()
    assert ticket.content == content_id(torch.ones(5000))
    assert ticket.statistics[:3] == [1.0, 1.0, 5000.0]


def test_parts_are_taken_on_the_device(npu):
    tensor, kept = torch.randn(300, 1000), choose_part((300, 1000), "[:7]", 1.0)
    measuring = BatchMeasurer(None)
    ticket = measuring.measure(tensor.to("npu"), "sketch", kept)
    measuring.flush()
    assert ticket.content == content_id(tensor)
    assert ticket.statistics[:2] == [tensor[:7].min().item(), tensor[:7].max().item()]


def test_a_device_that_does_not_wrap_leaves_its_checksums_to_the_host(npu, monkeypatch):
    tensor = torch.randn(33, 77)
    device = tensor.to("npu").device
    monkeypatch.setattr("precflow.agent.measure.checksums._wrapping", {device: False, torch.device("cpu"): True})
    assert block_checksums(tensor.to("npu")).device.type == "cpu"
    measuring = BatchMeasurer(None)
    tickets = [measuring.measure(tensor.to("npu"), "digest") for _ in range(2)]
    measuring.flush()
    assert [ticket.content for ticket in tickets] == [content_id(tensor)] * 2


def test_large_tensors_are_measured_at_once(npu, monkeypatch):
    monkeypatch.setattr(batching, "PIECE_BYTES", 1000)
    tensor = torch.randn(5000)
    ticket = BatchMeasurer(None).measure(tensor.to("npu"), "sketch")
    assert ticket.content == content_id(tensor)
