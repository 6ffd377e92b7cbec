import sys
from typing import NamedTuple

import pytest
import torch

from precflow.agent import request as requests
from precflow.agent.devices.cpu import Cpu
from precflow.agent.failures import AgentError
from precflow.agent.measure.content_id import content_id
from precflow.agent.session import workload_model
from precflow.agent.session.random_numbers import RandomNumbers
from precflow.agent.session.workload_model import RunContext, copy_to, element_type, place_model, prepare


@pytest.fixture(autouse=True)
def importable(toy, monkeypatch):
    """Make ``toy_workload`` importable for one test."""
    monkeypatch.syspath_prepend(str(toy))
    yield
    sys.modules.pop("toy_workload", None)


@pytest.fixture
def prepared(asked, events):
    """Return a function that prepares a request's workload."""

    def make(model="build", inputs="inputs", arguments=None, **changes):
        workload = {
            "model": {"_target_": f"toy_workload.{model}"},
            "inputs": {"_target_": f"toy_workload.{inputs}", **(arguments or {})},
        }
        workload.update(changes.pop("workload", {}))
        request = requests.parse(asked(workload=workload, **changes))
        numbers = RandomNumbers(move=True, remove_dropout=True)
        return prepare(RunContext(request, Cpu(), torch.device("cpu"), events, numbers))

    return make


@pytest.mark.parametrize(("mode", "training"), [("eval", False), ("train", True)])
def test_mode(prepared, mode, training):
    assert prepared(workload={"mode": mode}).model.training is training


def test_dropout_is_removed_or_kept(prepared):
    removed = prepared(workload={"mode": "train"})
    assert (removed.dropouts, removed.model.dropout.p) == (["dropout"], 0.0)
    idle = prepared()
    assert (idle.dropouts, idle.model.dropout.p) == ([], 0.0)
    kept = prepared(determinism={"dropout": "kept"})
    assert (kept.dropouts, kept.model.dropout.p) == ([], 0.5)


def test_inputs_are_fresh_each_time(prepared):
    workload = prepared()
    first = workload.copy_inputs(torch.float32, torch.device("cpu"))
    first["features"].zero_()
    assert workload.copy_inputs(torch.float32, torch.device("cpu"))["features"].any()


def test_buffers_are_restored(prepared):
    workload = prepared()
    workload.model(**workload.inputs)
    assert float(workload.model.seen) == 1
    workload.restore()
    assert float(workload.model.seen) == 0


def test_a_factory_that_gives_no_model_is_named(prepared):
    with pytest.raises(AgentError, match=r"toy_workload\.number returned a int; expected a torch\.nn\.Module"):
        prepared(model="number")


def test_inputs_that_are_neither_dict_nor_tuple_are_named(prepared):
    with pytest.raises(AgentError, match=r"toy_workload\.number returned a int") as caught:
        prepared(inputs="number")
    assert "dict of keyword arguments" in caught.value.next_step


@pytest.mark.parametrize(
    ("parts", "step"),
    [(["linear", "nrom"], r"workload.parts=[linear,norm]"), (["unet"], "name modules of the model, or leave")],
)
def test_a_part_that_the_model_does_not_have_is_refused_before_anything_runs(prepared, parts, step):
    with pytest.raises(AgentError, match=rf"the model has no module {parts[-1]}; it has linear, norm") as caught:
        prepared(parts=parts)
    assert step in caught.value.next_step


def test_a_part_by_the_second_name_of_a_module_is_told_the_first():
    model = torch.nn.Module()
    model.one = model.two = torch.nn.Linear(1, 1)
    with pytest.raises(AgentError, match=r"workload\.parts: two is one by another name") as caught:
        workload_model._refuse_unknown_parts(["one", "two"], model)
    assert caught.value.next_step == "workload.parts=[one]"


def test_a_model_on_another_device_is_refused(prepared):
    with pytest.raises(AgentError, match="returned a model on meta") as caught:
        prepared(model="on_meta")
    assert "build it on the CPU" in caught.value.next_step


def test_a_tuple_that_does_not_fit_the_forward_is_named(prepared, toy):
    source = toy / "toy_workload.py"
    source.write_text(source.read_text() + "\ndef many():\n    return 1, 2, 3, 4\n")
    with pytest.raises(AgentError, match="tuple does not fit the model's forward"):
        prepared(inputs="many")


def test_an_unknown_type_is_refused_before_the_model_is_built(prepared, events):
    with pytest.raises(AgentError, match="dtype 'int8'"):
        prepared(dtype="int8")
    assert events.lines() == []


class Growing(torch.nn.Module):
    """Registers a buffer in its forward, fills one that was declared only, and grows a third."""

    def __init__(self):
        super().__init__()
        self.register_buffer("declared", None)
        self.register_buffer("cache", torch.zeros(1))
        self.register_buffer("count", torch.zeros(1))

    def forward(self):
        self.register_buffer("table", torch.ones(2))
        self.declared = torch.ones(2)
        self.cache = torch.cat([self.cache, torch.ones(1)])
        self.count += 1


def test_buffers_that_a_forward_adds_or_grows_are_put_back(prepared):
    model = Growing()
    workload = prepared()._replace(model=model, buffers={"declared": None, "cache": torch.zeros(1), "count": torch.zeros(1)})
    known = model.count
    model()
    workload.restore()
    assert dict(model.named_buffers()).keys() == {"cache", "count"}
    assert model.declared is None
    assert (model.cache.tolist(), model.count.tolist()) == ([0.0], [0.0])
    assert model.count is known


def test_buffers_are_remembered_with_those_that_are_none(prepared):
    workload = prepared()
    assert workload.buffers.keys() == {name for name, _ in workload.model.named_buffers()}


CPU = torch.device("cpu")


class Pair(NamedTuple):
    left: torch.Tensor
    right: str


def test_known_types():
    assert element_type("bfloat16") is torch.bfloat16


@pytest.mark.parametrize("name", ["int8", "float8_e4m3fn", "half", "nn"])
def test_a_type_that_no_model_runs_in_is_refused(name):
    with pytest.raises(AgentError, match="float64, float32, float16, bfloat16") as caught:
        element_type(name)
    assert caught.value.kind == "unsupported"


def test_only_floating_weights_are_cast():
    model = torch.nn.BatchNorm1d(3)
    place_model(model, torch.float16, CPU)
    assert model.weight.dtype is torch.float16
    assert model.running_mean.dtype is torch.float16
    assert model.num_batches_tracked.dtype is torch.int64


def test_inputs_are_copies_and_keep_their_structure():
    given = {"x": torch.ones(2), "ids": torch.ones(2, dtype=torch.int64), "rest": [Pair(torch.zeros(1), "word"), (None, 3)]}
    found = copy_to(given, torch.float32, CPU)
    assert found["x"].data_ptr() != given["x"].data_ptr()
    assert found["ids"].data_ptr() != given["ids"].data_ptr()
    assert found["ids"].dtype is torch.int64
    assert isinstance(found["rest"][0], Pair)
    assert found["rest"][0].right == "word"
    assert found["rest"][1] == (None, 3)


def test_floating_inputs_are_cast():
    assert copy_to(torch.ones(2), torch.bfloat16, CPU).dtype is torch.bfloat16


def test_parameters_and_buffers_by_name():
    model = torch.nn.BatchNorm1d(3)
    found = workload_model.hash_weights(model)
    assert list(found["entries"]) == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert found["entries"]["weight"] == {"content": content_id(model.weight), "dtype": "float32", "shape": [3]}


def test_ids_of_weights_after_rounding_are_noted_where_asked_for_and_change_no_digest():
    model = torch.nn.BatchNorm1d(3)
    plain, rounded = workload_model.hash_weights(model), workload_model.hash_weights(model, rounded=True)
    expected = {"bfloat16": content_id(model.weight.bfloat16()), "float16": content_id(model.weight.half())}
    assert rounded["entries"]["weight"] == {**plain["entries"]["weight"], "rounded": expected}
    assert rounded["entries"]["num_batches_tracked"] == plain["entries"]["num_batches_tracked"]
    assert rounded["digest"] == plain["digest"]


def test_the_digest_does_not_depend_on_the_order_of_registration():
    first, second = torch.nn.Module(), torch.nn.Module()
    for name in ("a", "b"):
        first.register_buffer(name, torch.full((2,), float(ord(name))))
    for name in ("b", "a"):
        second.register_buffer(name, torch.full((2,), float(ord(name))))
    assert workload_model.hash_weights(first)["digest"] == workload_model.hash_weights(second)["digest"]


def test_one_bit_changes_the_digest():
    model = torch.nn.Linear(2, 2)
    before = workload_model.hash_weights(model)["digest"]
    with torch.no_grad():
        model.weight[0, 0] = torch.nextafter(model.weight[0, 0], torch.tensor(9.0))
    assert workload_model.hash_weights(model)["digest"] != before


def test_swapped_names_change_the_digest():
    one, two = torch.zeros(2), torch.ones(2)
    assert (
        workload_model.hash_inputs({"a": one, "b": two})["digest"] != workload_model.hash_inputs({"a": two, "b": one})["digest"]
    )


def test_nested_inputs_have_paths():
    found = workload_model.hash_inputs(
        {"ids": torch.zeros(2, dtype=torch.int64), "images": [torch.zeros(1), {"mask": torch.ones(1)}], "n": 3}
    )
    assert list(found["entries"]) == ["ids", "images.0", "images.1.mask"]
    assert found["entries"]["ids"]["dtype"] == "int64"


def test_a_tied_weight_has_its_first_name():
    model = torch.nn.Module()
    model.first = torch.nn.Linear(2, 2, bias=False)
    model.second = torch.nn.Linear(2, 2, bias=False)
    model.second.weight = model.first.weight
    assert list(workload_model.hash_weights(model)["entries"]) == ["first.weight"]
