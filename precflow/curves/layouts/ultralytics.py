"""`results.csv` of Ultralytics' YOLO: a row an epoch, with the parts of the loss, such as `train/box_loss`, and no sum of them.

What is trained is the sum of the parts, each of them weighted already (ultralytics/utils/loss.py).
"""

from __future__ import annotations

import re

from precflow.curves.columns import Choice, Columns
from precflow.curves.layouts import Layout
from precflow.curves.wanted import Wanted, find_step_column

_PART = re.compile(r"train/\w+_loss$")


def _choose(wanted: Wanted, columns: Columns, place: str) -> Choice | None:
    parts = tuple(name for name in columns.names if _PART.match(name))
    if wanted.name != "loss" or wanted.column or "train/box_loss" not in parts:
        return None
    return Choice(parts, find_step_column(wanted, columns.names, place))


LAYOUT = Layout("Ultralytics YOLO, results.csv", _choose)
