"""The published tables of what fits together: torch_npu, torch, CANN, Python and drivers.

They are data with a source and a date, one file a table: ``conf/compatibility/``, and a folder ``compatibility/`` of a team.
What a table does not name could not be told, which is not the same as that it does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precflow import resources
from precflow.config.data_files import Checked, check_document, load_files
from precflow.config.documents import Document, DottedPath, PathProblems, read
from precflow.environment.checks import Row
from precflow.environment.versions import begins_with, parse

GROUP = "compatibility"
TOPIC = "matching table"
_KEYS = ("releases", "python", "ascend_drivers", "nvidia_drivers", "machines", "glibc")


@dataclass(frozen=True)
class Release:
    """A release of torch_npu and what it is published for."""

    torch_npu: str
    torch: str
    cann: str


@dataclass(frozen=True)
class Table:
    """One file.

    Attributes:
        title: What it matches.
        source: Address where it is published.
        date: Day of that state, such as ``2026-08-19``.
        releases: Releases of torch_npu. A release may stand in several lines, for several versions of CANN.
        python: Version of torch -> versions of Python, as ``3.10``, that torch_npu is published for.
        ascend_drivers: Beginning of CANN's version -> beginnings of the drivers' versions that it runs with.
        nvidia_drivers: Major version of CUDA -> oldest driver.
        machines: Kinds of processors that torch_npu is published for.
        glibc: Version of torch -> oldest C library that its torch_npu runs with.
    """

    title: str
    source: str
    date: str
    releases: tuple[Release, ...] = ()
    python: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ascend_drivers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nvidia_drivers: Mapping[str, str] = field(default_factory=dict)
    machines: tuple[str, ...] = ()
    glibc: Mapping[str, str] = field(default_factory=dict)


def load_tables(team: Sequence[Path] = ()) -> tuple[Table, ...]:
    """Read all tables, those of the team's folders first.

    Raises:
        ConfigError: Some files are not usable; carries the problems of all of them.
    """
    folders = [*team, resources.directory("conf") / GROUP]
    files = load_files(folders, check_file, "tables of compatibility", "nothing was checked")
    return tuple(table for _, table in files)


def check_file(path: Path) -> Checked[Table]:
    """Return what is wrong with one file, and its table if nothing is."""
    return check_document(read(path, GROUP, path.stem), Table, _find_problems)


def _find_problems(document: Document, table: Table | None) -> PathProblems:
    if table is None:
        return
    texts: list[tuple[DottedPath, str]] = [
        (("releases", str(number), name), getattr(release, name))
        for number, release in enumerate(table.releases)
        for name in ("torch_npu", "torch", "cann")
    ]
    for key in ("python", "ascend_drivers"):
        matched: Mapping[str, tuple[str, ...]] = getattr(table, key)
        texts += [((key, name), name) for name in matched]
        texts += [((key, name, str(number)), text) for name, given in matched.items() for number, text in enumerate(given)]
    texts += [(("nvidia_drivers", name), text) for name, text in table.nvidia_drivers.items()]
    texts += [(("glibc", name), each) for name, text in table.glibc.items() for each in (name, text)]
    for where, text in texts:
        if parse(text) is None:
            yield where, f"{text!r} is no version"
    if not any(document.data.get(key) for key in _KEYS):
        yield (), f"matches nothing: give it one of {', '.join(_KEYS)}"


def check_versions(versions: Mapping[str, str], tables: Sequence[Table], system: Mapping[str, Any] | None = None) -> list[Row]:
    """Hold the versions of one side to the tables; return a row for each table that says something about it.

    Args:
        versions: See :func:`precflow.environment.versions.list_versions`.
        tables: Those of the team first.
        system: Its system, as the facts of a side have it: ``machine`` and ``libc``.
    """
    return [
        *_check_torch_npu(versions, tables),
        *_check_python(versions, tables),
        *_check_system(versions, tables, system or {}),
        *_check_ascend_driver(versions, tables),
        *_check_nvidia_driver(versions, tables),
    ]


def _check_torch_npu(versions: Mapping[str, str], tables: Sequence[Table]) -> Iterator[Row]:
    here, npu, cann = (versions.get(name, "") for name in ("torch", "torch-npu", "cann"))
    if not npu:
        return
    # torch_npu has the version of its torch with its own releases behind it: 2.6.0rc1 and 2.6.0.post5 need torch 2.6.0.
    version = parse(npu)
    wanted = version.base_version if version else npu
    if here.partition("+")[0] != wanted:
        text = f"torch_npu {npu} belongs to torch {wanted}; found torch {here or '(none)'}"
        yield Row(TOPIC, text, problem=True, fix=f"pip install torch=={wanted}, or the torch_npu of torch {here}")
        return
    if "+cu" in here:
        text = f"torch {here} is a CUDA build and torch_npu {npu} is beside it"
        yield Row(TOPIC, text, problem=True, fix=f"install the CPU build of torch {wanted}")
        return
    releases = [release for table in tables for release in table.releases]
    published = _unique(release.cann for release in releases if parse(release.torch_npu) == version)
    dates = _name_dates(table for table in tables if table.releases)
    if not published:
        near = _unique(f"{each.torch_npu} (CANN {each.cann})" for each in releases if each.torch == wanted)
        text = f"torch_npu {npu} belongs to torch {wanted}; no table names this release{dates}"
        yield Row(TOPIC, text, unknown=True, fix=f"published for torch {wanted}: {', '.join(near)}" if near else "")
        return
    belongs = f"torch_npu {npu} belongs to torch {wanted}, CANN {' or '.join(published)}"
    if not cann:
        yield Row(TOPIC, f"{belongs}; no CANN found", unknown=True, fix="source the set_env.sh of the toolkit")
    elif any(_is_release(cann, each, releases) for each in published):
        yield Row(TOPIC, f"{belongs}{'' if cann in published else f'; found CANN {cann}'}")
    else:
        others = [each for each in releases if parse(each.cann) == parse(cann)]
        others = [each for each in others if each.torch == wanted] or others
        fits = " or ".join(_unique(f"torch_npu {each.torch_npu} with torch {each.torch}" for each in others[:3]))
        fix = f"install CANN {published[0]}" + (f", or for CANN {cann} {fits}" if fits else "")
        yield Row(TOPIC, f"{belongs}; found CANN {cann}", problem=True, fix=fix)


def _is_release(found: str, published: str, releases: Sequence[Release]) -> bool:
    """Tell whether a CANN is the published one, or a later one of the same line that no table names.

    >>> _is_release("8.5.1", "8.5.0", []), _is_release("8.0.RC3", "8.0.RC2", [Release("2.4.0", "2.4.0", "8.0.RC3")])
    (True, False)
    """
    here, wanted = parse(found), parse(published)
    if here is None or wanted is None or here == wanted:
        return here == wanted
    is_named = any(parse(each.cann) == here for each in releases)
    return not is_named and here.release[:2] == wanted.release[:2] and here > wanted


def _check_python(versions: Mapping[str, str], tables: Sequence[Table]) -> Iterator[Row]:
    torch, python = versions.get("torch", "").partition("+")[0], versions.get("python", "")
    if "torch-npu" not in versions or not python:
        return
    for table in tables:
        if torch in table.python:
            known, here = table.python[torch], ".".join(python.split(".")[:2])
            text = f"torch_npu of torch {torch} is published for Python {', '.join(known)}"
            fix = f"make an environment with Python {known[-1]}"
            yield Row(TOPIC, text) if here in known else Row(TOPIC, f"{text}; found {python}", problem=True, fix=fix)
            return


def _check_system(versions: Mapping[str, str], tables: Sequence[Table], system: Mapping[str, Any]) -> Iterator[Row]:
    machine, torch = str(system.get("machine", "")), parse(versions.get("torch", ""))
    name, _, library = str(system.get("libc", "")).partition(" ")
    known = next((table.machines for table in tables if table.machines), ())
    if "torch-npu" not in versions or not machine or not known:
        return
    # Of several entries the one counts that is for this torch or the last one before it.
    wanted = [(parse(since), oldest) for table in tables for since, oldest in table.glibc.items()]
    fitting = [(since, oldest) for since, oldest in wanted if since and torch and since <= torch]
    oldest = max(fitting, key=lambda each: each[0])[1] if fitting else ""
    here, needed = parse(library), parse(oldest)
    text = f"torch_npu is published for {' and '.join(known)}" + (f", with glibc {oldest} or newer" if oldest else "")
    if machine not in known:
        yield Row(TOPIC, f"{text}; found {machine}", problem=True, fix="build it from its sources, or use another machine")
    elif needed and name and (name != "glibc" or here is None or here < needed):
        found = f"{name} {library}".strip()
        yield Row(TOPIC, f"{text}; found {found}", problem=True, fix=f"use a system with glibc {oldest} or newer")
    else:
        yield Row(TOPIC, text)


def check_firmware(machine: Mapping[str, Any]) -> Iterator[Row]:
    """Yield whether the firmware fits the driver. Each driver carries what it works with: there is no table of all of them.

    Args:
        machine: See ``precflow/agent/session/machine.py``.
    """
    board, first_last = machine.get("npu_board") or {}, machine.get("ascend_firmware_range") or []
    firmware, driver = machine.get("ascend_firmware") or board.get("firmware", ""), machine.get("ascend_driver", "")
    said, here = str(board.get("compatibility", "")), parse(str(firmware))
    ends = [parse(str(text)) for text in first_last]
    text = f"firmware {firmware or '(version not told)'} with driver {driver or '(version not told)'}"
    fix = "install the firmware that belongs to the driver; the same page has both"
    if said.upper() in {"OK", "NOK"}:
        fits = said.upper() == "OK"
        yield Row(TOPIC, f"{text}: npu-smi says {said}", problem=not fits, fix="" if fits else fix)
    elif here is not None and len(ends) == 2 and ends[0] is not None and ends[1] is not None:
        fits = ends[0] <= here <= ends[1]
        row = f"{text}, which works with {first_last[0]} to {first_last[1]}"
        yield Row(TOPIC, row, problem=not fits, fix="" if fits else fix)
    elif here is not None:
        yield Row(TOPIC, f"{text}: neither the driver nor npu-smi says whether they fit", unknown=True)


def _check_ascend_driver(versions: Mapping[str, str], tables: Sequence[Table]) -> Iterator[Row]:
    cann, driver = versions.get("cann", ""), versions.get("ascend-driver", "")
    if not (cann and driver):
        return
    named = [(line, drivers) for table in tables for line, drivers in table.ascend_drivers.items() if begins_with(cann, line)]
    if not named:
        text = f"CANN {cann} with driver {driver}: no table names this CANN"
        yield Row(TOPIC, f"{text}{_name_dates(table for table in tables if table.ascend_drivers)}", unknown=True)
        return
    _, drivers = max(named, key=lambda each: len(each[0]))
    text = f"CANN {cann} runs with driver {', '.join(drivers)}"
    fits = any(begins_with(driver, each) for each in drivers)
    fix = f"install a driver {drivers[-1]}, or a CANN that runs with {driver}"
    yield Row(TOPIC, f"{text}; found {driver}", problem=not fits, fix="" if fits else fix)


def _check_nvidia_driver(versions: Mapping[str, str], tables: Sequence[Table]) -> Iterator[Row]:
    cuda, driver = versions.get("cuda", ""), versions.get("nvidia-driver", "")
    if not (cuda and driver):
        return
    for table in tables:
        oldest, here = parse(table.nvidia_drivers.get(cuda.partition(".")[0], "")), parse(driver)
        if oldest is not None and here is not None:
            text = f"torch is built for CUDA {cuda}, which needs driver {oldest} or newer; found {driver}"
            fix = f"install driver {oldest} or newer, or a torch that is built for an older CUDA"
            yield Row(TOPIC, text, problem=here < oldest, fix=fix if here < oldest else "")
            return


def _name_dates(tables: Iterable[Table]) -> str:
    dates = _unique(table.date for table in tables)
    return f" (state of {max(dates)})" if dates else ""


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
