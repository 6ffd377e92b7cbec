"""Conversions of five networks, clean and with planted faults: does precflow say which link broke, and at which node?

    python -m benchmarks.converting                             the table on stdout; three to five minutes
    python -m benchmarks.converting --networks cnn,bert         some of them
    python -m benchmarks.converting --write docs/benchmarks     the table as a page

Each case is a whole comparison: torch in float32 is the reference, the graph in ONNX Runtime the target, in float32 and in
float16. A fault is planted into the exported graph (a faulty exporter), or into the graph after fusion (a faulty optimiser),
and given to the target as if it had been made so. It counts as found if the verdict is misaligned, the link is the right one
and no other, and every node that is named stands in one segment with the wrong node.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import onnx
import torch

import precflow
from benchmarks.converting import planting
from precflow.agent import request as requests
from precflow.agent.converted import dump, graph, links
from precflow.agent.devices.cpu import Cpu
from precflow.agent.events import Events
from precflow.agent.session.dump import dump as dump_torch
from precflow.agent.session.dump import make_random_numbers
from precflow.agent.session.workload_model import RunContext, prepare
from precflow.dumps.formats import read_dump

NETWORKS = ("clip_text", "bert", "unet", "vae", "cnn")
EXPORTERS = ("dynamo", "legacy")
CLEAN = "clean"
AFTER_FUSION = "after fusion: "
TYPES = ("float32", "float16")


@dataclass(frozen=True)
class Case:
    """One comparison and what came of it."""

    network: str
    exporter: str
    dtype: str
    fault: str
    verdict: str
    broken: str
    nodes: str
    right: bool


def main() -> None:
    """Run all cases and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(NETWORKS), help="names, with commas")
    parser.add_argument("--write", metavar="FOLDER", type=Path, help="write onnx.md there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cases = []
    for network in given.networks.split(","):
        for exporter in EXPORTERS:
            with tempfile.TemporaryDirectory() as folder:
                for case in run_network(network, exporter, Path(folder)):
                    cases.append(case)
                    sys.stderr.write(f"{case}\n")
    page = render(cases)
    if given.write:
        (given.write / "onnx.md").write_text(page, encoding="utf-8")
    print(page)


def ask(network: str, folder: Path, side: str, dtype: str, **conversion: Any) -> requests.Request:
    """Return the request for a side."""
    (folder / side).mkdir(exist_ok=True)
    place = "benchmarks.converting.networks"
    return requests.parse(
        {
            "schema": 1,
            "action": "dump",
            "side": side,
            "output": str(folder / side),
            "dtype": dtype,
            "workload": {
                "model": {"_target_": f"{place}.{network}"},
                "inputs": {"_target_": f"{place}.inputs", "network": network},
            },
            "trusted": ["benchmarks"],
            **({"conversion": {"runtime": "onnxruntime", **conversion}} if side == "target" else {}),
        }
    )


def run_network(network: str, exporter: str, folder: Path) -> Iterator[Case]:
    """Yield every case of a network and an exporter."""
    cpu, where, events = Cpu(), torch.device("cpu"), Events(io.StringIO())
    with redirect_stdout(io.StringIO()):
        dump_torch(ask(network, folder, "reference", "float32"), cpu, where, events)
        request = ask(network, folder, "target", "float32", exporter=exporter)
        run = RunContext(request, cpu, where, events, make_random_numbers(request))
        exported = dump.make_graph(request, prepare(run, hashed=False))
    onnx.save(exported, folder / "plain.onnx")
    fused = graph.prepare(graph.optimise(exported, "extended"))
    places = [CLEAN, *planting.list_faults(exported), *(AFTER_FUSION + name for name in planting.list_faults(fused))]
    for fault in places:
        for dtype in TYPES if exporter == EXPORTERS[0] or fault == CLEAN else TYPES[:1]:
            yield run_case(network, exporter, dtype, fault, folder)


def run_case(network: str, exporter: str, dtype: str, fault: str, folder: Path) -> Case:
    """Run the target with a fault, compare, and say whether that is right."""
    plain, wrong, optimise = onnx.load(folder / "plain.onnx"), "", graph.optimise
    link = "" if fault == CLEAN else links.OPTIMISER if fault.startswith(AFTER_FUSION) else links.EXPORTER
    if link == links.EXPORTER:
        plain, tensor = planting.plant(plain, fault)
        wrong = next(node.name for node in plain.graph.node if tensor in node.output)
    made: dict[str, str] = {}

    def optimise_wrongly(model: Any, *settings: Any) -> Any:
        bad, tensor = planting.plant(graph.prepare(optimise(model, *settings)), fault.removeprefix(AFTER_FUSION))
        made["wrong"] = next(node.name for node in bad.graph.node if tensor in node.output)
        return bad

    onnx.save(plain, folder / "given.onnx")
    request = ask(network, folder, "target", dtype, file=str(folder / "given.onnx"))
    planted = mock.patch.object(graph, "optimise", optimise_wrongly if link == links.OPTIMISER else optimise)
    with planted, redirect_stdout(io.StringIO()):
        dump.dump(request, Cpu(), torch.device("cpu"), Events(io.StringIO()))
    wrong = made.get("wrong", wrong)
    result = precflow.compare(folder / "reference", folder / "target")
    found = [each for each in read_dump(folder / "target").header.conversion["links"] if each["state"] == links.BROKEN]
    nodes = [{node["name"] for node in each["nodes"]} for one in found if one["link"] == link for each in one["faults"]]
    if link:
        right = result.verdict == "misaligned" and bool(nodes) and all(wrong in each for each in nodes)
        right = right and {one["link"] for one in found} - {links.HALF} == {link}
    else:
        right = result.verdict == "aligned" and not found
    shown = sorted({name for each in nodes for name in each})
    return Case(
        network, exporter, dtype, fault, result.verdict, ", ".join(one["link"] for one in found), ", ".join(shown), right
    )


def render(cases: list[Case]) -> str:
    """Return the page."""
    planted = [case for case in cases if case.fault != CLEAN]
    clean = [case for case in cases if case.fault == CLEAN]
    lines = [
        "# Conversions to ONNX: which link, which node",
        "",
        (
            "Made by `python -m benchmarks.converting --write docs/benchmarks`. Five small networks with seeded weights; "
            "`benchmarks/converting` has the networks, the faults and what counts as right."
        ),
        "",
        (
            f"Planted faults laid to the right link and to the segment of the wrong node, and to nothing else: "
            f"{sum(case.right for case in planted)} of {len(planted)}. Clean conversions aligned, with no link broken: "
            f"{sum(case.right for case in clean)} of {len(clean)}."
        ),
        "",
        (
            "That the clean UNet is not aligned in float16, by either exporter, is no mistake: the converter computes sines "
            "of the time embedding, whose arguments go up to 500, in float16, where torch's own model keeps float32. The link "
            "`half` names them, and says what keeping them in float32 brings: with "
            "`target.conversion.keep_float32=[node_mul_1,node_cos,node_sin]` recipe `sd_unet` laid over by `onnx_conversion` "
            "is aligned in float16."
        ),
        "",
        "| network | exporter | type | fault | verdict | link | nodes of the segment | right |",
        "|---|---|---|---|---|---|---|---|",
        *map(_render_row, cases),
    ]
    return "\n".join(lines) + "\n"


def _render_row(case: Case) -> str:
    many = f"{case.nodes.count(',') + 1} nodes"
    nodes = "" if not case.nodes else f"`{case.nodes}`" if len(case.nodes) < 100 else many
    cells = (case.network, case.exporter, case.dtype, case.fault, case.verdict, case.broken, nodes)
    return f"| {' | '.join(cells)} | {'yes' if case.right else '**no**'} |"


if __name__ == "__main__":
    main()
