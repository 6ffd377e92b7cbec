"""What explains wrong gradients of a module: chosen from what the agent tried."""

import pytest
import torch
from evaluated import evaluate_here

import precflow
from precflow.config.schema import RunConfig
from precflow.diagnosis.comparison import Comparison
from precflow.diagnosis.evidence.of_suspect import other_backward
from precflow.diagnosis.evidence.tensors import observe
from precflow.diagnosis.explained import Alternative, Explanation
from precflow.diagnosis.findings import Region, Suspect
from precflow.diagnosis.introduced import IntroducedError
from precflow.dumps.formats import read_dump
from precflow.errors import SideError
from precflow.stages.introduced import explain_suspects


def tried(name, share, *, operator="softmax", function=2, factor=1.0):
    fits = share > 0.9
    return Alternative("backward", name, share=share, left=1.0, fits=fits, function=function, operator=operator, factor=factor)


@pytest.fixture
def gather(pair_of_dumps):
    """Return the evidence about a module's backward, of what was tried with it."""

    def run(*found, tried=("backward",)):
        sides = pair_of_dumps
        call = next(one for one in sides[0].calls() if (one.module, one.phase, one.operator) == ("attention", "backward", ""))
        explained = Explanation((CALL,), tried, found=found)
        comparison = Comparison(*sides, RunConfig(), explanations=[explained])
        (observed,) = observe(*sides, [Suspect.of(call, call.outputs[0].text, 9.0, "")])
        return other_backward.gather(comparison, observed)

    return run


def test_places_that_explain_as_much_are_named_in_order_of_the_forward(gather):
    found = gather(
        tried("scaled", 0.999999, factor=1.03),
        tried("scaled", 0.999999, operator="mul", function=1, factor=1.03),
        tried("scaled", 0.7, operator="view", function=0),
        tried("bfloat16", 0.6),
    )
    assert (found["backward_change"], found["backward_factor"], found["backward_at"]) == ("scaled", 1.03, "mul, softmax")
    assert found["backward_other_share"] == 0.6


def test_a_change_that_leaves_much_is_no_cause(gather):
    found = gather(tried("scaled", 0.85))
    assert (found["backward_change"], found["backward_share"]) == ("", 0.85)


def test_where_nothing_was_tried_nothing_is_said(gather):
    assert gather() == {"backward_change": ""}
    assert gather(tried=()) == {}


class Attention(torch.nn.Module):
    """Eager attention of one head, whose scores have a wrong gradient."""

    def __init__(self, change):
        super().__init__()
        self.change = change
        self.q, self.k, self.v = (torch.nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / 3
        if self.change is not None:
            scores.register_hook(self.change)
        return scores.softmax(-1) @ self.v(x)


class Model(torch.nn.Module):
    def __init__(self, change):
        super().__init__()
        self.stem, self.attention, self.head = torch.nn.Linear(8, 16), Attention(change), torch.nn.Linear(16, 12)

    def forward(self, x):
        return self.head(self.attention(self.stem(x)))


def record(folder, change):
    torch.manual_seed(3)
    model, x = Model(change), torch.randn(2, 24, 8)
    phases = ("forward", "backward", "gradient")
    with precflow.capture(model, folder, level=("module", "api"), detail="tensors", phase=phases):
        model(x).square().mean().backward()
    return read_dump(folder)


CALL = "attention/module.backward@0.0"


@pytest.fixture
def pair_of_dumps(tmp_path):
    return record(tmp_path / "one", None), record(tmp_path / "other", None)


@pytest.fixture
def explain(tmp_path):
    """Explain the gradients of the attention, or those of other calls."""

    def run(change, *, call=CALL, evaluate=evaluate_here):
        sides = record(tmp_path / "reference", None), record(tmp_path / "target", change)
        backward = next(
            one for one in sides[0].calls() if (one.module, one.phase, one.operator) == ("attention", "backward", "")
        )
        suspect = Suspect.of(backward, backward.outputs[0].text, 9.0, "")
        found = [IntroducedError(call, "attention.q~0.0", "matmul", 99.0, 9.0, "rho", is_fault=True)]
        region = Region(suspects=(suspect,))
        return explain_suspects(*sides, region, found, folder=tmp_path / "work", evaluate=evaluate)

    return run


def test_a_gradient_that_was_rounded_between_two_recorded_ones_is_named_with_its_function(explain, tmp_path):
    (explained,) = explain(lambda gradient: gradient.bfloat16().float())
    assert CALL in explained.calls
    found = explained.found[0]
    assert (found.name, found.operator, found.fits) == ("bfloat16", "softmax", True)
    assert found.share > 0.999
    assert found.left < 2
    assert not (tmp_path / "work").exists()


def test_only_suspects_that_introduce_an_error_are_computed_again(explain):
    def fail(_):
        raise AssertionError("nothing is to be computed")

    assert explain(None, call="head/module.gradient.bias@0.0", evaluate=fail) == []


def test_without_an_agent_the_cause_is_unknown_and_nothing_else_changes(explain):
    def fail(_):
        raise SideError("there is no torch", kind="workload")

    assert explain(lambda gradient: gradient * 1.01, evaluate=fail) == []
