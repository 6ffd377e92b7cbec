"""Summarizes a dump: its steps, ranks, records, tensors and bytes, what is damaged, and up to which step it is complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from precflow.agent.contract import STEP_FILE
from precflow.dumps.layout import own_files, rank_and_step_of, step_folders
from precflow.dumps.lookup import FoundRecord, list_records
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Record
from precflow.dumps.tensor_files import ENDINGS

KEPT = ("tensor", "part", "statistics", "digest", "nothing")


@dataclass(frozen=True)
class Overview:
    """Counts that summarize a dump.

    Attributes:
        steps: ``(rank, step)`` of every step that has a folder.
        unfinished: ``(rank, step)`` of steps without a seal; empty if the dump has a header.
        calls: Number of calls.
        levels: Level -> calls.
        phases: Phase -> calls.
        operators: Operator -> calls, most frequent first; modules are not counted.
        inputs: Number of input records.
        outputs: Number of output records.
        kept: What is kept of a record -> records, in the order of ``KEPT``, without zeros.
        dtypes: Element type -> records, most frequent first.
        tensors: Number of stored tensors; equal ones are stored once.
        bytes: Size of the record files and shards on disk.
        shards: Number of files that hold tensors.
        damage: What is wrong, as far as it can be seen without reading tensors.
    """

    steps: tuple[tuple[int, int], ...]
    unfinished: tuple[tuple[int, int], ...]
    calls: int
    levels: Mapping[str, int]
    phases: Mapping[str, int]
    operators: Mapping[str, int]
    inputs: int
    outputs: int
    kept: Mapping[str, int]
    dtypes: Mapping[str, int]
    tensors: int
    bytes: int
    shards: int
    damage: tuple[str, ...]


def summarize_dump(dump: Dump) -> Overview:
    """Summarize a dump from its records, without reading tensors."""
    records = list(list_records(dump))
    calls = dump.calls()
    folders = step_folders(dump.path)  # those on disk: the dump may be unfinished or damaged
    files = [file for folder in folders for file in _list_files(folder)]
    places = {folder: place for folder in folders if (place := rank_and_step_of(f"{folder.parent.name}/{folder.name}/x"))}
    steps = tuple(places.values())
    if dump.header.tool:  # another tool's, whose files lie in its own way
        steps = tuple(sorted({(call.rank, call.step) for call in calls}))
        files = [file for file in dump.path.rglob("*") if file.is_file()] if dump.path.is_dir() else [dump.path]
    kept = Counter(describe_kept(found.record) for found in records)
    return Overview(
        steps=steps,
        unfinished=()
        if dump.sealed
        else tuple(place for folder, place in places.items() if not (folder / STEP_FILE).is_file()),
        calls=len(calls),
        levels=_count(call.level for call in calls),
        phases=_count(call.phase for call in calls),
        operators=_count(call.operator for call in calls if call.operator),
        inputs=sum(found.record.whose.role == "input" for found in records),
        outputs=sum(found.record.whose.role == "output" for found in records),
        kept={what: kept[what] for what in KEPT if kept[what]},
        dtypes=_count(found.record.dtype for found in records),
        tensors=len({found.record.key for found in records if found.record.stored}),
        bytes=sum(file.lstat().st_size for file in files),
        shards=sum(file.suffix in ENDINGS for file in files),
        damage=dump.damage,
    )


def _list_files(folder: Path) -> list[Path]:
    """Return the files of a step; none if the folder cannot be read, which the dump's ``damage`` reports."""
    try:
        return [folder / name for name in own_files(folder)]
    except OSError:
        return []


def describe_kept(record: Record) -> str:
    """Return what is kept of a record, one of ``KEPT``; whether there is a sketch besides the statistics is not checked."""
    if record.stored:
        return "part" if record.part else "tensor"
    if record.statistics is not None:
        return "statistics"
    return "digest" if record.content else "nothing"


def find_complete_steps(seen: Overview) -> Mapping[int, int]:
    """Return rank -> the last step before the first unfinished one; -1 if already the first step is unfinished."""
    whole: dict[int, list[int]] = {}
    for rank, step in sorted(seen.steps):
        first = min((other for of, other in seen.unfinished if of == rank), default=step + 1)
        whole.setdefault(rank, []).extend([step] if step < first else [])
    return {rank: max(steps, default=-1) for rank, steps in whole.items()}


def _count(values: Iterable[str]) -> Mapping[str, int]:
    return dict(Counter(values).most_common())


def to_plain(records: Sequence[FoundRecord]) -> list[dict[str, object]]:
    """Return records as plain data for JSON, one dictionary for each."""
    return [
        {
            "record": found.text,
            "level": found.call.level,
            "dtype": found.record.dtype,
            "shape": list(found.record.shape),
            "content": found.record.content,
            "kept": describe_kept(found.record),
            "share": found.record.share,
        }
        for found in records
    ]
