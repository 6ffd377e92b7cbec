"""Arguments of a call that are not tensors: where the sides differ, and single numbers by name or position."""

from __future__ import annotations

import re
from collections.abc import Mapping

from precflow.dumps.records import Call

_ON_PURPOSE = re.compile(r"\b(cuda|npu|cpu|device)\b")
_DTYPE = re.compile(r"\b(b?float\d*|half|double)\b|torch\.(b?float\d*|half|double)")
_FILL = 1e4  # mask fill constants follow the dtype


def differing(reference: Call, target: Call, *, same_dtype: bool) -> list[str]:
    """Return ``name: reference / target`` for each argument that differs without a good reason.

    Devices differ on purpose; where the two runs have different dtypes, so do dtypes and mask fill constants.
    """
    here, there = reference.arguments, target.arguments
    names = [*here, *(name for name in there if name not in here)]
    changed = [(name, here.get(name, "(absent)"), there.get(name, "(absent)")) for name in names]
    return [f"{name}: {one} / {other}" for name, one, other in changed if one != other and not _excused(one, other, same_dtype)]


def number(arguments: Mapping[str, str], name: str, position: int, default: float) -> float:
    """Return a number among the arguments, by name or by position; the default where there is none.

    >>> number({"4": "1e-06"}, "eps", 4, 1e-5)
    1e-06
    """
    try:
        return float(arguments.get(name, arguments.get(str(position), default)))
    except ValueError:
        return default


def _excused(one: str, other: str, same_dtype: bool) -> bool:  # noqa: FBT001  # private, and named at its one call
    if _ON_PURPOSE.search(one) and _ON_PURPOSE.search(other):
        return True
    if same_dtype:
        return False
    return bool(_DTYPE.search(one) and _DTYPE.search(other)) or (_is_fill(one) and _is_fill(other))


def _is_fill(text: str) -> bool:
    try:
        return abs(float(text)) > _FILL
    except ValueError:
        return False
