"""Writes the dump of another tool as one of ours, which is smaller and quicker to read: each content once, in few files.

What the tool did not keep is not made up: the header says which tool it was, and statistics say how they were rounded.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from precflow.agent.contract import (
    CHECKSUM,
    DIGEST_SIZE,
    DUMP_SCHEMA,
    EMPTY_HEADER,
    HEADER_FILE,
    SAFETENSORS_OF_DTYPE,
    STEP_FILE,
    checksum_of,
)
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.export import require_room
from precflow.dumps.header import Header, describe_error
from precflow.dumps.mapped_pages import release
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError, StoreError

_MAKING = ".making"  # ending of a folder that is being written; it gets its name when it is whole
_SIDE = "reference"  # of a dump that does not say its side
_ANOTHER = "name another: --output FOLDER"


def rewrite(dump: Dump, folder: Path) -> tuple[str, ...]:
    """Write another tool's dump into a new folder, as a whole or not at all.

    Args:
        dump: The dump; each of its tensors is checked when it is read.
        folder: The folder, which must not exist.

    Returns:
        What could not be read, in words. Such a tensor is not stored; its record says so.

    Raises:
        StoreError: The folder exists, cannot be written, or the disk has no room.
    """
    if folder.exists():
        raise StoreError(f"{folder} exists", next_step=_ANOTHER)
    require_room(folder, dump.header.counts.get("bytes", 0))
    making = folder.with_name(f"{folder.name}{_MAKING}")
    shutil.rmtree(making, ignore_errors=True)
    calls = dump.calls()
    sites = list(dict.fromkeys(call.site for call in calls if call.site))
    numbers = {site: number for number, site in enumerate(sites)}
    seals: dict[str, dict[str, Any]] = {}
    counts = {"calls": 0, "records": 0, "tensors": 0, "bytes": 0}
    problems, stored = list(dump.damage), set[str]()
    try:
        for (rank, step), group in groupby(calls, key=lambda call: (call.rank, call.step)):
            of_step, name = list(group), f"rank{rank}/step{step}"
            (making / name).mkdir(parents=True)
            written = _write_tensors(dump, of_step, making / name / "tensors-0.safetensors", stored, problems)
            lines = [_to_line(call, numbers, stored) for call in of_step]
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            (making / name / "records-0.jsonl").write_text(text, encoding="utf-8", errors="backslashreplace")
            files = {f"{name}/{path.name}": _seal(path) for path in sorted((making / name).iterdir())}
            own = {
                "calls": len(lines),
                "records": sum(len(line["inputs"]) + len(line["outputs"]) for line in lines),
                "tensors": len(written),
                "bytes": sum(written),
            }
            seal = {
                "step": step,
                "rank": rank,
                "counts": own,
                "files": files,
                "schema": DUMP_SCHEMA,
                "declared": "",
                "sites": sites,
            }
            _write_sealed(making / name / STEP_FILE, seal)
            seals |= files
            counts = {what: counts[what] + own[what] for what in counts}
        _write_sealed(making / HEADER_FILE, _to_header(dump.header, counts, seals, sites))
        making.rename(folder)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {describe_error(error)}", next_step=_ANOTHER) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return tuple(dict.fromkeys(problems))


def _write_tensors(dump: Dump, calls: Sequence[Call], path: Path, stored: set[str], problems: list[str]) -> list[int]:
    """Write the tensors of a step that are in no earlier one, adds their keys to ``stored``, and return their bytes."""
    waiting = dict[str, Record]()
    for call in calls:
        for record in (*call.inputs, *call.outputs):
            if not record.stored or record.content in stored or record.content in waiting:
                continue
            try:
                release(dump.tensor(record))  # checked before its place in the file is known
            except DumpError as error:
                problems.append(error.message)
                continue
            waiting[record.content] = record
    # The wider the elements, the earlier: so each tensor begins where its type may begin.
    records = sorted(waiting.values(), key=lambda record: -NUMPY_DTYPES[record.dtype].itemsize)
    index, sizes, end = dict[str, Any](), list[int](), 0
    for record in records:
        size = NUMPY_DTYPES[record.dtype].itemsize * int(np.prod(record.shape, dtype=np.int64))
        kind = SAFETENSORS_OF_DTYPE[record.dtype]
        index[record.content] = {"dtype": kind, "shape": list(record.shape), "data_offsets": [end, end + size]}
        sizes.append(size)
        end += size
    text = json.dumps(index).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for record in records:
            array = dump.view(record)
            np.ascontiguousarray(array).reshape(-1).view(np.uint8).tofile(file)
            release(array)
    stored.update(waiting)
    return sizes


def _to_line(call: Call, sites: Mapping[str, int], stored: set[str]) -> dict[str, Any]:
    return {
        "order": call.order,
        "level": call.level,
        "module": call.module,
        "class": call.class_name,
        "call": call.call,
        "operator": call.operator,
        "ordinal": call.ordinal,
        "phase": call.phase,
        "step": call.step,
        "rank": call.rank,
        "site": sites.get(call.site),
        "forward": list(call.forward),
        "movement": call.movement,
        "compiled": call.compiled,
        "arguments": dict(call.arguments),
        "inputs": [_to_record(record, stored) for record in call.inputs],
        "outputs": [_to_record(record, stored) for record in call.outputs],
    }


def _to_record(record: Record, stored: set[str]) -> dict[str, Any]:
    plain = {
        "index": record.index,
        "dtype": record.dtype,
        "shape": list(record.shape),
        "content": record.content,
        "stored": record.stored and record.content in stored,
        "source": list(record.source) if record.source else None,
        "weight": record.weight,
        "mark": record.mark,
    }
    return plain if record.statistics is None else {**plain, "statistics": msgspec.to_builtins(record.statistics)}


def _to_header(header: Header, counts: Mapping[str, int], seals: Mapping[str, Any], sites: Sequence[str]) -> dict[str, Any]:
    known: dict[str, Any] = msgspec.to_builtins(header, str_keys=True)
    plain = {name: value or EMPTY_HEADER.get(name, value) for name, value in known.items()}  # with the keys of empty sections
    return {
        **plain,
        "id": secrets.token_hex(16),
        "side": header.side or _SIDE,
        "counts": dict(counts),
        "sites": list(sites),
        "sites_of_ranks": {str(rank): list(sites) for rank in header.sites_of_ranks},
        "files": dict(seals),
    }


def _seal(path: Path) -> dict[str, Any]:
    """Return size and checksum of a file: of a shard that of its index, of other files that of everything."""
    if path.suffix != ".safetensors":
        data = path.read_bytes()
        return {"bytes": len(data), "blake2b": hashlib.blake2b(data, digest_size=DIGEST_SIZE).hexdigest()}
    with path.open("rb") as file:
        head = file.read(8)
        text = file.read(int.from_bytes(head, "little"))
    return {"bytes": path.stat().st_size, "index": hashlib.blake2b(head + text, digest_size=DIGEST_SIZE).hexdigest()}


def _write_sealed(path: Path, plain: Mapping[str, Any]) -> None:
    # What is summed up is what a reader gets: JSON has no tuples.
    read = json.loads(json.dumps({key: value for key, value in plain.items() if key != CHECKSUM}))
    path.write_text(json.dumps({**read, CHECKSUM: checksum_of(read)}), encoding="utf-8", errors="backslashreplace")
