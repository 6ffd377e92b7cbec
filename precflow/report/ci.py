"""One line a fact, ``key=value``, for logs of build machines."""

from __future__ import annotations

import re
from urllib.parse import quote

from precflow.report.model import ReportModel

_UNSAFE = re.compile(r"[^\x21-\x7e]|[%=\"'\\]")  # what would break a line of `key=value` words


def stage_line(recipe: str, stage: str, *, side: str, state: str, seconds: float) -> str:
    """Return what a build log says about one stage.

    >>> stage_line("sd_text_encoder", "dump", side="target", state="done", seconds=21.4)
    'precflow sd_text_encoder stage=dump side=target state=done seconds=21'
    """
    sides = f" side={_word(side)}" if side else ""
    return f"precflow {_word(recipe)} stage={_word(stage)}{sides} state={_word(state)} seconds={round(seconds)}"


def ci_line(model: ReportModel, *, report_path: str) -> str:
    """Return the last line of a build log: the verdict, where it starts, the first finding, coverage and report."""
    start = _word(model.region.start.replace(" / ", "/")) or "none"
    finding = _word(model.findings[0].rule) if model.findings else "none"
    verdict = model.verdict
    words = [
        f"precflow {_word(model.recipe)}",
        f"verdict={verdict.verdict}",
        *(["emulated=yes"] if model.emulated else []),
        f"start={start}",
        f"finding={finding}",
        f"coverage={verdict.compared}/{verdict.total}",
        f"report={_word(report_path) or 'none'}",
    ]
    return " ".join(words)


def _word(text: str) -> str:
    """Return text as one ASCII word: what would end or fake a word is percent-encoded.

    >>> _word("a b=c"), _word("层")
    ('a%20b%3Dc', '%E5%B1%82')
    """
    return _UNSAFE.sub(lambda found: quote(found.group().encode("utf-8", "backslashreplace"), safe=""), text)
