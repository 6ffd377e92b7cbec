"""What simpler methods name on the same two dumps, the trivial ones and first divergence as it was before introduced error.

Each looks at the outputs that both sides have, in the order of the reference, and names calls. Their limits are written here
and are never changed with those of the product, so that columns of different versions can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from precflow.dumps.formats import read_dump
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError

from .diagnosis import Named

_LIMITS = {"float32": 2**-16, "float16": 2**-8, "bfloat16": 2**-5}  # of relative L2, as they stood before noise floors
_CLOSE = {"float32": (1.3e-6, 1e-5), "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5)}  # torch.testing.assert_close
_TORCHLENS = (1e-5, 1e-8)  # torchlens.debug.first_divergence: the first operator that is not torch.allclose within these


class _Pair(NamedTuple):
    """An output of both sides that is floating point, and what is measured of it."""

    named: Named
    inputs: tuple[str, ...]
    text: str
    equal: bool
    relative: float
    close: bool
    closer: bool
    cosine: float


def name_all(reference: Path, target: Path) -> dict[str, list[Named]]:
    """Return the calls that each method names, most suspect first."""
    pairs = list(_pairs(read_dump(reference), read_dump(target)))
    errors = {pair.text: pair for pair in pairs}
    return {
        "first_digest": _first(pairs, lambda pair: not pair.equal),
        "first_divergence": _first_divergences(pairs, errors),
        "assert_close": _first(pairs, lambda pair: not pair.close),
        "torchlens_rule": _first(pairs, lambda pair: not pair.closer),
        "cosine_0.99": _first(pairs, lambda pair: not pair.cosine >= 0.99),
        "cosine_0.999": _first(pairs, lambda pair: not pair.cosine >= 0.999),
    }


def _first(pairs: list[_Pair], differs: Any) -> list[Named]:
    return next(([pair.named] for pair in pairs if differs(pair)), [])


def _first_divergences(pairs: list[_Pair], errors: dict[str, _Pair]) -> list[Named]:
    """Return all calls whose output is over its limit while every input that is known is within its own."""

    def over(pair: _Pair) -> bool:
        return not pair.relative <= 1

    found = [pair for pair in pairs if over(pair) and not any(over(errors[text]) for text in pair.inputs if text in errors)]
    return list(dict.fromkeys(pair.named for pair in found))


def _pairs(reference: Dump, target: Dump) -> Iterator[_Pair]:
    others = {record.text: record for call in target.calls() for record in call.outputs}
    calls = reference.calls()
    outputs = {(call.order, record.index): record.text for call in calls for record in call.outputs}
    for call in calls:
        inputs = tuple(outputs[record.source] for record in call.inputs if record.source in outputs)
        for record in call.outputs:
            other = others.get(record.text)
            arrays = other and _arrays(reference, target, record, other)
            if arrays:
                yield _measure(call, record, other.content, inputs, arrays)


def _arrays(reference: Dump, target: Dump, record: Record, other: Record) -> Any:
    """Return both tensors in float32, ``None`` where one is not kept, is no float, or has another shape."""
    if record.dtype not in _LIMITS or record.shape != other.shape:
        return None
    try:
        return reference.tensor(record).astype(np.float32).ravel(), target.tensor(other).astype(np.float32).ravel()
    except DumpError:
        return None


def _measure(call: Call, record: Record, content: str, inputs: tuple[str, ...], both: tuple[Any, Any]) -> _Pair:
    left, right = both
    named = Named(call.module, call.call, call.operator, call.ordinal, call.phase)
    if record.content == content:
        return _Pair(named, inputs, record.text, equal=True, relative=0.0, close=True, closer=True, cosine=1.0)
    with np.errstate(all="ignore"):
        # Mask fills of float32 have squares that are infinite.
        largest = float(np.abs(left[np.isfinite(left)]).max(initial=0)) or 1.0
        left, right = left / largest, right / largest
        norm = float(np.linalg.norm(left))
        error = float(np.linalg.norm(right - left))
        cosine = float(left @ right / (norm * np.linalg.norm(right))) if norm else float(error == 0)
        relative = error / norm / _LIMITS[record.dtype] if norm else float("inf") * (error > 0) if error else 0.0
    rtol, atol = _CLOSE[record.dtype]
    arrays = torch.from_numpy(right), torch.from_numpy(left)
    close = torch.allclose(*arrays, rtol, atol / largest, equal_nan=True)
    closer = torch.allclose(*arrays, _TORCHLENS[0], _TORCHLENS[1] / largest)
    return _Pair(named, inputs, record.text, equal=False, relative=relative, close=close, closer=closer, cosine=cosine)
