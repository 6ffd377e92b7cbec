import json
import sys
from pathlib import Path

import pytest
import torch

from precflow.agent import request as requests
from precflow.agent.capture.recorder import Recorder
from precflow.agent.devices.cpu import Cpu
from precflow.agent.failures import AgentError
from precflow.agent.session import determinism
from precflow.agent.session.dump import dump

pytestmark = pytest.mark.usefixtures("restored", "forgotten")


@pytest.fixture
def make(asked, events):
    """Return a function that makes a dump in this process and returns its header."""

    def made(**changes):
        request = requests.parse(asked(**changes))
        dump(request, Cpu(), torch.device("cpu"), events)
        return json.loads(Path(request.output, "dump.json").read_text())

    return made


def workload(kind="Toy", inputs="inputs", **more):
    return {"model": {"_target_": "toy_workload.build", "kind": kind}, "inputs": {"_target_": f"toy_workload.{inputs}"}, **more}


def calls(request_output):
    return [json.loads(line) for line in Path(request_output, "rank0/step0/records-0.jsonl").read_text().splitlines()]


def refused(make, **changes):
    with pytest.raises(AgentError) as caught:
        make(**changes)
    return caught.value


def test_the_header_says_what_was_run(make):
    header = make()
    assert {key: header[key] for key in ("schema", "format", "side", "recipe", "declared", "dtype")} == {
        "schema": 2,
        "format": "precflow-dump",
        "side": "target",
        "recipe": "toy",
        "declared": "5be0",
        "dtype": "float32",
    }
    assert header["device"]["kind"] == "cpu"
    assert header["repeat"]["checked"] is True
    assert header["repeat"]["records"] > 0
    assert header["repeat"]["different"] == []
    assert header["draws"] == []
    assert header["determinism"]["dropouts_removed"] == []  # in evaluation none would have acted
    assert list(header["weights"]["entries"]) == ["linear.weight", "linear.bias", "norm.weight", "norm.bias", "seen"]
    assert list(header["inputs"]["entries"]) == ["features"]
    assert set(header["seconds"]) >= {"model", "weights", "move", "forward", "repeat"}
    assert header["counts"]["calls"] > 0


@pytest.mark.parametrize(
    ("mode", "kind", "dropout", "changed"),
    [
        ("eval", "Toy", "removed", []),
        ("train", "Toy", "removed", [("dropout", 1)]),
        ("train", "Toy", "kept", [("seeds", 1)]),
        ("eval", "Drawing", "removed", [("seeds", 1)]),
    ],
)
def test_what_was_changed_is_counted_where_it_acted(make, mode, kind, dropout, changed):
    settings = {"dropout": dropout, "algorithms": "native", "repeat": False}
    header = make(workload=workload(kind, mode=mode), determinism=settings)
    assert [(each["what"], each["count"]) for each in header["determinism"]["changes"]] == changed


def test_a_switch_is_told_as_it_was_read_and_another_learning_rate_by_its_groups(make):
    torch.use_deterministic_algorithms(mode=False)  # whatever earlier tests of this process have left
    trained = workload("Losing", "labelled", optimizer={"_target_": "torch.optim.SGD", "lr": 0.1}, mode="train")
    phases = {"phase": ["forward", "optimizer"]}
    header = make(workload={**trained, "learning_rate": 0.2}, determinism={"dropout": "kept", "repeat": False}, capture=phases)
    found = {each["what"]: each["places"] or each["count"] for each in header["determinism"]["changes"]}
    assert found == {"learning_rate": 1, "seeds": ["torch"]}  # nobody has turned the switch on
    determinism.apply(requests.parse({"schema": 1, "action": "dump", "output": "."}).determinism, Cpu())
    same = make(workload={**trained, "learning_rate": 0.1}, determinism={"dropout": "kept", "repeat": False}, capture=phases)
    assert {each["what"] for each in same["determinism"]["changes"]} == {"seeds", "algorithms"}


def test_the_same_request_gives_the_same_evidence(make):
    assert make()["content"] == make()["content"]


def test_weights_and_inputs_are_hashed_before_the_cast(make):
    full, half = make(), make(dtype="bfloat16")
    assert half["weights"] == full["weights"]
    assert half["inputs"] == full["inputs"]
    assert half["content"] != full["content"]


def test_the_run_itself_is_in_the_wanted_type(make, tmp_path):
    make(dtype="bfloat16")
    linear = next(call for call in calls(tmp_path / "output") if call["operator"] == "linear")
    assert {record["dtype"] for record in linear["inputs"] + linear["outputs"]} == {"bfloat16"}


def test_seeds_decide_weights_and_inputs(make):
    first, second = make(), make(determinism={"seed": 7})
    assert first["weights"]["digest"] != second["weights"]["digest"]
    assert first["inputs"]["digest"] != second["inputs"]["digest"]


def test_state_is_put_back_before_the_repeat(make):
    assert make(workload=workload(mode="train"))["repeat"]["different"] == []


def test_what_does_not_repeat_is_named_in_order(make):
    different = make(workload=workload("Noisy"))["repeat"]["different"]
    assert different[0] == "(model)/add.0/forward.output.0"
    assert "linear/linear.0/forward.output.0" in different
    assert different[-1] == "(model)/forward.output.hidden"


def test_without_repeat_nothing_is_claimed(make):
    assert make(determinism={"repeat": False})["repeat"] == {"checked": False, "records": 0, "by": [], "different": []}


@pytest.mark.parametrize(
    ("capture", "by"),
    [
        ({"detail": "tensors"}, ["bits"]),
        ({"detail": "sketch"}, ["bits"]),
        ({"detail": "statistics"}, ["statistics"]),
        ({"detail": "statistics", "rules": [{"match": ["linear"], "detail": "digest"}]}, ["bits", "statistics"]),
        ({"detail": "tensors", "rules": [{"match": ["linear"], "step": [5], "detail": "statistics"}]}, ["bits"]),
    ],
)
def test_it_is_told_by_what_the_runs_were_compared(make, capture, by):
    repeat = make(capture=capture)["repeat"]
    assert (repeat["by"], repeat["different"]) == (by, [])


def test_a_sketch_that_answers_for_statistics_does_so_in_the_repeat_too(make):
    rules = [{"match": ["norm"], "level": ["api"], "detail": "sketch"}]
    assert make(capture={"detail": "statistics", "rules": rules})["repeat"]["different"] == []


CHECKED = {"observer": "checked", "repeat": False}


@pytest.mark.parametrize("trains", [False, True])
def test_watching_changes_nothing(make, trains):
    phases = {"capture": {"phase": ["forward", "gradient", "optimizer"]}} if trains else {}
    optimizer = {"optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1}} if trains else {}
    asked = workload("Losing", "labelled", **optimizer) if trains else workload()
    assert make(workload=asked, determinism=CHECKED, **phases)["observer"] == {"checked": True, "step": 0, "different": []}


def test_a_model_that_sees_its_hooks_is_named(make):
    different = make(workload=workload("Watched"), determinism=CHECKED)["observer"]["different"]
    assert different == ["output.hidden"]


def test_without_a_plain_run_nothing_is_said_of_the_observer(make):
    assert make()["observer"] == {"checked": False, "step": 0, "different": []}


def test_draws_in_the_forward_repeat_after_reseeding(make):
    assert make(workload=workload("Drawing"))["repeat"]["different"] == []


def test_dropout_can_be_kept_and_repeats_by_its_seed(make):
    header = make(workload=workload(mode="train"), determinism={"dropout": "kept"})
    assert header["determinism"]["dropouts_removed"] == []
    assert header["repeat"]["different"] == []


def test_positional_inputs_get_the_forwards_names(make):
    assert list(make(workload=workload(inputs="pair"))["inputs"]["entries"]) == ["features", "scale"]


def test_steps(make, tmp_path):
    make(capture={"step": [0, 2]})
    assert sorted(path.name for path in (tmp_path / "output" / "rank0").iterdir()) == ["step0", "step2"]


def test_scope(make, tmp_path):
    make(capture={"scope": ["norm"]})
    assert {call["module"] for call in calls(tmp_path / "output")} == {"norm"}


def test_an_empty_scope_offers_names(make):
    error = refused(make, capture={"scope": ["nrom"]})
    assert "matches no module of Toy" in error.message
    assert "norm" in error.next_step


@pytest.mark.parametrize(
    ("capture", "kind", "expected"),
    [
        ({"phase": ["optimizer"]}, "bad_request", "workload.optimizer is not set"),
        ({"step": []}, "bad_request", "capture.step"),
        ({"budget": 10}, "budget", "exceed its budget"),
    ],
)
def test_what_this_agent_cannot_do_is_said(make, capture, kind, expected):
    error = refused(make, capture=capture)
    assert error.kind == kind
    assert expected in error.message


def test_an_untrusted_target_leaves_an_error_and_no_dump(make, tmp_path):
    assert refused(make, trusted=[]).kind == "untrusted"
    assert json.loads((tmp_path / "output" / "error.json").read_text())["kind"] == "untrusted"
    assert not (tmp_path / "output" / "dump.json").exists()


def test_an_operator_that_the_type_lacks_is_unsupported(make, toy):
    (toy / "toy_workload.py").write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x): return torch.linalg.svd(x.half())\n"
        "def build(): return Model()\n"
        "def inputs(): return {'x': torch.ones(2, 2)}\n"
    )
    error = refused(make, workload={"model": {"_target_": "toy_workload.build"}, "inputs": {"_target_": "toy_workload.inputs"}})
    assert error.kind == "unsupported"
    assert "Half" in error.message


def test_nothing_of_the_capture_is_left_on_the_model(make):
    make()
    model = sys.modules["toy_workload"].build()
    assert not model._forward_hooks
    assert torch.overrides._get_current_function_mode_stack() == []


def test_the_last_steps_alone_are_kept_where_that_is_asked_for(make, tmp_path):
    header = make(capture={"step": list(range(5)), "keep_last": 2})
    assert sorted(path.name for path in Path(tmp_path, "output", "rank0").iterdir()) == ["step3", "step4"]
    assert {name.split("/")[1] for name in header["files"]} == {"step3", "step4"}


def test_the_header_says_what_capture_was_asked_for(make):
    rules = [{"match": ["norm"], "detail": "digest"}]
    capture = make(capture={"rules": rules, "fine": True})["capture"]
    assert (capture["rules"], capture["keep_last"], capture["fine"]) == (rules, 0, True)


def test_a_rule_about_no_module_stops_the_dump_before_it_costs_anything(make):
    error = refused(make, capture={"rules": [{"match": ["nrom"], "detail": "none"}]})
    assert error.message.startswith("capture.rules[0].match=['nrom'] matches no module of Toy")
    assert error.next_step == "modules are named like this: norm"


def test_rules_decide_what_is_kept_of_each_call(make, tmp_path):
    rules = [
        {"match": ["linear"], "detail": "tensors"},
        {"operator": ["layer_norm"], "detail": "none"},
        {"class": ["LayerNorm"], "detail": "statistics"},
        {"operator": ["gelu"], "detail": "none"},
    ]
    header = make(capture={"detail": "digest", "rules": rules})
    kept = {
        (call["module"], call["operator"]): sorted({record["stored"] for record in call["outputs"]})
        + sorted(call["outputs"][0])
        for call in calls(tmp_path / "output")
    }
    assert kept[("linear", "linear")][0] is True
    assert ("norm", "layer_norm") not in kept
    assert "statistics" in kept[("norm", "")]
    assert kept[("", "")][0] is False
    assert "statistics" not in kept[("", "")]
    assert header["capture"]["unmatched"] == [3]
    assert header["repeat"]["different"] == []


def test_an_operator_that_is_left_out_is_counted_all_the_same(make, tmp_path):
    make(workload=workload(inputs="pair"), capture={"level": ["api"]})
    before = [(call["operator"], call["ordinal"]) for call in calls(tmp_path / "output") if not call["module"]]
    (tmp_path / "output" / "dump.json").unlink()
    make(workload=workload(inputs="pair"), capture={"level": ["api"], "rules": [{"operator": ["mul"], "detail": "none"}]})
    after = [(call["operator"], call["ordinal"]) for call in calls(tmp_path / "output") if not call["module"]]
    assert after == [one for one in before if one[0] != "mul"]


def test_a_sample_has_the_content_id_of_the_whole_and_the_same_places_every_time(make, tmp_path):
    large = workload(inputs="inputs")
    large["inputs"].update(rows=20_000)
    header = make(workload=large, capture={"level": ["module"], "rules": [{"match": ["linear"], "sample": 0.25}]})
    whole, part = (
        next(call for call in calls(tmp_path / "output") if call["module"] == name)["outputs"][0] for name in ("norm", "linear")
    )
    assert "share" not in whole
    assert 0.4 < part["share"] < 0.42  # at least 64 blocks of 1024 elements
    (tmp_path / "output" / "dump.json").unlink()
    again = make(workload=large, capture={"level": ["module"], "rules": [{"match": ["linear"], "sample": 0.25}]})
    assert again["content"] == header["content"]


def test_a_dump_that_was_stopped_is_gone_on_with(make, tmp_path, monkeypatch):
    capture = {"step": [0, 1, 2, 3]}
    whole = make(capture=capture)
    place = tmp_path / "output"
    place.rename(tmp_path / "whole")
    recorded = []
    step = Recorder.begin_step

    def stopping(recorder, number):
        if recorder._writer is not None:
            recorded.append(number)
            if recorded == [0, 1, 2]:
                raise KeyboardInterrupt
        step(recorder, number)

    monkeypatch.setattr(Recorder, "begin_step", stopping)
    refused(make, capture=capture, resume=True)
    assert not (place / "dump.json").exists()
    header = make(capture=capture, resume=True)
    assert recorded == [0, 1, 2, 2, 3]
    assert {key: header[key] for key in ("content", "files", "counts", "sites", "repeat")} == {
        key: whole[key] for key in ("content", "files", "counts", "sites", "repeat")
    }
    assert header["repeat"]["different"] == []


def test_without_being_asked_nothing_is_gone_on_with(make, monkeypatch):
    make()
    recorded = []
    step = Recorder.begin_step
    monkeypatch.setattr(Recorder, "begin_step", lambda recorder, number: recorded.append(number) or step(recorder, number))
    assert make()["counts"]["calls"] > 0
    assert recorded[0] == 0
