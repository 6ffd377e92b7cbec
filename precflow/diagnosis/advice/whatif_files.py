"""What-if files: one YAML file each, all of them read and checked before any is used.

To add a what-if, add a file ``conf/whatif/NAME.yaml`` with the keys of :class:`WhatIf`. If it needs a kind of change that there
is not yet, add a row to ``contract.WHATIF_KINDS``, and the change in the agent's ``session/interventions.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from precflow.agent.contract import WHATIF_KINDS, WHATIF_OF_RUN
from precflow.config.documents import Document, display_path, dotted, read
from precflow.config.sections import whatifs
from precflow.config.suggestions import did_you_mean
from precflow.diagnosis.advice.rule_templates import check_template
from precflow.diagnosis.evidence.names import EVIDENCE
from precflow.errors import ConfigError, Problem

_TEXTS = ("title", "why")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,79}")
_RULE = re.compile(r"[A-Z]{2,8}\d{3}")
_MOST_PADDING = 4096


@dataclass(frozen=True)
class WhatIf:
    """One intervention on the target's run.

    Attributes:
        name: Name of its file.
        title: What is other than in the run, so that "with TITLE" is a phrase.
        change: Kind of change -> what it is changed to, see ``contract.WHATIF_KINDS``.
        why: What it shows if it fixes the run.
        when: Condition over evidence under which it is worth trying; ``""`` for always.
        confirms: Ids of the rules whose findings it confirms.
        cost: Time of a run with it, as a rough multiple of one without.
    """

    name: str
    title: str
    change: Mapping[str, Any]
    why: str
    when: str = ""
    confirms: tuple[str, ...] = ()
    cost: float = 1.0

    @property
    def is_of_run(self) -> bool:
        """It changes the whole run, and not the calls that are suspects."""
        return all(kind in WHATIF_OF_RUN for kind in self.change)


_KEYS = {field.name: field for field in fields(WhatIf) if field.name != "name"}
_NEEDED = tuple(name for name, field in _KEYS.items() if field.default is MISSING)


def load_whatifs(folders: Sequence[Path]) -> list[WhatIf]:
    """Read every what-if file of the folders, sorted by name; of two with one name, that of the first folder counts.

    Raises:
        ConfigError: Some files are not usable; carries the problems of all of them.
    """
    loaded: dict[str, WhatIf] = {}
    problems: list[Problem] = []
    for path in (path for folder in folders for path in sorted(folder.glob("*.yaml"))):
        wrong, whatif = check_file(path)
        problems += wrong
        if whatif is not None:
            loaded.setdefault(whatif.name, whatif)
    if problems:
        plural = "s" * (len(problems) > 1)
        raise ConfigError(
            f"{len(problems)} problem{plural} in what-if files", problems=problems, next_step="correct the files; none was used"
        )
    return [loaded[name] for name in sorted(loaded)]


def check_file(path: Path) -> tuple[list[Problem], WhatIf | None]:
    """Return what is wrong with one file, each problem with its line, and its what-if if nothing is."""
    document = read(path, "whatif", path.stem)
    problems = [Problem(problem.place, problem.key or path.stem, problem.message) for problem in document.problems]
    problems += [] if problems else list(_find_problems(document))
    if problems:
        return problems, None
    data = document.data
    values = {**data, "confirms": tuple(data.get("confirms", ())), "cost": float(data.get("cost", 1.0))}
    return [], WhatIf(name=path.stem, **values)


def _find_problems(document: Document) -> Iterator[Problem]:
    plain, whole = document.data, display_path(document.path)
    if not _NAME.fullmatch(document.path.stem) or document.path.stem in whatifs.WORDS:
        yield Problem(
            whole, document.path.stem, "is no name for a what-if: small letters, digits and _, and no word of precflow's"
        )
    for key in (key for key in plain if key not in _KEYS):
        yield Problem(document.marks[(key,)].place, dotted((key,)), f"no such key; a what-if has {', '.join(_KEYS)}")
    for key in (key for key in _NEEDED if not plain.get(key)):
        yield Problem(whole, key, "is missing")
    for key in (key for key in plain if key in _KEYS):
        for path, message in _check_value(key, plain[key]):
            mark = document.marks.get(path) or document.marks[(key,)]
            yield Problem(mark.place, dotted(path), message)


def _check_value(key: str, value: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield ``(path, what is wrong)`` with one value."""
    if key == "change":
        yield from _check_change(value)
    elif key == "cost":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
            yield (key,), f"is {value!r}; expected a number above 0: the time of a run with it, in runs without"
    elif key == "confirms":
        if not isinstance(value, list) or not all(isinstance(item, str) and _RULE.fullmatch(item) for item in value):
            yield (key,), f"is {value!r}; expected a list of ids of rules, such as [PF214]"
    elif not isinstance(value, str):
        yield (key,), f"is {value!r}; expected text, so quote it"
    elif key == "when":
        problems, names = check_template(value, condition=True)
        yield from (((key,), problem) for problem in problems)
        for name in (name for name in names if name not in EVIDENCE):
            yield (key,), f"no evidence is named {name!r}.{did_you_mean(name, EVIDENCE)}"


def _check_change(change: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    if not isinstance(change, Mapping) or not change:
        yield ("change",), f"is {change!r}; expected what is changed, such as {{dtype: float32}}"
        return
    for kind in (kind for kind in change if kind not in WHATIF_KINDS):
        yield (
            ("change", str(kind)),
            f"no such change.{did_you_mean(str(kind), WHATIF_KINDS) or ' There are ' + ', '.join(WHATIF_KINDS)}",
        )
    if len({kind in WHATIF_OF_RUN for kind in change}) > 1:
        yield ("change",), f"changes calls and the whole run ({', '.join(WHATIF_OF_RUN)}): make two what-ifs of it"
    for kind, value in ((kind, value) for kind, value in change.items() if kind in WHATIF_KINDS):
        problem = _check_kind(kind, value)
        if problem:
            yield ("change", kind), f"is {value!r}; expected {problem}"


def _check_kind(kind: str, value: Any) -> str:
    """Return what was expected of the value of a change, ``""`` if it is that."""
    words = WHATIF_KINDS[kind]
    if kind == "padded_to":
        whole = isinstance(value, int) and not isinstance(value, bool) and 1 < value <= _MOST_PADDING
        return "" if whole else f"a whole number from 2 to {_MOST_PADDING}"
    if kind == "arguments" and isinstance(value, Mapping):
        plain = all(isinstance(name, str) and isinstance(each, (bool, int, float, str)) for name, each in value.items())
        return "" if plain and value else "`reference`, or names of arguments with a number, text or truth value each"
    listed = value if kind == "switches" and isinstance(value, list) and value else [value]
    return "" if all(isinstance(each, str) and each in words for each in listed) else f"one of {', '.join(words)}"
