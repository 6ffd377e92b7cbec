"""Environment variables with misspelt names, which nothing reads.

A misspelt name causes no error: the switch stays as it was. Only names that resemble a known name are reported; any other name
may belong to a library that is not listed here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from precflow.agent.variables import RECORDED, SETTABLE
from precflow.config.schema import RunConfig
from precflow.config.suggestions import find_near

# Known names are those that are recorded, those that a recipe may set, and a few that other libraries read.
_OTHERS = (
    "HF_HOME HF_DATASETS_OFFLINE TORCHINDUCTOR_CACHE_DIR NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES NVIDIA_REQUIRE_CUDA"
)
_TOO_COMMON = {"LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH"}  # other systems have variables with names like these
KNOWN = (RECORDED | SETTABLE | frozenset(_OTHERS.split())) - _TOO_COMMON
_NEAR = 0.9  # similarity by difflib; one wrong letter in ten or more still has it
_LONG = 8  # letters; shorter names resemble one another by chance
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Misspelt:
    """A variable that is set and that nothing reads.

    Attributes:
        name: As it is set.
        meant: The known name that it resembles.
        value: What it is set to.
    """

    name: str
    meant: str
    value: str

    @property
    def text(self) -> str:
        """One line: ``HCCL_DETERMINISITIC is set, but nothing reads it: did you mean HCCL_DETERMINISTIC?``."""
        return f"{self.name} is set, but nothing reads it: did you mean {self.meant}?"


def find_misspelt(variables: Mapping[str, str]) -> list[Misspelt]:
    """Return the variables whose names are unknown and resemble a known name, sorted by name."""
    resembled = ((name, _find_resembled(name)) for name in sorted(variables) if name not in KNOWN)
    return [Misspelt(name, meant, variables[name]) for name, meant in resembled if meant]


def describe_misspelt(config: RunConfig, inherited: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable with a misspelt name that a side would get.

    Args:
        config: The composed recipe, whose sides set variables.
        inherited: Variables of this process, which the sides inherit.
    """
    given = {"reference": config.reference.variables, "target": config.target.variables}
    named = [(f"{side}.variables.{wrong.name}", wrong) for side in given for wrong in find_misspelt(given[side])]
    named += [(wrong.name, wrong) for wrong in find_misspelt(inherited)]
    return [f"{key}: nothing reads a variable of this name. Did you mean  {wrong.meant} ?" for key, wrong in named]


@functools.lru_cache(maxsize=1024)  # a run looks at the variables of both sides, and of each change that it proposes
def _find_resembled(name: str) -> str:
    """Return the known name that a name may be a misspelling of, ``""`` if there is none."""
    if len(name) < _LONG or name != name.upper():
        return name.upper() if name.upper() in KNOWN and "_" in name else ""  # hccl_deterministic, in small letters
    family = name.partition("_")[0]  # HCCL of HCCL_DETERMINISTIC; if no known name has it, the family itself may be misspelt
    relatives = [known for known in KNOWN if known.partition("_")[0] == family]
    near = find_near(name, relatives or KNOWN, most=1, alike=_NEAR)
    if not near:
        return ""
    # Another number in a known name, or a known name with another word behind it, is a variable of its own.
    known = near[0]
    is_numbered = _DIGITS.sub("", name) == _DIGITS.sub("", known)
    is_sibling = is_numbered or name.startswith(f"{known}_") or known.startswith(f"{name}_")
    return "" if is_sibling else known
