"""SARIF 2.1.0 for code scanning: findings of a run or of a scan at the lines of source that they are about.

GitHub, Azure DevOps and editors show such a file beside the code. What has no line, such as a setting of the machine, stands
among the notifications of the run, because code scanning refuses results without a file.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from precflow.diagnosis.findings import Finding
from precflow.judgement.verdicts import EXIT_CODES
from precflow.report import wording
from precflow.report.model import ReportModel
from precflow.scan.findings import Finding as Place
from precflow.scan.findings import ScanResult
from precflow.scan.rules import LOOK, NUMBERS, STOPS
from precflow.streams import printable, printable_json, printable_lines
from precflow.version import __version__

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
MOST_RESULTS = 5_000  # GitHub shows no more of a file, and refuses one with 25 000
_ERROR, _WARNING, _NOTE = "error", "warning", "note"
_LEVEL_OF_CERTAINTY = {"certain": _ERROR, "likely": _WARNING}  # others are notes
_LEVEL_OF_WEIGHT = {STOPS: _ERROR, LOOK: _WARNING, NUMBERS: _NOTE}
_LEVEL_OF_VERDICT = {"misaligned": _ERROR, "inconclusive": _WARNING, "aligned": _NOTE}
_FRAME = re.compile(r"(?P<file>[^\s<>][^<>]*?):(?P<line>\d+)(?: in (?P<name>\S+))?(?= <- |$)")


@dataclass(frozen=True)
class _Frame:
    """One line of source: its file, its first and last line, and the function that it is in (``""`` if unknown)."""

    file: str
    line: int
    end_line: int
    function: str = ""


@dataclass(frozen=True)
class _Result:
    """One finding with the rule that it belongs to.

    Attributes:
        rule: Id of the rule.
        title: The rule in one line.
        why: Why it matters.
        do: What to do about it.
        level: ``error``, ``warning`` or ``note``.
        message: What was found here.
        frames: Where, the innermost line first.
        identity: What stays the same when lines move.
        module: Name of the record that it is about, ``""`` for none.
        sources: Where the knowledge comes from.
    """

    rule: str
    title: str
    why: str
    do: str
    level: str
    message: str
    frames: tuple[_Frame, ...]
    identity: str
    module: str = ""
    sources: tuple[str, ...] = ()


def render(model: ReportModel) -> str:
    """Return the findings of a run that name a line; the verdict and the other findings are notifications."""
    results, notices = [], [(_LEVEL_OF_VERDICT[model.verdict.verdict], _describe_verdict(model))]
    for finding in model.findings:
        level = _LEVEL_OF_CERTAINTY.get(finding.certainty, _NOTE)
        frames = read_site(finding.site)
        if frames:
            results.append(_make_result(finding, level, frames))
        else:
            notices.append((level, f"{finding.rule} {finding.title}. {finding.fix}".strip()))
    code = EXIT_CODES[model.verdict.verdict]
    return _render_log(f"precflow/{model.recipe}", results, notices, code)


def render_scan(scan: ScanResult, code: int) -> str:
    """Return the findings of a scan; the files that it could not read are notifications."""
    order = (STOPS, LOOK, NUMBERS)
    found = sorted(scan.findings, key=lambda one: order.index(one.weight))  # stable: places stay in order of files and lines
    notices = [(_WARNING, f"{name} was not read: it {why}") for name, why in scan.unread.items()]
    return _render_log("precflow scan", [_make_place(one, scan.titles) for one in found], notices, code)


def read_site(site: str) -> tuple[_Frame, ...]:
    """Return the lines of a call site, the innermost first; none if the text is no call site.

    >>> [(frame.file, frame.line) for frame in read_site("my model.py:12 in forward <- train.py:40 in main")]
    [('my model.py', 12), ('train.py', 40)]
    """
    parts = (_FRAME.fullmatch(part.strip()) for part in site.split(" <- "))
    named = [(part["file"], int(part["line"]), part["name"] or "") for part in parts if part is not None]
    return tuple(_Frame(file, line, line, name) for file, line, name in named if line > 0)


def _make_result(finding: Finding, level: str, frames: tuple[_Frame, ...]) -> _Result:
    what = finding.claim or finding.title
    next_command = f"\n\nNext: {finding.try_it}" if finding.try_it else ""
    return _Result(
        finding.rule,
        finding.title,
        finding.why or finding.title,
        finding.fix,
        level,
        f"{what} ({finding.certainty}). {finding.fix}{next_command}",
        frames,
        f"{finding.where} {frames[0].file}",
        finding.where,
        finding.sources,
    )


def _make_place(place: Place, titles: Mapping[str, str]) -> _Result:
    return _Result(
        place.rule,
        f"{titles.get(place.kind, place.kind)}: {place.rule}",
        place.why,
        place.do,
        _LEVEL_OF_WEIGHT[place.weight],
        f"{place.found}: {place.why} To do: {place.do}" + (" (the patch does it)" if place.patched else ""),
        (_Frame(place.file, max(place.line, 1), max(place.end_line, place.line, 1)),),
        f"{place.file} {place.found}",
    )


def _describe_verdict(model: ReportModel) -> str:
    verdict = model.verdict
    start = f", starts at {model.region.start}" if model.region.start else ""
    emulated = f" ({wording.EMULATED})" if model.emulated else ""
    return f"{model.recipe}: {verdict.verdict}{start}{emulated}. {'; '.join(verdict.reasons)}".strip()


def _render_log(name: str, results: Sequence[_Result], notices: Sequence[tuple[str, str]], code: int) -> str:
    """Return the file; of too many results the first, and a notification that counts the others."""
    kept = results[:MOST_RESULTS]
    if len(kept) < len(results):
        more = f"{len(results) - len(kept)} more findings are left out here; the other files have all"
        notices = [*notices, (_WARNING, more)]
    rules = {one.rule: one for one in reversed(kept)}
    numbers = {rule: number for number, rule in enumerate(rules)}
    described = [_describe_rule(one) for one in rules.values()]
    run = {
        "tool": {"driver": {"name": "precflow", "semanticVersion": __version__, "rules": described}},
        "automationDetails": {"id": f"{printable(name)}/"},  # two files of one commit need two names
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": True,
                "exitCode": code,
                "toolExecutionNotifications": [
                    {"level": level, "message": {"text": printable_lines(text)}} for level, text in notices
                ],
            }
        ],
        "results": [_describe_result(one, numbers) for one in kept],
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return printable_json(json.dumps(log, ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def _describe_rule(one: _Result) -> dict[str, Any]:
    sources = f"\n\nSources: {'; '.join(one.sources)}" if one.sources else ""
    return {
        "id": printable(one.rule),
        "shortDescription": {"text": printable(one.title)},
        "fullDescription": {"text": printable_lines(one.why)},
        "help": {"text": printable_lines(f"{one.do or one.why}{sources}")},
        "defaultConfiguration": {"level": one.level},
    }


def _describe_result(one: _Result, numbers: Mapping[str, int]) -> dict[str, Any]:
    place = _describe_frame(one.frames[0])
    if one.module:
        place["logicalLocations"] = [{"fullyQualifiedName": printable(one.module), "kind": "module"}]
    # A line number is not in it: a result that moves by a line is still the same.
    fingerprint = hashlib.sha256(f"{one.rule} {one.identity}".encode("utf-8", "backslashreplace")).hexdigest()[:32]
    result = {
        "ruleId": printable(one.rule),
        "ruleIndex": numbers[one.rule],
        "level": one.level,
        "message": {"text": printable_lines(one.message)},
        "locations": [place],
        "partialFingerprints": {"precflow/v1": fingerprint},
    }
    if one.frames[1:]:
        result["stacks"] = [{"frames": [{"location": _describe_frame(frame)} for frame in one.frames]}]
    return result


def _describe_frame(frame: _Frame) -> dict[str, Any]:
    uri = quote(frame.file.encode("utf-8", "backslashreplace"))
    where: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": uri, "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": frame.line, "endLine": frame.end_line},
        }
    }
    if frame.function:
        where["message"] = {"text": f"in {printable(frame.function)}"}
    return where
