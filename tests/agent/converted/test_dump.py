"""A dump of a network in ONNX Runtime: torch's names, the graph's numbers, and what was fused away."""

from pathlib import Path

import numpy as np
import pytest

import precflow
from precflow.agent.failures import AgentError
from precflow.dumps.formats import read_dump

pytestmark = pytest.mark.usefixtures("restored", "forgotten")


def test_an_optimised_graph_agrees_with_torch_and_what_it_has_fused_is_covered(convert):
    convert(side="reference")
    header = convert(conversion={"optimise": "extended"})
    result = precflow.compare(convert.folder / "reference", convert.folder / "target")
    assert (result.verdict, result.reasons) == ("aligned", ())
    statuses = {record.status for record in result.records}
    assert {"pass", "covered"} <= statuses
    assert not statuses & {"unpaired_reference", "unpaired_target"}
    assert header["fused"]["conv"] == "head"  # the exporter folds the norm into it, and the optimiser the relu
    assert header["repeat"]["different"] == []


def test_the_numbers_are_those_of_the_graph(convert):
    convert(side="reference")
    convert(dtype="float16", conversion={"exporter": "legacy"})
    dumps = {side: read_dump(convert.folder / side) for side in ("reference", "target")}
    values = {
        side: {record.text: dump.tensor(record) for call in dump.calls() for record in call.outputs if record.stored}
        for side, dump in dumps.items()
    }
    text = "blocks.1/forward.output.0"
    half, exact = values["target"][text], values["reference"][text]
    assert half.dtype == np.float16
    assert 1e-5 < np.linalg.norm(half - exact) / np.linalg.norm(exact) < 2e-3
    best = "(model)/forward.output.best"
    assert (values["target"][best] == values["reference"][best]).all()


def test_the_legacy_exporter_does_as_well(convert):
    convert(side="reference")
    convert(conversion={"exporter": "legacy", "optimise": "none"})
    assert precflow.compare(convert.folder / "reference", convert.folder / "target").verdict == "aligned"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": "bfloat16"}, "does not run bfloat16"),
        ({"capture": {"phase": ["forward", "backward"]}}, "has no backward"),
        ({"conversion": {"file": "missing.onnx"}}, "missing.onnx cannot be read as a graph"),
        ({"conversion": {"provider": "OtherProvider", "exporter": "legacy"}}, "ONNX Runtime has no OtherProvider here"),
        (
            {"dtype": "float16", "conversion": {"keep_float32": ["Sofmax"], "exporter": "legacy"}},
            "no node and no operator Sofmax",
        ),
    ],
)
def test_what_cannot_be_done_is_said(convert, changes, said):
    with pytest.raises(AgentError, match=said):
        convert(**changes)


def test_a_missing_library_is_named_with_the_extra(convert, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(AgentError, match="onnx is not installed") as caught:
        convert()
    assert "precflow[onnx]" in caught.value.next_step
    assert not Path(convert.folder / "target" / "dump.json").exists()


def test_two_graphs_are_compared_by_the_records_that_both_are_paired_with(convert):
    for side, optimise in (("reference", "none"), ("target", "all")):
        convert(side=side, conversion={"exporter": "legacy", "optimise": optimise})
    result = precflow.compare(convert.folder / "reference", convert.folder / "target")
    assert (result.verdict, result.reasons) == ("aligned", ())
    assert len(result.records) > 50
