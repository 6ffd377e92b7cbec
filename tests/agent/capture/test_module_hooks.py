import copy
import json
import pickle

import pytest
import torch
from torch import nn

from precflow.agent.capture.module_hooks import class_name_of, find_watched_modules
from precflow.agent.capture.recorder import Recorder
from precflow.agent.capture.wrappers import is_compiled
from precflow.agent.dump.writer import Writer
from precflow.agent.request import CaptureSection

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")  # deprecated, and still in use


def scripted():
    return torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def names(model):
    return [(boundary.name, boundary.compiled) for boundary in find_watched_modules(model)]


def test_every_module_is_watched_once():
    linear = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": linear, "b": nn.Sequential(linear, nn.ReLU())})
    assert names(model) == [("", False), ("a", False), ("b", False), ("b.1", False)]


def test_the_inside_of_compiled_modules_is_not_watched():
    model = nn.ModuleDict(
        {"script": scripted(), "compiled": torch.compile(nn.Sequential(nn.Linear(2, 2))), "plain": nn.Sequential(nn.ReLU())}
    )
    assert names(model) == [("", False), ("script", True), ("compiled", True), ("plain", False), ("plain.0", False)]


def test_compiled_modules_are_known_by_the_class_of_their_author():
    assert class_name_of(scripted()) == "Sequential"
    assert class_name_of(torch.compile(nn.Linear(2, 2))) == "Linear"
    assert class_name_of(nn.ReLU()) == "ReLU"
    assert not is_compiled(nn.ReLU())


@pytest.mark.parametrize("make", [scripted, lambda: torch.compile(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), backend="eager")])
def test_compiled_code_runs_as_without_and_is_recorded_at_its_boundary(make):
    model = nn.Sequential(make(), nn.Tanh())
    x = torch.ones(1, 2)
    expected = model(x)
    recorder = Recorder(None)
    with recorder.watch(model):
        result = model(x)
    assert torch.equal(result, expected)
    assert sorted(recorder.contents) == [
        "(model)/forward.output.0",
        "0/forward.output.0",
        "1/forward.output.0",
        "1/tanh.0/forward.output.0",
    ]


def test_a_compiled_module_may_raise_and_the_mode_comes_back():
    def forward(x):
        raise RuntimeError("inside")

    block = nn.Linear(2, 2)
    block._compiled_call_impl = forward
    model = nn.Sequential(block)
    recorder = Recorder(None)
    with recorder.watch(model):
        with pytest.raises(RuntimeError, match="inside"):
            model(torch.ones(1, 2))
        torch.ones(2) + 1
    assert "(outside)/add.0/forward.output.0" in recorder.contents
    assert "(model)/forward.output.0" not in recorder.contents
    assert block._compiled_call_impl is forward


def test_an_unrecorded_inside_makes_the_module_the_source(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Identity(), nn.Tanh())
    writer = Writer(str(tmp_path))
    with Recorder(writer, CaptureSection(level=["module"])).watch(model):
        model(torch.ones(1, 2))
    writer.seal({})
    found = [json.loads(line) for line in (tmp_path / "rank0/step0/records-0.jsonl").read_text().splitlines()]
    sources = {line["module"]: line["inputs"][0]["source"] for line in found}
    assert sources == {"0": None, "1": [0, "0"], "2": [1, "0"], "3": [1, "0"], "": None}


class Twice(nn.Module):
    def forward(self, values):
        made = values + 1
        return made, made


class First(nn.Module):
    def forward(self, pair):
        return pair[0] * 2


def test_of_two_outputs_that_are_one_tensor_the_first_is_the_source(tmp_path):
    writer = Writer(str(tmp_path))
    model = nn.Sequential(Twice(), First())
    with Recorder(writer, CaptureSection(level=["module"])).watch(model):
        model(torch.ones(3))
    writer.seal({})
    found = [json.loads(line) for line in (tmp_path / "rank0/step0/records-0.jsonl").read_text().splitlines()]
    assert [each["source"] for each in found[1]["inputs"]] == [[0, "0"], [0, "0"]]


def test_an_outside_tensor_that_only_passes_through_has_no_source():
    model = nn.Sequential(nn.Identity(), nn.Identity())
    recorder = Recorder(None)
    x = torch.ones(2)
    with recorder.watch(model):
        model(x)
        assert recorder._lines.sources.find(x) is None


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("written", [True, False])
def test_a_copy_that_is_made_while_a_model_is_watched_is_not(tmp_path, copied, written):
    model, x = nn.Sequential(nn.Linear(2, 2), nn.Tanh()), torch.ones(1, 2)
    expected = model(x)
    recorder = Recorder(Writer(str(tmp_path)) if written else None, CaptureSection(phase=["forward", "backward"]))
    with recorder.watch(model):
        other = copied(model)
        results = [model(x), other(x)]
    assert all(torch.equal(result, expected) for result in results)
    assert [name for name in recorder.contents if "~1" in name] == []
    assert torch.equal(other(x), expected)


def test_what_is_pickled_under_capture_is_loaded_without_it():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    with Recorder(None).watch(model):
        saved = pickle.dumps(model)
    assert b"precflow" not in saved
