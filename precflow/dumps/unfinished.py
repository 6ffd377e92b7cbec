"""Reads a dump without a header, whose writer was stopped: its finished steps, each sealed, and parts of an unfinished one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from precflow.agent import intake
from precflow.agent.contract import CHECKSUM, DUMP_SCHEMA, STEP_FILE, checksum_of
from precflow.dumps.header import FileSeal, describe_error, is_inside, parse_seals
from precflow.dumps.layout import own_files, rank_and_step_of, step_folders


@dataclass(frozen=True, slots=True)
class UnfinishedSteps:
    """The steps in a folder without a header.

    Attributes:
        files: Every file that exists or that a seal names -> its seal; ``None`` if its step has no usable seal.
        sites: Rank -> places in the source, which calls refer to by index, as far as finished steps list them.
        damage: In words, which steps are not finished or have a seal that cannot be used.
    """

    files: Mapping[str, FileSeal | None]
    sites: Mapping[int, tuple[str, ...]]
    damage: tuple[str, ...]


def read_steps(dump: Path) -> UnfinishedSteps:
    """Return the steps of a dump from the seal in each step's folder, ``step.json``."""
    files: dict[str, FileSeal | None] = {}
    sites: dict[int, tuple[str, ...]] = {}
    damage: list[str] = []
    for folder in step_folders(dump):
        name = folder.relative_to(dump).as_posix()
        try:
            plain = _read_seal(folder / STEP_FILE, name)
            files.update(_read_file_seals(plain, name))
            known = msgspec.convert(plain["sites"], tuple[str, ...])
            # Each step lists all places known by then, so the longest list has those of the other steps too.
            sites[plain["rank"]] = max(sites.get(plain["rank"], ()), known, key=len)
        except FileNotFoundError:
            damage.append(f"{name} was not finished: its writer was stopped; what is whole of it is read")
            files.update(dict.fromkeys(_list_files(folder, name, damage)))
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else describe_error(error)
            damage.append(f"{name}/{STEP_FILE} is not usable: {reason}; what is whole of the step is read")
            files.update(dict.fromkeys(_list_files(folder, name, damage)))
    return UnfinishedSteps(files, sites, tuple(damage))


def _list_files(folder: Path, name: str, damage: list[str]) -> list[str]:
    """Return the files of a step that has no usable seal."""
    try:
        return [f"{name}/{own}" for own in own_files(folder)]
    except OSError as error:
        damage.append(f"{name} cannot be read: {describe_error(error)}")
        return []


def _read_seal(path: Path, name: str) -> dict[str, Any]:
    """Return the seal of a step as plain data, after checking schema, checksum, rank and step."""
    plain = intake.read_json(path)
    if not isinstance(plain, dict):
        raise ValueError(f"expected an object, found {type(plain).__name__}")  # noqa: TRY004  one error for every bad seal
    schema = plain["schema"]
    if not isinstance(schema, int) or isinstance(schema, bool) or schema != DUMP_SCHEMA:  # True is an int, and equals 1
        raise ValueError(f"it is of schema {schema!r}; this precflow reads schema {DUMP_SCHEMA}")
    if plain[CHECKSUM] != checksum_of(plain):
        raise ValueError("it does not have the checksum that it was sealed with")
    if (plain["rank"], plain["step"]) != rank_and_step_of(f"{name}/{STEP_FILE}"):
        raise ValueError(f"it is of rank {plain['rank']} and step {plain['step']}")
    return plain


def _read_file_seals(plain: Mapping[str, Any], name: str) -> dict[str, FileSeal]:
    files = parse_seals(plain["files"])
    foreign = [file for file in files if not is_inside(file) or not file.startswith(f"{name}/")]
    if foreign:
        raise ValueError(f"it names files of another folder: {', '.join(foreign)}")
    return files
