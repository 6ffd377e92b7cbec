import pytest
import torch

from precflow.agent.capture.lineage import Storages
from precflow.agent.capture.measurement_cache import MeasurementCache
from precflow.agent.dump.writer import Writer
from precflow.agent.measure.batching import BatchMeasurer
from precflow.agent.measure.content_id import content_id


@pytest.fixture
def measured(monkeypatch):
    """Count how often a tensor is measured."""
    seen = []
    measure = BatchMeasurer.measure

    def counted(self, tensor, detail, kept=None):
        seen.append(tuple(tensor.shape))
        return measure(self, tensor, detail, kept)

    monkeypatch.setattr(BatchMeasurer, "measure", counted)
    return seen


def of(contents, tensor, detail="digest"):
    ticket = contents.measure(tensor, detail)
    contents.flush()
    return ticket.content


def test_a_tensor_is_measured_once(measured):
    contents, tensor = MeasurementCache(None, Storages()), torch.ones(3)
    assert of(contents, tensor) == of(contents, tensor) == of(contents, tensor.detach()) == content_id(tensor)
    assert len(measured) == 1


def test_in_a_group_of_processes_every_look_is_a_new_one(measured, tmp_path):
    """Collectives write in place without being counted, as ``data`` does here."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        contents, tensor = MeasurementCache(None, Storages()), torch.ones(3)
        before = of(contents, tensor)
        tensor.data.add_(1)
        assert of(contents, tensor) == content_id(tensor) != before
    finally:
        torch.distributed.destroy_process_group()
    contents.clear()
    assert of(contents, tensor) == of(contents, tensor)
    assert len(measured) == 3


def test_a_write_through_any_view_is_seen(measured):
    contents, tensor = MeasurementCache(None, Storages()), torch.ones(2, 3)
    of(contents, tensor)
    tensor[0].mul_(2)
    assert of(contents, tensor) == content_id(tensor)
    tensor.view(6)[5] = 9
    assert of(contents, tensor) == content_id(tensor)
    assert len(measured) == 3


def test_a_write_past_the_version_counter_is_seen_when_it_is_reported():
    contents, tensor = MeasurementCache(None, Storages()), torch.ones(3)
    of(contents, tensor)
    alias = tensor.data
    alias.add_(1)
    contents.note_write(alias)
    assert of(contents, tensor) == content_id(tensor)


def test_views_are_told_apart(measured):
    contents, tensor = MeasurementCache(None, Storages()), torch.arange(6.0).reshape(2, 3)
    views = [tensor, tensor.t(), tensor[0], tensor[1], tensor.view(6)]
    assert [of(contents, view) for view in views] == [content_id(view) for view in views]
    assert len(measured) == 5


def test_memory_that_is_used_again_is_hashed_again():
    contents = MeasurementCache(None, Storages())
    for value in range(20):
        tensor = torch.full((1000,), float(value))
        assert of(contents, tensor) == content_id(tensor)
        del tensor


def test_inference_tensors_are_never_remembered(measured):
    contents = MeasurementCache(None, Storages())
    with torch.inference_mode():
        tensor = torch.ones(2)
        of(contents, tensor)
        tensor.add_(1)
        assert of(contents, tensor) == content_id(tensor)
    assert len(measured) == 2


def test_tensors_are_stored_when_asked_and_once(tmp_path):
    writer = Writer(str(tmp_path))
    writer.open_step(0, 0)
    contents, tensor = MeasurementCache(writer, Storages()), torch.arange(6.0).reshape(2, 3).t()
    content = of(contents, tensor)
    assert not writer.stored(content)
    assert of(contents, tensor, "tensors") == content
    assert of(contents, tensor.clone(), "tensors") == content
    assert writer.counts["tensors"] == 1


def test_a_tensor_is_measured_again_where_more_is_asked_for(measured):
    contents, tensor = MeasurementCache(None, Storages()), torch.arange(6.0)
    details = ("statistics", "digest", "statistics", "sketch", "statistics", "tensors")
    for detail, times in zip(details, (1, 2, 2, 3, 3, 4), strict=True):
        contents.measure(tensor, detail)
        assert len(measured) == times, detail


def test_tensors_without_bytes_are_described_and_no_more(measured):
    assert of(MeasurementCache(None, Storages()), torch.empty(3, device="meta"), "tensors") == ""
    assert measured == []


def test_forgetting_changes_no_answer(measured):
    contents, tensor = MeasurementCache(None, Storages()), torch.ones(3)
    first = of(contents, tensor)
    contents.clear()
    assert of(contents, tensor) == first
    assert len(measured) == 2


def test_storages_that_are_gone_are_forgotten():
    storages, kept = Storages(), torch.ones(3)
    contents = MeasurementCache(None, storages)
    of(contents, kept)
    for value in range(50):
        contents.measure(torch.full((3,), float(value)), "digest")
    contents.flush()
    storages.purge()
    assert len(contents._tickets) == 1


def test_a_sparse_tensor_is_measured_as_the_dense_one_that_it_stands_for():
    contents, dense = MeasurementCache(None, Storages()), torch.tensor([[0.0, 0.0], [3.0, 4.0], [5.0, 6.0]])
    rows, values = [2, 1, 1], [[5.0, 6.0], [1.0, 1.0], [2.0, 3.0]]  # a row that is named twice adds up
    assert of(contents, torch.sparse_coo_tensor([rows], values, (3, 2))) == content_id(dense)
