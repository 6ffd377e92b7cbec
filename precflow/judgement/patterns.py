"""Patterns over records: which records a tolerance rule or an accepted difference is about."""

from __future__ import annotations

import functools
import re
from fnmatch import translate

from precflow.agent.contract import ROOT_MODULE, module_text
from precflow.comparison.measure import Measure


def matches(measure: Measure, pattern: str, phase: str = "") -> bool:
    """Tell whether a pattern covers a record.

    Args:
        measure: The record.
        pattern: Shell pattern (``* ? [abc]``), upper and lower case distinguished, over the module path
            (``encoder.layers.0.mlp``) or over ``module / operator``. ``*.norm`` covers a module ``norm`` at the top too.
        phase: ``forward``...; ``""`` is every phase.
    """
    if phase not in ("", measure.phase):
        return False
    module = measure.module if measure.module != ROOT_MODULE else module_text(ROOT_MODULE)
    owner = measure.record.partition("/")[0]  # with the number of its call: "layers.0~1"
    shown = f"{owner} / {measure.operator}" if measure.operator else owner
    # The root module has no path (""); it is matched by the name that screens show. People write "fc/linear" as well as
    # "fc / linear".
    names = {module, shown, shown.replace(" / ", "/")}
    # The dot in front lets "*.norm" match "norm" at the top, and "norm" itself match nothing deeper.
    compiled = _compile(pattern)
    return any(compiled.fullmatch(name) or compiled.fullmatch(f".{name}") for name in names)


@functools.lru_cache(maxsize=1024)  # every record is held against every pattern of the recipe
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))
