import copy
import io
import pickle

import pytest
import torch
from torch import nn


def reloaded(value, **how):
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return torch.load(stream, **how)


@pytest.mark.parametrize(
    ("how", "device"),
    [
        ({}, "npu:1"),
        ({"map_location": "cpu"}, "cpu"),
        ({"map_location": "npu:0", "weights_only": True}, "npu:0"),
    ],
)
def test_state_is_saved_and_loaded_to_any_device(npu, how, device):
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).npu(1)
    state = reloaded(module.state_dict(), **how)
    assert {tensor.device for tensor in state.values()} == {torch.device(device)}
    assert torch.equal(state["0.weight"].cpu(), module[0].weight.detach().cpu())


def test_what_was_saved_on_the_cpu_loads_onto_the_device(npu):
    assert reloaded(torch.arange(3.0), map_location="npu").device.type == "npu"


def test_shared_storage_stays_shared(npu):
    whole = torch.arange(6.0, device="npu")
    loaded, part = reloaded([whole, whole[2:]])
    part[0] = 99.0
    assert loaded.cpu().tolist() == [0.0, 1.0, 99.0, 3.0, 4.0, 5.0]


def test_a_device_that_is_not_here_is_refused(npu):
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        reloaded(torch.ones(1), map_location="npu:6")


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))], ids=["copy", "pickle"])
def test_copies_are_independent(npu, duplicate):
    tensor = torch.ones(3, device="npu:1")
    other = duplicate(tensor)
    other.zero_()
    assert other.device == torch.device("npu:1")
    assert tensor.cpu().tolist() == [1.0, 1.0, 1.0]


def test_storages_are_made_on_the_device_and_moved(npu):
    made = torch.UntypedStorage(8, device="npu")
    assert (made.device, made.nbytes()) == (torch.device("npu:0"), 8)
    assert made.to(device="npu:1").device.index == 1
    assert made.npu() is made
    assert torch.UntypedStorage(4).npu(1).device.index == 1
    assert torch.UntypedStorage(4).to(device="cpu").nbytes() == 4
    assert made.cpu().device.type == "cpu"


def test_a_model_leaves_meta_for_the_device(npu):
    with torch.device("meta"):
        linear = nn.Linear(2, 2)
    assert linear.to_empty(device="npu").weight.device.type == "npu"


def test_tensors_take_and_give_storage(npu):
    tensor = torch.empty(0, device="npu").set_(torch.ones(3, device="npu"))
    assert tensor.cpu().tolist() == [1.0] * 3
    assert torch.empty(0, device="npu").resize_(2, 2).shape == (2, 2)


def test_safetensors_loads_onto_the_device(npu, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is an extra of precflow")
    path = str(tmp_path / "weights.safetensors")
    safetensors.save_file({"weight": torch.arange(3.0)}, path)
    assert safetensors.load_file(path, device="npu:0")["weight"].device.type == "npu"


def test_a_move_keeps_weights_tied_and_known_to_their_optimizer(npu):
    first, second = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
    second.weight = first.weight
    model = torch.nn.ModuleList([first, second])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to("npu")
    assert second.weight is first.weight
    assert first.weight.device.type == "npu"
    before = first.weight.detach().clone()
    second(first(torch.tensor([1], device="npu"))).sum().backward()
    optimizer.step()
    assert not torch.equal(first.weight, before)
    assert second.weight is model.cpu()[0].weight
