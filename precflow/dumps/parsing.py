"""One line of a record file as a :class:`Call`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from precflow.agent.contract import LEVELS, PHASES, STATISTICS, Identity
from precflow.dumps.records import Call, Record, Statistics


def parse_call(line: str, sites: Sequence[str]) -> Call:
    """Read one line of ``records-*.jsonl``.

    Args:
        line: The line, one JSON object.
        sites: Places in the source, which the line indexes; an index that is not there gives ``""``.

    Raises:
        ValueError: The line is torn, or a value is not what it should be; the message says which.
    """
    plain = json.loads(line)
    if not isinstance(plain, dict):
        raise ValueError(f"expected an object, found {type(plain).__name__}")  # noqa: TRY004 - one error for every bad line
    try:
        return _call(plain, sites)
    except KeyError as error:
        raise ValueError(f"key {error} is missing") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error


def _call(plain: Mapping[str, Any], sites: Sequence[str]) -> Call:
    level, phase, site = plain["level"], plain["phase"], plain.get("site")
    if level not in LEVELS or phase not in PHASES:
        raise ValueError(f"unknown level {level!r} or phase {phase!r}")
    return Call(
        order=int(plain["order"]),
        level=level,
        module=str(plain["module"]),
        class_name=str(plain.get("class", "")),
        call=int(plain["call"]),
        operator=str(plain["operator"]),
        ordinal=int(plain["ordinal"]),
        phase=phase,
        step=int(plain["step"]),
        rank=int(plain["rank"]),
        site=sites[site] if isinstance(site, int) and 0 <= site < len(sites) else "",
        movement=bool(plain["movement"]),
        compiled=bool(plain.get("compiled", False)),
        arguments={str(name): str(value) for name, value in (plain.get("arguments") or {}).items()},
        inputs=_records(plain, "input"),
        outputs=_records(plain, "output"),
    )


def _records(plain: Mapping[str, Any], role: str) -> tuple[Record, ...]:
    return tuple(_record(plain, role, tensor) for tensor in plain[f"{role}s"])


def _record(plain: Mapping[str, Any], role: str, tensor: Mapping[str, Any]) -> Record:
    identity = Identity(
        module=str(plain["module"]),
        call=int(plain["call"]),
        operator=str(plain["operator"]),
        ordinal=int(plain["ordinal"]),
        phase=str(plain["phase"]),
        role=role,
        index=str(tensor["index"]),
        step=int(plain["step"]),
        rank=int(plain["rank"]),
    )
    source = tensor.get("source")
    return Record(
        identity=identity,
        order=int(plain["order"]),
        dtype=str(tensor["dtype"]),
        shape=tuple(int(size) for size in tensor["shape"]),
        content=str(tensor["content"]),
        stored=bool(tensor["stored"]),
        source=None if source is None else (int(source[0]), str(source[1])),
        weight=str(tensor.get("weight", "")),
        statistics=_statistics(tensor.get("statistics")),
        share=float(tensor.get("share", 1.0)),
    )


def _statistics(plain: Any) -> Statistics | None:
    """Read the numbers of one tensor; the last two may be missing."""
    if plain is None:
        return None
    if len(plain) not in range(len(STATISTICS) - 2, len(STATISTICS) + 1):
        raise ValueError(f"{len(plain)} statistics where {len(STATISTICS)} were expected")
    sums = (None if value is None else float(value) for value in plain[:4])
    return Statistics(*sums, *(None if value is None else int(value) for value in plain[4:]))  # type: ignore[arg-type]
