"""A scan of a source tree as a page, as Markdown, JSON, JUnit and SARIF."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from precflow import numbers
from precflow.report import html, junit, sarif
from precflow.report.templating import load_templates
from precflow.scan.findings import Finding, ScanResult
from precflow.scan.rules import LOOK, NUMBERS, STOPS
from precflow.version import __version__

HEADINGS: Mapping[str, str] = {
    STOPS: "Does not run on an NPU as it is",
    LOOK: "To look at: may not run, or has no effect",
    NUMBERS: "Decides which numbers come out",
}
MOST_TIMES = 6  # lines that are named of one finding in one file; the rest is counted


def render_html(scan: ScanResult, code: int) -> str:
    """Return a page that opens offline."""
    templates = load_templates()
    style = html.inline_sources(templates, "css", ("base.css", "sections.css", "print.css"))
    page: str = templates.get_template("scan.html.j2").render(
        **_gather(scan, code), style=style, policy=html.build_policy(style, "")
    )
    return page


def render_markdown(scan: ScanResult, code: int) -> str:
    """Return the same as Markdown, for a ticket."""
    text: str = load_templates().get_template("scan.md.j2").render(**_gather(scan, code))
    return text


def as_plain(scan: ScanResult, code: int) -> dict[str, Any]:
    """Return everything as plain data, but the patch."""
    return {
        "tree": scan.tree,
        "exit_code": code,
        "files": dict(scan.files),
        "unread": dict(scan.unread),
        "kinds": [
            {"kind": kind, "title": scan.titles[kind], "weight": weight, "found": found, "patched": patched}
            for kind, weight, found, patched in scan.count_kinds()
        ],
        "findings": [{**asdict(finding), "kind": finding.kind} for finding in scan.findings],
    }


def render_json(scan: ScanResult, code: int) -> str:
    """Return everything as JSON, but the patch."""
    return json.dumps(as_plain(scan, code), indent=1) + "\n"


def render_junit(scan: ScanResult, code: int) -> str:
    """Return a case for the tree, which fails as the exit code does, and one for each file in which something was found.

    A file fails if something in it does not run on an NPU and the patch does not mend it; one that was not read is an error.
    """
    outcome = "failure" if code else "passed"
    places: dict[str, list[Finding]] = defaultdict(list)
    for finding in scan.findings:
        places[finding.file].append(finding)
    files = [junit.Case("files", name, "error", f"not read: it {why}") for name, why in scan.unread.items()]
    for name, found in places.items():
        by_hand = [finding for finding in found if finding.weight == STOPS and not finding.patched]
        lines = [f"{finding.place} {finding.found}: {finding.why} To do: {finding.do}" for finding in by_hand]
        message = f"{len(by_hand)} to change by hand" if by_hand else f"{numbers.plural(len(found), 'place')} to know of"
        files.append(junit.Case("files", name, "failure" if by_hand else "passed", message, "\n".join(lines)))
    tree = junit.Case("tree", scan.tree, outcome, describe_outcome(scan))
    return junit.render_cases("scan", [tree, *junit.keep_worst(files, "file")])


FORMATS: Mapping[str, tuple[str, Callable[[ScanResult, int], str]]] = {
    "html": ("scan.html", render_html),
    "markdown": ("scan.md", render_markdown),
    "json": ("scan.json", render_json),
    "junit": ("junit.xml", render_junit),
    "sarif": ("scan.sarif", sarif.render_scan),
}


def describe_outcome(scan: ScanResult) -> str:
    """Return in one sentence what has to be done."""
    stops, by_hand = scan.of_weight(STOPS), len(scan.by_hand)
    if not stops:
        return "nothing found that does not run on an NPU"
    if not by_hand:
        one = "the patch mends the one place that does not run on an NPU"
        return one if len(stops) == 1 else f"the patch mends all {len(stops)} places that do not run on an NPU"
    patched = len(stops) - by_hand
    return f"{by_hand} to change by hand, {patched} by the patch" if patched else f"{by_hand} to change by hand"


def group_same(findings: Sequence[Finding]) -> list[tuple[Finding, list[Finding]]]:
    """Return the findings of one rule in one file together, the first of them in front."""
    ordered = sorted(findings, key=lambda each: (each.file, each.rule, each.found, each.patched, each.line))
    grouped = [list(same) for _, same in groupby(ordered, key=lambda each: (each.file, each.rule, each.found, each.patched))]
    return sorted(((same[0], same) for same in grouped), key=lambda each: (each[0].file, each[0].line))


def list_lines(same: Sequence[Finding]) -> str:
    """Return the lines of findings of one file, in words: ``12, 40 and 7 more``."""
    lines = list(dict.fromkeys(finding.line for finding in same))
    rest = len(lines) - MOST_TIMES
    return ", ".join(map(str, lines[:MOST_TIMES])) + (f" and {rest} more" if rest > 0 else "")


def _gather(scan: ScanResult, code: int) -> dict[str, Any]:
    sections = [
        (heading, [(finding, list_lines(same), len(same)) for finding, same in group_same(scan.of_weight(weight))])
        for weight, heading in HEADINGS.items()
    ]
    return {
        "scan": scan,
        "code": code,
        "outcome": describe_outcome(scan),
        "kinds": scan.count_kinds(),
        "headings": HEADINGS,
        "sections": [(heading, rows) for heading, rows in sections if rows],
        "version": __version__,
    }
