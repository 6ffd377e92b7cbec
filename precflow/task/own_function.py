"""A task metric that is a function of the user's own: ``function: {_target_: our_metrics.clip_score}``.

The function is called with one sample of both sides, ``function(reference, target, **arguments)``. Both are arrays without the
axis of samples, read-only; of floating point they come as float64. It returns a number, or two: its value of the reference
and its value of the target.
"""

from __future__ import annotations

import importlib
import math
import numbers
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from precflow.agent.contract import is_trusted
from precflow.config.sections.task_metrics_section import TARGET
from precflow.dumps.protocol import Array
from precflow.errors import ConfigError, TrustError
from precflow.task.outputs import NotComputableError

Values = tuple[float, ...]  # one of the pair, or one of each side


def load(name: str, declared: Mapping[str, Any], trusted: Sequence[str], import_paths: Sequence[str]) -> Callable[..., Any]:
    """Import a function.

    Args:
        name: Name of the metric.
        declared: Its section ``function``.
        trusted: Packages that it may come from.
        import_paths: Folders where it is looked for, after the interpreter's own.

    Raises:
        TrustError: It comes from a package that the user has not trusted.
        ConfigError: There is no such function.
    """
    key, target = f"task_metrics.{name}.function", str(declared.get(TARGET, ""))
    if not is_trusted(key, target, trusted):
        package = target.partition(".")[0]
        raise TrustError(f"{key}: {target} is not trusted", next_step=f"if you trust {package}:  PRECFLOW_TRUST={package}")
    sys.path += [path for path in import_paths if path not in sys.path]
    module, _, attribute = target.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise ConfigError(
            f"{key}: there is no {target}: {type(error).__name__}: {error}",
            next_step="the folder of the module belongs on PYTHONPATH",
        ) from error
    if not callable(function):
        raise ConfigError(f"{key}: {target} is {type(function).__name__}; expected a function of two arrays")
    return function  # type: ignore[no-any-return]  # whatever it is, it can be called


def call(function: Callable[..., Any], arguments: Mapping[str, Any], reference: Array, target: Array, sample: int) -> Values:
    """Return what a function says of a sample.

    Raises:
        NotComputableError: It raised, or did not return one or two finite numbers.
    """
    for side in (reference, target):
        side.flags.writeable = False
    try:
        found = function(reference, target, **arguments)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}".rstrip(": ")
        raise NotComputableError(f"the function raised {raised} at sample {sample}") from error
    values = found if isinstance(found, (tuple, list)) else (found,)
    if len(values) not in {1, 2} or not all(isinstance(one, numbers.Real) and not isinstance(one, bool) for one in values):
        said = f"{found!r:.80}"
        raise NotComputableError(
            f"the function returned {said} at sample {sample}; expected a number, or two: of the reference and of the target"
        )
    plain = tuple(float(one) for one in values)
    if not all(map(math.isfinite, plain)):
        raise NotComputableError(f"the function returned {found!r:.80} at sample {sample}, which is not finite")
    return plain
