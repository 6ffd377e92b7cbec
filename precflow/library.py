"""The Python interface of precflow: ``assert_aligned`` for unit tests, ``compare`` for two values or dumps, and ``read``.

All use the verdicts and wording of the report. ``precflow.capture``, for a training loop of your own, is not here but in
``precflow.agent.own_loop``, because it must run where only the agent is installed.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from precflow import __version__
from precflow.agent.contract import FILLS
from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.summarize import summarize
from precflow.comparison.measure import Measure
from precflow.comparison.nested_values import PairedValue, pair_values
from precflow.comparison.reading import count_classes
from precflow.config.schema import Tolerance
from precflow.dumps.dtypes import Array, is_floating, name_of
from precflow.errors import ConfigError, Problem
from precflow.judgement import standards
from precflow.judgement.accepted import AcceptedDifferences
from precflow.judgement.decision import Terms, decide
from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES, Judged
from precflow.metrics import LIMITED, METRICS
from precflow.report.row import Row
from precflow.result import Compared, Comparison, make_compared

__all__ = ["Compared", "Comparison", "assert_aligned", "compare", "read"]

Standards = str | Sequence[str] | None
_STANDARD = "calibrated"  # that of every recipe; values have no noise floor, so that its fixed limits apply to them
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_NO_LIMITS = ("standards", "rules", "metrics")  # keys of a recipe's `tolerance` that are not limits, so not accepted here


def assert_aligned(actual: Any, expected: Any, *, standard: Standards = _STANDARD, **limits: Any) -> None:
    """Raise unless a value is aligned with the expected one; integers and booleans must be equal.

    Every entry needs its partner. ``1`` and ``"1"`` are two keys; the classes of two containers do not matter, but a dict is
    never compared with a list. ``None`` is no tensor, like an entry that is not there. Floating point types may differ, others
    must be the same, where a plain number has the type of the tensor beside it. NaN and infinities pass if the other side has
    the same at the same place and there is something else to compare; ``assert_close`` of torch wants ``equal_nan=True``.

    Args:
        actual: What the target computed: a tensor (torch on any device, NumPy, numbers), or nested dicts, lists, tuples and
            dataclasses of them, such as a model's output.
        expected: What the reference computed, nested in the same way; relative errors are relative to it.
        standard: Name of a standard (``precflow ls standard``) or several, all of which must pass. ``None``: only ``limits``.
        limits: Plain limits as in a recipe, such as ``cosine_similarity=0.9999`` or ``relative_l2="1%"``. Each is one more
            condition; none loosens a standard. A standard has limits for each element type; the less precise type of a pair
            decides which apply.

    Raises:
        AssertionError: They are not aligned, or nothing could be compared; the message says which tensor, and why.
        ConfigError: A standard or a limit is not known.
        TypeError: An element type cannot be compared.

    >>> assert_aligned([1.0, 2.0], [1.0, 2.0])
    >>> assert_aligned({"logits": [1.0, 2.0]}, {"logits": [1.0, 2.5]}, standard=None, relative_l2="1%")
    Traceback (most recent call last):
    AssertionError: not aligned: 1 of 1 tensors
       logits (fail): relative_l2 0.186 is 18.6 times its limit 0.01 (tolerance)
    """
    comparison = compare_values(expected, actual, build_tolerance(standard, limits))
    if not comparison:
        raise AssertionError(comparison.summary)


def compare(
    reference: Any,
    target: Any,
    *,
    standard: Standards = _STANDARD,
    same: Sequence[str] = ("weights", "inputs"),
    evaluate: bool = True,
    **limits: Any,
) -> Comparison:
    """Compare two dumps, given by their folders, or two values as in :func:`assert_aligned`; here the reference comes first.

    Two dumps are compared and judged as by ``precflow compare`` and by the recipe ``compare_dumps``.

    Args:
        reference: A dump's folder (or ``RUN:reference``), a tensor, or nested tensors. Relative errors are relative to it.
        target: The same for the target.
        standard: As for :func:`assert_aligned`.
        same: What must be equal at the start of two dumps; ``()`` if weights or inputs differ on purpose.
        evaluate: Compute calls of two dumps again in float64 where their tensors were kept. That starts a process with torch;
            the summary says if it was left out or could not be done.
        limits: As for :func:`assert_aligned`.

    Raises:
        DumpError: There is no dump, or it cannot be read.
        SideError: The process that computes calls again did not finish.
        ConfigError: A standard or a limit is not known, or both folders are the same.
        TypeError: One side is a folder and the other is not, or an element type cannot be compared.
    """
    tolerance = build_tolerance(standard, limits)
    # A text is always a folder here, never a value to compare.
    folders = [isinstance(value, (str, os.PathLike)) for value in (reference, target)]
    if any(folders) and not all(folders):
        raise TypeError("expected two folders of dumps, or two tensors; got one of each")
    if not all(folders):
        return compare_values(reference, target, tolerance)
    # Imported here, because comparing tensors needs neither runs nor the report.
    from precflow.result import make_comparison
    from precflow.run.find_dumps import open_named_dump
    from precflow.stages.two_dumps import compare_dumps

    left, right = (open_named_dump(os.fspath(folder)) for folder in (reference, target))
    return make_comparison(
        compare_dumps(left, right, command="", tolerance=tolerance, same=same, evaluates=evaluate),
    )


def read(result: str | os.PathLike[str]) -> Comparison:
    """Return the result of an earlier run or comparison; it has the methods that the result of :func:`compare` has.

    Args:
        result: A run (``NAME``, ``NAME@3``, ``runs/NAME@3``), whose records are read from its store, all of them with every
            metric. Or a ``result.json`` or a folder with one, such as ``public/`` of a run and what ``precflow compare``
            writes: it has the records that fit into the file, the most important ones, with the metrics that the recipe
            shows and six significant digits.

    Raises:
        StoreError: There is no such result, it is not whole, it is of another version of the format, or the run has no
            verdict (it is under way, was killed, or judged nothing).
    """
    from precflow.result import make_comparison
    from precflow.run.find_results import read_result

    return make_comparison(read_result(os.fspath(result)))


def build_tolerance(standard: Standards, limits: Mapping[str, Any]) -> Tolerance:
    """Return standards and plain limits as the section ``tolerance`` of a recipe.

    Raises:
        ConfigError: A limit is unknown or its value has the wrong form, or there is neither a standard nor a limit.
    """
    from precflow.config.build import Builder
    from precflow.config.documents import Mark

    names = [standard] if isinstance(standard, str) else list(standard or ())
    builder = Builder(lambda _: Mark(""))
    unknown = [Problem("", name, "no such limit") for name in limits if name in _NO_LIMITS]
    tolerance = replace(builder.build({"tolerance": limits}).tolerance, standards=tuple(names))
    problems = [*unknown, *builder.problems]
    if problems:  # they speak of keys of a recipe; a caller of this function knows only the arguments
        shown = [
            Problem("", wrong.key.removeprefix("tolerance."), wrong.message.replace("tolerance.", "")) for wrong in problems
        ]
        raise ConfigError("the limits are not usable", problems=shown, next_step=f"Limits are {', '.join(LIMITED)}")
    if not names and not any(value is not None for value in limits.values()):
        raise ConfigError(
            "there is nothing to hold the values to", next_step='standard="default", or a limit: relative_l2="1%"'
        )
    return tolerance


def compare_values(reference: Any, target: Any, tolerance: Tolerance) -> Comparison:
    """Compare nested tensors under the section ``tolerance`` of a recipe.

    Raises:
        ConfigError: A standard is not known, or does not judge values.
        TypeError: An element type cannot be compared.
    """
    loaded = [standards.load(name) for name in tolerance.standards]
    for standard in (standard for standard in loaded if not standard.judges_records):
        judged = "the losses of a run" if standard.losses else "operators that were computed again in float64"
        raise ConfigError(
            f"standard {standard.name!r} judges {judged}, and here are values alone", next_step="precflow ls standard"
        )
    rows = [_compare_pair(pair, loaded, tolerance) for pair in pair_values(reference, target)]
    records = [make_compared(row) for row in rows]
    failing = [record for record in records if record.status in MISALIGNED_STATUSES | INCOMPLETE_STATUSES]
    others = [record for record in records if record.status != "pass" and record not in failing]
    verdict = "aligned"
    if any(record.status in MISALIGNED_STATUSES for record in records):
        verdict = "misaligned"
    elif failing or others or not records:
        verdict = "inconclusive"
    reasons = [str(record) for record in (*failing, *others)] or ([] if records else ["there is no tensor to compare"])
    if verdict == "aligned":
        shared = [str(record) for record in records if record.reason]
        closest = max(records, key=lambda record: record.ratio)
        summary = "\n   ".join(
            [f"aligned: {len(records)} of {len(records)} tensors; closest to its limit: {replace(closest, reason='')}", *shared]
        )
    else:
        summary = "\n   ".join([f"not aligned: {len(failing) + len(others)} of {len(records)} tensors", *reasons])
    measured = {metric for row in rows for metric in row.measure.metrics}
    return Comparison(
        verdict,
        tuple(reasons),
        summary=summary,
        rows=tuple(rows),
        metrics=tuple(metric for metric in METRICS if metric in measured),
        facts={"precflow": __version__, "verdict": verdict},
    )


def _compare_pair(pair: PairedValue, loaded: Sequence[standards.Standard], tolerance: Tolerance) -> Row:
    reference, target = pair.reference, pair.target
    if pair.problem:
        return _make_row(pair.name, Judged(pair.name, "shape", reason=pair.problem))
    if target is None or reference is None:
        side = "reference" if target is None else "target"
        return _make_row(pair.name, Judged(pair.name, f"unpaired_{side}", reason=f"only the {side} has it"), reference, target)
    if reference.shape != target.shape:
        reason = f"shape {list(target.shape)}, expected {list(reference.shape)}"
        return _make_row(pair.name, Judged(pair.name, "shape", reason=reason), reference, target)
    if not all(is_floating(name_of(side.dtype)) for side in (reference, target)):
        return _compare_exactly(pair.name, reference, target)
    return _compare_tensors(pair.name, reference, target, loaded, tolerance)


def _compare_tensors(
    name: str, reference: Array, target: Array, loaded: Sequence[standards.Standard], tolerance: Tolerance
) -> Row:
    summary = summarize(reference, target, constants=(*FILLS, *tolerance.fills))
    row = _make_row(name, Judged(name, "undecided"), reference, target, measure_all(summary), count_classes(summary))
    accepted = AcceptedDifferences((), datetime.date.max)
    terms = Terms(row.measure.reference_dtype, row.measure.target_dtype, loaded, tolerance)
    judged = decide(row.measure, terms, accepted).judged
    shared = row.measure.counts.get("nonfinite", 0)
    if judged.status == "pass" and shared:
        judged = replace(judged, reason=f"{shared} NaN or Inf, the same on both sides, are not compared")
    return replace(row, judged=judged)


def _compare_exactly(name: str, reference: Array, target: Array) -> Row:
    """Compare a pair of which at least one side has integers or booleans: type and values must be equal."""
    left, right = name_of(reference.dtype), name_of(target.dtype)
    if left != right:
        judged = Judged(name, "dtype", reason=f"element type {right}, expected {left}")
        return _make_row(name, judged, reference, target)
    if not reference.size:
        judged = Judged(name, "blind", reason="it has no element, so nothing could fail")
        return _make_row(name, judged, reference, target)
    different = int(np.count_nonzero(reference != target))
    judged = Judged(name, "pass", metric="bitwise_equal", value=1.0, limit=1.0)
    if different:
        reason = f"{different} of {reference.size} {left} values differ; they must be equal"
        judged = Judged(name, "fail", metric="bitwise_equal", limit=1.0, ratio=np.inf, reason=reason)
    return _make_row(name, judged, reference, target, measure_all(summarize(reference, target)))


def _make_row(  # noqa: PLR0913, PLR0917  each is a fact of its own
    name: str,
    judged: Judged,
    reference: Array | None = None,
    target: Array | None = None,
    metrics: Mapping[str, float] = _NOTHING,
    counts: Mapping[str, int] = _NOTHING,
) -> Row:
    """Return a record of values that come from no dump: it has no module, no level and no phase."""
    left, right = ("" if side is None else name_of(side.dtype) for side in (reference, target))
    measure = Measure(
        record=name,
        name=name,
        module="",
        operator="",
        level="",
        phase="",
        order=0,
        join=judged.status if judged.status in {"shape", "unpaired_reference", "unpaired_target"} else "paired",
        reference_dtype=left,
        target_dtype=right,
        reference_shape=() if reference is None else reference.shape,
        target_shape=() if target is None else target.shape,
        equal=metrics.get("bitwise_equal", 0.0) == 1.0,
        metrics=metrics,
        evidence="tensors" if metrics else "",
        counts=counts,
    )
    return Row(measure, judged, "unknown")
