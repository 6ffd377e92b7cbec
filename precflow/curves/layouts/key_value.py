"""Tables with a row for each number: `key`, `value` and `step`, as MLflow exports metrics and many hand-written loggers do."""

from __future__ import annotations

from precflow.curves.columns import LACKING, Choice, Columns
from precflow.curves.layouts import Layout
from precflow.curves.wanted import Wanted, find_column, find_step_column, fold
from precflow.errors import CurveError

_KEYS = ("key", "metric", "metric_name", "tag", "name")
_VALUES = ("value", "metric_value")
_RUNS = ("run_id", "run_uuid", "run", "run_name")


def _choose(wanted: Wanted, columns: Columns, place: str) -> Choice | None:
    key, value, run = (next((name for name in columns.names if fold(name) in known), None) for known in (_KEYS, _VALUES, _RUNS))
    if key is None or value is None:
        return None
    keys, *others = columns.read([key, *([run] if run else [])])
    found = find_column(wanted, list(dict.fromkeys(str(one) for one in keys if one is not LACKING)), place)
    runs = {str(of) for of, one in zip(others[0], keys, strict=True) if one == found} if run else set()
    if len(runs) > 1:
        raise CurveError(
            f"{place} has {found} of {len(runs)} runs: {', '.join(sorted(runs)[:4])}",
            next_step="export each run to a file of its own",
        )
    return Choice((value,), find_step_column(wanted, columns.names, place), only=(key, found))


LAYOUT = Layout("MLflow, metrics as CSV", _choose)
