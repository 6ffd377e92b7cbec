"""Routing in a mixture of experts: healthy chips send some tokens elsewhere, and a fault behind that is still found."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.npu, pytest.mark.xdist_group("routed")]
ROUTED = (
    "workload.model._target_=routed.build",
    "workload.inputs._target_=routed.inputs",
    "reference.device=cpu",
    "target.device=emulated",
)
REORDER = "{operator:mm|addmm|bmm|baddbmm,rule:slices,width:8},{operator:_softmax,rule:reverse}"


@pytest.fixture(scope="module")
def routed(precflow, tmp_path_factory):
    """Return a function that runs recipe ``minilm`` over ``workloads/routed.py`` on a chip with another summation order."""
    cwd = tmp_path_factory.mktemp("routed")
    shutil.copy(Path(__file__).parent / "workloads" / "routed.py", cwd)

    def run(*words, faults=""):
        options = {"cwd": cwd, "recipe": "minilm", "timeout": 600, "PRECFLOW_TRUST": "routed", "OMP_NUM_THREADS": "1"}
        rules = f"emulate.rules=[{REORDER}{faults}]"
        return precflow("+recipe=minilm", *ROUTED, "emulate.name=chip", rules, *words, **options)

    return run


def test_tokens_that_go_to_another_expert_on_a_healthy_chip_are_no_fault(routed):
    ended = routed()
    assert ended.code == 3, ended.err
    rows = {row["record"]: row for row in ended.result["rows"]}
    tie = rows["model.layers.0.mlp.gate/topk.0/forward.output.1"]
    assert tie["status"] == "near_tie"
    assert tie["value"] <= tie["limit"] < 1e-5
    counts = Counter(row["status"] for row in rows.values())
    assert not counts.keys() - {"pass", "blind", "near_tie", "not_comparable", "not_judged"}
    assert rows["model.layers.0.mlp/forward.output.0"]["status"] == "not_comparable"
    assert rows["model.layers.0.self_attn/forward.output.0"]["status"] == "pass"
    assert "depend on" in ended.said
    assert "near tie" in ended.said
    assert f"{counts['not_comparable']} not comparable" in ended.said
    assert "whatif=[reference_choice] compares them" in ended.said


def test_with_the_reference_s_choices_everything_behind_is_compared_and_the_own_choices_are_judged(routed):
    ended = routed("whatif=[reference_choice]")
    assert ended.code == 0, ended.err
    rows = {row["record"]: row for row in ended.result["rows"]}
    assert rows["model.layers.0.mlp.gate/topk.0/forward.output.1"]["status"] == "near_tie"
    assert rows["model.layers.0.mlp/forward.output.0"]["status"] == "pass"
    assert not {row["status"] for row in rows.values()} - {"pass", "near_tie", "not_judged"}


def test_a_recipe_says_how_much_may_depend_on_near_ties(routed):
    ended = routed("coverage.minimum=10%")
    assert ended.code == 0, ended.err
    assert "near tie" in ended.said


def test_a_fault_behind_a_near_tie_is_found(routed):
    behind = ",{operator:silu,rule:scale,factor:1.01,module:model.layers.1.mlp.experts.act_fn}"
    ended = routed("coverage.minimum=10%", faults=behind)
    assert ended.code == 1, ended.err
    assert "layers.1.mlp.experts.act_fn" in ended.result["region"]["start"]


def test_a_router_that_chooses_the_wrong_expert_is_misaligned(routed):
    reversed_scores = ",{operator:_softmax,rule:scale,factor:-1.0,module:model.layers.0.mlp.gate}"
    ended = routed("coverage.minimum=10%", faults=reversed_scores)
    assert ended.code == 1, ended.err
    assert "layers.0.mlp.gate / softmax" in ended.result["region"]["start"]
