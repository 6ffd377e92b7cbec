"""``precflow history NAME [--last N] [--page FILE]``: the runs of a recipe, what changed, and what got better or worse."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precflow.errors import ConfigError, StoreError
from precflow.files import write_text
from precflow.verbs import Verb, format_table, make_parser, print_json, write

if TYPE_CHECKING:
    from precflow.run.history import History, HistoryRow, RunSummary

VERB = Verb(
    108,
    "the runs of a recipe: what changed, what got better or worse",
    "history sd_text_encoder --page history.html",
    other_words=("trend", "timeline", "evolution", "progress"),
)

_LAST = 20
_MOST_PICTURES = 24  # of modules, and of records
_MOST_CHANGES = 2  # named in a line of the screen
_ENOUGH = 10.0  # a module that changed by this factor over the runs is worth a picture before one that did not


def main(arguments: Sequence[str]) -> int:
    """Print the runs of a run folder with what had changed and what came of it; write a page if asked to; return 0.

    Raises:
        ConfigError: ``--last`` is no number.
        StoreError: There is no such run folder, its history is damaged, or the page cannot be written.
    """
    options = make_parser("history", "NAME [--last N] [--page FILE]")
    options.add_argument("name", metavar="NAME", help="a run folder, such as sd_text_encoder or runs/sd_text_encoder")
    options.add_argument(
        "--last", default=str(_LAST), metavar="N", help=f"runs, counted from the newest (default {_LAST}, 0: all)"
    )
    options.add_argument(
        "--page", type=Path, metavar="FILE", help="write an HTML page too, with a small picture of each module"
    )
    chosen = options.parse_args(arguments)
    if not chosen.last.isdigit():
        raise ConfigError(
            f"--last {chosen.last}: expected how many runs, 0 for all", next_step="precflow history NAME --last 50"
        )
    from precflow.report.translated import as_spoken
    from precflow.run.history import read_history

    history = read_history(chosen.name, int(chosen.last))
    page = chosen.page.expanduser() if chosen.page else None
    if page:
        try:
            page.parent.mkdir(parents=True, exist_ok=True)
            write_text(page, as_spoken(render_page(history), _collect_translations(history)))
        except OSError as error:
            raise StoreError(
                f"{page} cannot be written: {error.strerror or error}", next_step="name another: --page FILE"
            ) from error
    if chosen.json:
        print_json({**as_plain(history), **({"page": str(page)} if page else {})})
    else:
        _show(history, page)
    return 0


def as_plain(history: History) -> dict[str, Any]:
    """Return everything as plain data for ``--json``."""
    runs = [
        {
            "number": row.entry.number,
            "started": row.entry.started,
            "outcome": row.outcome,
            "exit_code": row.entry.exit_code,
            "seconds": row.entry.seconds,
            "command": row.entry.command,
            "summary": None if row.summary is None else _plain_summary(row.summary),
            "why": row.why,
        }
        for row in history.rows
    ]
    return {"name": history.name, "earlier": history.earlier, "runs": runs}


def _plain_summary(summary: RunSummary) -> dict[str, Any]:
    from precflow.report.result_json import make_strict

    return {key: value for key, value in make_strict(asdict(summary)).items() if key != "translations"}


def _collect_translations(history: History) -> dict[str, str]:
    return {text: said for summary in history.summaries for text, said in summary.translations.items()}


def _show(history: History, page: Path | None) -> None:
    head = ("run", "began", "verdict", "failed", "worst", "better", "worse", "changed since the run before")
    write(format_table([head, *(_make_line(row) for row in history.rows)]))
    if history.earlier:
        write(f" {history.earlier} earlier: --last 0 shows all")
    summaries = history.summaries
    if summaries:
        newest = summaries[-1]
        for label, moves in (("better", newest.most_better), ("worse", newest.most_worse)):
            for move in moves:
                write(f"   {label:<8}{move.name}   {move.metric} {_number(move.before)} -> {_number(move.after)}")
    if page:
        write(f"   page    {page}")


def _make_line(row: HistoryRow) -> tuple[str, ...]:
    from precflow import numbers
    from precflow.run.history import describe_change

    entry, kept = row.entry, row.summary
    known = (f"@{entry.number}", entry.started[:16].replace("T", " "), row.outcome)
    if kept is None:
        return (*known, "", "", "", "", row.why)
    texts = list(map(describe_change, kept.changes))
    more = [f"and {len(texts) - _MOST_CHANGES} more"] if len(texts) > _MOST_CHANGES else []
    moved = (str(kept.better), str(kept.worse)) if kept.before else ("", "")
    changed = "; ".join([*texts[:_MOST_CHANGES], *more, *kept.notes]) or ("nothing" if kept.before else "")
    share = "" if kept.worst is None else "no number" if kept.worst.ratio is None else numbers.factor(kept.worst.ratio)
    return (*known, f"{numbers.count(kept.failed)} of {numbers.count(kept.total)}", share, *moved, changed)


def _number(value: float | None) -> str:
    from precflow import numbers

    return "no number" if value is None else numbers.number(value)


def render_page(history: History) -> str:
    """Return everything as a page that opens offline: a table of the runs, and small pictures on shared axes."""
    from precflow.report import html, small_multiples, wording
    from precflow.report.templating import load_templates
    from precflow.run.history import describe_change
    from precflow.version import __version__

    templates = load_templates()
    style = html.inline_sources(templates, "css", ("base.css", "sections.css", "history.css", "print.css"))
    return templates.get_template("history.html.j2").render(
        history=history,
        newest=next(iter(history.summaries[::-1]), None),
        groups=_draw_groups(history),
        describe_change=describe_change,
        width=small_multiples.WIDTH,
        height=small_multiples.HEIGHT,
        style=style,
        policy=html.build_policy(style, ""),
        symbols=wording.VERDICT_SYMBOLS,
        version=__version__,
    )


def _draw_groups(history: History) -> list[tuple[str, str, list[Any]]]:
    """Return title, explanation and pictures of each group; those of a group stand on the same axes."""
    from precflow.judgement.floors import MAIN_METRIC
    from precflow.report import small_multiples

    kept = history.summaries
    runs = [one.number for one in kept]
    kinds = [{"aligned": "good", "misaligned": "bad"}.get(one.verdict, "doubt") for one in kept]
    shares: dict[str, list[float | None]] = {
        "worst record, share of its limit": [
            None if one.worst is None else math.nan if one.worst.ratio is None else one.worst.ratio for one in kept
        ]
    }
    failed: dict[str, list[float | None]] = {"records that fail": [float(one.failed) for one in kept]}
    curves = {name: [one.curves.get(name) for one in kept] for one in kept for name in one.curves}
    modules = {name: [one.modules.get(name) for one in kept] for one in kept for name in one.modules}
    names = {record: point.name for one in kept for record, point in one.records.items() if point.metric in {MAIN_METRIC, ""}}
    twice = Counter(names.values())  # of a record that several steps have, the identity tells them apart
    records = {
        name if twice[name] == 1 else record: [_find_value(one.records.get(record)) for one in kept]
        for record, name in names.items()
    }
    groups = (
        ("The whole", "At the line a record uses all of its limit.", shares, 1.0),
        ("Failing records", "How many records fail.", failed, 0.0),
        ("Curves", "Largest absolute difference of the two sides.", curves, 0.0),
        ("Modules", "Largest relative_l2 of a module's records; those that changed most come first.", _choose(modules), 0.0),
        (
            "Records",
            "relative_l2 of records that were furthest off; those that changed most come first.",
            _choose(records),
            0.0,
        ),
    )
    drawn = []
    for title, said, series, limit in groups:
        if series:
            axes = small_multiples.choose_axes(list(series.values()), runs, kinds, limit)
            pictures = [small_multiples.draw(name, values, axes, limit) for name, values in series.items()]
            drawn.append((title, f"{said} All pictures from 1e{axes.low} to 1e{axes.high}.", pictures))
    return drawn


def _find_value(point: Any) -> float | None:
    return None if point is None else math.nan if point.value is None else point.value


def _choose(series: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
    """Return the series that changed most over the runs, at most ``_MOST_PICTURES``, in their order."""

    def spread(name: str) -> float:
        """Return the factor between the largest and the smallest number; infinite if it was none in a run."""
        known = [value for value in series[name] if value is not None]
        if not all(map(math.isfinite, known)):
            return math.inf
        positive = [value for value in known if value > 0]
        return max(positive) / min(positive) * (_ENOUGH if len(positive) < len(known) else 1) if positive else 0.0

    return {name: series[name] for name in sorted(series, key=spread, reverse=True)[:_MOST_PICTURES]}
