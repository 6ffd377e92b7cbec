"""The screen of a scan: what was found by kind, what is left by hand with its place, and which numbers are at stake."""

from __future__ import annotations

from collections import Counter

from precflow import numbers
from precflow.report.scan import HEADINGS, describe_outcome, group_same, list_lines
from precflow.report.screens.paper import Paper
from precflow.scan.findings import ScanResult
from precflow.scan.rules import NUMBERS, STOPS

_MOST_UNREAD = 5


def show_scan(scan: ScanResult, *, limit: int) -> Paper:
    """Return the screen.

    Args:
        scan: The scan.
        limit: Places that are listed of each weight; 0 for all.
    """
    paper = Paper()
    read = ", ".join(f"{count} {kind}" for kind, count in scan.files.items()) or "no file that could hold anything"
    paper.title(f"scan of {scan.tree}   {describe_outcome(scan)}")
    paper.fact("read", read)
    unread = [f"{name} {why}" for name, why in scan.unread.items()]
    rest = [f"and {len(unread) - _MOST_UNREAD} more"] if len(unread) > _MOST_UNREAD else []
    paper.facts("not read", unread[:_MOST_UNREAD] + rest, "yellow")
    for weight, heading in HEADINGS.items():
        kinds = [(scan.titles[kind], found, patched) for kind, of, found, patched in scan.count_kinds() if of == weight]
        if not kinds:
            continue
        paper.line()
        paper.title(heading)
        rows = [(title, str(found), f"{patched} by the patch" if patched else "") for title, found, patched in kinds]
        paper.table(rows, head=False)
        if weight == NUMBERS:
            counted = Counter(finding.found for finding in scan.of_weight(weight))
            often = ", ".join(f"{found} {count}" for found, count in counted.most_common(8))
            paper.fact("such as", f"{often}   (--limit, --output and --json have their places)" if often else "")
        else:
            _list_places(paper, scan, weight, limit)
    return paper


def _list_places(paper: Paper, scan: ScanResult, weight: str, limit: int) -> None:
    """Write what is left by hand: place, what was found, what to do."""
    grouped = group_same([finding for finding in scan.of_weight(weight) if not finding.patched])
    shown = grouped[:limit] if limit else grouped
    for finding, same in shown:
        cell = f" (cell {finding.cell})" if finding.cell else ""
        paper.line(f"  {finding.file}:{list_lines(same)}{cell}   {finding.found}", "bold" if weight == STOPS else "")
        paper.line(f"      {finding.why}", "dim")
        paper.line(f"      do: {finding.do}")
    left = len(grouped) - len(shown)
    if left:
        paper.line(f"  and {numbers.plural(left, 'place')} more:  --limit 0 lists all", "dim")
