"""Action ``whatif``: a dump for each arm, the unchanged one first, and how long each takes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from precflow.agent import request as requests
from precflow.agent.devices.cpu import Cpu
from precflow.agent.failures import AgentError
from precflow.agent.session.whatif import whatif
from precflow.dumps.formats import read_dump

pytestmark = pytest.mark.usefixtures("restored", "forgotten")
NORM = "norm/layer_norm.0/forward.output.0"
PRECISE = {"name": "precise", "changes": [{"kind": "dtype", "value": "float64", "records": [NORM]}]}
IDLE = {"name": "idle", "changes": [{"kind": "dtype", "value": "float64", "records": ["norm/gelu.0/forward.output.0"]}]}
UNCHANGED = {"name": "unchanged", "changes": []}


@pytest.fixture
def made(asked, events, tmp_path):
    """Return a function that runs arms and opens their dumps."""

    def run(*arms, **changes):
        output = tmp_path / "whatif"
        output.mkdir()
        asking = asked(action="whatif", determinism={"repeat": False}, output=str(output), arms=[UNCHANGED, *arms], **changes)
        whatif(requests.parse(asking), Cpu(), torch.device("cpu"), events)
        facts = json.loads((output / "whatif.json").read_text())["arms"]
        return facts, {name: read_dump(output / name) for name, arm in facts.items() if not arm["problem"]}

    return run


def output(dump, text):
    return next(dump.tensor(record) for call in dump.calls() for record in call.outputs if record.text == text)


def test_an_arm_changes_its_calls_only_and_what_follows_from_them(made):
    facts, dumps = made(PRECISE)
    assert {name: (arm["problem"], arm["changed"]) for name, arm in facts.items()} == {
        "unchanged": ("", 0),
        "precise": ("", 1),
    }
    before, after = (output(dumps[name], NORM).astype(np.float64) for name in ("unchanged", "precise"))
    assert 0 < np.linalg.norm(before - after) / np.linalg.norm(before) < 3e-7
    linear = "linear/forward.output.0"
    assert np.array_equal(output(dumps["unchanged"], linear), output(dumps["precise"], linear))


def test_an_arm_that_changes_nothing_is_told_and_leaves_no_dump(made, tmp_path):
    facts, dumps = made(IDLE, PRECISE)
    assert "none of its calls ran" in facts["idle"]["problem"]
    assert set(dumps) == {"unchanged", "precise"}
    assert not (tmp_path / "whatif" / "idle").exists()


def test_arms_train_from_the_same_state_and_are_timed(made):
    workload = {
        "model": {"_target_": "toy_workload.build", "kind": "Losing"},
        "inputs": {"_target_": "toy_workload.labelled"},
        "optimizer": {"_target_": "torch.optim.Adam", "lr": 0.01},
    }
    same = {"name": "same", "changes": [{"kind": "switches", "value": "deterministic", "records": []}]}
    facts, dumps = made(same, workload=workload, capture={"phase": ["forward", "gradient"], "step": [0, 1]}, rounds=2)
    contents = [{record.text: record.content for call in dump.calls() for record in call.outputs} for dump in dumps.values()]
    assert contents[0] == contents[1]
    assert all(len(arm["seconds"]) == 2 and min(arm["seconds"]) > 0 for arm in facts.values())


def test_a_part_in_a_wider_type_has_the_weights_of_before_the_cast(made):
    precise = {"name": "precise", "changes": [{"kind": "part", "value": {"modules": ["linear"], "dtype": "float32"}}]}
    _, dumps = made(precise, dtype="float16")
    rounded, found = (output(dumps[name], "linear/forward.output.0") for name in ("unchanged", "precise"))
    assert rounded.dtype == found.dtype == np.float16
    assert not np.array_equal(rounded, found)


def test_a_workload_that_does_not_run_as_it_is_is_an_error(made):
    workload = {"model": {"_target_": "toy_workload.build", "kind": "Raising"}, "inputs": {"_target_": "toy_workload.inputs"}}
    with pytest.raises(AgentError, match="the third layer is upset"):
        made(PRECISE, workload=workload)


@pytest.mark.parametrize(
    ("arm", "problem"),
    [
        ({"name": "../up", "changes": []}, r"arms\[0\]\.name is '../up', expected letters, digits and _"),
        ({"name": "a", "changes": [{"kind": "guess"}]}, r"arms\[0\]\.changes\[0\]\.kind is 'guess', expected one of dtype"),
    ],
)
def test_wrong_arms_are_refused_by_name(asked, arm, problem):
    with pytest.raises(AgentError, match=problem):
        requests.parse(asked(action="whatif", arms=[arm]))


def test_the_action_writes_into_its_own_folder_only(made, tmp_path):
    made(PRECISE)
    assert sorted(path.name for path in Path(tmp_path / "whatif").iterdir()) == ["precise", "unchanged", "whatif.json"]
