"""The screens of a whole dump: who wrote it, what it holds, what is damaged; and lists of its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from precflow import numbers
from precflow.dumps.header import ContentEntries, Header
from precflow.dumps.lookup import FoundRecord, number_records
from precflow.dumps.overview import Overview, describe_kept, find_complete_steps
from precflow.dumps.protocol import Dump
from precflow.report.screens.paper import Paper, format_shape, format_size

_MOST_OPERATORS = 8
_MOST_DAMAGE = 12


def show_dump(dump: Dump, seen: Overview, *, name: str, verified: Sequence[str] | None = None) -> Paper:
    """Return the screen of one dump.

    Args:
        dump: The dump.
        seen: What it holds, counted.
        name: What the user typed for it.
        verified: Every problem that was found by reading every byte; ``None`` if not every byte was read.
    """
    paper, header = Paper(), dump.header
    paper.title(name)
    paper.line(_describe_writer(header))
    paper.line()
    paper.fact("sealed", *_describe_seal(dump, seen))
    paper.fact("captured", _describe_capture(header.capture))
    paper.fact("steps", _describe_steps(seen))
    levels = ", ".join(f"{numbers.count(number)} {level}" for level, number in seen.levels.items())
    calls = numbers.plural(seen.calls, "call") + (f" ({levels})" if levels else "")
    paper.fact("records", f"{numbers.count(seen.outputs)} outputs and {numbers.count(seen.inputs)} inputs of {calls}")
    paper.fact("kept as", _format_counts(seen.kept))
    stored = f"{numbers.plural(seen.tensors, 'different tensor')} in {numbers.plural(seen.shards, 'shard')}"
    paper.fact("stored", f"{stored}, {format_size(seen.bytes)} with the records")
    paper.fact("types", _format_counts(seen.dtypes))
    paper.fact("operators", _format_counts(dict(list(seen.operators.items())[:_MOST_OPERATORS]), rest=len(seen.operators)))
    paper.fact("weights", _describe_content_entries(header.weights, names=False))
    paper.fact("inputs", _describe_content_entries(header.inputs, names=True))
    paper.fact("repeated", _describe_repeat(header))
    problems = list(verified) if verified is not None else list(seen.damage)
    _write_damage(paper, problems, checked=verified is not None)
    return paper


def show_records(records: Sequence[FoundRecord], *, total: int, pattern: str) -> Paper:
    """Return the screen that lists records.

    Args:
        records: The records to show.
        total: How many match.
        pattern: The pattern that chose them, ``""`` for none.
    """
    paper = Paper()
    head = ("record", "dtype", "shape", "kept as", "content")
    rows = [_list_cells(found, text) for found, text in zip(records, number_records(records), strict=True)]
    paper.table([head, *rows], names={0, 1, 2, 4})
    of = f" of {numbers.count(total)}" if total > len(records) else ""
    matching = f" that match {pattern}" if pattern else ""
    paper.line()
    more = "   (--limit N for more)" if total > len(records) else ""
    paper.line(f"  {numbers.count(len(records))}{of} {'record' if total == 1 else 'records'}{matching}{more}", "dim")
    return paper


def _list_cells(found: FoundRecord, text: str) -> tuple[str, ...]:
    record = found.record
    kept = describe_kept(record)
    share = f" {numbers.share(record.share)}" if record.share < 1 else ""
    return (text, record.dtype, format_shape(record.shape), kept + share, record.content[:12])


def _describe_writer(header: Header) -> str:
    device = header.device
    emulated = "EMULATED " if device.emulated else ""
    words = [
        header.side,
        f"{emulated}{device.name} {header.dtype}".strip(),
        device.description,
        f"recipe {header.recipe}" if header.recipe else "",
        f"fault {header.emulate.get('name')}" if header.emulate.get("name") else "",
        f"agent {header.agent}" if header.agent else "",
        f"written by {header.tool}" if header.tool else "",
    ]
    return " · ".join(word for word in words if word) or "unknown: it has no header"


def _describe_seal(dump: Dump, seen: Overview) -> tuple[str, str]:
    if dump.header.tool:
        return f"no, {dump.header.tool} seals nothing; what was read is {dump.header.content}", ""
    if dump.sealed:
        return f"yes, as {dump.header.content or 'a dump without content id'}", ""
    until = find_complete_steps(seen)
    ends = [f"rank {rank} is complete up to step {step}" for rank, step in until.items() if step >= 0]
    none = [f"rank {rank} has no complete step" for rank, step in until.items() if step < 0]
    return f"NO: its writer was stopped; {'; '.join([*ends, *none]) or 'no step was begun'}", "red"


def _describe_capture(capture: Mapping[str, Any]) -> str:
    names = (("level", ""), ("phase", ""), ("detail", "detail "), ("scope", "scope "))
    values = ((label, capture[key]) for key, label in names if capture.get(key))
    return " · ".join(
        label + (", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)) for label, value in values
    )


def _describe_steps(seen: Overview) -> str:
    by_rank: dict[int, list[int]] = {}
    for rank, step in sorted(seen.steps):
        by_rank.setdefault(rank, []).append(step)
    same = len({tuple(steps) for steps in by_rank.values()}) == 1
    if same and by_rank:
        return f"{_format_ranges(next(iter(by_rank.values())))} of rank {_format_ranges(list(by_rank))}"
    return "; ".join(f"{_format_ranges(steps)} of rank {rank}" for rank, steps in by_rank.items()) or "none"


def _format_ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers with neighbours joined: ``0-3, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _format_counts(counts: Mapping[str, int], rest: int = 0) -> str:
    listed = " · ".join(f"{name} {numbers.count(number)}" for name, number in counts.items())
    return f"{listed} · and {rest - len(counts)} more" if rest > len(counts) else listed


def _describe_content_entries(held: ContentEntries, *, names: bool) -> str:
    if not held.digest:
        return ""
    if names:
        listed = [f"{name} {entry.dtype} {format_shape(entry.shape)}" for name, entry in list(held.entries.items())[:8]]
        return " · ".join(listed) or held.digest
    return f"{numbers.plural(len(held.entries), 'entry', 'entries')}, {held.digest}"


def _describe_repeat(header: Header) -> str:
    repeat = header.repeat
    if not repeat.checked:
        return "not checked whether the side repeats itself" if header.side else ""
    if not repeat.different:
        return f"{repeat.how}, {numbers.plural(repeat.records, 'record')}"
    return f"{numbers.plural(len(repeat.different), 'record')} changed between two equal runs, first {repeat.different[0]}"


def _write_damage(paper: Paper, problems: Sequence[str], *, checked: bool) -> None:
    if problems:
        more = [f"and {len(problems) - _MOST_DAMAGE} more"] if len(problems) > _MOST_DAMAGE else []
        paper.facts("damage", [*problems[:_MOST_DAMAGE], *more], "red")
        return
    paper.fact("damage", "none: every byte was read" if checked else "none seen; --verify reads every byte")
