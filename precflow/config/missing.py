"""What a run needs and this machine does not have: something to run, files, folders and programs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from precflow.agent.contract import HEADER_FILE
from precflow.config.documents import DottedPath, PathProblems, walk_scalars
from precflow.config.schema import RunConfig, Side, plain
from precflow.config.trust import SHIPPED, TARGET
from precflow.config.vocabulary import SEEDED, names_file

_FILE, _FOLDER, _PROGRAM, _ANY = "file", "folder", "program", "any"


def find_missing_workload(config: RunConfig) -> PathProblems:
    """Yield what is missing before a side can run: something to run, or a dump of its own."""
    dumps = [os.path.abspath(os.path.expanduser(side.dump)) for side in (config.reference, config.target) if side.dump]  # noqa: PTH100, PTH111  Path refuses some texts
    if len(dumps) != len(set(dumps)):
        yield ("target", "dump"), "is the dump of the reference too: a dump always agrees with itself"
    for side in ("reference", "target"):
        settings = getattr(config, side)
        if settings.dump or side not in config.sides:
            continue
        if not config.workload.model:
            yield (side, "dump"), f"{side} has nothing to run: {side}.dump=PATH of an existing dump, or workload.model._target_"
        elif TARGET not in config.workload.model or TARGET not in config.workload.inputs:
            part = "model" if TARGET not in config.workload.model else "inputs"
            yield ("workload", part, TARGET), "is missing: the dotted name of the function that makes it"
            return
        elif "optimizer" in config.capture.phase and not config.workload.optimizer:
            yield ("capture", "phase"), "has `optimizer`, which needs one: workload.optimizer._target_=torch.optim.AdamW"
            return


def find_missing_files(config: RunConfig) -> PathProblems:
    """Yield every path that must be here before any work and is not what it should be.

    Only what this machine is going to use: a side that runs elsewhere, or whose dump is given, needs nothing of its own here,
    and the weights of one behind a launcher may be on another machine.
    """
    here = [(name, side) for name, side in (("reference", config.reference), ("target", config.target)) if name in config.sides]
    for name, side in here:
        if side.dump:
            yield from _check_path((name, "dump"), side.dump, _FOLDER, f"the folder that holds {HEADER_FILE}")
        else:
            yield from _check_side(name, side)
    if any(not side.dump for _, side in here) and not any(side.launcher for _, side in here):
        yield from _check_workload(config)
    for path, text in ((("store",), config.store), (("site", "store"), config.site.store), (("runs",), config.runs)):
        folder = Path(text or ".").expanduser()
        nearest = next((parent for parent in (folder, *folder.parents) if os.path.lexists(parent)), folder)
        if "://" not in text and nearest.is_file():
            yield path, f"{nearest} is a file; expected a folder, or a place where one can be made"


def _check_side(name: str, side: Side) -> PathProblems:
    for number, file in enumerate(side.setup):
        yield from _check_path(
            (name, "setup", str(number)), file, _FILE, "a shell file to source before the interpreter starts"
        )
    # A set-up file may change PATH, so a launcher without a folder cannot be looked for here.
    known_after_setup = side.setup and side.launcher and "/" not in side.launcher[0]
    if side.launcher and not known_after_setup and side.launcher[0] != "{command}":
        expected = "the program that starts the agent"
        yield from _check_path((name, "launcher", "0"), side.launcher[0], _PROGRAM, expected, side.variables.get("PATH"))
    if side.interpreter:
        expected = "the Python of this side, such as /usr/bin/python3"
        yield from _check_path((name, "interpreter"), side.interpreter, _PROGRAM, expected)


def _check_workload(config: RunConfig) -> PathProblems:
    """Check the files that arguments name: of shipped factories all of them, of others those that can only be a path."""
    for part in ("model", "inputs", "loss", "optimizer"):
        arguments = getattr(config.workload, part)
        shipped = str(arguments.get(TARGET, "")).startswith(f"{SHIPPED}.")
        for key, value in arguments.items():
            if not isinstance(value, str) or value in {"", SEEDED} or not names_file(key):
                continue
            if shipped or value.startswith(("/", "./", "../", "~")):  # `weights: org/model` may be a name on a hub
                yield from _check_path(("workload", part, key), value, _ANY, "a file or a folder")
    used = [text for _, text in walk_scalars(plain(config.workload)) if isinstance(text, str)]
    for name, folder in config.site.paths.items():
        if any(text == folder or text.startswith(f"{folder.rstrip('/')}/") for text in used):
            yield from _check_path(("site", "paths", name), folder, _ANY, "a file or a folder: workload names it")


def _check_path(path: DottedPath, text: str, kind: str, expected: str, search: str | None = None) -> PathProblems:
    """Yield a problem if a path is not of its kind; a program is looked for in ``search``, else in the PATH of precflow."""
    try:
        file = Path(text).expanduser()
        is_file, is_folder, exists = file.is_file(), file.is_dir(), file.exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, an unknown ~user
        yield path, f"{text} does not exist; expected {expected}"
        return
    is_program = kind == _PROGRAM and shutil.which(os.path.expanduser(text), path=search) is not None  # noqa: PTH111  a Path loses "./"
    if {_FILE: is_file, _FOLDER: is_folder, _PROGRAM: is_program, _ANY: exists}[kind]:
        return
    if is_file:
        actual = "is not executable" if kind == _PROGRAM else "is a file"
    else:
        actual = "is a folder" if is_folder else "is no regular file" if exists else "does not exist"
    yield path, f"{text} {actual}; expected {expected}"
