"""Parts to blame and what mends them, where that is not the usual: two of them, and one that nothing mends.

One part to blame, others that inherit, and what mends it: ``tests/examples/test_sd_pipeline.py``. Faults of many kinds in every
part of a pipeline: ``python -m benchmarks.parts``.
"""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.npu]


@pytest.mark.xdist_group("small encoder")
def test_two_parts_are_to_blame_and_mended_only_together(precflow, small_encoder):
    rules = "emulate.rules=[{operator: native_layer_norm, rule: argument, name: eps, value: 0.001, module: '*.layer_norm1'}]"
    words = (
        "target.dtype=float32",
        "+emulate=layernorm_eps",
        rules,
        "workload.parts=[embeddings,encoder.layers.0,encoder.layers.1]",
    )
    ended = precflow("+recipe=sd_text_encoder", *small_encoder(layers=2), *words)
    assert ended.code == 1, ended.err
    states = {part["name"]: part["state"] for part in ended.result["parts"]}
    assert states == {"embeddings": "fine", "encoder.layers.0": "to blame", "encoder.layers.1": "to blame"}
    assert "to blame: encoder.layers.0, encoder.layers.1 · fine: embeddings" in ended.said
    mends = {mend["title"]: mend for mend in ended.result["mends"]}
    for part, other in (("encoder.layers.0", "encoder.layers.1"), ("encoder.layers.1", "encoder.layers.0")):
        alone = mends[f"{part} unfused"]
        assert alone["outcome"] == "fails"
        assert alone["why"].endswith(f"{other} is still to blame")
    assert mends["encoder.layers.0, encoder.layers.1 in float64"]["outcome"] == "fails"  # the kernel ignores it in any type
    assert mends["encoder.layers.0, encoder.layers.1 unfused"]["outcome"] == "passes"
    assert mends["encoder.layers.0, encoder.layers.1 on the CPU"]["outcome"] == "passes"
    title, smallest = mends.popitem()
    assert title == "encoder.layers.0.layer_norm1, encoder.layers.1.layer_norm1 unfused"
    assert (smallest["smallest"], smallest["end"]["ratio"] < 1, smallest["price"]["rounds"]) == (True, True, 5)
    assert not any(mend["smallest"] for mend in mends.values())
    assert "mend encoder.layers.0.layer_norm1 and 1 more unfused passes, in" in ended.said


def test_a_part_that_nothing_mends_is_said_to_be_one(hostile):
    """Its code has a branch for this device: it computes something else in any type, and on the CPU too."""
    metric = ("task_metrics.mean_rel_error.limit=1e-6", "whatif=[suspects_on_cpu]")
    ended = hostile("workload.model.how=branch", "target.device=emulated", "workload.parts=[first,step,last]", *metric)
    assert ended.code == 1, ended.err
    assert {part["name"]: part["state"] for part in ended.result["parts"]} == {
        "first": "fine",
        "step": "to blame",
        "last": "inherits",
    }
    mends = {mend["title"]: mend for mend in ended.result["mends"]}
    assert {title: mend["outcome"] for title, mend in mends.items()} == {
        "as it is": "fails",
        "step in float64": "fails",
        "step unfused": "did not run",  # it has nothing that is fused
        "step on the CPU": "fails",
    }
    why = mends["step on the CPU"]["why"]
    assert why.endswith("is beyond its limit; step is still to blame")
    assert "mean_rel_error" in why
    (tried,) = ended.result["whatifs"]
    for told in (tried["task_before"], tried["task_after"], mends["as it is"]["task"]):
        assert [(one["name"], one["state"]) for one in told] == [("mean_rel_error", "beyond")]
    assert not any(mend["smallest"] for mend in mends.values())
    assert "mend nothing that was tried passes: step in float64 · step unfused: did not run · step on the CPU" in ended.said
    for report in ("report.md", "report.html"):
        assert "Nothing that was tried passes." in (ended.folder / "public" / report).read_text(encoding="utf-8")
