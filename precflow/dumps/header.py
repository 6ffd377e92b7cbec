"""The header of a dump, ``dump.json``, as a typed value: who wrote it, from what, and the seal of each file."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from precflow.agent.contract import DUMP_FORMAT, DUMP_SCHEMA, HEADER_FILE
from precflow.dumps.dtypes import is_floating
from precflow.errors import DumpError

_AGAIN = "write the dump again, or copy it again from where it was written"


@dataclass(frozen=True)
class Device:
    """Where the side ran: ``name`` (npu), ``kind``, a line of ``description``, and whether it is ``emulated``."""

    name: str = ""
    kind: str = ""
    description: str = ""
    emulated: bool = False


@dataclass(frozen=True)
class Entry:
    """One weight or input: content id, element type and sizes, as they were before any cast."""

    content: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Holdings:
    """All weights, or all inputs: one ``digest`` over them, and each by its name."""

    digest: str = ""
    entries: Mapping[str, Entry] = field(default_factory=dict)


@dataclass(frozen=True)
class Repeat:
    """What became of the second run.

    Attributes:
        checked: There was one.
        records: How many records were compared.
        different: Identities of those that changed.
        by: What was compared of them: ``bits``, ``statistics`` where nothing else is kept, or both; nothing where the dump does
            not say.
    """

    checked: bool = False
    records: int = 0
    different: tuple[str, ...] = ()
    by: tuple[str, ...] = ()

    @property
    def how(self) -> str:
        """How it was found that nothing changed, for people: equal statistics may hide a changed bit."""
        return told(self.by)


def told(by: Collection[str]) -> str:
    """Return how equality was found, for people.

    >>> told(["statistics"])
    'by statistics'

    Args:
        by: ``bits``, ``statistics``, or both.
    """
    if not by:
        return "in a way that the dump does not name"
    if "statistics" not in by:
        return "bitwise"
    return "bitwise, or by statistics where these are all that is kept" if "bits" in by else "by statistics"


@dataclass(frozen=True)
class FileSeal:
    """Size and one BLAKE2b checksum of a file of the dump (hex; its length tells the digest size).

    Attributes:
        bytes: Size of the file.
        blake2b: Checksum of all of it; ``""`` for a shard.
        index: Checksum of a shard's index: eight length bytes and the JSON. Its tensors are checked by their content ids.
    """

    bytes: int
    blake2b: str = ""
    index: str = ""


@dataclass(frozen=True)
class Header:
    """The header of a dump; ``docs/record-identity.md`` describes the file.

    Attributes:
        schema: Version of the layout.
        agent: Version of the agent that wrote it.
        side: ``reference``, ``target`` or ``golden``.
        recipe: Name of the recipe.
        declared: Hash of what the dump depends on by declaration.
        device: Where it ran.
        dtype: Floating point type of the run.
        emulate: Emulated fault: ``name`` and ``rules``.
        facts: Environment of the side, as the agent saw it.
        determinism: Seeds and switches in force.
        capture: Levels, phases, scope and detail.
        weights: Before casting and before the move to the device.
        inputs: Before casting.
        repeat: Outcome of the second run.
        draws: Random draws, in order.
        counts: ``calls, records, tensors, bytes``.
        sites: Places in the source, which calls index.
        sites_of_ranks: The same of other processes, by rank.
        seconds: Time by part.
        files: Relative path -> seal.
        content: Identity of the evidence.
    """

    schema: int = DUMP_SCHEMA
    agent: str = ""
    side: str = ""
    recipe: str = ""
    declared: str = ""
    device: Device = field(default_factory=Device)
    dtype: str = ""
    emulate: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    determinism: Mapping[str, Any] = field(default_factory=dict)
    capture: Mapping[str, Any] = field(default_factory=dict)
    weights: Holdings = field(default_factory=Holdings)
    inputs: Holdings = field(default_factory=Holdings)
    repeat: Repeat = field(default_factory=Repeat)
    draws: tuple[Mapping[str, Any], ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    sites: tuple[str, ...] = ()
    sites_of_ranks: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, FileSeal] = field(default_factory=dict)
    content: str = ""


def read(path: Path) -> Header:
    """Read and check ``dump.json``.

    Args:
        path: The file itself.

    Raises:
        DumpError: It is no JSON, no header of a dump, of a newer schema, lacks a key, or names files outside of the dump.
    """
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DumpError(f"{path} cannot be read as JSON: {error}", next_step=_AGAIN) from error
    if not isinstance(plain, dict) or plain.get("format") != DUMP_FORMAT:
        found = plain.get("format") if isinstance(plain, dict) else type(plain).__name__
        raise DumpError(
            f"{path} is not the header of a dump: expected format {DUMP_FORMAT!r}, found {found!r}",
            next_step=f"give the folder that an agent wrote, with its {HEADER_FILE}",
        )
    _check_schema(path, plain)
    try:
        header = _typed(plain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DumpError(f"{path} is not a whole {HEADER_FILE}: {reason}", next_step=_AGAIN) from error
    outside = [name for name in header.files if not is_inside(name)]
    if outside:
        raise DumpError(
            f"{path} names files outside of its folder: {', '.join(outside)}",
            next_step="no agent writes such a header: ask where this dump comes from",
        )
    return header


def _check_schema(path: Path, plain: Mapping[str, Any]) -> None:
    schema = plain.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise DumpError(f"{path} says schema {schema!r}; expected a number from 1 to {DUMP_SCHEMA}", next_step=_AGAIN)
    if schema > DUMP_SCHEMA:
        writer = f"the agent of precflow {plain.get('agent', 'of unknown version')}"
        raise DumpError(
            f"{path} was written by {writer} with {DUMP_FORMAT} schema {schema}; this precflow reads schema {DUMP_SCHEMA}",
            next_step="update precflow here, or write the dump with this version: precflow agent",
        )


def _typed(plain: Mapping[str, Any]) -> Header:
    device = plain["device"]
    return Header(
        schema=int(plain["schema"]),
        agent=str(plain.get("agent", "")),
        side=str(plain["side"]),
        recipe=str(plain.get("recipe", "")),
        declared=str(plain.get("declared", "")),
        device=Device(
            name=str(device["name"]),
            kind=str(device.get("kind", "")),
            description=str(device.get("description", "")),
            emulated=bool(device.get("emulated", False)),
        ),
        dtype=_dtype(plain["dtype"]),
        emulate=_mapping(plain, "emulate"),
        facts=_mapping(plain, "facts"),
        determinism=_mapping(plain, "determinism"),
        capture=_mapping(plain, "capture"),
        weights=_holdings(plain["weights"]),
        inputs=_holdings(plain["inputs"]),
        repeat=_repeat(plain.get("repeat") or {}),
        draws=tuple(dict(draw) for draw in plain.get("draws") or ()),
        counts=_mapping(plain, "counts"),
        sites=tuple(str(site) for site in plain.get("sites") or ()),
        sites_of_ranks={int(rank): tuple(map(str, sites)) for rank, sites in _mapping(plain, "sites_of_ranks").items()},
        seconds=_mapping(plain, "seconds"),
        files=seals(plain["files"]),
        content=str(plain.get("content", "")),
    )


def seals(plain: Mapping[str, Any]) -> dict[str, FileSeal]:
    """Return the seals of files by name, as a header or the seal of a step has them.

    Raises:
        KeyError: A seal has no size, or no checksum.
        TypeError, ValueError: A value is of another kind.
    """
    return {name: FileSeal(int(one["bytes"]), **_checksum(one)) for name, one in plain.items()}


def _checksum(plain: Mapping[str, Any]) -> dict[str, str]:
    kind = "index" if "index" in plain else "blake2b"
    return {kind: str(plain[kind])}


def _dtype(name: Any) -> str:
    if not isinstance(name, str) or not is_floating(name):
        raise ValueError(f"dtype is {name!r}, expected a floating point type such as float32")
    return name


def _repeat(plain: Mapping[str, Any]) -> Repeat:
    return Repeat(
        checked=bool(plain.get("checked", False)),
        records=int(plain.get("records", 0)),
        different=tuple(plain.get("different", ())),
        by=tuple(str(word) for word in plain.get("by", ())),
    )


def _mapping(plain: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return dict(plain.get(key) or {})


def _holdings(plain: Mapping[str, Any]) -> Holdings:
    entries = {
        name: Entry(str(entry["content"]), str(entry["dtype"]), tuple(int(size) for size in entry["shape"]))
        for name, entry in (plain.get("entries") or {}).items()
    }
    return Holdings(str(plain["digest"]), entries)


def is_inside(name: str) -> bool:
    """Tell whether the name of a file stays in the folder of its dump on every system."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\\" not in name and ":" not in name
