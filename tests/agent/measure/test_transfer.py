import pytest
import torch

from precflow.agent.measure.transfer import to_hosts


def test_what_lies_on_the_host_comes_as_it_is():
    tensors = [torch.ones(2), torch.arange(3, dtype=torch.int32)]
    assert [each is other for each, other in zip(to_hosts(tensors), tensors, strict=True)] == [True, True]


def test_nothing_is_asked_for():
    assert to_hosts([]) == []


class Elsewhere(torch.Tensor):
    """Says of itself that it lies on a device."""

    @property
    def device(self):
        return torch.device("meta")


@pytest.mark.parametrize("names", [["float32", "int32"], ["float64", "float32", "int64"]])
def test_what_lies_on_a_device_comes_in_one_copy_and_in_its_own_form(names, monkeypatch):
    tensors = [torch.arange(6).reshape(2, 3).to(getattr(torch, name)) + number for number, name in enumerate(names)]
    there = [each.as_subclass(Elsewhere) for each in tensors]
    copies = []
    monkeypatch.setattr(
        Elsewhere, "cpu", lambda self: copies.append(self.numel()) or self.as_subclass(torch.Tensor), raising=False
    )
    found = to_hosts([*there, torch.ones(1)])
    assert len(copies) == 1
    assert [
        torch.equal(each.as_subclass(torch.Tensor), other) for each, other in zip(found, [*tensors, torch.ones(1)], strict=True)
    ]
    assert all(torch.equal(each.as_subclass(torch.Tensor), other) for each, other in zip(found[:-1], tensors, strict=True))
    assert [each.shape for each in found[:-1]] == [(2, 3)] * len(names)
