"""The records of a result as columns, without pandas; ``result.csv`` is written from them, and tables of pandas are made.

A column of numbers is an array. A column of texts is a list, in which ``None`` stands for a text without letters where the
table has a category: one of few texts that many records share.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from precflow.agent.contract import Identity, parse_identity
from precflow.comparison.measure import Measure
from precflow.diagnosis.golden import GoldenRow
from precflow.dumps.record_names import split_parameter
from precflow.report.row import Row

CATEGORIES: Final = frozenset(
    "level phase module operator index parameter state status role metric standard evidence reference_dtype target_dtype"
    " reference_shape target_shape pairing".split()
)
_EXACT: Final = (np.nan, np.nan)

Columns = dict[str, Any]


def build_columns(rows: Sequence[Row], metrics: Sequence[str], golden: Mapping[str, GoldenRow] | None = None) -> Columns:
    """Return the columns of a table of records, in order.

    Args:
        rows: The records.
        metrics: Names of the metrics that become columns.
        golden: Identity text -> errors against a golden run; without one there are no columns of it.
    """
    measures, judged = [row.measure for row in rows], [row.judged for row in rows]
    ranges = [measure.ranges.get(one.metric, _EXACT) for measure, one in zip(measures, judged, strict=True)]
    return {
        "record": [escape(measure.record) for measure in measures],
        "name": [escape(measure.name) for measure in measures],
        "level": _texts([measure.level for measure in measures]),
        "phase": _texts([measure.phase for measure in measures]),
        **_split_identities(measures),
        "order": np.array([measure.order for measure in measures], np.int64),
        "status": [one.status for one in judged],
        "role": _texts([row.role for row in rows]),
        "metric": _texts([one.metric for one in judged]),
        "value": _floats([one.value if one.metric else np.nan for one in judged]),
        "limit": _floats([one.limit if one.metric else np.nan for one in judged]),
        "ratio": _floats([one.ratio if one.metric else np.nan for one in judged]),
        "standard": _texts([one.standard for one in judged]),
        "floor": _floats([np.nan if one.floor is None else one.floor for one in judged]),
        "lowest": _floats([lowest for lowest, _ in ranges]),
        "highest": _floats([highest for _, highest in ranges]),
        **_spread_metrics(measures, metrics),
        **(_spread_golden(measures, golden) if golden else {}),
        "equal": np.array([measure.equal for measure in measures], np.bool_),
        "evidence": _texts([measure.evidence for measure in measures]),
        "share": _floats([measure.share for measure in measures]),
        "reference_dtype": _texts([measure.reference_dtype for measure in measures]),
        "target_dtype": _texts([measure.target_dtype for measure in measures]),
        "reference_shape": _texts([_format_shape(one.reference_shape, one.reference_dtype) for one in measures]),
        "target_shape": _texts([_format_shape(one.target_shape, one.target_dtype) for one in measures]),
        "pairing": _texts([measure.pairing for measure in measures]),
        "reason": [escape(one.reason or measure.reason) for one, measure in zip(judged, measures, strict=True)],
    }


def _spread_golden(measures: Sequence[Measure], golden: Mapping[str, GoldenRow]) -> dict[str, Any]:
    found = [golden.get(measure.record) for measure in measures]
    return {
        f"golden_{name}": _floats([np.nan if one is None else getattr(one, name) for one in found])
        for name in ("reference", "target", "ratio")
    }


def _split_identities(measures: Sequence[Measure]) -> dict[str, Any]:
    """Return what tells apart the records of one name, in columns.

    A tensor that comes from no dump has no phase and no place in a run: its numbers are 0, and its texts missing.
    """
    places = [_parse_place(_cut_module(measure)) if measure.phase else _NOWHERE for measure in measures]
    owners = [measure.module or "(model)" if measure.phase else "" for measure in measures]
    owned = [split_parameter(place) for place in places]
    return {
        "step": np.array([name.step for name in places], np.int64),
        "rank": np.array([name.rank for name in places], np.int64),
        "module": _texts(owners),
        "call": np.array([_count_calls(measure.record) if measure.phase else 0 for measure in measures], np.int64),
        "operator": _texts([measure.operator for measure in measures]),
        "ordinal": np.array([name.ordinal for name in places], np.int64),
        "index": _texts([name.index for name in places]),
        "parameter": _texts(
            [
                f"{measure.module}.{own}" if own and measure.module else own
                for measure, (own, _) in zip(measures, owned, strict=True)
            ]
        ),
        "state": _texts([state for _, state in owned]),
    }


_NOWHERE: Final = Identity("", 0, "", 0, "", "", "", 0, 0)


def _spread_metrics(measures: Sequence[Measure], metrics: Sequence[str]) -> dict[str, Any]:
    """Return each metric as a column; ``NaN`` where a record does not have it."""
    # Row by row: the numbers of one record lie together in memory, those of a column are spread over all of it.
    numbers = itertools.chain.from_iterable([measure.metrics.get(name, np.nan) for name in metrics] for measure in measures)
    table = np.fromiter(numbers, np.float64, len(measures) * len(metrics)).reshape(len(measures), len(metrics))
    return {name: table[:, number].copy() for number, name in enumerate(metrics)}


def _cut_module(measure: Measure) -> str:
    """Return an identity without its module: ``softmax.0/forward.output.0@1.0``, or ``forward.output.0``."""
    return "/".join(measure.record.rsplit("/", 2 if measure.operator else 1)[1:])


@functools.lru_cache(maxsize=1 << 16)
def _parse_place(text: str) -> Identity:
    """Read what :func:`_cut_module` returns; 200 000 records have few different ones, and each is read once."""
    return parse_identity(f"(model)/{text}")


def _count_calls(record: str) -> int:
    """Return how often the module of a record was called before: 3 of ``layers.0~3/forward.output.0``."""
    return int(record.partition("~")[2].partition("/")[0]) if "~" in record else 0


def _texts(texts: Sequence[str]) -> list[str | None]:
    """Return texts of which many are equal, each escaped once; a text without letters is missing."""
    known = {text: escape(text) or None for text in set(texts)}
    return [known[text] for text in texts]


def _floats(numbers: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array(numbers, np.float64)


def escape(text: str) -> str:
    r"""Return a text in which lone surrogates are escapes: where pyarrow is installed, pandas keeps texts as UTF-8.

    >>> escape("层 0"), escape("lone\ud800surrogate")
    ('层 0', 'lone\\ud800surrogate')
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


@functools.lru_cache(maxsize=1 << 14)
def _format_shape(shape: tuple[int, ...], dtype: str) -> str:
    """Return ``3x77x768``; ``scalar`` of a tensor without axes, and no text for a side that has no tensor."""
    return ("x".join(map(str, shape)) or "scalar") if dtype else ""
