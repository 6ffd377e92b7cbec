"""What float64 finds in two dumps, evaluated in this process as an agent does it."""

import io
import json

from precflow.agent import request as requests
from precflow.agent.contract import CALLS_FILE, EVALUATED_FILE, REQUEST_SCHEMA
from precflow.agent.events import Events
from precflow.agent.replay.evaluate import evaluate
from precflow.diagnosis.evaluation import name_outputs, pair_calls, write_calls
from precflow.diagnosis.introduced import Evaluated, SideNumbers, decide_all


def evaluate_here(folder):
    """Do what an agent does when it is asked to evaluate the calls of a folder."""
    plain = {"schema": REQUEST_SCHEMA, "action": "evaluate", "side": "reference", "output": str(folder), "device": ["cpu"]}
    evaluate(requests.parse(plain), Events(io.StringIO()))


def evaluate_pair(folder, reference, target):
    """Return what was found about each output, by module, phase and index."""
    write_calls(folder / CALLS_FILE, reference, target)
    evaluate_here(folder)
    lines = [json.loads(line) for line in (folder / EVALUATED_FILE).read_text().splitlines()]
    evaluated = [Evaluated(**{**line, "sides": {name: _numbers(one) for name, one in line["sides"].items()}}) for line in lines]
    pairs = pair_calls(reference, target)
    calls = {pair.name: pair.reference for pair in pairs}
    found = decide_all(name_outputs(evaluated, pairs), {name: call.class_name for name, call in calls.items()})
    return {(calls[one.call].module, calls[one.call].phase, one.index): one for one in found}


def _numbers(plain):
    return SideNumbers(**{key: value for key, value in plain.items() if value is not None})
