"""The four links of a conversion: each planted fault breaks one link, at the node that has it."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from precflow.agent import request as requests
from precflow.agent.converted import dump, graph, links, pairing
from precflow.agent.devices.cpu import Cpu
from precflow.agent.session.dump import make_random_numbers
from precflow.agent.session.workload_model import RunContext, prepare
from precflow.dumps.formats import read_dump
from precflow.judgement.conversion import take_links
from precflow.judgement.verdicts import Verdict

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
from converting import planting

pytestmark = pytest.mark.usefixtures("restored", "forgotten")


@pytest.fixture
def conversion(convert, asked, events, tmp_path):
    """Return a function that exports the network and returns its run of torch, its graph, and what examines a chain."""
    torch.set_num_threads(1)
    asking = asked(
        workload={"model": {"_target_": "converted_workload.build"}, "inputs": {"_target_": "converted_workload.inputs"}},
        trusted=["converted_workload"],
        conversion={"runtime": "onnxruntime", "exporter": "legacy", "opset": 17},
    )
    request = requests.parse(asking)
    run = RunContext(dump._as_torch(request), Cpu(), torch.device("cpu"), events, make_random_numbers(request))
    workload = prepare(run)
    made = dump.record_torch(run, workload)
    plain = dump.make_graph(request, workload)
    feeds = graph.Feeds(dump.make_inputs(plain, workload.inputs))
    records, ends = dump.list_records(made), dump.order_outputs(made)

    def examine(model=plain, *, finish=lambda chain: chain, run=graph.run_on, **changes):
        asked_for = request._replace(**changes)
        pairs = pairing.pair(records, model, ends, lambda forced: run(model, feeds._replace(forced=forced), graph.CPU))
        found = links.examine(finish(dump.make_chain(asked_for, model)), feeds, pairs, records, run)
        return {link.link: link for link in found}

    return plain, examine


def states(found):
    return {name: link.state for name, link in found.items()}


def test_nothing_is_broken_in_a_clean_conversion(conversion):
    _, examine = conversion
    found = examine(dtype="float16")
    assert states(found) == {"exporter": "agrees", "optimiser": "agrees", "half": "agrees", "runtime": "not there"}
    assert 0 < found["exporter"].worst < 0.5
    assert 1e-5 < found["half"].error < 2e-3


@pytest.mark.parametrize("fault", ["transposed weight", "norm folded with a wrong variance", "cast left behind"])
def test_a_fault_of_the_exporter_is_found_at_its_node_and_nowhere_else(conversion, fault):
    plain, examine = conversion
    bad, tensor = planting.plant(plain, fault)
    bad = graph.prepare(bad)
    (wrong,) = [node.name for node in bad.graph.node if tensor in node.output]
    found = examine(bad)
    assert (found["exporter"].state, found["optimiser"].state) == ("broken", "agrees")
    assert [wrong in [node["name"] for node in each.nodes] for each in found["exporter"].faults] == [True]


def test_a_fault_of_the_optimiser_is_not_laid_to_the_exporter(conversion):
    _, examine = conversion
    fused = {}

    def finish(chain):
        bad, fused["tensor"] = planting.plant(chain.optimised, "transposed weight")
        return chain._replace(optimised=bad, half=bad)

    found = examine(finish=finish)
    assert (found["exporter"].state, found["optimiser"].state) == ("agrees", "broken")
    assert len(found["optimiser"].faults) == 1


def test_a_node_that_float16_is_too_narrow_for_is_found_with_what_keeping_it_brings(conversion):
    plain, examine = conversion
    wide = onnx.ModelProto()
    wide.CopyFrom(plain)
    # x * 9e3 * 9e3 / 9e3 / 9e3 is the same in float32, and infinite in float16.
    node = next(each for each in wide.graph.node if each.op_type in {"Gemm", "MatMul"} and each.output[0])
    output, place = node.output[0], list(wide.graph.node).index(node)
    node.output[0] = "narrow"
    wide.graph.initializer.append(numpy_helper.from_array(np.array(9e3, np.float32), "thousands"))
    names = ["narrow", "larger", "largest", "smaller", output]
    for number, operator in enumerate(("Mul", "Mul", "Div", "Div")):
        step = helper.make_node(operator, [names[number], "thousands"], [names[number + 1]], name=f"step{number}")
        wide.graph.node.insert(place + 1 + number, step)

    def finish(chain):  # without fusion, which would take the four steps away
        return chain._replace(optimised=wide, half=graph.round_each(graph.to_half(wide, ())))

    found = examine(wide, dtype="float16", finish=finish)
    assert (found["exporter"].state, found["half"].state) == ("agrees", "broken")
    (fault,) = found["half"].faults
    assert {"step1", "step2"} <= {node["name"] for node in fault.nodes}
    assert fault.kept["after"] < 2e-3


def test_a_kernel_that_is_wrong_is_laid_to_the_runtime(conversion):
    plain, examine = conversion
    softmax = next(node for node in plain.graph.node if node.op_type == "Softmax")
    wrong = onnx.ModelProto()

    def run(model, feeds, provider):
        wrong.CopyFrom(model)
        for node in wrong.graph.node:
            if node.name == softmax.name and node.op_type == "Softmax":
                node.op_type = "LogSoftmax"
        return graph.run_on(wrong, feeds, provider)

    found = examine(run=run)
    assert (found["exporter"].state, found["runtime"].state) == ("agrees", "broken")
    assert softmax.name in [node["name"] for node in found["runtime"].faults[0].nodes]


def test_a_broken_link_is_in_the_header_and_decides_the_verdict(convert, conversion):
    plain, _ = conversion
    bad, _ = planting.plant(plain, "transposed weight")
    onnx.save(bad, convert.folder / "bad.onnx")
    convert(conversion={"file": str(convert.folder / "bad.onnx"), "optimise": "none"})
    header = read_dump(convert.folder / "target").header
    verdict = take_links(Verdict("aligned"), header)
    assert (verdict.verdict, take_links(verdict, header)) == ("misaligned", verdict)
    assert "the exporter (torch against the exported graph) breaks at" in verdict.reasons[0]
    assert len(verdict.links) == 4
    left = replace(header, conversion={**header.conversion, "provider": "Ours", "elsewhere": ["Gemm", "Add", "Gemm"]})
    assert take_links(verdict, left).warnings == ("3 nodes of the graph run on the CPU, not on Ours: Gemm, Add",)
    wider = replace(header, conversion={**header.conversion, "provider": "Ours", "wider": True})
    assert "Ours keeps more digits between two nodes than float16 has" in take_links(verdict, wider).warnings[0]
