"""What ``precflow.compare`` and ``precflow.read`` return: a verdict with its records, and all of it as tables of pandas."""

from __future__ import annotations

import functools
import html
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from precflow.diagnosis.findings import Finding
from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES
from precflow.report.row import Row
from precflow.streams import printable

if TYPE_CHECKING:
    import pandas as pd

    from precflow.curves.outcome import CurveOutcome
    from precflow.report.model import GroupRow, ReportModel

_WORST = 5  # records that a notebook shows


@dataclass(frozen=True, slots=True)
class Compared:
    """The result for one pair of tensors.

    Attributes:
        name: A record's identity, or the path of the tensor in nested values; ``value`` if the tensor itself was given.
        status: One of ``precflow.judgement.verdicts.STATUSES``: ``pass``, ``fail``, ``shape``...
        reason: Why, in words, for every status but ``pass``; for ``pass``, that both sides have the same NaN or Inf.
        metric: The metric that comes closest to its limit, or exceeds it most.
        value: Value of that metric.
        limit: Limit of that metric.
        ratio: Share of the limit that is used; above 1 fails.
        metrics: Every metric that has a meaning for the pair, by name.
    """

    name: str
    status: str
    reason: str = ""
    metric: str = ""
    value: float = 0.0
    limit: float = 0.0
    ratio: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.reason:
            return f"{self.name} ({self.status}): {self.reason}"
        used = f": {self.metric} {self.value:.3g}, limit {self.limit:.3g}" if self.metric else ""
        return f"{self.name} ({self.status}){used}"


@dataclass(frozen=True, repr=False)
class Comparison:
    """A result: true in a condition only if everything is aligned, and printed as a summary.

    The methods that return a table import pandas. All of them are made of the numbers that the report shows.

    Attributes:
        verdict: ``aligned``, ``misaligned`` or ``inconclusive``.
        reasons: Why, most important first; empty for ``aligned``.
        start: The record at which the error starts; ``""`` if that is unknown, and for values.
        findings: Advice, best first; none for values.
        summary: The verdict with its numbers, as a terminal shows it.
        rows: What was measured of each record, how it was judged, and its role.
        metrics: The metrics that are columns of :meth:`frame`, those that the recipe shows first.
        facts: What goes into ``attrs`` of every table: recipe, run, verdict, precflow, command, and ``rows_left_out``, the
            number of records that a ``result.json`` had no room for.
        outcomes: What is said about each curve.
        counts: The records by module, operator, type and phase; ``None`` if they are to be counted from the rows.
    """

    verdict: str
    reasons: tuple[str, ...]
    start: str = ""
    findings: tuple[Finding, ...] = ()
    summary: str = ""
    rows: tuple[Row, ...] = ()
    metrics: tuple[str, ...] = ()
    facts: Mapping[Hashable, Any] = field(default_factory=dict)
    outcomes: tuple[CurveOutcome, ...] = ()
    counts: tuple[GroupRow, ...] | None = None

    def __bool__(self) -> bool:
        return self.verdict == "aligned"

    def __str__(self) -> str:
        return self.summary

    def __repr__(self) -> str:
        return printable(f"<precflow.Comparison: {self._describe()}>")

    @functools.cached_property
    def records(self) -> tuple[Compared, ...]:
        """The result of every pair, in order."""
        return tuple(make_compared(row) for row in self.rows)

    def frame(self) -> pd.DataFrame:
        """Return the records as a table, one row each in order of the graph, with a column for each metric (float64).

        The index counts the rows. In training records share a name: ``record``, or ``step``, ``rank``, ``phase``,
        ``parameter`` and ``state`` tell them apart. ``NaN`` stands for a metric that a record does not have. ``status`` is a
        category whose order is worst first; other texts of which many are equal are categories too. ``ratio`` is the share
        of the limit that is used, and above 1 fails.

        ``attrs["units"]`` has the unit of each column of numbers; ``attrs`` has recipe, run, verdict and ``rows_left_out``.

        >>> from precflow import compare
        >>> table = compare({"a": [1.0], "b": [1.0, 2.0]}, {"a": [1.0], "b": [1.0, 2.5]}).frame()
        >>> table[["record", "status", "max_abs_error"]].values.tolist()
        [['a', 'pass', 0.0], ['b', 'fail', 0.5]]
        """
        from precflow.report.frames import make_record_frame

        return make_record_frame(self.rows, self.metrics, self.facts)

    def findings_frame(self) -> pd.DataFrame:
        """Return the findings as a table, best first: rule, title, certainty, where, what to do, command, evidence..."""
        from precflow.report.frames import make_finding_frame

        return make_finding_frame(self.findings, self.facts)

    def curves(self) -> pd.DataFrame:
        """Return the curves as a table: curve, step, reference, target, difference, and that relative to the reference.

        Of a curve of more than 600 steps it has those of the picture: the least and the largest number of each stretch.
        """
        from precflow.report.frames import make_curve_frame

        return make_curve_frame(self.outcomes, self.facts)

    def groups_frame(self) -> pd.DataFrame:
        """Return the judged records by module, operator, type and phase, as page and Markdown show them.

        Columns: ``by``, ``name``, ``records``, ``failed``, ``in_doubt``, ``worst`` and ``median`` (shares of the limit that are
        used), ``record`` (the one that uses most). Any other grouping is ``frame().groupby(...)``.
        """
        from precflow.report.frames import make_group_frame
        from precflow.report.groups import group_rows

        return make_group_frame(group_rows(self.rows) if self.counts is None else self.counts, self.facts)

    def _describe(self) -> str:
        failed = sum(row.judged.status in MISALIGNED_STATUSES for row in self.rows)
        doubt = sum(row.judged.status in INCOMPLETE_STATUSES for row in self.rows)
        parts = [f"{len(self.rows)} records", f"{failed} failed", *([f"{doubt} in doubt"] if doubt else [])]
        parts += [f"starts at {self.start}"] if self.start else []
        parts += [f"curve {one.name} {one.verdict}" for one in self.outcomes[:3]]
        left = self.facts.get("rows_left_out", 0)
        parts += [f"{left} records left out of the file"] if left else []
        return f"{self.verdict}, {', '.join(parts)}"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the verdict, the first finding, and the worst records."""
        from precflow.numbers import factor, number
        from precflow.report.highlights import importance

        def cell(text: str) -> str:
            """Return a cell whose text is no markup."""
            return f"<td>{html.escape(printable(text))}</td>"

        lines = [f"<p><b>{html.escape(printable(self._describe()))}</b></p>"]
        if self.findings:
            first = self.findings[0]
            lines.append(f"<p>{html.escape(printable(f'{first.rule} {first.title} ({first.certainty})'))}</p>")
        head = "".join(f"<th>{name}</th>" for name in ("record", "status", "metric", "value", "limit", "of its limit"))
        lines += ["<table>", f"<tr>{head}</tr>"]
        for row in sorted(self.rows, key=importance)[:_WORST]:
            judged = row.judged
            numbers = (number(judged.value), number(judged.limit), factor(judged.ratio)) if judged.metric else ("", "", "")
            lines.append(f"<tr>{''.join(map(cell, (row.measure.record, judged.status, judged.metric, *numbers)))}</tr>")
        return "\n".join([*lines, "</table>", f"<p>{len(self.rows)} records: <code>.frame()</code></p>"])


def make_compared(row: Row) -> Compared:
    """Return one record with its status and its metrics."""
    judged = row.judged
    return Compared(
        judged.record,
        judged.status,
        judged.reason,
        judged.metric,
        judged.value,
        judged.limit,
        judged.ratio,
        dict(row.measure.metrics),
    )


def make_comparison(model: ReportModel) -> Comparison:
    """Return the result of two dumps or of a run, from everything that its report says."""
    from precflow.judgement.verdicts import EXIT_CODES
    from precflow.report.highlights import list_metrics
    from precflow.report.terminal import render_summary

    code = EXIT_CODES[model.verdict.verdict]
    return Comparison(
        verdict=model.verdict.verdict,
        reasons=model.verdict.reasons,
        start=model.region.start,
        findings=model.findings,
        summary="\n".join(render_summary(model, report_path="", exit_code=code).split("\n")[:-2]),  # without "exit 0"
        rows=tuple(model.rows),
        metrics=list_metrics(model),
        facts={
            "precflow": model.precflow,
            "recipe": model.recipe,
            "run": model.run,
            "verdict": model.verdict.verdict,
            "command": model.command,
            "rows_left_out": model.rows_left_out,
        },
        outcomes=model.curves,
        counts=model.groups,
    )
