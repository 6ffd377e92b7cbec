"""``precflow diff RUN [RUN] [--page FILE]``: what changed between two runs of a recipe, and what it made better or worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precflow.errors import StoreError
from precflow.files import write_text
from precflow.language import speaking, spoken
from precflow.verbs import Verb, make_parser, print_json

if TYPE_CHECKING:
    from precflow.report.screens.paper import Paper
    from precflow.run.two_runs import FactChange, RecordChange, RunDifference

VERB = Verb(110, "two runs of a recipe: what changed, what got better or worse", "diff runs/minilm@2 runs/minilm@3")

_MOST_CHANGES = 12  # on the screen; --json has all
_MOST_ROWS = 40  # of each table of the page
_ABSENT = "(unset)"


def main(arguments: Sequence[str]) -> int:
    """Print what differs between two runs, and write it as a page if asked to; return 0.

    Raises:
        StoreError: There is no such run, it has no verdict, the runs are of different recipes, or the page cannot be written.
    """
    options = make_parser("diff", "RUN [RUN] [--page FILE]")
    options.add_argument(
        "before", metavar="RUN", help="FOLDER@NUMBER, such as runs/sd_text_encoder@2; without @: the newest with a verdict"
    )
    options.add_argument(
        "after", nargs="?", default="", metavar="RUN", help="the later one; without: RUN and the one before it"
    )
    options.add_argument(
        "--page", type=Path, metavar="FILE", help="write an HTML page too, with the curves of both runs side by side"
    )
    chosen = options.parse_args(arguments)
    from precflow.report.translated import as_spoken
    from precflow.run.find_runs import find_run, find_run_before
    from precflow.run.two_runs import compare_runs

    # Whoever asks for the newest run means one that can be compared, not one that failed or was killed since.
    before = find_run(chosen.before, judged=True)
    before, after = (before, find_run(chosen.after, judged=True)) if chosen.after else (find_run_before(before), before)
    difference = compare_runs(before, after)
    page = chosen.page.expanduser() if chosen.page else None
    if page:
        try:
            page.parent.mkdir(parents=True, exist_ok=True)
            write_text(page, as_spoken(render_page(difference), difference.translations))
        except OSError as error:
            raise StoreError(
                f"{page} cannot be written: {error.strerror or error}", next_step="name another: --page FILE"
            ) from error
    if chosen.json:
        print_json({**as_plain(difference), **({"page": str(page)} if page else {})})
    else:
        from precflow.verbs.inspect import show

        with speaking(spoken(), difference.translations):
            paper = show_difference(difference)
        paper.fact("page", str(page) if page else "")
        show(paper)
    return 0


def as_plain(difference: RunDifference) -> dict[str, Any]:
    """Return everything as plain data for ``--json``, but no points of curves: the results of both runs have them."""
    from precflow.report.result_json import make_strict

    verdicts = [verdict.verdict for verdict in difference.verdicts]
    curves = [{"name": curve.name, "verdicts": curve.verdicts, "largest": curve.largest} for curve in difference.curves]
    plain: dict[str, Any] = make_strict({**asdict(replace(difference, curves=())), "verdicts": verdicts, "curves": curves})
    del plain["translations"]
    return plain


def render_page(difference: RunDifference) -> str:
    """Return everything as a page that opens offline, with the curves of both runs side by side on the same axes."""
    from precflow.report import curves, html, wording
    from precflow.report.templating import load_templates
    from precflow.version import __version__

    shown = []
    for change in difference.curves:
        outcomes = (change.before, change.after)
        axes = curves.choose_axes(outcomes)
        sides = [
            {
                "run": run,
                "outcome": outcome,
                "line": curves.describe_curve(outcome),
                "growth": curves.describe_growth(outcome.growth) if outcome.found.compared else "",
                "picture": curves.draw_curve(outcome, axes, curves.HALF),
            }
            for run, outcome in zip((difference.before, difference.after), outcomes, strict=True)
        ]
        shown.append((change.name, sides, any("max_abs_error" in outcome.limits for outcome in outcomes)))
    templates = load_templates()
    style = html.inline_sources(templates, "css", ("base.css", "sections.css", "curves.css", "print.css"))
    return templates.get_template("two_runs.html.j2").render(
        found=difference,
        curves=shown,
        height=curves.HEIGHT,
        lower=curves.LOWER,
        most=_MOST_ROWS,
        style=style,
        policy=html.build_policy(style, ""),
        symbols=wording.VERDICT_SYMBOLS,
        version=__version__,
    )


def show_difference(difference: RunDifference) -> Paper:
    """Return the screen."""
    from precflow import numbers
    from precflow.judgement.verdicts import STATUSES
    from precflow.report import wording
    from precflow.report.screens.paper import Paper

    paper = Paper()
    old, new = difference.verdicts
    paper.title(f"{difference.before} -> {difference.after}{'   EMULATED target' if any(difference.emulated) else ''}")
    changes = [*difference.recipe, *difference.environment]
    paper.facts("changed", _align_changes(changes[:_MOST_CHANGES]) or ["nothing in recipe and environment"])
    if changes[_MOST_CHANGES:]:
        paper.fact("", f"and {len(changes) - _MOST_CHANGES} more: --json lists them")
    paper.facts("", difference.notes)
    paper.fact("verdict", f"{old.verdict} -> {new.verdict}" if old.verdict != new.verdict else f"{new.verdict}, as before")
    paper.facts("findings", [f"gone  {text}" for text in difference.findings_gone], "green")
    paper.facts("" if difference.findings_gone else "findings", [f"new   {text}" for text in difference.findings_new], "red")
    ordered = sorted(difference.statuses.items(), key=lambda item: STATUSES.index(item[0]))
    counts = [f"{wording.words(name)} {numbers.count(was)} -> {numbers.count(now)}" for name, (was, now) in ordered]
    paper.fact("records", ", ".join(counts))
    if difference.better or difference.worse or difference.same:  # runs of curves alone have no records
        paper.fact("better", _describe(difference.better), "green" if difference.better else "")
        paper.fact("worse", _describe(difference.worse), "red" if difference.worse else "")
        paper.fact("same", numbers.plural(difference.same, "record"))
    for label, names in (("only before", difference.only_before), ("only after", difference.only_after)):
        paper.fact(label, f"{numbers.plural(len(names), 'record')}, such as {names[0]}" if names else "")
    for curve in difference.curves:
        was, now = ("not compared" if largest is None else numbers.number(largest) for largest in curve.largest)
        verdicts = curve.verdicts[1] if curve.verdicts[0] == curve.verdicts[1] else " -> ".join(curve.verdicts)
        paper.fact(curve.name, f"largest difference of the sides   {was} -> {now}   {verdicts}")
    if difference.losses and not any(curve.name == "loss" for curve in difference.curves):
        was, now = (numbers.number(loss) for loss in difference.losses)
        paper.fact("loss", f"largest difference of the sides   {was} -> {now}")
    return paper


def _align_changes(changes: Sequence[FactChange]) -> list[str]:
    names = [f"{change.side}: {change.name}" if change.side else change.name for change in changes]
    width = max(map(len, names), default=0)
    return [
        f"{name:<{width}}   {change.before or _ABSENT} -> {change.after or _ABSENT}"
        for name, change in zip(names, changes, strict=True)
    ]


def _describe(changes: Sequence[RecordChange]) -> str:
    """Return how many records these are, and the worst of them with its numbers."""
    from precflow import numbers
    from precflow.report import wording

    count = numbers.plural(len(changes), "record")
    if not changes:
        return count
    worst = changes[0]
    metric = worst.after.metric or worst.before.metric
    values = (
        numbers.number(state.value) if state.metric else wording.words(state.status) for state in (worst.before, worst.after)
    )
    within = "   (within limits)" if worst.after.status in {"pass", "accepted"} else ""
    return f"{count}   worst: {worst.name}   {metric} {' -> '.join(values)}{within}"
