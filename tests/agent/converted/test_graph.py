"""Graphs as they come: dynamic shapes, weights beside them, branches, functions, types that NumPy lacks, foreign operators."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from precflow.agent.converted import graph
from precflow.agent.converted.graph import Feeds
from precflow.agent.failures import AgentError

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
WEIGHT = np.arange(9, dtype=np.float32).reshape(3, 3)


def build(nodes, *, shape=("rows", 3), outputs=("y",), functions=(), domains=()):
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return graph.prepare(helper.make_model(made, opset_imports=opsets, ir_version=8, functions=functions))


def product(name="mm"):
    return helper.make_node("MatMul", ["x", "w"], ["y"], name=name)


def test_a_graph_with_dynamic_shapes_runs_with_those_that_it_is_given():
    model = build([product()])
    for rows in (4, 2):
        np.testing.assert_allclose(graph.run(model, Feeds({"x": X[:rows]}))["y"], X[:rows] @ WEIGHT, rtol=1e-6)


def test_weights_beside_the_file_are_read_and_missed(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save_model(build([product()]), path, save_as_external_data=True, location="weights", size_threshold=0)
    np.testing.assert_allclose(graph.run(graph.load(str(path)), Feeds({"x": X}))["y"], X @ WEIGHT, rtol=1e-6)
    (tmp_path / "weights").unlink()
    with pytest.raises(AgentError, match=r"model\.onnx cannot be read as a graph") as caught:
        graph.load(str(path))
    assert "belong beside it" in caught.value.next_step


def test_a_graph_that_is_too_large_for_one_message_goes_through_a_file(monkeypatch):
    """Its size is that of its weights: protobuf raises where a message above 2 GB is asked for its own."""
    monkeypatch.setattr(graph, "_MOST_BYTES", WEIGHT.nbytes)
    asked = []
    monkeypatch.setattr(graph, "_as_source", lambda model, source=graph._as_source: asked.append(model) or source(model))
    model = build([product()])
    np.testing.assert_allclose(graph.run(model, Feeds({"x": X}))["y"], X @ WEIGHT, rtol=1e-6)
    np.testing.assert_allclose(graph.run(graph.optimise(model, "extended"), Feeds({"x": X}))["y"], X @ WEIGHT, rtol=1e-6)
    half = graph.run(graph.to_half(model, ()), Feeds({"x": X}))["y"]
    np.testing.assert_allclose(half, X @ WEIGHT, rtol=2e-3, atol=2e-2)
    assert len(asked) == 4
    assert graph._is_large(model)
    monkeypatch.setattr(graph, "_MOST_BYTES", WEIGHT.nbytes + 1)
    assert not graph._is_large(model)


def test_branches_run_as_a_whole_and_read_forced_values_from_outside():
    def branch(operator):
        node = helper.make_node(operator, ["h"], [f"b{operator}"])
        return helper.make_graph([node], operator, [], [helper.make_tensor_value_info(f"b{operator}", TensorProto.FLOAT, None)])

    model = build(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], name="mm"),
            helper.make_node("ReduceSum", ["h"], ["s"], keepdims=0),
            helper.make_node("Greater", ["s", "s"], ["no"]),
            helper.make_node("If", ["no"], ["y"], then_branch=branch("Neg"), else_branch=branch("Abs"), name="if"),
        ]
    )
    assert graph.find_control_flow(model) == ["if"]
    values = graph.run(model, Feeds({"x": X}))
    np.testing.assert_array_equal(values["y"], np.abs(values["h"]))
    forced = graph.run(model, Feeds({"x": X}, {"h": -np.ones((4, 3), np.float32)}))
    np.testing.assert_array_equal(forced["y"], np.ones((4, 3)))
    np.testing.assert_array_equal(forced["h"], values["h"])  # what is forced is still computed from what is before it
    assert [node.name for node in graph.between(model, "y", ["h"])][-1] == "if"


def test_functions_are_written_out_and_unnamed_nodes_get_names():
    function = helper.make_function(
        "ours", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 17)]
    )
    call = helper.make_node("Twice", ["h"], ["y"], domain="ours")
    model = build([helper.make_node("MatMul", ["x", "w"], ["h"]), call], functions=[function], domains=["ours"])
    assert [node.op_type for node in model.graph.node] == ["MatMul", "Add"]
    assert all(node.name for node in model.graph.node)


def test_custom_operators_are_refused_by_name():
    with pytest.raises(AgentError, match="operators that ONNX Runtime does not have: theirs::Fancy"):
        build([helper.make_node("Fancy", ["x"], ["y"], domain="theirs")], domains=["theirs"])


def test_tensors_in_bfloat16_are_passed_over():
    model = build(
        [
            helper.make_node("Cast", ["x"], ["narrow"], to=TensorProto.BFLOAT16),
            helper.make_node("Cast", ["narrow"], ["y"], to=TensorProto.FLOAT),
        ]
    )
    values = graph.run(model, Feeds({"x": X}))
    assert "narrow" not in values
    np.testing.assert_allclose(values["y"], X, rtol=2**-8)


def test_an_overflow_between_two_operators_is_seen_in_float16():
    steps = [("Mul", "a", "b"), ("Mul", "b", "c"), ("Div", "c", "d"), ("Div", "d", "y")]
    nodes = [helper.make_node(operator, [here, "big"], [there]) for operator, here, there in steps]
    big = helper.make_node("Constant", [], ["big"], value=numpy_helper.from_array(np.array(9e3, np.float32)))
    half = graph.to_half(build([helper.make_node("MatMul", ["x", "w"], ["a"]), big, *nodes]), ())
    assert np.isfinite(graph.run(half, Feeds({"x": X}))["y"]).all()  # as ONNX Runtime does it on the CPU
    assert not np.isfinite(graph.run(graph.round_each(half), Feeds({"x": X}))["y"]).all()


def test_a_device_that_hands_on_more_digits_than_it_shows_is_told():
    """ONNX Runtime's CPU is one, as OpenVINO is: both compute float16 in float32, and round what is asked for."""
    half = graph.to_half(build([helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Mul", ["a", "a"], ["y"])]), ())

    def tell(model):
        return graph.keeps_more_digits(model, Feeds({"x": X}), graph.run(model, Feeds({"x": X})), graph.CPU)

    assert tell(half)
    assert not tell(graph.round_each(half))


def test_inputs_that_the_graph_has_and_the_workload_has_not_are_named():
    with pytest.raises(AgentError, match="wants inputs that the workload does not have: x"):
        graph.run(build([product()]), Feeds({"z": X}))


def test_a_device_that_takes_no_node_or_does_not_start_is_no_device(monkeypatch):
    """ONNX Runtime computes on the CPU then, which would look right; its Azure provider is in every build and takes no node."""
    with pytest.raises(AgentError, match=r"AzureExecutionProvider takes no node of this graph.*on CPUExecutionProvider"):
        graph.run(build([product()]), Feeds({"x": X}), provider="AzureExecutionProvider")
    runtime = graph.require("onnxruntime")
    monkeypatch.setattr(runtime, "get_available_providers", lambda: ["OursExecutionProvider"])
    session = runtime.InferenceSession
    monkeypatch.setattr(runtime, "InferenceSession", lambda *given, providers: session(*given[: len(providers) + 1]))
    with pytest.raises(AgentError, match="could not start OursExecutionProvider here") as caught:
        graph.run(build([product()]), Feeds({"x": X}), provider="OursExecutionProvider")
    assert "conversion.provider=CPUExecutionProvider" in caught.value.next_step


def test_what_a_device_leaves_to_the_cpu_is_listed(monkeypatch):
    monkeypatch.setattr(graph, "list_nodes", lambda session: {"Ours": ["Gemm"], graph.CPU: ["Add", "Add"]})
    monkeypatch.setattr(graph, "_open", lambda *_: None)
    model = build([product()])
    assert graph.list_elsewhere(model, "Ours") == ["Add", "Add"]
    assert graph.list_elsewhere(model, graph.CPU) == []


def test_a_device_that_compiles_the_graph_is_given_what_no_device_fuses(monkeypatch):
    opened = graph._open

    def compile_it(model, options, provider):
        if provider != graph.CPU:
            raise AgentError("unsupported", "Unable to serialize model as it contains compiled nodes.")
        return opened(model, options, provider)

    monkeypatch.setattr(graph, "_open", compile_it)
    assert [node.op_type for node in graph.optimise(build([product()]), "all", "Ours").graph.node] == ["MatMul"]
