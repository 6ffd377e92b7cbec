"""Lines for the log of a build server (``output=ci``): words of ``key=value``, easy to search."""

from __future__ import annotations

import re
from urllib.parse import quote

from precflow.diagnosis.training.phases import find_guilty
from precflow.environment.changes import RunChange
from precflow.report.model import ReportModel

_UNSAFE = re.compile(r"[^\x21-\x7e]|[%=\"'\\]")  # letters that would end or break a word of `key=value`


def format_stage(recipe: str, stage: str, *, side: str, state: str, seconds: float) -> str:
    """Return the line about one stage.

    >>> format_stage("sd_text_encoder", "dump", side="target", state="done", seconds=21.4)
    'precflow sd_text_encoder stage=dump side=target state=done seconds=21'
    """
    words = [f"precflow {_escape_word(recipe)}", f"stage={_escape_word(stage)}"]
    words += [f"side={_escape_word(side)}"] if side else []
    return " ".join([*words, f"state={_escape_word(state)}", f"seconds={round(seconds)}"])


def format_outcome(model: ReportModel, *, report_path: str, reference_age: str = "") -> str:
    """Return the last line: verdict, where the error starts, guilty phase, first finding, coverage and the report.

    Args:
        model: What happened.
        report_path: Where the report is.
        reference_age: How long ago a reference that was kept was made; ``""`` for a fresh one.
    """
    verdict = model.verdict
    start = _escape_word(model.region.start.replace(" / ", "/")) if verdict.verdict == "misaligned" else ""
    finding = _escape_word(model.findings[0].rule) if model.findings else "none"
    words = [
        f"precflow {_escape_word(model.recipe)}",
        f"verdict={verdict.verdict}",
        *(["emulated=yes"] if model.emulated else []),
        f"start={start or 'none'}",
        *([f"phase={find_guilty(model.phases) or 'none'}"] if model.phases else []),
        f"finding={finding}",
        *([f"coverage={verdict.compared}/{verdict.total}"] if verdict.total or not model.curves else []),
        *(f"curve={_escape_word(one.name)}:{one.found.max_abs_error:.3g}@{one.found.max_abs_step}" for one in model.curves),
        *([f"reference_made={_escape_word(reference_age.replace(' ', '_'))}"] if reference_age else []),
        *([f"near_ties={verdict.counts['near_tie']}"] if verdict.counts.get("near_tie") else []),
        *([f"covered={verdict.counts['covered']}"] if verdict.counts.get("covered") else []),
        *([f"changed={','.join(map(_count_change, verdict.changes))}"] if verdict.changes else []),
        *([f"as_is={verdict.as_is.state}"] if verdict.as_is.text else []),
        *(["unseen=compiled"] if verdict.unseen else []),
        f"report={_escape_word(report_path) or 'none'}",
    ]
    return " ".join(words)


def _count_change(change: RunChange) -> str:
    """Return a change with the number of its places, or with those of both sides if they differ: ``dropout:33/0``."""
    counts = f"{change.reference}" if change.reference == change.target else f"{change.reference}/{change.target}"
    return f"{change.what}:{counts}"


def _escape_word(text: str) -> str:
    """Return text as one ASCII word; letters that would end it or look like another word are percent-encoded.

    >>> _escape_word("a b=c"), _escape_word("层")
    ('a%20b%3Dc', '%E5%B1%82')
    """
    return _UNSAFE.sub(lambda match: quote(match.group().encode("utf-8", "backslashreplace"), safe=""), text)
