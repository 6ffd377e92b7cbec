"""A curve that TensorBoard has exported: `Wall time`, `Step` and `Value`; its tag stands in the name of the file alone."""

from __future__ import annotations

import re

from precflow.curves.columns import Choice, Columns
from precflow.curves.layouts import Layout
from precflow.curves.wanted import Wanted, fold
from precflow.errors import CurveError

_COLUMNS = ("Wall time", "Step", "Value")
_TAG = re.compile(r"-tag-(?P<tag>.+?)(?: \(\d+\))?(?:\.\w+)?$")


def _choose(wanted: Wanted, columns: Columns, place: str) -> Choice | None:
    if tuple(columns.names) != _COLUMNS:
        return None
    tag = _TAG.search(place)
    if tag and not any(fold(name) in fold(tag["tag"].replace("/", "_")) for name in wanted.names):
        raise CurveError(
            f"{place} holds the curve {tag['tag']} by its name, not {wanted.name}",
            next_step=f"give the export of {wanted.name}, or take it nevertheless: {wanted.setting('column', 'Value')}",
        )
    return Choice(("Value",), "Step")


LAYOUT = Layout("TensorBoard, a curve as CSV", _choose)
