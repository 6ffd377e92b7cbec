"""What-if files: one YAML file each, all of them read and checked before any is used.

To add a what-if, add a file ``conf/whatif/NAME.yaml`` with the keys of :class:`WhatIf`. If it needs a kind of change that there
is not yet, add a row to ``contract.WHATIF_KINDS``, and the change in the agent's ``session/interventions.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precflow.agent.contract import WHATIF_KINDS, WHATIF_OF_RUN
from precflow.config.data_files import Checked, check_document, load_files
from precflow.config.documents import Document, PathProblems, read
from precflow.config.sections import whatifs
from precflow.config.suggestions import did_you_mean
from precflow.diagnosis.advice.rule_templates import check_template
from precflow.diagnosis.evidence.names import EVIDENCE

_NAME = re.compile(r"[a-z][a-z0-9_]{0,79}")
_RULE = re.compile(r"[A-Z]{2,8}\d{3}")
_MOST_PADDING = 4096
_MOST_COST = 1e6


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


def load_whatifs(folders: Sequence[Path]) -> list[WhatIf]:
    """Read every what-if file of the folders, sorted by name; of two with one name, that of the first folder counts.

    Raises:
        ConfigError: Some files are not usable; carries the problems of all of them.
    """
    loaded: dict[str, WhatIf] = {}
    for _, whatif in load_files(folders, check_file, "what-if files", "none was used"):
        loaded.setdefault(whatif.name, whatif)
    return [loaded[name] for name in sorted(loaded)]


def check_file(path: Path) -> Checked[WhatIf]:
    """Return what is wrong with one file, and its what-if if nothing is."""
    return check_document(read(path, "whatif", path.stem), WhatIf, _find_problems, name=path.stem)


def _find_problems(document: Document, whatif: WhatIf | None) -> PathProblems:
    """Yield what is wrong with its name, and with values that have the right form."""
    name = document.path.stem
    if not _NAME.fullmatch(name) or name in whatifs.WORDS:
        yield (), f"{name!r} is no name for a what-if: small letters, digits and _, and no word of precflow's"
    if whatif is None:
        return
    yield from _check_change(whatif.change)
    if not 0 < whatif.cost < _MOST_COST:
        yield ("cost",), f"is {whatif.cost:g}; expected a number above 0: the time of a run with it, in runs without"
    for number, rule in enumerate(whatif.confirms):
        if not _RULE.fullmatch(rule):
            yield ("confirms", str(number)), f"is {rule!r}; expected the id of a rule, such as PF214"
    problems, names = check_template(whatif.when, condition=True) if whatif.when else ((), ())
    yield from ((("when",), problem) for problem in problems)
    for name in (name for name in names if name not in EVIDENCE):
        yield ("when",), f"no evidence is named {name!r}.{did_you_mean(name, EVIDENCE)}"


def _check_change(change: Mapping[str, Any]) -> PathProblems:
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
    if kind == "part":
        return "" if _is_part(value) else "`modules` with a list of names, and `dtype` (float32, float64) or `device` (cpu)"
    listed = value if kind == "switches" and isinstance(value, list) and value else [value]
    return "" if all(isinstance(each, str) and each in words for each in listed) else f"one of {', '.join(words)}"


def _is_part(value: Any) -> bool:
    """Tell whether a value names modules, and a wider type or another device that they are to run in."""
    if not isinstance(value, Mapping) or not value.keys() <= {"modules", "dtype", "device"} or len(value) < 2:
        return False
    names = value.get("modules")
    named = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    return bool(named) and all(value[key] in WHATIF_KINDS[key] for key in ("dtype", "device") if key in value)
