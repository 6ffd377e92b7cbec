"""Files of data that are no recipes: rules of the advice and of a scan, what-ifs, known issues, tables of compatibility.

Each kind has a folder, a dataclass that says its keys, and a function that looks into values of the right form. A team's files
are read like those that ship. All files are read and checked before any is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from precflow.config.build import build_document
from precflow.config.documents import Document, PathProblems, dotted
from precflow.errors import ConfigError, Problem

Built = TypeVar("Built")
Checked = tuple[tuple[Problem, ...], Built | None]
"""What is wrong with one file, each problem with its line; and what the file says, ``None`` if anything is wrong."""


def check_document(
    document: Document,
    kind: type[Built],
    find_problems: Callable[[Document, Built | None], PathProblems],
    words: Mapping[str, tuple[str, ...]] | None = None,
    **given: Any,
) -> Checked[Built]:
    """Build what a file says and look for everything that is wrong with it.

    Args:
        document: The file.
        kind: The dataclass of its keys.
        find_problems: Yields what is wrong with values of the right form, given what was built; ``None`` where a key that the
            file must have is missing or wrong. A key of which something has been said is not named again.
        words: ``Dataclass.field`` -> the words that it may take.
        given: Fields that are no keys of the file.
    """
    if document.problems:
        name = document.path.stem
        return tuple(Problem(one.place, one.key or name, one.message) for one in document.problems), None
    built, problems = build_document(document, kind, words or {}, **given)
    known = {problem.key for problem in problems}
    for path, message in find_problems(document, built):
        if dotted(path) not in known:
            problems.append(Problem(document.mark(path).place, dotted(path), message))
    return tuple(problems), (built if not problems else None)


def load_files(
    folders: Sequence[Path],
    check: Callable[[Path], Checked[Built]],
    what: str,
    outcome: str,
    find_clashes: Callable[[Sequence[tuple[Path, Built]]], Iterable[Problem]] | None = None,
) -> list[tuple[Path, Built]]:
    """Read every file of the folders, folder by folder, sorted by name in each.

    Args:
        folders: Those of a team first.
        check: Checks one file.
        what: What the files are, in the plural, for the message: ``"rule files"``.
        outcome: What was not done because of the problems: ``"no rule was used"``.
        find_clashes: Yields what is wrong between files that are right by themselves.

    Raises:
        ConfigError: Some files are not usable; carries the problems of all of them.
    """
    loaded: list[tuple[Path, Built]] = []
    problems: list[Problem] = []
    for path in (path for folder in folders for path in sorted(folder.glob("*.yaml"))):
        wrong, built = check(path)
        problems += wrong
        if built is not None:
            loaded.append((path, built))
    problems += find_clashes(loaded) if find_clashes else ()
    if problems:
        raise ConfigError(
            f"{len(problems)} problem{'s' * (len(problems) > 1)} in {what}",
            problems=problems,
            next_step=f"correct the files; {outcome}",
        )
    return loaded
