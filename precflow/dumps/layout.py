"""File names in a dump: which rank and step a file belongs to, and which files belong to a step.

A finished dump lists its files in the header. The names are searched for only where there is no header.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

_STEP = re.compile(r"rank([0-9]{1,9})/step([0-9]{1,9})")
_OWN = re.compile(r"(records-[0-9]+\.jsonl|tensors-[0-9]+\.safetensors)")


def rank_and_step_of(name: str) -> tuple[int, int] | None:
    """Return rank and step of a file from the name of its folder; ``None`` if that is not the folder of a step.

    >>> rank_and_step_of("rank0/step12/records-0.jsonl"), rank_and_step_of("notes.jsonl")
    ((0, 12), None)
    """
    match = _STEP.fullmatch(str(PurePosixPath(name).parent))
    return (int(match[1]), int(match[2])) if match else None


def is_own(name: str) -> bool:
    """Tell whether a name is that of a record file or a shard in the folder of a step.

    >>> is_own("rank0/step12/records-0.jsonl"), is_own("rank0/step12/step.json")
    (True, False)
    """
    return rank_and_step_of(name) is not None and _OWN.fullmatch(PurePosixPath(name).name) is not None


def step_folders(dump: Path) -> list[Path]:
    """Return the folders of steps, ordered by rank and step; anything else in the folder is ignored."""
    folders = {
        rank_and_step_of(f"{path.relative_to(dump).as_posix()}/x"): path for path in dump.glob("rank*/step*") if path.is_dir()
    }
    return [path for place, path in sorted((place, path) for place, path in folders.items() if place is not None)]


def own_files(folder: Path) -> list[str]:
    """Return the names of the record files and shards in a step's folder, without those still being written (``.part``)."""
    return sorted(path.name for path in folder.iterdir() if _OWN.fullmatch(path.name))
