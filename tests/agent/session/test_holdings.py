import torch

from precflow.agent.measure.content_id import content_id
from precflow.agent.session import workload_model


def test_parameters_and_buffers_by_name():
    model = torch.nn.BatchNorm1d(3)
    found = workload_model.of_model(model)
    assert list(found["entries"]) == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert found["entries"]["weight"] == {"content": content_id(model.weight), "dtype": "float32", "shape": [3]}


def test_the_digest_does_not_depend_on_the_order_of_registration():
    first, second = torch.nn.Module(), torch.nn.Module()
    for name in ("a", "b"):
        first.register_buffer(name, torch.full((2,), float(ord(name))))
    for name in ("b", "a"):
        second.register_buffer(name, torch.full((2,), float(ord(name))))
    assert workload_model.of_model(first)["digest"] == workload_model.of_model(second)["digest"]


def test_one_bit_changes_the_digest():
    model = torch.nn.Linear(2, 2)
    before = workload_model.of_model(model)["digest"]
    with torch.no_grad():
        model.weight[0, 0] = torch.nextafter(model.weight[0, 0], torch.tensor(9.0))
    assert workload_model.of_model(model)["digest"] != before


def test_swapped_names_change_the_digest():
    one, two = torch.zeros(2), torch.ones(2)
    assert workload_model.of_inputs({"a": one, "b": two})["digest"] != workload_model.of_inputs({"a": two, "b": one})["digest"]


def test_nested_inputs_have_paths():
    found = workload_model.of_inputs(
        {"ids": torch.zeros(2, dtype=torch.int64), "images": [torch.zeros(1), {"mask": torch.ones(1)}], "n": 3}
    )
    assert list(found["entries"]) == ["ids", "images.0", "images.1.mask"]
    assert found["entries"]["ids"]["dtype"] == "int64"


def test_a_tied_weight_has_its_first_name():
    model = torch.nn.Module()
    model.first = torch.nn.Linear(2, 2, bias=False)
    model.second = torch.nn.Linear(2, 2, bias=False)
    model.second.weight = model.first.weight
    assert list(workload_model.of_model(model)["entries"]) == ["first.weight"]
