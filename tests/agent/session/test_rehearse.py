"""A step without values has the calls, shapes and shared tensors of one with values."""

import json
from pathlib import Path

import pytest
import torch

from precflow.agent import request as requests
from precflow.agent import worker
from precflow.agent.devices.cpu import Cpu
from precflow.agent.dump.write_errors import WriteError
from precflow.agent.failures import AgentError
from precflow.agent.session import rehearse as rehearsal
from precflow.agent.session.dump import dump
from precflow.agent.session.rehearse import NumberingMeasurer, rehearse

pytestmark = pytest.mark.usefixtures("restored", "forgotten")

MORE = """

class Looking(Toy):
    def forward(self, features, scale=None):
        if features.sum().item() > 0:
            return super().forward(features)
        return {}


class Asking(Toy):
    def forward(self, features, scale=None):
        if "Fake" in type(features).__name__ or features.sum().item() > 0:
            return super().forward(features)
        return {}


class Computed(Toy):
    def __init__(self, width):
        super().__init__(int(torch.full((), width).item()))


class Shared(Toy):
    def forward(self, features, scale=None):
        hidden = torch.relu(self.linear(features))
        both = torch.add(hidden, hidden)
        hidden.mul_(2)
        return torch.add(both, hidden)
"""


@pytest.fixture(autouse=True)
def more(toy):
    """Add models that look into their values."""
    with (toy / "toy_workload.py").open("a") as file:
        file.write(MORE)


@pytest.fixture
def rehearsed(asked, events):
    """Return a function that rehearses a request and returns what was written, and its calls."""

    def make(**changes):
        request = requests.parse(asked(action="rehearse", **changes))
        rehearse(request, events)
        return json.loads(Path(request.output, "rehearsal.json").read_text()), calls(request.output)

    return make


def calls(output):
    file = Path(output, "rank0/step0/records-0.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def workload(kind="Toy", inputs="inputs", **more):
    return {"model": {"_target_": "toy_workload.build", "kind": kind}, "inputs": {"_target_": f"toy_workload.{inputs}"}, **more}


TRAINED = workload(
    "Toy",
    "labelled",
    mode="train",
    loss={"_target_": "toy_workload.squared"},
    optimizer={"_target_": "torch.optim.AdamW", "lr": 1e-3},
)
EVERY = {"level": ["module", "api", "operator"], "phase": ["forward", "backward", "gradient", "optimizer"]}


@pytest.mark.parametrize(
    ("wanted", "capture"),
    [
        (workload(), {}),
        (workload(), {"level": ["module", "api", "operator"]}),
        (workload("Drawing", mode="train"), {}),
        (TRAINED, {"level": ["module"], "phase": EVERY["phase"]}),
        (TRAINED, EVERY),
    ],
)
def test_calls_are_those_of_a_dump(asked, events, rehearsed, wanted, capture):
    facts, without = rehearsed(workload=wanted, capture=capture)
    request = requests.parse(asked(workload=wanted, capture=capture, determinism={"repeat": False}))
    dump(request, Cpu(), torch.device("cpu"), events)
    assert facts["problem"] == ""
    assert [outline(call) for call in without] == [outline(call) for call in calls(request.output)]


def outline(call):
    records = [[record[key] for key in ("index", "dtype", "shape", "weight")] for record in call["inputs"] + call["outputs"]]
    return [call[key] for key in ("level", "module", "class", "operator", "ordinal", "phase", "movement")], records


def test_one_tensor_has_one_number_until_it_is_written_to(rehearsed):
    _, found = rehearsed(workload=workload("Shared"))
    first, last = [call for call in found if call["operator"] == "add"]
    numbers = [record["content"] for record in first["inputs"] + last["inputs"]]
    assert numbers[0] == numbers[1]
    assert len(set(numbers)) == 3
    (relu,) = [call for call in found if call["operator"] == "relu"]
    assert relu["outputs"][0]["content"] == numbers[0]


def test_the_type_of_the_side_is_that_of_its_records(rehearsed):
    facts, found = rehearsed(dtype="bfloat16")
    assert facts["dtype"] == "bfloat16"
    assert {record["dtype"] for call in found for record in call["outputs"]} == {"bfloat16"}


def test_a_model_that_is_built_by_its_values_is_built_with_them(rehearsed):
    facts, found = rehearsed(workload=workload("Computed"))
    assert facts["problem"] == ""
    assert found


def test_code_that_looks_into_values_is_named_with_its_line(rehearsed):
    facts, found = rehearsed(workload=workload("Looking"))
    assert "Error: " in facts["problem"]
    assert len(facts["problem"]) < 200
    assert "toy_workload.py:" in facts["problem"]
    assert "in forward" in facts["problem"]
    assert not found


def test_code_that_knows_fake_tensors_is_run_on_them(rehearsed, monkeypatch):
    facts, found = rehearsed(workload=workload("Asking"))
    assert facts["problem"] == ""
    assert len(found) == len(rehearsed(workload=workload())[1])
    monkeypatch.setattr(rehearsal, "importlib", None)  # as in a torch without fake tensors: they cannot be had
    assert "toy_workload.py:" in rehearsed(workload=workload("Asking"))[0]["problem"]


def test_a_workload_that_is_not_trusted_or_is_none_says_so(rehearsed):
    assert "is not trusted" in rehearsed(trusted=[])[0]["problem"]
    assert "expected a torch.nn.Module" in rehearsed(workload={"model": {"_target_": "toy_workload.number"}})[0]["problem"]


def test_no_device_is_needed(asked, events):
    request = requests.parse(asked(action="rehearse", device=["npu"]))
    worker.run(request, events)
    assert calls(request.output)


def test_a_folder_that_cannot_be_written_to_is_no_answer(asked, events, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rehearsal, "write_json", refuse)
    with pytest.raises(WriteError, match="no space left"):
        rehearse(requests.parse(asked(action="rehearse")), events)
    monkeypatch.setattr(rehearsal, "_record", lambda *_: refuse_budget())
    with pytest.raises(AgentError, match="no room"):
        rehearse(requests.parse(asked(action="rehearse")), events)


def refuse_budget():
    raise AgentError("disk_full", "no room")


def test_views_have_numbers_of_their_own_and_sparse_tensors_none():
    numbered, tensor = NumberingMeasurer(), torch.empty(4, 4, device="meta")
    whole = numbered.measure(tensor, "digest").content
    assert numbered.measure(tensor.view(4, 4), "digest").content == whole
    parts = {
        numbered.measure(part, "digest").content for part in (tensor[:2], tensor[2:], tensor.t(), torch.empty_like(tensor))
    }
    assert len(parts | {whole}) == 5
    assert numbered.measure(torch.eye(2).to_sparse(), "digest").content == ""
    numbered.note_write(tensor)
    numbered.clear()
    numbered.flush()
    assert not numbered.full
    assert numbered.measure(tensor, "digest").content == whole
