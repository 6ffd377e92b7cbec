"""The check of one side alone: its versions, its machine, known issues. `precflow doctor` and a recipe share it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from precflow.agent.contract import FACTS_FILE
from precflow.config.schema import RunConfig, Side
from precflow.dumps.requests import machine_request
from precflow.environment.checks import Row
from precflow.environment.compatibility import Table, check_firmware, check_versions, load_tables
from precflow.environment.known_issues import BREAKS, GROUP, KnownIssue, MetIssue, load_issues, meet
from precflow.environment.machine_checks import Wanted, check_machine
from precflow.environment.requirements import find_missing
from precflow.environment.variables import find_misspelt
from precflow.environment.versions import list_versions
from precflow.errors import SideError
from precflow.sides.launch import Agents, run_agent
from precflow.stages.artifacts import read_plain

_PATIENCE = 180.0  # seconds for an interpreter to import torch and for the tools of drivers
ISSUES, REQUIRED = "known issues", "required"


@dataclass(frozen=True)
class Asked:
    """What an agent said of a side and its machine.

    Attributes:
        facts: Its facts, with ``machine`` and ``refused``.
        now: Time of this machine when it had answered, in seconds since 1970.
    """

    facts: Mapping[str, Any]
    now: float | None = None


Ask = Callable[[RunConfig, str], Asked]


@dataclass(frozen=True)
class Knowledge:
    """Tables and known issues, shipped and of a team."""

    tables: tuple[Table, ...]
    issues: tuple[KnownIssue, ...]

    @classmethod
    def load(cls, team: Mapping[str, Sequence[Path]]) -> Knowledge:
        """Read them.

        Raises:
            ConfigError: Some files are not usable.
        """
        return cls(load_tables(team.get("compatibility", ())), load_issues(team.get(GROUP, ())))


@dataclass(frozen=True)
class SideChecks:
    """What was found on a side.

    Attributes:
        side: ``reference`` or ``target``.
        rows: The checks.
        issues: Known issues of its versions.
        versions: Version of everything that says one.
    """

    side: str
    rows: tuple[Row, ...]
    issues: tuple[MetIssue, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


def ask_machine(config: RunConfig, name: str, agents: Agents | None = None) -> Asked:
    """Ask a side for its facts and the state of its machine.

    Args:
        config: Configuration with the side.
        name: ``reference`` or ``target``.
        agents: Agents that stay alive between calls. They answer only where torch loads; else one is started alone.

    Raises:
        SideError: No agent can be started there.
    """
    side: Side = getattr(config, name)
    with tempfile.TemporaryDirectory(prefix="precflow-check-") as folder:
        run = partial(run_agent, side=side, folder=Path(folder), variables=side.variables, timeout=_PATIENCE)
        request = machine_request(config, name, Path(folder), ci=False)
        try:
            run(request, agents=None if side.interpreter else agents)
        except SideError as error:
            if agents is None or side.interpreter or not error.kind:
                raise
            run(request, agents=None)
        facts: Mapping[str, Any] = read_plain(Path(folder) / FACTS_FILE)
        return Asked(facts, time.time())


def check_side(config: RunConfig, name: str, ask: Ask, knowledge: Knowledge, folder: Path | None = None) -> SideChecks:
    """Check one side.

    Args:
        config: Configuration with the side.
        name: ``reference`` or ``target``.
        ask: Asks the side; see :func:`ask_machine`.
        knowledge: What is published about versions.
        folder: Where the run is written, whose free space may be required; ``None``: where temporary files go.
    """
    side: Side = getattr(config, name)
    try:
        asked = ask(config, name)
    except SideError as error:
        message = error.message.partition("\n")[0]
        return SideChecks(name, (Row("side", message, problem=True, fix=error.next_step),))
    facts, refused = asked.facts, asked.facts.get("refused") or {}
    versions, kinds = list_versions(facts), _find_kinds(side, facts)
    variables = {**os.environ, **side.variables} if not side.launcher else dict(facts.get("variables") or {})
    require = config.environment.require
    wanted = Wanted(kinds, require.checks)
    machine = str((facts.get("system") or {}).get("machine", ""))
    met = meet(knowledge.issues, {name: (versions, kinds or ("cpu",), machine)})
    free = shutil.disk_usage(folder or tempfile.gettempdir()).free
    rows = [
        _describe_side(facts, refused),
        *check_versions(versions, knowledge.tables, facts.get("system")),
        *check_firmware(facts["machine"]),
        *check_machine(facts["machine"], variables, wanted, now=asked.now),
        *_check_variables({**variables, **(facts.get("variables") or {})}),
        *_describe_issues(met),
    ]
    rows += [Row(REQUIRED, text, problem=True) for text in find_missing(require, facts, free, rows)]
    return SideChecks(name, tuple(rows), met, versions)


def _find_kinds(side: Side, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds of devices that matter: that which is used, else those that are wanted; an NPU if torch_npu is there."""
    used = str((facts.get("device") or {}).get("kind", ""))
    kinds = [used] if used else [kind for kind in side.device if kind != "emulated"]
    # Whoever has installed torch_npu means to run on an NPU, and then its versions matter although this side does not use it.
    return tuple(dict.fromkeys([*kinds, *(["npu"] if "torch-npu" in (facts.get("packages") or {}) else [])]))


def _describe_side(facts: Mapping[str, Any], refused: Mapping[str, str]) -> Row:
    if refused:
        return Row("side", refused["message"].partition("\n")[0], problem=True, fix=refused["next_step"])
    device, versions = facts["device"], f"torch {facts['torch']['version']}, Python {facts['python']['version']}"
    return Row("side", f"{device['kind']}: {device['description'] or device['kind']}, {versions}")


def _check_variables(variables: Mapping[str, str]) -> Iterator[Row]:
    misspelt = find_misspelt(variables)
    for wrong in misspelt:
        yield Row("variables", wrong.text, problem=True, fix=f"call it {wrong.meant}, or take it away")
    if not misspelt:
        yield Row("variables", "no name looks misspelt")


def _describe_issues(met: Sequence[MetIssue]) -> Iterator[Row]:
    """Known issues; only one with which nothing runs has to be fixed, since others may never be met."""
    for each in met:
        breaks = each.issue.effect == BREAKS
        text = f"{each.issue.title} ({', '.join(each.sides.values())}; {each.issue.fixed_in})"
        yield Row(ISSUES, text, problem=breaks, fix=each.issue.do)
