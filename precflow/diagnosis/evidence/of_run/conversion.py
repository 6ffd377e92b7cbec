"""Evidence about a converted model: which link between torch and what runs is broken, and at which nodes of the graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from precflow.diagnosis.evidence.pieces import Evidence
from precflow.judgement.conversion import BROKEN, describe_fault, describe_link, name_nodes, read_links

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "links": Evidence("links", "What was seen of each link of a converted model, from torch to the device."),
    "exported_by": Evidence("exporter", "Which of torch's two exporters made the graph; empty for a file that was given."),
    "exporter_nodes": Evidence(
        "nodes that the exporter has wrong", "Up to five, each with torch's record, its error, and the limit of rounding."
    ),
    "exporter_at": Evidence("first node of the exporter", "Operator and name."),
    "upgrade_nodes": Evidence("nodes that differ from the graph before", "The same, of two graphs without a model in torch."),
    "upgrade_at": Evidence("first node that differs from the graph before", "Operator and name."),
    "optimiser_nodes": Evidence("nodes that fusion has wrong", "The same, of the graph after fusion."),
    "optimiser_at": Evidence("first node of fusion", "Operator and name."),
    "half_nodes": Evidence("nodes that float16 is too narrow for", "The same, of the graph in float16."),
    "half_at": Evidence("first node in float16", "Operator and name."),
    "half_kept": Evidence(
        "kept in float32", "The nodes that help most if they stay in float32, with the error of the outputs before and after."
    ),
    "half_keep": Evidence("override", "The override that keeps them so; empty if nothing helps."),
    "runtime_nodes": Evidence("nodes that the runtime computes otherwise", "The same, of the graph on its device."),
    "runtime_at": Evidence("first node of the runtime", "Operator and name."),
}
_SHOWN = 5
_HELPS = 0.9  # of the error before


def gather(run: Comparison) -> dict[str, Any]:
    """Return the evidence; nothing for sides that run in torch."""
    found: dict[str, Any] = {}
    for side, dump in (("reference", run.reference), ("target", run.target)):
        links = read_links(dump.header)
        if links:
            found["exported_by"] = dump.header.conversion["exporter"]
        found.setdefault("links", []).extend(describe_link(link) for link in links)
        for link in links:
            if link["state"] != BROKEN:
                continue
            name, faults = link["link"], link["faults"]
            found[f"{name}_nodes"] = [describe_fault(fault) for fault in faults[:_SHOWN]]
            found[f"{name}_at"] = name_nodes(faults[0])
            if name == "half":
                found |= _choose_kept(side, faults, dump.header.conversion.get("keep_float32", ()))
    return found if found["links"] else {}


def _choose_kept(side: str, faults: list[Any], already: Iterable[str]) -> dict[str, Any]:
    """Return what keeping nodes in float32 brings, of the fault where it brings most, beside those that are kept already."""
    tried = [fault["kept"] for fault in faults if fault["kept"] and fault["kept"]["after"] is not None]
    best = min(tried, key=lambda kept: kept["after"], default=None)
    if best is None or (best["before"] is not None and best["after"] > _HELPS * best["before"]):
        return {"half_kept": "no node by itself brings the outputs nearer", "half_keep": ""}
    before = "not finite" if best["before"] is None else f"{best['before']:.3g}"
    nodes = ",".join(dict.fromkeys([*already, *best["nodes"]]))
    return {
        "half_kept": f"{', '.join(best['nodes'])}: relative_l2 of the outputs {before} -> {best['after']:.3g}",
        "half_keep": f"{side}.conversion.keep_float32=[{nodes}]",
    }
