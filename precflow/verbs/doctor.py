"""``precflow doctor``: show what this machine is, which devices can be a side, and what has to be fixed. Runs no recipe.

What it says of a side is what recipe ``environment_check`` says of it: both ask ``precflow/stages/side_check.py``.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precflow.agent.contract import DEVICE_KINDS
from precflow.config.schema import RunConfig, Side
from precflow.config.sections.store_address import is_address
from precflow.environment.checks import Row
from precflow.errors import PrecflowError, SideError
from precflow.report.environment_check import render_rows
from precflow.verbs import Verb, compose_site, make_parser, print_json, say

if TYPE_CHECKING:
    from precflow.run.remote.filesystem import Address
    from precflow.sides.launch import Agents
    from precflow.stages.side_check import Ask, Knowledge

VERB = Verb(160, "this machine: what can be a side, and what is wrong", "doctor", other_words=("env", "environment", "devices"))

_NODES = {"cuda": "nvidia", "npu": "davinci"}  # kind of device -> start of its names in /dev: nvidia0, davinci0
_PATIENCE = 120.0  # seconds for an interpreter to import torch


Probe = Callable[[RunConfig, str], Mapping[str, Any]]


def main(arguments: Sequence[str]) -> int:
    """Check this machine and print the results; return 0 if nothing has to be fixed, else 2.

    Raises:
        ConfigError: The site file or an override is not usable.
    """
    options = make_parser("doctor", "[+site=NAME]")
    options.add_argument("words", nargs="*", metavar="+site=NAME", help="look at the interpreters and the store of a site too")
    chosen = options.parse_args(arguments)
    from precflow.config.search_path import DATA_GROUPS, list_folders, team_folders
    from precflow.sides.launch import Agents
    from precflow.stages.side_check import Knowledge, ask_machine

    config = compose_site(chosen.words, chosen.config_dir)
    within = list_folders(chosen.config_dir)
    knowledge = Knowledge.load({group: team_folders(group, within) for group in DATA_GROUPS})
    with closing(Agents()) as agents:
        rows = examine(config, partial(probe, agents=agents), partial(ask_machine, agents=agents), knowledge)
    problems = sum(row.problem for row in rows)
    if chosen.json:
        print_json({"rows": [asdict(row) for row in rows], "problems": problems})
    else:
        say(render_rows(rows))
    return 2 if problems else 0


def examine(config: RunConfig, ask: Probe, ask_machine: Ask, knowledge: Knowledge) -> list[Row]:
    """Run all checks and return their results.

    Args:
        config: The interpreters, variables and store to check, from a site file.
        ask: Returns the facts of a side (see :func:`probe`); raises SideError if this machine cannot run it.
        ask_machine: Asks a side for the state of its machine too.
        knowledge: What is published about versions.
    """
    # Sides with an interpreter of their own; if both have the same one, only the reference, which is written last.
    by_interpreter = {_get_side(config, name).interpreter: name for name in ("target", "reference")}
    names = sorted(name for interpreter, name in by_interpreter.items() if interpreter)
    # Importing torch takes seconds in each interpreter. The pool's one thread and this one, which tries the devices, keep two
    # of them busy at a time, not more.
    with ThreadPoolExecutor(max_workers=1) as pool:
        interpreters = pool.map(lambda name: _check_interpreter(config, name, ask), names)
        devices = [_check_device(config, name, ask) for name in DEVICE_KINDS]
        sides = list(_check_sides(config, ask_machine, knowledge))
    system = platform.freedesktop_os_release().get("PRETTY_NAME", "") if sys.platform == "linux" else platform.platform()
    libc = " ".join(platform.libc_ver())
    words = [platform.machine(), f"{os.cpu_count()} processors", system, libc, f"Python {platform.python_version()}"]
    return [
        Row("this machine", ", ".join(word for word in words if word.strip())),
        *devices,
        *interpreters,
        *sides,
        _check_store(config),
    ]


def probe(config: RunConfig, name: str, agents: Agents | None = None) -> Mapping[str, Any]:
    """Return the facts of a side, by running an agent in the side's interpreter.

    Args:
        config: Configuration with the side.
        name: ``reference`` or ``target``.
        agents: Agents that stay alive between calls. A side without an interpreter of its own uses one of them, so that torch
            is imported once for all devices.

    Raises:
        SideError: The side cannot run here; the message says why.
    """
    from precflow.agent.contract import FACTS_FILE
    from precflow.dumps.requests import environment_request
    from precflow.sides.launch import run_agent
    from precflow.stages.artifacts import read_plain

    side = _get_side(config, name)
    with tempfile.TemporaryDirectory(prefix="precflow-doctor-") as folder:
        request = environment_request(config, name, Path(folder), ci=False)
        kept = None if side.interpreter else agents
        run_agent(request, side=side, folder=Path(folder), variables=side.variables, timeout=_PATIENCE, agents=kept)
        facts: Mapping[str, Any] = read_plain(Path(folder) / FACTS_FILE)
    return facts


def _get_side(config: RunConfig, name: str) -> Side:
    side: Side = getattr(config, name)
    return side


def _check_device(config: RunConfig, name: str, ask: Probe) -> Row:
    """Ask precflow's own interpreter for one device."""
    alone = replace(config, target=Side(device=(name,)))
    try:
        facts = ask(alone, "target")
    except SideError as error:
        # A machine without a GPU is no problem; one with a GPU that torch cannot use is.
        expected = name == "cpu" or _has_node(name)
        reason = _first_line(error.message).rpartition(f"{name}: ")[2]
        return Row("sides", f"{name}: none ({reason})", problem=expected, fix=error.next_step if expected else "")
    description = facts["device"].get("description") or name
    return Row("sides", f"{name}: {description}, torch {facts['torch']['version']}")


def _has_node(device: str) -> bool:
    """Return whether ``/dev`` has such an accelerator, so that torch should be able to use it."""
    prefix = _NODES.get(device)  # a digit has to follow: /dev/nvidiactl may be there without a GPU
    return prefix is not None and any(node.name[len(prefix) :].isdigit() for node in Path("/dev").glob(f"{prefix}*"))


def _check_interpreter(config: RunConfig, name: str, ask: Probe) -> Row:
    side = replace(_get_side(config, name), device=("cpu",), launcher=())
    asked = replace(config, target=side) if name == "target" else replace(config, reference=side)
    try:
        facts = ask(asked, name)
    except SideError as error:
        return Row("interpreter", f"{side.interpreter}   {_first_line(error.message)}", problem=True, fix=error.next_step)
    versions = f"{facts['python']['version']}, torch {facts['torch']['version']}"
    return Row("interpreter", f"{side.interpreter}   {versions}   can be a side")


def _check_sides(config: RunConfig, ask: Ask, knowledge: Knowledge) -> Iterator[Row]:
    """Check both sides, or one if they run in the same way; a row that both have, such as the disk's, is shown once."""
    from precflow.stages.side_check import check_side

    names = ("reference", "target") if config.reference != config.target else ("target",)
    seen: set[Row] = set()
    for name in names:
        for row in check_side(config, name, ask, knowledge).rows:
            if row not in seen and (row.topic != "side" or row.problem):  # the rows of the devices have said the rest
                seen.add(row)
                yield row


def _check_store(config: RunConfig) -> Row:
    """Try to write where runs would be written, without leaving anything there."""
    place = config.store or config.site.store or config.runs
    if is_address(place):
        from precflow.run.remote.filesystem import Address

        return _check_remote_store(Address(place, config.site.store_profile, config.site.store_endpoint))
    path = Path(place).expanduser().absolute()
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        reason = f"{path}   cannot be written: {error.strerror}"
        return Row("store", reason, problem=True, fix="name another place: store=FOLDER, or site.store in the site file")
    free = os.statvfs(existing)
    return Row("store", f"{path}   can be written, {free.f_bavail * free.f_frsize / 1e9:.0f} GB free")


def _check_remote_store(address: Address) -> Row:
    """Try to list, to write and to read in a store behind a URL; the small file that is written is deleted again."""
    from precflow.run.remote.filesystem import probe_store

    profile = f"   (profile {address.profile})" if address.profile else ""
    try:
        probe_store(address)
    except PrecflowError as error:
        return Row("store", _first_line(error.message), problem=True, fix=error.next_step)
    return Row("store", f"{address.url}   can be read and written{profile}")


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
