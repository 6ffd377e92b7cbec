import json

import pytest
import torch
from safetensors.torch import save_file

from precflow.agent.failures import AgentError
from precflow.agent.workloads import weights


@pytest.fixture
def model():
    """Return a small model with known names."""
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


@pytest.fixture
def wanted(model):
    """Return other values for all of its names."""
    return {name: torch.full_like(value, 5) for name, value in model.state_dict().items()}


def refused(model, path, **options):
    with pytest.raises(AgentError) as caught:
        weights.load(model, str(path), **options)
    assert caught.value.kind == "workload"
    assert str(path) in caught.value.message
    return caught.value.message


def loaded(model):
    return all(bool((value == 5).all()) for value in model.state_dict().values())


def test_a_safetensors_file(model, wanted, tmp_path):
    save_file(wanted, tmp_path / "m.safetensors")
    weights.load(model, str(tmp_path / "m.safetensors"))
    assert loaded(model)


def test_two_tensors_for_one_weight_are_refused(model, wanted, tmp_path):
    save_file({**wanted, "model.0.weight": torch.zeros(3, 2)}, tmp_path / "m.safetensors")
    message = refused(model, tmp_path / "m.safetensors", prefixes=["model."])
    assert message.endswith("both 0.weight and model.0.weight are 0.weight of the model")
    for number in range(2):
        save_file(wanted, tmp_path / f"part-{number}.safetensors")
    index = {"weight_map": {"0.weight": "part-0.safetensors", "0.bias": "part-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert refused(model, tmp_path).endswith("is in two of its files, the second is part-1.safetensors")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_folder(model, wanted, tmp_path, name):
    (save_file if name.endswith("s") else torch.save)(wanted, tmp_path / name)
    weights.load(model, str(tmp_path))
    assert loaded(model)


def test_a_folder_of_shards(model, wanted, tmp_path):
    names = list(wanted)
    for number, part in enumerate((names[:2], names[2:])):
        save_file({name: wanted[name] for name in part}, tmp_path / f"part-{number}.safetensors")
    index = {"weight_map": {name: f"part-{int(name not in names[:2])}.safetensors" for name in names}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights.load(model, str(tmp_path))
    assert loaded(model)


def test_half_precision_is_widened_exactly(model, wanted, tmp_path):
    half = {name: value.half() if value.is_floating_point() else value for name, value in wanted.items()}
    save_file(half, tmp_path / "m.safetensors")
    weights.load(model, str(tmp_path / "m.safetensors"))
    assert model[0].weight.dtype is torch.float32
    assert loaded(model)


@pytest.mark.parametrize("prefix_in", ["file", "model"])
def test_a_prefix_is_taken_off_or_put_before(wanted, model, tmp_path, prefix_in):
    holder = torch.nn.ModuleDict({"text": model}) if prefix_in == "model" else model
    given = {("text." + name if prefix_in == "file" else name): value for name, value in wanted.items()}
    save_file(given, tmp_path / "m.safetensors")
    weights.load(holder, str(tmp_path / "m.safetensors"), prefixes=("text.",))
    assert loaded(model)


def test_missing_and_unexpected_keys_are_named(model, wanted, tmp_path):
    wanted["0.wieght"] = wanted.pop("0.weight")
    save_file(wanted, tmp_path / "m.safetensors")
    message = refused(model, tmp_path / "m.safetensors")
    assert "0.weight is missing" in message
    assert "0.wieght is not in the model" in message


def test_ignored_endings_may_be_there(model, wanted, tmp_path):
    save_file({**wanted, "embeddings.position_ids": torch.zeros(1)}, tmp_path / "m.safetensors")
    weights.load(model, str(tmp_path / "m.safetensors"), ignored=("position_ids",))
    assert loaded(model)


def test_another_shape_names_both(model, wanted, tmp_path):
    save_file({**wanted, "0.weight": torch.zeros(4, 2)}, tmp_path / "m.safetensors")
    assert "0.weight has shape [4, 2], expected [3, 2]" in refused(model, tmp_path / "m.safetensors")


def test_nothing_is_loaded_when_something_does_not_fit(model, wanted, tmp_path):
    save_file({**wanted, "0.weight": torch.zeros(4, 2)}, tmp_path / "m.safetensors")
    before = model[0].bias.clone()
    refused(model, tmp_path / "m.safetensors")
    assert torch.equal(model[0].bias, before)


def test_many_problems_are_counted(model, tmp_path):
    save_file({"other": torch.zeros(1)}, tmp_path / "m.safetensors")
    assert message_count(refused(model, tmp_path / "m.safetensors")) == 5


def message_count(message):
    assert message.endswith("and 3 more")
    return message.count(";") + 1


@pytest.mark.parametrize("size", [0, 4, 100])
def test_a_truncated_file_says_its_size(model, wanted, tmp_path, size):
    path = tmp_path / "m.safetensors"
    save_file(wanted, path)
    path.write_bytes(path.read_bytes()[:size])
    assert f"cannot be read ({size} bytes)" in refused(model, path)


def test_a_file_cut_in_its_tensors(model, wanted, tmp_path):
    path = tmp_path / "m.safetensors"
    save_file(wanted, path)
    path.write_bytes(path.read_bytes()[:-8])
    assert "cannot be read" in refused(model, path)


def test_a_pickle_that_would_run_code_is_refused(model, tmp_path):
    class Harm:
        def __reduce__(self):
            return (print, ("harm done",))

    torch.save({"0.weight": Harm()}, tmp_path / "m.bin")
    assert "cannot be read" in refused(model, tmp_path / "m.bin")


def test_nothing_there(model, tmp_path):
    assert "no such file or folder" in refused(model, tmp_path / "absent.safetensors")


def test_a_folder_without_weights_says_what_is_expected(model, tmp_path):
    assert "expected one of model.safetensors" in refused(model, tmp_path)


def test_an_unknown_kind_of_file(model, tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"x")
    assert "unknown kind of file" in refused(model, tmp_path / "m.onnx")


def test_a_broken_index(model, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert "not an index" in refused(model, tmp_path)
