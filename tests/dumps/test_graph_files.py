"""Graph files of an Ascend model: fused names, in both forms, and damaged ones."""

import contextlib
import json

import numpy as np
import pytest
from ascend_files import write_operator
from hypothesis import given, settings
from hypothesis import strategies as st

import precflow
from precflow.dumps.formats import read_dump
from precflow.dumps.graph_files import FusedOperator, _parse_text, read_graphs
from precflow.errors import DumpError

TEXT = r"""
name: "net"   # as the runtime writes it
graph {
  name: "merge1"
  op {
    name: "net/conv1conv1_relu"
    type: "Conv2D"
    attr {
      key: "_datadump_original_op_names"
      value { list { s: "net/conv1" s: "net/bn1" s: "net/conv1_relu" val_type: VT_LIST_STRING } }
    }
    attr { key: "weights" value { t { desc { shape { dim: 3 dim: [1, 2] } } data: "\001\"}{\377" } } }
    input: "data:0"
    output_desc {
      name: "y"
      attr { key: "_datadump_origin_name" value { s: "net/conv1_relu" } }
      attr < key: "_datadump_origin_output_index" value < i: 0 > >
    }
  }
  op { name: "pool" type: "Pooling" output_desc { } }
}
"""
FUSED = FusedOperator(("net/conv1", "net/bn1", "net/conv1_relu"), {0: ("net/conv1_relu", 0)})
X = np.linspace(-2, 2, 60, dtype=np.float32).reshape(3, 20)


def as_json():
    origin = [
        {"key": "_datadump_origin_name", "value": {"s": "net/conv1_relu"}},
        {"key": "_datadump_origin_output_index", "value": {"i": 0}},
    ]
    names = {"key": "_datadump_original_op_names", "value": {"list": {"val_type": 1, "s": [*FUSED.originals]}}}
    operators = [
        {"name": "net/conv1conv1_relu", "type": "Conv2D", "attr": [names], "output_desc": [{"attr": origin}]},
        {"name": "pool", "type": "Pooling", "output_desc": [{}]},
    ]
    return json.dumps({"name": "net", "graph": [{"name": "merge1", "op": operators}]})


@pytest.mark.parametrize(
    ("name", "text"), [("ge_proto_00000_graph_1_Build.txt", TEXT), ("net.pbtxt", TEXT), ("net.json", as_json())]
)
def test_both_forms_say_the_same(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_graphs(tmp_path) == {"net_conv1conv1_relu": FUSED, "pool": FusedOperator()}


def test_the_last_stage_of_the_compiler_counts(tmp_path):
    (tmp_path / "ge_proto_00001_graph_1_PreRunBegin.txt").write_text('graph { op { name: "conv1" } }')
    (tmp_path / "ge_proto_00009_graph_1_Build.txt").write_text(TEXT)
    assert "conv1" not in read_graphs(tmp_path)


def test_two_graphs_that_disagree_are_refused(tmp_path):
    (tmp_path / "a.pbtxt").write_text(TEXT)
    (tmp_path / "b.pbtxt").write_text('graph { op { name: "net/conv1conv1_relu" } }')
    with pytest.raises(DumpError, match=r"b\.pbtxt says something else about operator net/conv1conv1_relu"):
        read_graphs(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "graph {",
        "graph { op }",
        "}",
        '"text" { }',
        "graph { op { name: } }",
        "graph " + "{ op " * 200,
        TEXT.replace("i: 0", "i: -1"),
        TEXT[:300],
    ],
)
def test_damaged_text_is_named(tmp_path, text):
    (tmp_path / "net.pbtxt").write_text(text)
    with pytest.raises(DumpError, match=r"net\.pbtxt is damaged, or no graph file"):
        read_graphs(tmp_path)


@given(st.text(alphabet='{}<>[]:;"\\# \nab0', max_size=80))
@settings(deadline=None)
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(ValueError):
        assert isinstance(_parse_text(text), dict)


def write_sides(tmp_path, factor=1.0):
    """Write original operators as files of arrays, and the fused ones that a device ran instead."""
    there, here = tmp_path / "theirs", tmp_path / f"npu_{factor}"
    there.mkdir(exist_ok=True)
    relu = np.maximum(X * 2 + 1, 0)
    for name, array in (("net_conv1", X * 2), ("net_bn1", X * 2 + 1), ("net_conv1_relu", relu), ("pool", relu[:, :10])):
        np.save(there / f"{name}.0.1670205071724946.npy", array)
    made = relu * np.float32(factor)
    write_operator(here, "net/conv1conv1_relu", [X], [made])
    write_operator(here, "pool", [made], [made[:, :10]], time=1670205071724999)
    return there, here


def test_operators_inside_of_a_fused_one_are_covered(tmp_path):
    there, here = write_sides(tmp_path)
    alone = precflow.compare(there, here, evaluate=False)
    assert alone.verdict == "inconclusive"
    (here / "ge_proto_00009_graph_1_Build.txt").write_text(TEXT)
    assert read_dump(here).header.fused == {"net.conv1": "net.conv1_relu", "net.bn1": "net.conv1_relu"}
    result = precflow.compare(there, here, evaluate=False)
    assert result.verdict == "aligned"
    covered = {record.name: record.reason for record in result.records if record.status == "covered"}
    assert len(covered) == 2
    assert all("inside of net.conv1_relu" in reason for reason in covered.values())


@pytest.mark.parametrize("swap", [False, True])
def test_a_fault_in_a_fused_operator_is_found_and_covers_nothing_wrongly(tmp_path, swap):
    there, here = write_sides(tmp_path, 1.01)
    (here / "net.json").write_text(as_json())
    result = precflow.compare(*((here, there) if swap else (there, here)), evaluate=False)
    assert (result.verdict, result.start) == ("misaligned", "net.conv1_relu")


@pytest.mark.parametrize(("name", "text"), [("ge_proto_00009_graph_1_Build.txt", TEXT), ("net.json", as_json())])
def test_no_flipped_byte_of_a_graph_makes_a_misaligned_pair_aligned(tmp_path, name, text):
    there, here = write_sides(tmp_path, 1.01)
    for file in (*there.glob("pool*"), *here.glob("*pool*")):  # what is left is wrong in the fused operator alone
        file.unlink()
    (here / name).write_text(text)
    assert precflow.compare(there, here, evaluate=False).verdict == "misaligned"
    whole = text.encode()
    first = whole.index(b"net/conv1conv1_relu")
    rng = np.random.default_rng(3)
    for place in rng.choice(np.arange(first, len(whole)), 6, replace=False):
        (here / name).write_bytes(whole[:place] + bytes([whole[place] ^ (1 << int(rng.integers(7)))]) + whole[place + 1 :])
        with contextlib.suppress(DumpError):
            assert precflow.compare(there, here, evaluate=False).verdict != "aligned", place


def test_outputs_of_several_originals_go_by_their_own_names(tmp_path):
    write_operator(tmp_path, "split_all", [X], [X, X + 1])
    (tmp_path / "g.pbtxt").write_text("""graph { op { name: "split_all"
      output_desc { attr { key: "_datadump_origin_name" value { s: "left" } } }
      output_desc { attr { key: "_datadump_origin_name" value { s: "right" } }
                    attr { key: "_datadump_origin_output_index" value { i: 2 } } } } }""")
    records = {record.text: record for call in read_dump(tmp_path).calls() for record in call.outputs}
    assert set(records) == {"left/forward.output.0", "right/forward.output.2"}
    np.testing.assert_array_equal(read_dump(tmp_path).tensor(records["right/forward.output.2"]), X + 1)
