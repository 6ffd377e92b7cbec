"""Gradients of Linear layers are evaluated in place from dumps of modules: who is wrong is named, who inherits is cleared."""

import io
import json

import pytest
import torch
from linear_layers import products, record, rounded

from precflow.agent import request as requests
from precflow.agent.contract import CALLS_FILE, EVALUATED_FILE, REQUEST_SCHEMA
from precflow.agent.events import Events
from precflow.agent.replay.evaluate import evaluate
from precflow.diagnosis.evaluation import name_outputs, pair_calls, write_calls
from precflow.diagnosis.introduced import Evaluated, SideNumbers, decide_all


@pytest.fixture
def judge(tmp_path):
    """Record a right and a wrong step, evaluate both, and return what was found by (module, phase, index)."""

    def run(wrong, **options):
        reference, target = record(tmp_path / "reference", **options), record(tmp_path / "target", wrong, **options)
        write_calls(tmp_path / CALLS_FILE, reference, target)
        plain = {
            "schema": REQUEST_SCHEMA,
            "action": "evaluate",
            "side": "reference",
            "output": str(tmp_path),
            "device": ["cpu"],
        }
        evaluate(requests.parse(plain), Events(io.StringIO()))
        lines = [json.loads(line) for line in (tmp_path / EVALUATED_FILE).read_text().splitlines()]
        sides = [
            {
                name: SideNumbers(**{key: value for key, value in numbers.items() if value is not None})
                for name, numbers in line["sides"].items()
            }
            for line in lines
        ]
        evaluated = [Evaluated(**{**line, "sides": side}) for line, side in zip(lines, sides, strict=True)]
        pairs = pair_calls(reference, target)
        calls = {pair.name: pair.reference for pair in pairs}
        found = decide_all(name_outputs(evaluated, pairs), {name: call.class_name for name, call in calls.items()})
        return {
            (calls[one.call].module, calls[one.call].phase, one.index): one
            for one in found
            if calls[one.call].phase != "forward"
        }

    return run


def test_the_wrong_gradients_are_named_and_what_they_lead_to_is_cleared(judge):
    found = judge(lambda *given: products(*map(rounded, given)))
    assert {key for key, one in found.items() if one.is_fault} == {("head", "backward", "0"), ("head", "gradient", "weight")}
    assert not found["inner", "gradient", "weight"].is_fault
    assert not found["inner", "backward", "0"].is_fault
    assert found["inner", "gradient", "weight"].rho < 8


def test_without_functions_only_the_gradient_of_the_weight_is_evaluated(judge):
    found = judge(lambda g, x, w: (products(g, x, w)[0], 1.01 * products(g, x, w)[1]), level="module")
    assert {key for key, one in found.items() if one.is_fault} == {("head", "gradient", "weight")}
    assert ("head", "backward", "0") not in found


def test_a_layer_that_runs_twice_and_a_gradient_that_something_else_changes_say_nothing(judge):
    def other(g, x, w):
        return products(g, x, w)[0], products(g, x, w)[1] + torch.ones(40, 24)

    found = judge(other, times=2, on_both=other)
    assert not any(one.is_fault for one in found.values())
    assert ("inner", "backward", "0") in found  # each call of it has an input of its own
    assert not {("inner", "gradient", "weight"), ("head", "gradient", "weight")} & found.keys()
