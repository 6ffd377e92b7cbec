"""Stage ``scan``: what ties a source tree to CUDA, and a patch. Where ``scan.tree`` names a tree.

Alone it is the recipe ``migration_scan``. Beside a comparison its findings stand at the lines where that finds an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from precflow import keys, resources
from precflow.diagnosis.findings import Finding
from precflow.files import write_bytes, write_text
from precflow.language import ENGLISH
from precflow.report import scan as scan_report
from precflow.report.translated import in_languages
from precflow.scan.findings import Finding as Place
from precflow.scan.findings import ScanResult
from precflow.scan.rules import GROUP, load_rules
from precflow.scan.tree import digest_tree, scan_tree
from precflow.stages.artifacts import read_value, write_value
from precflow.stages.job import Job, Stage, StageResult, is_chosen

NAME = "scan"
PUBLIC = "public"
RESULT_FILE = "result.json"
PAGE, PATCH, SARIF = "report.html", "scan.patch", scan_report.FORMATS["sarif"][0]
CHINESE_PAGE = "report.zh.html"  # beside the English one, of a report in both languages
_SITE = re.compile(r"(?P<file>[^\s<]+):(?P<line>\d+)")  # model.py:12 in forward <- train.py:40 in main
_MOST = 3  # findings of the scan that stand at one finding of the run


def read_scan(needs: Mapping[str, Path]) -> ScanResult | None:
    """Return the scan, without its patch; ``None`` without the stage."""
    return read_value(needs[NAME] / RESULT_FILE, ScanResult) if NAME in needs else None


def find_exit_code(scan: ScanResult) -> int:
    """Return 1 if something is left to change that the patch does not do, else 0."""
    return 1 if scan.by_hand else 0


def link(findings: Sequence[Finding], scan: ScanResult | None) -> list[Finding]:
    """Return the findings of a comparison with what the scan found at the line that each begins at."""
    if scan is None:
        return list(findings)
    linked = []
    for finding in findings:
        found = list(_find_places(finding.site, scan))[:_MOST]
        texts = tuple(("scan of this line", f"{place.place} {place.found}: {place.why} To do: {place.do}") for place in found)
        linked.append(replace(finding, evidence=(*finding.evidence, *texts)))
    return linked


def _find_places(site: str, scan: ScanResult) -> list[Place]:
    """Return what the scan found at the innermost line of a call site that has anything; names may be of the tree or below."""
    for frame in _SITE.finditer(site):
        file, line = frame["file"], int(frame["line"])
        here = [place for place in scan.findings if place.line <= line <= place.end_line and _is_same_file(place.file, file)]
        if here:
            return here
    return []


def _is_same_file(one: str, other: str) -> bool:
    """Tell whether two names end alike: one may be of the tree, and the other of a folder in it or around it.

    >>> _is_same_file("src/model.py", "model.py"), _is_same_file("a_model.py", "model.py")
    (True, False)
    """
    return f"/{one}".endswith(f"/{other}") or f"/{other}".endswith(f"/{one}")


def _declare(job: Job) -> Mapping[str, Any]:
    rules = load_rules(job.team.get(GROUP, ()))
    dtype = {"dtype": job.config.scan.dtype} if job.config.scan.dtype else {}  # absent, so that keys of other runs stay
    return {
        **dtype,
        "tree": digest_tree(Path(job.config.scan.tree).expanduser(), rules),
        "rules": [keys.file_digest(folder) for folder in (*job.team.get(GROUP, ()), resources.directory("conf") / GROUP)],
        "templates": keys.file_digest(resources.directory("templates")),
        "formats": list(job.config.report.formats),
        **_declare_language(job),
    }


def _declare_language(job: Job) -> Mapping[str, Any]:
    wanted = job.config.report.language
    if wanted == ENGLISH:
        return {}
    return {"language": wanted, "translation": keys.file_digest(resources.directory("conf") / "translation")}


def _make(job: Job, folder: Path, needs: Mapping[str, Path]) -> StageResult:
    del needs
    tree = Path(job.config.scan.tree).expanduser()
    rules = load_rules(job.team.get(GROUP, ()), job.config.scan.dtype)
    found = scan_tree(tree, rules, advance=lambda count: job.say(f"{count} files"))
    scan, code = replace(found, tree=tree.resolve().name, patch=b""), 1 if found.by_hand else 0
    write_value(folder / RESULT_FILE, scan)
    (folder / PUBLIC).mkdir()
    for name in filter(scan_report.FORMATS.__contains__, job.config.report.formats):
        file, render = scan_report.FORMATS[name]
        shown = in_languages(PAGE if name == "html" else file, render(scan, code), job.config.report.language)
        for each, text in shown.items():
            write_text(folder / PUBLIC / each, text)
    write_bytes(folder / PUBLIC / PATCH, found.patch)
    return StageResult(note=scan_report.describe_outcome(scan))


STAGE = Stage(
    name="scan",
    place=5,
    reads=(),
    declare=_declare,
    make=_make,
    parts=lambda config: ("",) if config.scan.tree and is_chosen(config, NAME) else (),
    without_records=True,
)
