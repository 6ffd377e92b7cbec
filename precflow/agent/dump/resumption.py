"""What a writer that was stopped left of a dump: the steps that it finished, checked, and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Set

from precflow.agent import intake
from precflow.agent.contract import (
    CHECKSUM,
    COMPRESSED,
    DIGEST_SIZE,
    DUMP_SCHEMA,
    PADDING,
    STEP_FILE,
    Identity,
    checksum_of,
    identity_text,
    operator_of,
)

DROPPED = ".dropped"  # behind the name of a step's folder that is about to be removed
_PIECE = 1 << 20
_STEP = re.compile(r"step(\d+)\Z")


class Finished(NamedTuple):
    """A step that is whole.

    Attributes:
        step: Its number.
        seal: What its ``step.json`` says.
        keys: Contents that its shards hold.
    """

    step: int
    seal: Dict[str, Any]
    keys: Set[str]


def finished_steps(folder: str, rank: int, declared: str) -> List[Finished]:
    """Return the steps that can be gone on behind, in their order; remove what is left of the others.

    A step counts if its seal, its lines and the indexes of its shards are whole and it was written for the same request; a
    later one refers to tensors of an earlier one, so the first that does not count ends them. No clock is asked.

    Args:
        folder: The dump.
        rank: Number of the process.
        declared: Hash of what the dump depends on.
    """
    found: List[Finished] = []
    whole = True
    for number, place in sorted(_places(folder, rank)):
        whole = whole and _add(found, folder, rank, number, declared)
        if not whole:
            shutil.rmtree(place)
    return found


def remove_steps(folder: str, rank: int) -> None:
    """Remove every step of a rank."""
    for _, place in _places(folder, rank):
        shutil.rmtree(place)


def lines_of(folder: str, finished: Finished) -> Iterator[Dict[str, Any]]:
    """Yield the record lines of a finished step as plain data."""
    for name in sorted(finished.seal["files"]):
        if name.endswith(".jsonl"):
            with open(os.path.join(folder, name), encoding="utf-8", newline="\n") as file:
                for line in file:
                    yield json.loads(line)


def outputs_of(lines: Iterable[Mapping[str, Any]]) -> Dict[str, str]:
    """Return the content id (or mark) of every output in record lines, by identity text."""
    found = ((line, output) for line in lines for output in line["outputs"])
    return {_identity(line, output["index"]): output["content"] or output.get("mark", "") for line, output in found}


def _identity(line: Mapping[str, Any], index: str) -> str:
    operator = operator_of(line["level"], line["operator"])
    who = (line["module"], line["call"], operator, line["ordinal"], line["phase"], "output", index)
    return identity_text(Identity(*who, line["step"], line["rank"]))


def _places(folder: str, rank: int) -> List[Any]:
    place = os.path.join(folder, "rank%d" % rank)
    names = os.listdir(place) if os.path.isdir(place) else []
    for name in names:
        if name.endswith(DROPPED):
            shutil.rmtree(os.path.join(place, name))
    matches = [(_STEP.match(name), name) for name in names]
    return [(int(match.group(1)), os.path.join(place, name)) for match, name in matches if match]


def _add(found: List[Finished], folder: str, rank: int, number: int, declared: str) -> bool:
    path = os.path.join(folder, "rank%d" % rank, "step%d" % number, STEP_FILE)
    try:
        seal = intake.read_json(path)
        wanted = (DUMP_SCHEMA, number, rank, declared)
        if tuple(seal[key] for key in ("schema", "step", "rank", "declared")) != wanted or seal[CHECKSUM] != checksum_of(seal):
            return False
        keys: Set[str] = set()
        for name, facts in seal["files"].items():
            keys |= _checked(os.path.join(folder, name), facts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    found.append(Finished(number, seal, keys))
    return True


def _checked(path: str, facts: Dict[str, Any]) -> Set[str]:
    """Return the contents of a file that is as it was sealed.

    Raises:
        ValueError: It is not.
        OSError: It cannot be read.
    """
    checksum = hashlib.blake2b(digest_size=DIGEST_SIZE)
    with intake.open_regular(path) as file:
        if os.fstat(file.fileno()).st_size != facts["bytes"]:
            raise ValueError("%s has another size" % path)
        if "index" not in facts:
            for piece in iter(lambda: file.read(_PIECE), b""):
                checksum.update(piece)
            keys: Set[str] = set()
        else:
            head = file.read(8)
            index = file.read(int.from_bytes(head, "little"))
            checksum.update(head + index)
            keys = {_content(key) for key in intake.parse_json(index) if not key.startswith((PADDING, "__"))}
    if checksum.hexdigest() != facts.get("index", facts.get("blake2b")):
        raise ValueError("%s has another checksum" % path)
    return keys


def _content(key: str) -> str:
    return key[: -len(COMPRESSED)] if key.endswith(COMPRESSED) else key
