"""Words, symbols and number formats that every report shares, so that all of them say the same.

The functions that format a value are named as the filters of Jinja are, by what they give: ``{{ ratio | share }}``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from precflow import streams
from precflow.environment.changes import describe_changes
from precflow.judgement.verdicts import INCOMPLETE_STATUSES, MISALIGNED_STATUSES, Judged, Verdict
from precflow.numbers import count, number, plural, share
from precflow.report.model import Row

VERDICT_SYMBOLS: Mapping[str, str] = {"aligned": "✓", "misaligned": "✗", "inconclusive": "?"}
EMULATED = "emulated target: shows that the recipe works, says nothing about hardware"

STATUS_SYMBOLS: Mapping[str, str] = {
    "pass": "✓",
    "fail": "✗",
    "blind": "◌",
    "accepted": "≈",
    "unpaired_reference": "◧",
    "unpaired_target": "◨",
    "covered": "◫",
    "shape": "▱",
    "dtype": "◇",
    "nonfinite": "∞",
    "unreadable": "!",
    "undecided": "±",
    "artefact": "∅",
    "near_tie": "⋈",
    "not_comparable": "∦",
    "sampled_out": "…",
    "not_judged": "·",
}
STATUS_MEANINGS: Mapping[str, str] = {
    "pass": "Compared, and within every limit that applies to it.",
    "fail": "Compared, and over at least one limit. Integers and booleans have no limit: they are not equal.",
    "blind": "Compared, but its limit is so wide that nothing could have failed. Never evidence for aligned.",
    "accepted": "Over its limit, and listed in the recipe as a known difference that has not expired.",
    "unpaired_reference": "Only the reference has this record; the target never computed it.",
    "unpaired_target": "Only the target has this record; the reference never computed it.",
    "covered": "Only one side has it, or the other's of its name is another step: a module around it was compared instead.",
    "shape": "The two sides have different shapes, so that no error can be stated.",
    "dtype": "An element type that the recipe does not imply.",
    "nonfinite": "NaN or infinity on one side only, or at different places.",
    "unreadable": "The evidence of one side is damaged or was never stored.",
    "undecided": "What was kept of it (a sketch, statistics, a sample) does not show whether it is within its limits.",
    "artefact": "A side warms up here, or rows of padding alone differ: no fault, and no evidence for aligned.",
    "near_tie": "A choice that differs (an index, a comparison), between values that are nearer than their noise: no fault.",
    "not_comparable": "It depends on a near tie, and so may have other values or another shape without a fault.",
    "sampled_out": "Left out on purpose by sampling.",
    "not_judged": "Inputs, pure data movement and integers that an operator keeps for itself: shown, never counted.",
}
STATUS_COLOURS: Mapping[str, str] = {  # status -> CSS class
    **dict.fromkeys(STATUS_SYMBOLS, "quiet"),
    **dict.fromkeys(MISALIGNED_STATUSES, "bad"),
    **dict.fromkeys(INCOMPLETE_STATUSES | {"blind", "near_tie", "not_comparable"}, "doubt"),
    "pass": "good",
    "accepted": "known",
}
PHASE_SYMBOLS: Mapping[str, str] = {"aligned": "✓", "starts": "✗", "misaligned": "✗", "inherits": "→", "not_told": "?"}
PHASE_WORDS: Mapping[str, str] = {
    "aligned": "",
    "starts": ": starts here",
    "misaligned": ": an error of its own",
    "inherits": " inherits it",
    "not_told": ": not told",
}
PHASE_COLOURS: Mapping[str, str] = {
    "aligned": "good",
    "starts": "bad",
    "misaligned": "bad",
    "inherits": "doubt",
    "not_told": "quiet",
}
CHECK_WORDS: Mapping[str, str] = {
    "agrees": "✓ agrees",
    "differs": "✗ differs: it starts here",
    "differs_too": "✗ differs too, by an error of its own",
    "inherits": "→ inherits it",
    "noted": "· differs, noted",
    "not_told": "? not told",
}
CHECK_COLOURS: Mapping[str, str] = {
    "agrees": "good",
    "differs": "bad",
    "differs_too": "bad",
    "inherits": "doubt",
    "noted": "quiet",
    "not_told": "quiet",
}
ROLE_MEANINGS: Mapping[str, str] = {
    "introduces": "its inputs agree, its output does not: the error starts here",
    "inherits": "differs, and so did what it was given",
    "agrees": "within its limits",
    "accepted": "over its limits, and listed in the recipe as a known difference",
    "unknown": "not enough evidence to say",
}
printable = streams.printable  # every report escapes as the terminal does


def describe_left_out(shown: int, out: int, recipe: str) -> str:
    """Return a sentence that says which records are not on a page and where to find them; ``""`` if all are on it.

    Args:
        shown: Records on the page.
        out: Records that are not on it.
        recipe: Name of the run.
    """
    if not out:
        return ""
    return (
        f"{count(shown)} of {count(shown + out)} records are on this page: those that introduce the error, fail or are in "
        "doubt first, then the closest to their limits and a sample of every module. Verdict, counts, roles and the module "
        f"tree are of all records. All are in result.csv of the run, and in the table precflow.read({recipe!r}).frame()."
    )


TASK_WORDS = {
    "within": "✓ within",
    "beyond": "✗ beyond",
    "not told": "? cannot tell",
    "not computed": "? not computed",
    "no limit": "no limit",
}
TASK_COLOURS = {"within": "good", "beyond": "bad", "not told": "doubt", "not computed": "doubt", "no limit": "quiet"}


def describe_inconclusive(counts: Mapping[str, int]) -> str:
    """Return in words what an inconclusive verdict leaves open, by the number of records of each status.

    >>> describe_inconclusive({"pass": 3, "unreadable": 1})
    'nothing failed, but something needed for a verdict is missing'
    >>> describe_inconclusive({"pass": 3, "fail": 1})
    'records differ, but that proves nothing yet'
    """
    if any(counts.get(status) for status in MISALIGNED_STATUSES):
        return "records differ, but that proves nothing yet"
    return "nothing failed, but something needed for a verdict is missing"


def describe_changed(verdict: Verdict) -> str:
    """Return what the recipe changed in what ran, and whether it was also run as it is; ``""`` if nothing was changed.

    >>> from precflow.environment.changes import RunChange
    >>> describe_changed(Verdict("aligned", changes=(RunChange("seeds", 1, 1, "seeds set"),)))
    'with seeds set'
    """
    as_is = "" if verdict.as_is.text in verdict.reasons else verdict.as_is.text
    return "; ".join(filter(None, (describe_changes(verdict.changes), as_is)))


def describe_age(seconds: float) -> str:
    """Return how long ago something was, in the largest unit that fits; ``""`` for less than an hour.

    >>> describe_age(59 * 60), describe_age(3 * 3600), describe_age(12.4 * 86400), describe_age(29.5 * 3600)
    ('', '3 hours ago', '12 days ago', '29 hours ago')
    """
    hours = int(seconds // 3600)
    if hours < 1:
        return ""
    return f"{plural(hours, 'hour')} ago" if hours < 48 else f"{plural(hours // 24, 'day')} ago"


def describe_floor(floor: float | None) -> str:
    """Return a record's noise floor behind its limit, ``""`` if its limit was not made of one.

    >>> describe_floor(7.1e-7), describe_floor(None)
    (', noise floor 7.1e-7', '')
    """
    return "" if floor is None else f", noise floor {number(floor)}"


def used(ratio: float) -> str:
    """Return how much of a limit is used, as part of a sentence.

    >>> used(0.62), used(1836.2), used(math.nan)
    ('62 % of its limit', '1 836 times its limit', 'NaN of its limit')
    """
    if ratio <= 2 or not math.isfinite(ratio):
        return f"{share(ratio)} of its limit"
    return f"{number(ratio)} times its limit"


def describe_use(judged: Judged) -> str:
    """Return the condition that decides a record: metric, value, how much of the limit is used, the limit, the noise floor.

    Every screen and page says it in these words, so that a factor is never without its metric and its limit.

    >>> describe_use(Judged("x", "fail", "relative_l2", 1e-2, 1e-5, 1000.0, floor=3e-6))
    'relative_l2 1e-2, 1 000 times its limit 1e-5, noise floor 3e-6'
    >>> describe_use(Judged("x", "shape")), describe_use(Judged("x", "fail", "bitwise_equal", 0.0, 1.0, math.inf))
    ('', 'bitwise_equal 0, limit 1')
    """
    if not judged.metric:
        return ""
    if not math.isfinite(judged.ratio):
        return describe_value(judged)
    share_of = f"{used(judged.ratio)} {number(judged.limit)}"
    return f"{judged.metric} {number(judged.value)}, {share_of}{describe_floor(judged.floor)}"


def describe_value(judged: Judged) -> str:
    """Return the condition that decides a record where room is short: its metric, its value and its limit.

    >>> describe_value(Judged("x", "fail", "relative_l2", 1e-2, 1e-5, 1000.0))
    'relative_l2 1e-2, limit 1e-5'
    """
    return f"{judged.metric} {number(judged.value)}, limit {number(judged.limit)}"


def duration(seconds: float) -> str:
    """Return a length of time in seconds, minutes or hours.

    >>> duration(0.44), duration(38.2), duration(260), duration(7500), duration(0)
    ('0.4 s', '38 s', '4 min', '2 h 5 min', '0 s')
    """
    if seconds < 0.05:
        return "0 s"
    if seconds < 0.95:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def shorten(text: str, width: int) -> str:
    """Return text of at most ``width`` letters, cut before its middle, because the end of a module's path says most.

    >>> shorten("encoder.layers.0.self_attn.q_proj", 20), shorten("short", 20)
    ('enco…elf_attn.q_proj', 'short')
    """
    if len(text) <= width:
        return text
    head = (width - 1) // 4
    return text[:head] + "…" + text[len(text) - (width - 1 - head) :]


def describe_pairing(row: Row) -> list[str]:
    """Return how a record found its partner if not by its name, as a list of one text or none."""
    how = row.measure.pairing
    if how in {"", "name"}:
        return []
    return [
        "paired in order: a side has several records of this name" if how == "sequence" else f"paired by {how} of the recipe"
    ]


def describe_estimate(row: Row) -> list[str]:
    """Return between which values the deciding metric lies if it is only estimated, as a list of one text or none."""
    limits = row.measure.ranges.get(row.judged.metric)
    if not limits:
        return []
    part = f" of {share(row.measure.share)} of its elements" if row.measure.share < 1 else ""
    return [f"{row.judged.metric} between {number(limits[0])} and {number(limits[1])}, by its {row.measure.evidence}{part}"]


def words(name: str) -> str:
    """Return a name from the code as words: ``unpaired_target`` -> ``unpaired target``."""
    return name.replace("_", " ")
