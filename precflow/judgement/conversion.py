"""What the links of a converted model say about a verdict: a graph that computes something else is never aligned.

The records of a run in float16 may pass although the graph has a wrong constant: their limits are as wide as its rounding. The
links were compared in float32, each node with torch's own values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from precflow import numbers
from precflow.dumps.header import Header
from precflow.judgement.verdicts import Verdict

LINKS: Mapping[str, str] = {
    "upgrade": "the upgrade (the graph before against the graph after)",
    "exporter": "the exporter (torch against the exported graph)",
    "optimiser": "the optimiser (the graph before and after fusion)",
    "half": "the conversion to float16",
    "runtime": "the runtime (the same graph as ONNX defines it, and on the device)",
}
BROKEN, UNKNOWN, NOT_THERE = "broken", "unknown", "not there"
_SHOWN = 3


def read_links(header: Header) -> list[Mapping[str, Any]]:
    """Return the links that a side has compared, in order; none for a side that runs in torch."""
    return list(header.conversion.get("links", ()))


def describe_fault(fault: Mapping[str, Any]) -> str:
    """Return a fault in words: ``Gelu node_gelu_1 (blocks.0.act / gelu): relative_l2 3e-4, limit 2e-6``."""
    error = "not finite" if fault["error"] is None else f"relative_l2 {fault['error']:.3g}"
    return f"{name_nodes(fault)} ({fault['record']}): {error}, limit {fault['limit']:.2g}"


def name_nodes(fault: Mapping[str, Any]) -> str:
    """Return the nodes that a fault is in, as ``Gelu node_gelu_1``; of many the last ones, which make the result."""
    nodes = [f"{node['operator']} {node['name']}" for node in fault["nodes"]]
    more = [f"{len(nodes) - _SHOWN} before"] if len(nodes) > _SHOWN else []
    return ", ".join([*more, *nodes[-_SHOWN:]]) or f"the node of {fault['tensor']}"


def describe_link(link: Mapping[str, Any]) -> str:
    """Return a link in words."""
    name = LINKS[link["link"]]
    if link["state"] == BROKEN:
        first, more = link["faults"][0], len(link["faults"]) - 1
        return f"{name} breaks at {describe_fault(first)}{f', and {more} more' if more else ''}"
    if link["state"] in {UNKNOWN, NOT_THERE}:
        return f"{name}: {link['why']}"
    return f"{name} agrees at {link['tensors']} tensors, the worst at {link['worst']:.0%} of its limit"


def describe_elsewhere(header: Header) -> str:
    """Return in words which nodes of a graph the device has left to the CPU; ``""`` if it has taken all."""
    operators = header.conversion.get("elsewhere", ())
    if not operators:
        return ""
    kinds = list(dict.fromkeys(operators))
    more = f" and {len(kinds) - _SHOWN} other kinds" if len(kinds) > _SHOWN else ""
    nodes = numbers.plural(len(operators), "node")
    return f"{nodes} of the graph run on the CPU, not on {header.conversion['provider']}: {', '.join(kinds[:_SHOWN])}{more}"


def describe_wider(header: Header) -> str:
    """Return in words that the device keeps more digits between nodes than its tensors have; ``""`` if it does not."""
    if not header.conversion.get("wider"):
        return ""
    return (
        f"{header.conversion['provider']} keeps more digits between two nodes than float16 has: what a node has read is not "
        "known, so none is computed again from its own inputs"
    )


def take_links(verdict: Verdict, *headers: Header) -> Verdict:
    """Return a verdict with what the links of its sides say.

    A broken link is misaligned whatever the records say, but for that to float16: what this costs is judged by the records and
    named here. A link that could not be compared keeps a run from being aligned. Doing it twice changes nothing.
    """
    links = [link for header in headers for link in read_links(header)]
    for header in headers:
        for said in filter(None, (describe_elsewhere(header), describe_wider(header))):
            verdict = replace(verdict, warnings=_add(verdict.warnings, said))
    for link in links:
        said = describe_link(link)
        if link["state"] == BROKEN and link["link"] != "half":
            verdict = replace(verdict, verdict="misaligned", reasons=_add(verdict.reasons, said))
        elif link["state"] == BROKEN:
            verdict = replace(verdict, warnings=_add(verdict.warnings, said))
        elif link["state"] == UNKNOWN:
            outcome = "inconclusive" if verdict.verdict == "aligned" else verdict.verdict
            verdict = replace(verdict, verdict=outcome, reasons=_add(verdict.reasons, said))
    return replace(verdict, links=tuple(describe_link(link) for link in links))


def _add(texts: tuple[str, ...], text: str) -> tuple[str, ...]:
    return texts if text in texts else (*texts, text)
