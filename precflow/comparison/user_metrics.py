"""Metrics of the user's own: a class that is fed with blocks, and one line of YAML.

    metrics:
      sign_flips: {_target_: our_metrics.SignFlips}

The class gets every pair of tensors block by block. A large tensor is cut into parts; each part has its own object, and these
are merged, so it works for tensors of any size and under any executor. Its value is an error: 0 is perfect, more is worse. Its
row, which says so to everything else, comes from :func:`precflow.metrics.find_metric`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt

from precflow.agent.contract import is_trusted
from precflow.comparison.fused.value_classes import widen
from precflow.dumps.dtypes import is_floating, name_of
from precflow.errors import ConfigError, TrustError

Values = npt.NDArray[Any]
_TARGET = "_target_"
BLOCK = 1 << 17  # elements of a block; the last one of a part may be shorter


class BlockMetric(Protocol):
    """The methods of such a class; one object is made for each part of a pair."""

    def update(self, reference: Values, target: Values) -> None:
        """Take one block: equally many elements of both sides, read-only, one axis.

        Floating point types come as float64, complex numbers as pairs of them, integers and booleans as they are. NaN,
        infinities and mask fills are included.
        """

    def merge(self, other: Any) -> None:
        """Add what another object of the class has seen: a later part of the same pair."""

    def value(self) -> float:
        """Return the metric of all that was seen: 0 is perfect, more is worse."""


MetricMakers = Mapping[str, Callable[[], BlockMetric]]


@dataclass(frozen=True)
class DeclaredMetrics:
    """The user's metrics as a recipe declares them: plain data that can be sent to other processes.

    Attributes:
        metrics: Name -> ``_target_`` and arguments of the class.
        trusted: Packages that classes may come from.
        import_paths: Folders where they are looked for, after the interpreter's own.
    """

    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trusted: tuple[str, ...] = ()
    import_paths: tuple[str, ...] = ()

    def load(self) -> MetricMakers:
        """Import the classes, and return name -> function that makes an object.

        Raises:
            TrustError: A class comes from a package that the user has not trusted.
            ConfigError: There is no such class, it does not take its arguments, or it lacks a method.
        """
        return {name: self._make_maker(name, declared) for name, declared in self.metrics.items()}

    def _make_maker(self, name: str, declared: Mapping[str, Any]) -> Callable[[], BlockMetric]:
        target = str(declared.get(_TARGET, ""))
        if not is_trusted(f"metrics.{name}", target, self.trusted):
            next_step = f"if you trust {target.partition('.')[0]}:  PRECFLOW_TRUST={target.partition('.')[0]}"
            raise TrustError(f"metrics.{name}: {target} is not trusted", next_step=next_step)
        arguments = {key: value for key, value in declared.items() if key != _TARGET}
        module, _, attribute = target.rpartition(".")
        sys.path += [path for path in self.import_paths if path not in sys.path]
        try:
            kind = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"metrics.{name}: there is no {target}: {error}", next_step="the folder of the module belongs on PYTHONPATH"
            ) from error
        try:  # now, and not in the middle of a comparison that takes an hour
            metric = kind(**arguments)
        except Exception as error:
            raise ConfigError(f"metrics.{name}: {target} cannot be made: {_describe_error(error)}") from error
        missing = [method for method in ("update", "merge", "value") if not callable(getattr(metric, method, None))]
        if missing:
            raise ConfigError(f"metrics.{name}: {target} lacks {', '.join(missing)}", next_step="see docs/metrics.md")
        return functools.partial(kind, **arguments)


class MetricTally:
    """The user's metrics over a part of one pair. If a class raises, its metric is dropped and the others continue.

    Args:
        makers: What :meth:`DeclaredMetrics.load` returned.
    """

    def __init__(self, makers: MetricMakers) -> None:
        self._failed: dict[str, str] = {}
        self._objects: dict[str, BlockMetric] = {}
        for name, make in makers.items():
            with self._catch(name):
                self._objects[name] = make()

    def read(self, reference: Values, target: Values) -> None:
        """Feed a range of both sides, flat and equally long, block by block."""
        for start in range(0, reference.size if self._objects else 0, BLOCK):
            block = []
            for side in (reference, target):
                part = side[start : start + BLOCK]
                values = widen(part) if is_floating(name_of(part.dtype)) else part.view()
                values.flags.writeable = False  # a class that changed it would change what the next class is given
                block.append(values)
            for name, metric in tuple(self._objects.items()):
                with self._catch(name):
                    metric.update(*block)

    def merge(self, other: MetricTally) -> None:
        """Add what was seen of a later part."""
        for name, metric in tuple(self._objects.items()):
            if name in other._failed:
                self._fail(name, other._failed[name])
                continue
            with self._catch(name):
                metric.merge(other._objects[name])

    def values(self) -> tuple[dict[str, float], dict[str, str]]:
        """Return the numbers by name, and the reason for each metric without one."""
        numbers: dict[str, float] = {}
        for name, metric in tuple(self._objects.items()):
            with self._catch(name):
                numbers[name] = float(metric.value())
        return numbers, dict(self._failed)

    @contextlib.contextmanager
    def _catch(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  the user's code may raise anything, and the other metrics go on
            self._fail(name, f"it raised {_describe_error(error)}")

    def _fail(self, name: str, reason: str) -> None:
        self._objects.pop(name, None)
        self._failed[name] = reason


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
