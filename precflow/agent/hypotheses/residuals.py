"""How large the errors of both sides are, each against float64 at its own inputs: a page draws them one over the other.

Both distributions come from the same operator, so that a side which is as exact as the other has the same one, whatever the
operator sums over; an element is not compared with its partner.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import torch

from precflow.agent.replay.readings import widen

MOST_ELEMENTS = 1 << 16
"""Elements that are looked at, at equal distances."""
SHARES = (*(round(0.02 + 0.03 * number, 2) for number in range(33)), 0.99, 0.999, 1.0)

Tensors = Mapping[str, torch.Tensor]


class Results(NamedTuple):
    """What a side recorded, and float64 at its own inputs, both by the path of the output."""

    recorded: Tensors
    exact: Tensors


def describe_residuals(names: Mapping[str, Tuple[str, str]], reference: Results, target: Results) -> List[Dict[str, Any]]:
    """Return a line for each output in which both sides have errors: what share of its elements is off by how much at most.

    Args:
        names: Path of an output -> the call that it is named by, and its index there.
        reference: Of the reference.
        target: Of the target.
    """
    lines = []
    shares = torch.tensor(SHARES, dtype=torch.float64)
    for path, (call, index) in names.items():
        own, found = _measure(reference, path), _measure(target, path)
        if own is None or found is None or not bool(own.any()) or not bool(found.any()):
            continue
        sizes = {"own": torch.quantile(own, shares).tolist(), "found": torch.quantile(found, shares).tolist()}
        lines.append({"call": call, "index": index, "elements": min(own.numel(), found.numel()), "shares": SHARES, **sizes})
    return lines


def _measure(results: Results, path: str) -> Optional[torch.Tensor]:
    """Return sizes of errors, of finite elements alone; ``None`` for an output that is not known or not of floating point."""
    recorded, exact = results.recorded.get(path), results.exact.get(path)
    if recorded is None or exact is None or not recorded.is_floating_point() or recorded.shape != exact.shape:
        return None
    step = max(1, -(-recorded.numel() // MOST_ELEMENTS))
    errors = (widen(recorded.reshape(-1)[::step]) - exact.reshape(-1)[::step]).abs()
    return errors[torch.isfinite(errors)]
