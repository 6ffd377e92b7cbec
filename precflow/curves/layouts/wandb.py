"""Charts of Weights & Biases, exported: `Step`, and for each run `RUN - loss` with its least and largest `RUN - loss__MIN`."""

from __future__ import annotations

import re

from precflow.curves.columns import Choice, Columns
from precflow.curves.layouts import Layout
from precflow.curves.wanted import Wanted, find_step_column, match_column
from precflow.errors import CurveError

_OF_RUN = re.compile(r"(?P<run>.+) - (?P<name>.+?)(?P<edge>__MIN|__MAX)?$")


def _choose(wanted: Wanted, columns: Columns, place: str) -> Choice | None:
    of_runs = {name: found["name"] for name in columns.names if (found := _OF_RUN.match(name)) and not found["edge"]}
    name = match_column(wanted, list(of_runs.values()))
    if name is None:
        return None
    runs = [column for column, of_run in of_runs.items() if of_run == name]
    if len(runs) > 1:
        raise CurveError(
            f"{place} has {name} of {len(runs)} runs: {', '.join(runs)}",
            next_step=f"say which one counts: {wanted.setting('column', runs[0])}",
        )
    return Choice((runs[0],), find_step_column(wanted, columns.names, place))


LAYOUT = Layout("Weights & Biases, a chart as CSV", _choose)
