import pytest
import torch

from precflow.agent.capture import contents as contents_module
from precflow.agent.capture.contents import Contents
from precflow.agent.digest import content_id


@pytest.fixture
def hashed(monkeypatch):
    """Count how often a tensor is hashed."""
    seen = []

    def counted(host):
        seen.append(tuple(host.shape))
        return content_id(host)

    monkeypatch.setattr(contents_module, "content_id", counted)
    return seen


class Kept:
    """A writer that keeps tensors in memory."""

    def __init__(self):
        self.tensors = {}

    def stored(self, content):
        return content in self.tensors

    def tensor(self, content, tensor):
        self.tensors[content] = tensor.clone()
        return True


def of(contents, tensor):
    return contents.of(tensor, store=False)[0]


def test_a_tensor_is_hashed_once(hashed):
    contents, tensor = Contents(None), torch.ones(3)
    assert of(contents, tensor) == of(contents, tensor) == of(contents, tensor.detach()) == content_id(tensor)
    assert len(hashed) == 1


def test_a_write_through_any_view_is_seen(hashed):
    contents, tensor = Contents(None), torch.ones(2, 3)
    of(contents, tensor)
    tensor[0].mul_(2)
    assert of(contents, tensor) == content_id(tensor)
    tensor.view(6)[5] = 9
    assert of(contents, tensor) == content_id(tensor)
    assert len(hashed) == 3


def test_a_write_past_the_version_counter_is_seen_when_it_is_reported():
    contents, tensor = Contents(None), torch.ones(3)
    of(contents, tensor)
    alias = tensor.data
    alias.add_(1)
    contents.written(alias)
    assert of(contents, tensor) == content_id(tensor)


def test_views_are_told_apart(hashed):
    contents, tensor = Contents(None), torch.arange(6.0).reshape(2, 3)
    views = [tensor, tensor.t(), tensor[0], tensor[1], tensor.view(6)]
    assert [of(contents, view) for view in views] == [content_id(view) for view in views]
    assert len(hashed) == 5


def test_memory_that_is_used_again_is_hashed_again():
    contents = Contents(None)
    for value in range(20):
        tensor = torch.full((1000,), float(value))
        assert of(contents, tensor) == content_id(tensor)
        del tensor


def test_inference_tensors_are_never_remembered(hashed):
    contents = Contents(None)
    with torch.inference_mode():
        tensor = torch.ones(2)
        of(contents, tensor)
        tensor.add_(1)
        assert of(contents, tensor) == content_id(tensor)
    assert len(hashed) == 2


def test_tensors_are_stored_when_asked_and_once():
    kept = Kept()
    contents, tensor = Contents(kept), torch.arange(6.0).reshape(2, 3).t()
    assert contents.of(tensor, store=False)[1] is False
    assert kept.tensors == {}
    content, stored = contents.of(tensor, store=True)
    assert stored is True
    assert torch.equal(kept.tensors[content], tensor)
    assert contents.of(tensor.clone(), store=True) == (content, True)


def test_without_a_writer_nothing_is_stored():
    assert Contents(None).of(torch.ones(1), store=True) == (content_id(torch.ones(1)), False)


def test_tensors_without_bytes_are_described_and_no_more():
    assert Contents(Kept()).of(torch.empty(3, device="meta"), store=True) == ("", False)


def test_forgetting_changes_no_answer(hashed):
    contents, tensor = Contents(None), torch.ones(3)
    first = of(contents, tensor)
    contents.forget()
    assert of(contents, tensor) == first
    assert len(hashed) == 2
