"""Gradients that differ because a choice in their forward does, which no record of the forward shows.

``amax`` returns the same number whichever of two nearly equal elements it took, and its gradient goes to the one that it took
(:mod:`precflow.judgement.gradient_choices`). So the operators of the forward are looked at whose inputs were kept, and where
the two sides took other elements within the noise, the gradients behind are not comparable::

    pool / amax              near tie          1 of 64 choices differs
    proj / backward          not comparable    the gradient of a token went to another one
    proj / gradient weight   not comparable
    head / gradient weight   fail              it does not depend on that choice

Only as much is excused as the choices may explain: if ``k`` of ``n`` differ, the gradient that left the operator differs by
about ``sqrt(2 k / n)`` of itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from precflow.agent.contract import BACKWARD, FORWARD, GRADIENT, ROOT_MODULE
from precflow.diagnosis.nodes import CallKey, CallNode
from precflow.judgement import lines
from precflow.judgement.near_ties import Flips


class GradientChoice(NamedTuple):
    """A near tie of the forward that shows in gradients.

    Attributes:
        node: The call that chose.
        text: Identity of its output.
        flips: What differs.
    """

    node: CallNode
    text: str
    flips: Flips


def find_gradients_behind(nodes: Mapping[CallKey, CallNode], choice: GradientChoice) -> set[str]:
    """Return the gradients that go through a call of the forward: of what its inputs were computed from, and around it.

    Args:
        nodes: The graph of one side.
        choice: What chose.
    """
    modules, around = _list_modules_before(nodes, choice.node), set(_list_around(choice.node.call.module))
    rank_and_step = choice.node.key[:2]
    return {
        record.text
        for key, node in nodes.items()
        if key[:2] == rank_and_step and node.call.phase in {BACKWARD, GRADIENT}
        if node.call.module in modules or (node.call.phase == BACKWARD and node.call.module in around)
        for record in node.call.outputs
    }


def explains(choices: list[GradientChoice], error: float | None) -> bool:
    """Tell whether choices are enough to make a gradient differ by so much, relative to its norm.

    Args:
        choices: Those that the gradient went through.
        error: How much it differs; ``None`` if that is not known, which explains nothing.
    """
    share = sum(choice.flips.differing / max(choice.flips.total, 1) for choice in choices)
    return error is not None and error <= lines.FLIPPED_GRADIENT * math.sqrt(2.0 * min(share, 1.0))


def _list_modules_before(nodes: Mapping[CallKey, CallNode], start: CallNode) -> set[str]:
    """Return the modules in which, or by which, what a call was given was computed in its forward."""
    modules, waiting, seen = set[str](), [start], {start.key}
    while waiting:
        node = waiting.pop()
        before = [edge.source[0] for edge in node.edges if edge.source is not None and not edge.guessed]
        before += node.inside if node is not start else ()
        for key in before:
            if key not in seen and nodes[key].call.phase == FORWARD and key[:2] == start.key[:2]:
                seen.add(key)
                waiting.append(nodes[key])
                modules.add(nodes[key].call.module)
    return modules


def _list_around(module: str) -> list[str]:
    """Return a module and those around it.

    >>> _list_around("layers.0.attention")
    ['layers.0.attention', 'layers.0', 'layers', '']
    """
    names = [module]
    while names[-1] != ROOT_MODULE:
        names.append(names[-1].rpartition(".")[0])
    return names
