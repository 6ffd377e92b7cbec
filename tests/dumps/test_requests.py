import dataclasses
import json

import pytest

from precflow.agent import request as agents
from precflow.config.schema import (
    Capture,
    CaptureRule,
    Determinism,
    Emulate,
    RunConfig,
    Side,
    Site,
    TaskMetric,
    Tolerance,
    Workload,
)
from precflow.dumps.requests import UserCode, describe_noise, describe_side, dump_request, environment_request
from precflow.judgement.near_ties import is_draw, is_selection

RULES = ({"operator": "addmm", "rule": "scale", "factor": 1.01},)


@pytest.fixture
def config():
    """Return a recipe as it comes out of composition."""
    return RunConfig(
        recipe="toy",
        workload=Workload(model={"_target_": "toy.build", "width": 4}, inputs={"_target_": "toy.inputs", "texts": ("a", "b")}),
        reference=Side(device=("cuda", "cpu")),
        target=Side(device=("npu", "emulated"), dtype="float16", interpreter="/opt/python", variables={"A": "1"}),
        emulate=Emulate(name="scaled_linear", rules=RULES),
        site=Site(name="here", paths={"models": "/models"}),
    )


def asked(config, side, tmp_path, **options):
    options = {"ci": False, "declared_key": "5be0", "code": UserCode(("toy",), ("/code",)), **options}
    return dump_request(config, side, tmp_path, **options)


def test_declared_is_plain_and_without_paths_or_site(config):
    found = describe_side(config, "target")
    assert json.loads(json.dumps(found)) == found
    assert found["device"] == ["npu", "emulated"]
    assert found["dtype"] == "float16"
    assert found["workload"]["inputs"]["texts"] == ["a", "b"]
    text = json.dumps(found)
    for path in ("/opt/python", "/models", "here", "timeout"):
        assert path not in text


def test_faults_belong_to_the_target(config):
    assert describe_side(config, "target")["emulate"] == {"name": "scaled_linear", "rules": [dict(RULES[0])]}
    assert describe_side(config, "reference")["emulate"] == {"name": "", "rules": []}


@pytest.mark.parametrize(
    "change",
    [
        {"determinism": Determinism(seed=5)},
        {"capture": Capture(scope=("encoder.*",))},
        {"capture": Capture(rules=(CaptureRule(match=("encoder.*",), detail="none"),))},
        {"capture": Capture(keep_last=2)},
        {"capture": Capture(weights="left_out")},
        {"target": Side(device=("npu", "emulated"), dtype="float32")},
        {"workload": Workload(model={"_target_": "toy.build", "width": 5})},
        {"emulate": Emulate(name="scaled_linear", rules=({**RULES[0], "factor": 2.0},))},
    ],
)
def test_what_changes_a_dump_changes_the_declaration(config, change):
    assert describe_side(dataclasses.replace(config, **change), "target") != describe_side(config, "target")


@pytest.mark.parametrize(
    "change",
    [
        {"capture": Capture(timeout=5.0)},
        {"runs": "elsewhere"},
        {"reference": Side(dtype="float64")},
        {"site": Site()},
        {"recipe": "another_name"},
    ],
)
def test_what_does_not_change_a_dump_does_not(config, change):
    assert describe_side(dataclasses.replace(config, **change), "target") == describe_side(config, "target")


@pytest.mark.parametrize("side", ["reference", "target"])
def test_an_agent_takes_the_request_as_it_is(config, side, tmp_path):
    found = agents.parse(json.loads(json.dumps(asked(config, side, tmp_path))))
    assert (found.action, found.side, found.recipe, found.declared) == ("dump", side, "toy", "5be0")
    assert found.trusted == ("toy",)
    assert found.import_paths == ("/code",)
    assert found.output == str(tmp_path)
    assert found.device == tuple(getattr(config, side).device)


def test_an_agent_takes_the_environment_request(config, tmp_path):
    found = agents.parse(environment_request(config, "target", tmp_path, ci=True))
    assert (found.action, found.ci) == ("environment", True)
    assert found.determinism == agents.parse(asked(config, "target", tmp_path)).determinism


def test_the_output_is_an_absolute_path(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from pathlib import Path

    assert asked(config, "target", Path("here"))["output"] == str(tmp_path / "here")


def captured(config, capture, **options):
    return describe_side(dataclasses.replace(config, capture=capture), "target", **options)["capture"]


def test_a_rule_goes_to_the_agent_without_its_reason(config):
    rule = CaptureRule(match=("a",), class_=("B",), step=(0, 1), detail="none", because="too large")
    (said,) = captured(config, Capture(rules=(rule,)))["rules"]
    assert (said["class"], said["step"], said["detail"]) == (["B"], [0, 1], "none")
    assert "because" not in said


def test_the_first_pass_of_escalating_is_the_dump_that_a_sketch_is(config):
    assert captured(config, Capture(detail="escalating")) == captured(config, Capture(detail="sketch"))


def test_the_second_pass_keeps_the_tensors_of_the_region_and_nothing_else(config, tmp_path):
    escalating = dataclasses.replace(config, capture=Capture(detail="escalating", budget=100))
    region = [{"match": ["a"], "operator": ["linear"]}]
    request = agents.parse(json.loads(json.dumps(asked(escalating, "target", tmp_path, region=region))))
    scope = request.capture.selection()
    details = {name: scope.detail_of("api", name, "", "linear", "forward", 0, 0) for name in ("a", "b")}
    assert details == {"a": "tensors", "b": "none"}
    assert request.capture.budget == 100
    assert request.determinism.repeat is False
    assert describe_side(escalating, "target", region=region) != describe_side(escalating, "target")


def test_choices_of_the_reference_change_the_target_s_key_and_what_both_sides_keep_of_choices(config):
    plain = dataclasses.replace(config, capture=Capture(detail="sketch"))
    given = dataclasses.replace(plain, whatif=("reference_choice",))
    assert "choices" not in describe_side(plain, "target")
    assert [describe_side(given, side).get("choices") for side in ("reference", "target")] == [None, "reference"]
    for side in ("reference", "target"):
        (rule,) = describe_side(given, side)["capture"]["rules"]
        assert rule["detail"] == "tensors"
        assert all(is_selection(name) or is_draw(name) for name in rule["operator"])
        assert describe_side(given, side, region=[{"match": ["a"]}])["capture"]["rules"] == [
            rule,
            {"match": ["a"]},
            {"detail": "none"},
        ]
    assert [describe_noise(each, "float32").get("choices") for each in (plain, given)] == [None, "reference"]
    everything = dataclasses.replace(given, capture=Capture(detail="tensors"))
    assert describe_side(everything, "reference") == describe_side(dataclasses.replace(everything, whatif=()), "reference")


def test_going_on_is_asked_for_and_changes_no_key(config, tmp_path):
    assert [asked(config, "target", tmp_path, resume=resume)["resume"] for resume in (False, True)] == [False, True]
    assert asked(config, "target", tmp_path)["resume"] is False
    assert "resume" not in describe_side(config, "target")
    assert agents.parse(asked(config, "target", tmp_path, resume=True)).resume


def test_constants_of_masks_reach_the_agent_which_counts_by_them(config):
    more = dataclasses.replace(config, tolerance=Tolerance(fills=(-12345.0,)))
    assert describe_side(more, "target")["capture"]["fills"] == [-12345.0]
    assert describe_side(config, "target") != describe_side(more, "target")


def test_what_task_metrics_read_is_kept_whatever_else_is_kept(config):
    metrics = {
        "psnr": TaskMetric(output="vae.decoder", range=(0.0, 1.0)),
        "perplexity": TaskMetric(output="lm", labels="tokens"),
        "token_agreement": TaskMetric(output="(model) / argmax"),
    }
    asking = dataclasses.replace(config, task_metrics=metrics, capture=Capture(detail="digest"))
    rules = describe_side(asking, "target")["capture"]["rules"]
    kept = [(rule["match"], rule["operator"], rule["detail"]) for rule in rules]
    assert kept == [
        (["vae.decoder"], [""], "tensors"),
        (["lm"], [""], "tensors"),
        (["(model)"], ["argmax"], "tensors"),
        (["(model)"], [""], "tensors"),
    ]
    whole = dataclasses.replace(asking, capture=Capture(detail="tensors"))
    assert describe_side(whole, "target") == describe_side(dataclasses.replace(whole, task_metrics={}), "target")
