"""Where recipes and sites are looked for: the command line's folders, the team's, the user's, then the shipped ones.

The first folder that has a name wins. Only paths here, no Hydra: ``precflow ls`` must answer at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from precflow import resources
from precflow.config.documents import Document, read, shown
from precflow.config.suggestions import near
from precflow.errors import ConfigError, Problem

GROUPS = ("capture", "executor", "recipe", "emulate", "site")  # in the order in which they are laid over each other
DATA_GROUPS = ("standard", "rule")  # files that stages read; nothing is laid over them
OF_MACHINES = ("site", "executor")  # whoever names their folder, or one of them, says what may run
OPEN_GROUPS = ("recipe", "site")  # their files say `# @package _global_`, or nothing
SHIPPED = "precflow"  # the origin of what comes with precflow
_SUFFIX = ".yaml"


@dataclass(frozen=True)
class Place:
    """One folder with the files of one group.

    Attributes:
        group: One of ``GROUPS``.
        folder: The folder; a file ``a/b.yaml`` in it has the name ``a/b``.
        origin: Whose it is, as ``precflow ls`` shows it.
    """

    group: str
    folder: Path
    origin: str

    def file(self, name: str) -> Path | None:
        """Return the file of a name, or ``None``; a name never leads out of the folder."""
        if not name or ".." in Path(name).parts or Path(name).is_absolute():
            return None
        file = self.folder / f"{name}{_SUFFIX}"
        return file if is_file(file) else None

    def names(self) -> list[str]:
        """Return the names of all files, sorted; hidden ones are left out."""
        found = (path.relative_to(self.folder) for path in self.folder.rglob(f"*{_SUFFIX}"))
        return sorted(
            path.as_posix().removesuffix(_SUFFIX) for path in found if not any(part.startswith(".") for part in path.parts)
        )


def is_file(path: Path) -> bool:
    """Tell whether a path is a file; a name that no file system takes (300 letters) is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def places(config_dirs: Sequence[Path] = (), *, extra: Sequence[Place] = ()) -> tuple[Place, ...]:
    """Return all folders in the order in which they are searched.

    Args:
        config_dirs: What ``--config-dir`` named: trees with ``recipes/``, ``site/``, ``capture/``, ``emulate/``, ``executor/``,
            ``standard/``, ``rule/``. A folder of ``PRECFLOW_RECIPES`` that has ``recipes/`` is such a tree too, but for what
            belongs to a machine: a folder of recipes brings no sites and no executors.
        extra: Folders that come before all others.

    Raises:
        ConfigError: A folder that was named does not exist.
    """
    problems: list[Problem] = []
    found = list(extra)
    for folder in config_dirs:
        found += _tree(folder, "--config-dir", problems)
    found += _listed("PRECFLOW_RECIPES", "recipe", problems)
    found += _listed("PRECFLOW_SITES", "site", problems)
    if problems:
        raise ConfigError("a folder that should have recipes or sites does not exist", problems=problems)
    found += [Place("site", user_folder() / "site", "user configuration")]
    found += [place for group in (*GROUPS, *DATA_GROUPS) for place in shipped(group)]
    return tuple(place for place in found if place.folder.is_dir())


def shipped(group: str) -> tuple[Place, ...]:
    """Return precflow's own folder of a group."""
    folder = resources.directory("recipes") if group == "recipe" else resources.directory("conf") / group
    return (Place(group, folder, SHIPPED),)


def find(group: str, name: str, within: Sequence[Place]) -> Document | None:
    """Return the first file of this name, read; ``None`` where no folder has it."""
    for place in within:
        file = place.file(name) if place.group == group else None
        if file:
            return read(file, group, name)
    return None


def names(group: str, within: Sequence[Place]) -> dict[str, Place]:
    """Return every name of a group with the folder that wins."""
    found: dict[str, Place] = {}
    for place in within:
        if place.group == group:
            for name in place.names():
                found.setdefault(name, place)
    return found


def team_folders(group: str, within: Sequence[Place]) -> tuple[Path, ...]:
    """Return the folders of a group that are not precflow's own."""
    return tuple(place.folder for place in within if place.group == group and place.origin != SHIPPED)


def clash(group: str, name: str, within: Sequence[Place]) -> Problem | None:
    """Return why a name is refused that a team's file has in common with a shipped one; ``None`` where there is no such pair.

    A report says by name what judged a run, or which fault was emulated, so a name means one thing everywhere.
    """
    files = [(place, file) for place in within if place.group == group and (file := place.file(name))]
    theirs = [shown(file) for place, file in files if place.origin != SHIPPED]
    if len(theirs) == len(files) or not theirs:
        return None
    return Problem(theirs[0], name, f"is the name of precflow's own {group} too: give the file another name")


def not_found(group: str, name: str, within: Sequence[Place]) -> str:
    """Return a message for a name that no folder has: near names and the folders that were searched."""
    if group == "recipe" and name.endswith(_SUFFIX):
        return f"there is no such file. A recipe that is listed goes without {_SUFFIX}:  precflow ls"
    known = names(group, within)
    like = near(name, known, alike=0.5)
    hint = f" Did you mean  {', '.join(like)} ?" if like else ""
    if group == "recipe" and not like:
        hint = f" There are: {', '.join(known)}." if len(known) <= 8 else " See `precflow ls`."
    folders = ", ".join(shown(place.folder) for place in within if place.group == group) or "no folder at all"
    return f"no {group} of this name.{hint} Searched: {folders}"


def file_as_recipe(file: Path) -> tuple[str, Place]:
    """Return name and place of a recipe file that stands anywhere."""
    resolved = file.resolve()
    return resolved.name.removesuffix(_SUFFIX), Place("recipe", resolved.parent, shown(resolved.parent))


def user_folder() -> Path:
    """Return the user's own configuration folder of precflow."""
    return platformdirs.user_config_path("precflow")


def _listed(variable: str, group: str, problems: list[Problem]) -> Iterator[Place]:
    for text in filter(None, os.environ.get(variable, "").split(os.pathsep)):
        folder = Path(text).expanduser()
        if group == "recipe" and any((folder / name).is_dir() for name in ("recipe", "recipes")):
            yield from (place for place in _tree(folder, variable, problems) if place.group not in OF_MACHINES)
        elif folder.is_dir():
            yield Place(group, folder.resolve(), variable)
        else:
            problems.append(Problem(variable, text, "is not a folder"))


def _tree(root: Path, origin: str, problems: list[Problem]) -> Iterator[Place]:
    root = root.expanduser()
    if not root.is_dir():
        problems.append(Problem(origin, str(root), "is not a folder"))
        return
    for group in (*GROUPS, *DATA_GROUPS):
        for folder in (root / group, root / f"{group}s"):
            if folder.is_dir():
                yield Place(group, folder.resolve(), f"{origin} {shown(root)}")
