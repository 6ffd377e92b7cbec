"""What each micro batch's loss is multiplied by on the target: the gradient that arrives at the model's output tells.

A step that accumulates sums the gradients of its micro batches. If one side divides the loss of each micro batch by its own
tokens, and the other one by those of the whole step, each micro batch has a factor of its own, and the sum has none: long
answers count less and short ones more. Sketches are linear, so that they show a factor as well as tensors do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from precflow.agent.contract import BACKWARD
from precflow.comparison.fused.value_classes import widen
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.diagnosis.evidence.tensors import call_identity, read_linear
from precflow.dumps.dtypes import FLOATS, float_facts
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison

EVIDENCE = {
    "micro_factors": Evidence(
        "loss of each micro batch times",
        "Its gradient at the model's output over the reference's, in order; absent unless each has one factor and they differ.",
    ),
    "micro_tokens": Evidence(
        "tokens that count in each", "Rows of that gradient which are not zero; absent if it is not known."
    ),
    "micro_divides": Evidence(
        "divides each micro batch by its own number of tokens",
        "`reference` or `target`; the other side divides by those of the whole step. Absent if the numbers do not say so.",
    ),
}

_LEFT = 1e-3  # share of a gradient that one factor may leave unexplained; in 16 bits, their rounding
_APART = 1e-2  # relative difference of factors that are not the same
_SAME = 0.02  # deviation of a factor from what the numbers of tokens give
_MOST = 64  # micro batches that are looked at


def gather(run: Comparison) -> dict[str, Any]:
    """Return the factor of each micro batch, where something is suspect."""
    return find_factors(run.reference, run.target) if run.region.suspects and not run.blockers else {}


def find_factors(reference: Dump, target: Dump) -> dict[str, Any]:
    """Return the factor of each micro batch of the first step, by the names of ``EVIDENCE``.

    Nothing is returned unless every micro batch has one factor, and these are not all the same.
    """
    pairs = pair_arriving(reference, target)
    factors, tokens = [], []
    for here, there in pairs[:_MOST]:
        factor = _measure_factor(reference, here, target, there)
        if factor is None:
            return {}
        factors.append(factor)
        tokens.append(_count_tokens(reference, here))
    if len(factors) < 2 or max(factors) - min(factors) <= _APART * max(factors):
        return {}
    found: dict[str, Any] = {"micro_factors": factors}
    counted = [count for count in tokens if count]
    if len(counted) < len(factors):
        return found
    own = explain_by_tokens(factors, counted)
    return {**found, "micro_tokens": counted, **({"micro_divides": own} if own else {})}


def explain_by_tokens(factors: Sequence[float], tokens: Sequence[int]) -> str:
    """Return the side that divides each micro batch by its own tokens, where the other one divides by those of the step.

    >>> explain_by_tokens([99 / 168, 99 / 30], [84, 15]), explain_by_tokens([168 / 99, 30 / 99], [84, 15])
    ('target', 'reference')
    >>> explain_by_tokens([2.0, 3.0], [84, 15])
    ''
    """
    expected = [sum(tokens) / (len(tokens) * count) for count in tokens]
    if all(abs(factor / each - 1.0) <= _SAME for factor, each in zip(factors, expected, strict=True)):
        return "target"
    if all(abs(factor * each - 1.0) <= _SAME for factor, each in zip(factors, expected, strict=True)):
        return "reference"
    return ""


def pair_arriving(reference: Dump, target: Dump) -> list[tuple[Record, Record]]:
    """Return the gradient that arrives at the model's output in each micro batch of the first step, on both sides."""
    calls = sorted(filter(_is_backward, reference.calls()), key=lambda call: (call.step, call.rank, call.order))
    if not calls:
        return []
    others = {call_identity(call): call for call in target.calls() if _is_backward(call)}
    first = calls[0]  # at the model itself, or at its last module
    same = [call for call in calls if (call.step, call.rank, call.module) == (first.step, first.rank, first.module)]
    pairs = []
    for call in sorted(same, key=lambda call: call.call):
        other = others.get(call_identity(call))
        theirs = {} if other is None else {record.index: record for record in other.inputs}
        record = next((record for record in call.inputs if record.dtype in FLOATS and len(record.shape) > 1), None)
        partner = None if record is None else theirs.get(record.index)
        if record is None or partner is None or partner.shape != record.shape:
            return []
        pairs.append((record, partner))
    return pairs


def _is_backward(call: Call) -> bool:
    return call.phase == BACKWARD and not call.operator and any(len(record.shape) > 1 for record in call.inputs)


def _measure_factor(reference: Dump, here: Record, target: Dump, there: Record) -> float | None:
    """Return the one factor between both gradients; ``None`` if there is none, or too little was kept of them."""
    mine, theirs = read_linear(reference, here), read_linear(target, there)
    if mine is None or theirs is None or mine.shape != theirs.shape:
        return None
    square = float(mine @ mine)
    factor = float(theirs @ mine) / square if square else 0.0
    size = float(np.linalg.norm(theirs))
    units = [2.0 ** -float_facts(one.dtype).digits for one in (here, there) if one.dtype in FLOATS]
    is_one = factor > 0 and size > 0 and float(np.linalg.norm(theirs - factor * mine)) <= max(_LEFT, *units) * size
    return factor if is_one else None


def _count_tokens(dump: Dump, record: Record) -> int:
    """Return the number of rows of a gradient that are not zero: tokens that count in the loss; 0 if it is not known."""
    try:
        if record.stored and not record.part:
            norms = np.linalg.norm(widen(np.ascontiguousarray(dump.tensor(record))).reshape(-1, record.shape[-1]), axis=1)
        else:
            read = getattr(dump, "rows", None)
            rows = None if read is None else read(record)
            norms = np.zeros(0) if rows is None else np.asarray(rows, np.float64).reshape(-1)
    except DumpError:
        return 0
    return int(np.count_nonzero(norms)) if norms.size * record.shape[-1] == np.prod(record.shape) else 0
