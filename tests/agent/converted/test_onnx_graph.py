"""A graph as a model of torch: it computes what ONNX Runtime does, and another graph is compared with it by names."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import precflow
from precflow.agent.converted import graph
from precflow.agent.failures import AgentError
from precflow.agent.workloads import onnx_graph

pytestmark = pytest.mark.usefixtures("restored", "forgotten")
SHIPPED = "precflow.workloads.onnx_graph."


def save(path, *, epsilon=1e-5, activation="Gelu", scale=0.5, opset=20):
    """Write a norm, a product, an activation, a split into two and a sum with one of them; return the path."""
    drawn = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    nodes = [
        helper.make_node("LayerNormalization", ["x", "w", "b"], ["/norm/out"], epsilon=epsilon),
        helper.make_node("MatMul", ["/norm/out", "fc.weight"], ["/fc"]),
        helper.make_node(activation, ["/fc"], ["/act"]),
        helper.make_node("Split", ["/act"], ["left", "right"], axis=-1, num_outputs=2),
        helper.make_node("Mul", ["left", "number"], ["/act/scaled"]),
        helper.make_node("Add", ["/act/scaled", "right"], ["y"]),
        helper.make_node("Shape", ["y"], ["size"]),
    ]
    weights = {"w": np.ones(8, np.float32), "b": np.zeros(8, np.float32), "fc.weight": drawn, "number": np.float32(scale)}
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])]
    outputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in (("y", 1), ("size", 7))]
    made = helper.make_graph(
        nodes, "small", inputs, outputs, [numpy_helper.from_array(np.asarray(v), name) for name, v in weights.items()]
    )
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)
    return str(path)


def test_it_computes_what_the_runtime_computes(tmp_path):
    file = save(tmp_path / "old.onnx")
    inputs = onnx_graph.inputs(file=file, sizes={"batch": 3})
    expected = graph.run(graph.load(file), graph.Feeds({"x": inputs["x"].numpy()}))
    made = onnx_graph.load(file=file)(**inputs)
    assert made["y"].numpy() == pytest.approx(expected["y"], abs=1e-6)
    assert made["size"].tolist() == [3, 8]


def test_weights_are_weights_and_what_holds_others_is_a_node_too(tmp_path):
    model = onnx_graph.load(file=save(tmp_path / "old.onnx"))
    assert set(dict(model.named_parameters())) == {"w", "b", "fc.weight", "number"}
    assert type(model.get_submodule("act")).__name__ == "Gelu"
    assert type(model.get_submodule("act.scaled")).__name__ == "Mul"


def test_what_two_tensors_have_the_same_name_for_is_refused(tmp_path):
    nodes = [helper.make_node("Neg", ["x"], ["a/b"]), helper.make_node("Neg", ["a/b"], ["a.b"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "a.b")]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:])), tmp_path / "twice.onnx")
    with pytest.raises(AgentError, match=r"two tensors of the graph have the name a\.b"):
        onnx_graph.load(file=str(tmp_path / "twice.onnx"))


def test_inputs_are_yours_or_the_same_draw_each_time(tmp_path):
    file = save(tmp_path / "old.onnx")
    drawn = [onnx_graph.inputs(file=file, sizes={"batch": 2}, seed=seed)["x"] for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    np.savez(tmp_path / "values.npz", x=drawn[2].numpy())
    assert torch.equal(onnx_graph.inputs(file=file, values=str(tmp_path / "values.npz"))["x"], drawn[2])


def test_inputs_that_are_missing_are_named(tmp_path):
    file = save(tmp_path / "old.onnx")
    with pytest.raises(AgentError, match="axis 0 of input x has no size"):
        onnx_graph.inputs(file=file)
    np.savez(tmp_path / "others.npz", z=np.zeros(1))
    with pytest.raises(AgentError, match=r"others\.npz has no x"):
        onnx_graph.inputs(file=file, values=str(tmp_path / "others.npz"))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "others.npz").read_bytes()[:60])
    with pytest.raises(AgentError, match=r"cut\.npz cannot be read"):
        onnx_graph.inputs(file=file, values=str(tmp_path / "cut.npz"))


@pytest.fixture
def upgrade(convert, tmp_path):
    """Return a function that compares a graph with another one, and gives the result and the links."""

    def compare(changes, **others):
        old, new = save(tmp_path / "old.onnx"), save(tmp_path / "new.onnx", **changes)
        workload = {
            "model": {"_target_": SHIPPED + "load", "file": old},
            "inputs": {"_target_": SHIPPED + "inputs", "file": old, "sizes": {"batch": 5}},
        }
        asked = {"workload": workload, "capture": {"level": ["module"], "phase": ["forward"]}, **others}
        convert(side="reference", **asked)
        header = convert(conversion={"file": new, "optimise": "none"}, **asked)
        result = precflow.compare(convert.folder / "reference", convert.folder / "target")
        return result, {link["link"]: link for link in header["conversion"]["links"]}

    return compare


def test_another_opset_agrees(upgrade):
    result, links = upgrade({"opset": 21})
    assert result.verdict == "aligned"
    assert links["upgrade"]["state"] == "agrees"
    assert links["upgrade"]["tensors"] >= 6


@pytest.mark.parametrize(
    ("changes", "operator", "start"),
    [
        ({"epsilon": 1e-2}, "LayerNormalization", "norm.out"),
        ({"activation": "Relu"}, "Relu", "act"),
        ({"scale": 0.501}, "Mul", "act.scaled"),
    ],
)
def test_the_node_that_computes_something_else_is_named(upgrade, changes, operator, start):
    result, links = upgrade(changes)
    assert result.verdict == "misaligned"
    assert links["upgrade"]["state"] == "broken"
    assert [[node["operator"] for node in fault["nodes"]] for fault in links["upgrade"]["faults"]] == [[operator]]
    assert result.start == start


def write(path, nodes, kind=TensorProto.FLOAT, shape=(2,), output="y"):
    """Write a graph from `x` to an output; return the path."""
    ends = [helper.make_tensor_value_info(name, kind, list(shape)) for name in ("x", output)]
    numbers = [numpy_helper.from_array(np.ones((3, 2), np.float32), "w"), numpy_helper.from_array(np.float32(0), "zero")]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], numbers), ir_version=9), path)
    return str(path)


def test_a_branch_reads_what_is_outside_of_it_and_a_name_of_modules_is_written_otherwise(tmp_path):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("twice", "halved")]
    branches = [
        helper.make_graph([helper.make_node("Add", ["x", "x"], ["twice"])], "then", [], ends[:1]),
        helper.make_graph([helper.make_node("Sub", ["x", "x"], ["halved"])], "else", [], ends[1:]),
    ]
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["training"], then_branch=branches[0], else_branch=branches[1]),
    ]
    model = onnx_graph.load(file=write(tmp_path / "if.onnx", nodes, output="training"))
    assert model(x=torch.ones(2))["training"].tolist() == [2, 2]
    assert model(x=-torch.ones(2))["training"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("nodes", "kind", "given", "said"),
    [
        ([helper.make_node("Neg", ["x"], ["y"])], TensorProto.FLOAT, {"z": torch.ones(2)}, "was not given x"),
        ([helper.make_node("Identity", ["x"], ["y"])], TensorProto.STRING, {}, "input x of the graph is no tensor of numbers"),
        (
            [helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16), helper.make_node("Cast", ["b"], ["y"], to=1)],
            TensorProto.FLOAT,
            {"x": torch.ones(2)},
            r"node of b \(Cast\) cannot be computed",
        ),
        (
            [helper.make_node("SplitToSequence", ["x"], ["s"]), helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)],
            TensorProto.FLOAT,
            {"x": torch.ones(2)},
            r"node of s \(SplitToSequence\) cannot be computed",
        ),
        ([helper.make_node("MatMul", ["x", "w"], ["y"])], TensorProto.FLOAT, {"x": torch.ones(2)}, r"node of y \(MatMul\)"),
    ],
)
def test_what_cannot_be_computed_is_named(tmp_path, nodes, kind, given, said):
    with pytest.raises(AgentError, match=said):
        onnx_graph.load(file=write(tmp_path / "odd.onnx", nodes, kind))(**given)


def test_floating_point_goes_in_as_the_graph_declares_it(tmp_path):
    file = write(tmp_path / "half.onnx", [helper.make_node("Neg", ["x"], ["y"])], TensorProto.FLOAT16)
    assert onnx_graph.load(file=file)(x=torch.ones(2))["y"].dtype == torch.float16
