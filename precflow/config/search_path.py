"""The folders where recipes and sites are looked for: those of the command line, the team, the user, then the shipped ones.

The first folder that has a file of the name wins. There is no Hydra here, because ``precflow ls`` must answer at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from precflow import resources
from precflow.config.documents import Document, display_path, read
from precflow.config.suggestions import find_near
from precflow.errors import ConfigError, Problem

GROUPS = ("capture", "executor", "recipe", "emulate", "site")  # in the order in which they are laid over each other
# Files that stages and verbs read; nothing is laid over them.
DATA_GROUPS = ("standard", "rule", "whatif", "scan", "known_issue", "compatibility")
MACHINE_GROUPS = ("site", "executor")  # their files decide what runs on a machine, so a folder of recipes brings none
OPEN_GROUPS = ("recipe", "site")  # their files say `# @package _global_`, or nothing
SHIPPED = "precflow"  # the origin of what comes with precflow
_SUFFIX = ".yaml"


@dataclass(frozen=True)
class SearchFolder:
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
        paths = (path.relative_to(self.folder) for path in self.folder.rglob(f"*{_SUFFIX}"))
        return sorted(
            path.as_posix().removesuffix(_SUFFIX) for path in paths if not any(part.startswith(".") for part in path.parts)
        )


def is_file(path: Path) -> bool:
    """Tell whether a path is a file; a name that no file system takes (300 letters) is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def list_folders(config_dirs: Sequence[Path] = ()) -> tuple[SearchFolder, ...]:
    """Return all folders in the order in which they are searched.

    Args:
        config_dirs: What ``--config-dir`` named: trees with ``recipes/`` and folders of groups, such as ``site/`` or ``rule/``.
            A folder of ``PRECFLOW_RECIPES`` that has such folders is a tree too, but for what belongs to a machine: a folder of
            recipes brings no sites and no executors.

    Raises:
        ConfigError: A folder that was named does not exist.
    """
    problems: list[Problem] = []
    folders: list[SearchFolder] = []
    for folder in config_dirs:
        folders += _list_folders_of_tree(folder, "--config-dir", problems)
    folders += _list_folders_of_variable("PRECFLOW_RECIPES", "recipe", problems)
    folders += _list_folders_of_variable("PRECFLOW_SITES", "site", problems)
    if problems:
        raise ConfigError("a folder that should have recipes or sites does not exist", problems=problems)
    folders += [SearchFolder("site", user_folder() / "site", "user configuration")]
    folders += [entry for group in (*GROUPS, *DATA_GROUPS) for entry in shipped_folders(group)]
    return tuple(entry for entry in folders if entry.folder.is_dir())


def shipped_folders(group: str) -> tuple[SearchFolder, ...]:
    """Return precflow's own folder of a group."""
    folder = resources.directory("recipes") if group == "recipe" else resources.directory("conf") / group
    return (SearchFolder(group, folder, SHIPPED),)


def find(group: str, name: str, within: Sequence[SearchFolder]) -> Document | None:
    """Return the first file of this name, read; ``None`` where no folder has it."""
    for entry in within:
        file = entry.file(name) if entry.group == group else None
        if file:
            return read(file, group, name)
    return None


def list_names(group: str, within: Sequence[SearchFolder]) -> dict[str, SearchFolder]:
    """Return every name of a group with the folder that wins."""
    winners: dict[str, SearchFolder] = {}
    for entry in within:
        if entry.group == group:
            for name in entry.names():
                winners.setdefault(name, entry)
    return winners


def team_folders(group: str, within: Sequence[SearchFolder]) -> tuple[Path, ...]:
    """Return the folders of a group that are not precflow's own."""
    return tuple(entry.folder for entry in within if entry.group == group and entry.origin != SHIPPED)


def find_clash(group: str, name: str, within: Sequence[SearchFolder]) -> Problem | None:
    """Refuse a name that a team's file shares with a shipped one; return ``None`` if there is no such pair.

    A report says by name what judged a run, or which fault was emulated, so a name means one thing everywhere.
    """
    files = [(entry, file) for entry in within if entry.group == group and (file := entry.file(name))]
    theirs = [display_path(file) for entry, file in files if entry.origin != SHIPPED]
    if len(theirs) == len(files) or not theirs:
        return None
    return Problem(theirs[0], name, f"is the name of precflow's own {group} too: give the file another name")


def describe_not_found(group: str, name: str, within: Sequence[SearchFolder]) -> str:
    """Return a message for a name that no folder has: near names and the folders that were searched."""
    if group == "recipe" and name.endswith(_SUFFIX):
        return f"there is no such file. A recipe that is listed goes without {_SUFFIX}:  precflow ls"
    known = list_names(group, within)
    like = find_near(name, known, alike=0.5)
    hint = f" Did you mean  {', '.join(like)} ?" if like else ""
    if group == "recipe" and not like:
        hint = f" There are: {', '.join(known)}." if len(known) <= 8 else " See `precflow ls`."
    folders = ", ".join(display_path(entry.folder) for entry in within if entry.group == group) or "no folder at all"
    return f"no {group} of this name.{hint} Searched: {folders}"


def locate_recipe_file(file: Path) -> tuple[str, SearchFolder]:
    """Return the name of a recipe file, wherever it is, and its folder."""
    resolved = file.resolve()
    return resolved.name.removesuffix(_SUFFIX), SearchFolder("recipe", resolved.parent, display_path(resolved.parent))


def user_folder() -> Path:
    """Return the user's own configuration folder of precflow."""
    return platformdirs.user_config_path("precflow")


def _list_folders_of_variable(variable: str, group: str, problems: list[Problem]) -> Iterator[SearchFolder]:
    for text in filter(None, os.environ.get(variable, "").split(os.pathsep)):
        folder = Path(text).expanduser()
        if group == "recipe" and _is_tree(folder):
            yield from (
                entry for entry in _list_folders_of_tree(folder, variable, problems) if entry.group not in MACHINE_GROUPS
            )
        elif folder.is_dir():
            yield SearchFolder(group, folder.resolve(), variable)
        else:
            problems.append(Problem(variable, text, "is not a folder"))


def _is_tree(folder: Path) -> bool:
    """Tell whether a folder has folders of groups: ``recipes``, or another, such as ``emulate``, and no recipe."""
    groups = {group for group in (*GROUPS, *DATA_GROUPS) if group not in MACHINE_GROUPS}
    here = {group for group in groups if (folder / group).is_dir() or (folder / f"{group}s").is_dir()}
    return "recipe" in here or (bool(here) and not any(folder.glob(f"*{_SUFFIX}")))


def _list_folders_of_tree(root: Path, origin: str, problems: list[Problem]) -> Iterator[SearchFolder]:
    root = root.expanduser()
    if not root.is_dir():
        problems.append(Problem(origin, str(root), "is not a folder"))
        return
    for group in (*GROUPS, *DATA_GROUPS):
        for folder in (root / group, root / f"{group}s"):
            if folder.is_dir():
                yield SearchFolder(group, folder.resolve(), f"{origin} {display_path(root)}")
