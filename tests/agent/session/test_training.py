import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from precflow.agent import request as requests
from precflow.agent.devices.cpu import Cpu
from precflow.agent.failures import AgentError
from precflow.agent.session.dump import dump
from precflow.agent.session.training import find_own_loss, read_argument_names

pytestmark = pytest.mark.usefixtures("restored")
PHASES = ["forward", "backward", "gradient", "optimizer"]
ADAMW = {"_target_": "torch.optim.AdamW", "lr": 0.1}


@pytest.fixture(autouse=True)
def forgotten():
    """Let each test import its own toy."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("toy_workload", None)


class Dumped:
    """A dump as the agent wrote it."""

    def __init__(self, folder):
        self.header = json.loads(Path(folder, "dump.json").read_text())
        self.folder = Path(folder)

    def lines(self, step=0):
        return [json.loads(line) for line in (self.folder / f"rank0/step{step}/records-0.jsonl").read_text().splitlines()]

    def phases(self, step=0):
        return [line["phase"] for line in self.lines(step)]

    def weight(self, phase, role, step=0, module="linear", index="weight"):
        (found,) = [
            record["content"]
            for line in self.lines(step)
            if (line["phase"], line["module"]) == (phase, module)
            for record in line[role + "s"]
            if record["index"] == index
        ]
        return found


@pytest.fixture
def make(asked, events, tmp_path):
    """Return a function that makes a dump in this process."""
    count = iter(range(10))

    def made(capture=None, kind="Toy", inputs="labelled", **workload):
        output = tmp_path / f"output{next(count)}"
        output.mkdir()
        parts = {"model": {"_target_": "toy_workload.build", "kind": kind}, "inputs": {"_target_": f"toy_workload.{inputs}"}}
        capture = {"phase": PHASES, "level": ["module"], **(capture or {})}
        plain = asked(workload={**parts, "mode": "train", **workload}, capture=capture, output=str(output))
        dump(requests.parse(plain), Cpu(), torch.device("cpu"), events)
        return Dumped(output)

    return made


SQUARED = {"_target_": "toy_workload.squared"}


def refused(make, **changes):
    with pytest.raises(AgentError) as caught:
        make(**changes)
    return caught.value


def test_a_training_step_has_all_phases_in_order(make):
    dumped = make(loss=SQUARED, optimizer=ADAMW)
    found = dumped.phases()
    assert list(dict.fromkeys(found)) == PHASES
    assert len(dumped.header["losses"]) == 1
    assert dumped.header["repeat"] == {
        "checked": True,
        "records": dumped.header["repeat"]["records"],
        "by": ["bits"],
        "different": [],
    }
    assert dumped.header["repeat"]["records"] > 20


def test_steps_carry_the_state_on_and_the_repeat_starts_from_the_first(make):
    dumped = make({"step": [0, 2]}, loss=SQUARED, optimizer=ADAMW)
    assert sorted(path.name for path in (dumped.folder / "rank0").iterdir()) == ["step0", "step2"]
    losses = dumped.header["losses"]
    assert len(losses) == 3
    assert len(set(losses)) == 3
    assert dumped.header["repeat"]["different"] == []
    assert dumped.weight("optimizer", "output", 0) != dumped.weight("optimizer", "output", 2)


def test_it_trains_as_torch_does(make, toy, monkeypatch):
    monkeypatch.syspath_prepend(str(toy))
    dumped = make({"step": [1]}, loss=SQUARED, optimizer=ADAMW)
    import toy_workload

    torch.manual_seed(1234)
    model = toy_workload.build().train()
    model.dropout.p = 0.0
    inputs = toy_workload.labelled()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.1), []
    for _ in range(2):
        optimizer.zero_grad()
        loss = toy_workload.squared()(model(inputs["features"]), inputs["labels"])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert dumped.header["losses"] == losses


def test_nothing_but_the_workload_is_recorded(make):
    own = make({"level": ["api"], "phase": ["forward"]}, loss=SQUARED, optimizer=ADAMW).lines()
    assert "detach" not in {line["operator"] for line in own}


def test_what_forward_does_not_take_is_the_losss_alone(make):
    header = make(loss={**SQUARED, "factor": 2.0}, optimizer=ADAMW).header
    assert list(header["inputs"]["entries"]) == ["features", "labels"]


def test_a_model_can_have_its_own_loss(make):
    assert make(kind="Losing", optimizer=ADAMW).header["losses"]


def test_phases_alone_go_backward_without_an_optimizer(make):
    dumped = make({"phase": ["backward", "gradient"], "step": [0, 1]}, loss=SQUARED)
    assert set(dumped.phases(1)) == {"backward", "gradient"}
    assert len(set(dumped.header["losses"])) == 2  # a buffer counts the forwards; weights stay
    assert dumped.header["repeat"]["different"] == []


def test_an_optimizer_trains_where_only_the_forward_is_recorded(make):
    still = make({"phase": ["forward"], "step": [1]}, inputs="inputs")
    moved = make({"phase": ["forward"], "step": [1]}, loss=SQUARED, optimizer=ADAMW)
    assert still.header["losses"] == []
    assert len(moved.header["losses"]) == 2
    assert still.header["content"] != moved.header["content"]


def test_an_optimizer_of_the_users_own(make):
    dumped = make(loss=SQUARED, optimizer={"_target_": "toy_workload.momentum", "lr": 0.1})
    trained = {line["module"] for line in dumped.lines() if line["phase"] == "optimizer"}
    assert trained == {"linear"}
    assert dumped.weight("optimizer", "output", index="weight.momentum_buffer")


def test_torchs_own_losses_need_no_trust(make):
    error = refused(make, loss={"_target_": "torch.nn.MSELoss"}, optimizer=ADAMW)
    assert "workload.loss wants target; workload.inputs has features, labels" in error.message


def test_operators_of_a_training_step(make):
    dumped = make({"level": ["module", "api", "operator"]}, loss=SQUARED, optimizer=ADAMW)
    found = {(line["level"], line["phase"]) for line in dumped.lines()}
    assert found >= {("operator", "forward"), ("operator", "backward"), ("api", "forward"), ("module", "optimizer")}
    assert ("linear", "mm") in {(line["module"], line["operator"]) for line in dumped.lines() if line["phase"] == "backward"}
    assert dumped.header["repeat"]["different"] == []


@pytest.mark.parametrize(
    ("changes", "message", "step"),
    [
        ({"optimizer": ADAMW, "inputs": "inputs"}, "the model's output has no `loss`", "workload.loss._target_="),
        ({"loss": {"_target_": "toy_workload.halved"}}, "torch.float32 of shape [4, 8]; expected one", ".mean()"),
        ({"loss": {"_target_": "toy_workload.detached"}, "inputs": "inputs"}, "depends on no parameter", "detach()"),
        ({"loss": {"_target_": "toy_workload.number"}}, "returned a int; expected a function", "return the function"),
        (
            {"loss": SQUARED, "optimizer": {"_target_": "toy_workload.number"}},
            "returned a int; expected a torch.optim",
            "params",
        ),
        ({"loss": SQUARED, "optimizer": {"_target_": "torch.optim.LBFGS"}}, "a closure", "step() takes nothing"),
        ({"loss": SQUARED, "optimizer": {"_target_": "torch.optim.Adamw"}}, "has no function Adamw", "did you mean"),
        ({"loss": SQUARED, "optimizer": {"_target_": "os.system"}}, "package os is not trusted", "PRECFLOW_TRUST"),
        ({"loss": {"_target_": "torch.load"}}, "package torch is not trusted", "PRECFLOW_TRUST"),
    ],
)
def test_what_cannot_be_trained_is_said_with_the_next_step(make, changes, message, step):
    capture = {"phase": ["backward"]}
    error = refused(make, capture=capture, **changes)
    assert message in error.message
    assert step in error.next_step


def test_an_input_that_nobody_takes_is_said(make):
    error = refused(make, capture={"phase": ["backward"]}, loss={"_target_": "toy_workload.detached"})
    assert "neither the model's forward nor the loss takes labels" in error.message
    assert "def loss(output, labels)" in error.next_step


def test_an_optimizer_phase_wants_an_optimizer(make):
    error = refused(make, loss=SQUARED)
    assert error.kind == "bad_request"
    assert "workload.optimizer._target_=torch.optim.AdamW" in error.next_step


def test_names_of_functions_and_modules():
    assert read_argument_names(lambda output, labels, weight=1.0: None, skipped=1) == (("labels", "weight"), ("labels",), False)
    assert read_argument_names(nn.MSELoss(), skipped=1) == (("target",), ("target",), False)
    assert read_argument_names(lambda output, **inputs: None, skipped=1).takes("anything")


def test_where_a_models_own_loss_is_found():
    one = torch.ones(())

    class Output:
        loss = one

    assert find_own_loss({"loss": one}) is find_own_loss(Output()) is find_own_loss(one) is one
    assert find_own_loss(torch.ones(2)) is find_own_loss({"logits": one}) is find_own_loss((one,)) is None


@pytest.mark.parametrize("rate", [0, 0.5])
def test_a_learning_rate_of_the_recipe_takes_the_place_of_the_optimizers(make, rate):
    dumped = make({"step": [0, 1]}, loss=SQUARED, optimizer={**ADAMW, "weight_decay": 0.1}, learning_rate=rate)
    rates = {line["arguments"]["lr"] for line in dumped.lines() if line["phase"] == "optimizer"}
    assert rates == {repr(float(rate))}
    still = dumped.weight("optimizer", "output", 0) == dumped.weight("optimizer", "output", 1)
    assert still is (rate == 0)


@pytest.mark.parametrize("rate", [-1, float("nan"), "0", True])
def test_a_learning_rate_is_a_number_from_0_up(make, rate):
    error = refused(make, loss=SQUARED, optimizer=ADAMW, learning_rate=rate)
    assert "workload.learning_rate" in error.message
