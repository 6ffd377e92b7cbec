"""Everything that can stop precflow, as one tree.

    PrecflowError                what could not be done; cli.py prints it and returns exit code 2
    ├── ConfigError              a recipe, a site file or the command line is not usable (carries all problems at once)
    ├── TrustError               a recipe asks for code that the user has not trusted
    ├── DumpError                a dump is missing, torn, unsealed, or not what its header says
    ├── CurveError               a log of a training run cannot be read as the curve that is asked for
    ├── SideError                an agent crashed, hung or refused; carries the last lines of its log
    ├── StoreError               a run folder or store cannot be read or written (read-only, full, unknown)
    ├── BusyError                another live process works on the same stage instance
    ├── ExecutorError            the cluster that should compare is not there, or its workers die
    └── MissingExtraError        an optional library is not installed

Each message says what was wrong, what was expected, and the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from precflow.breakdown import Breakdown


class PrecflowError(Exception):
    """Base of all errors that precflow explains to its user.

    Args:
        message: What went wrong, in one or more sentences.
        next_step: What to do about it, ideally a command line to try.
    """

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.context: list[str] = []

    def within(self, place: str) -> PrecflowError:
        """Add where it happened, from the inside out, and return the same error."""
        self.context.append(place)
        return self

    def __str__(self) -> str:
        where = "".join(f"\n   {place}" for place in self.context)
        step = f"\n   {self.next_step}" if self.next_step else ""
        return f"{self.message}{where}{step}"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a configuration.

    Attributes:
        place: ``file:line``, or ``command line``.
        key: Dotted key, or the words that were typed.
        message: What is wrong and what is expected, and a similar name that may be meant.
    """

    place: str
    key: str
    message: str


class ConfigError(PrecflowError):
    """A recipe, a site file or the command line is not usable; all problems are collected first."""

    def __init__(self, message: str, *, problems: Sequence[Problem] = (), next_step: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        width = max((len(problem.key) for problem in self.problems), default=0)
        rows = "".join(f"\n   {p.key:<{width}}   {p.message}" + (f"   ({p.place})" if p.place else "") for p in self.problems)
        step = f"\n {self.next_step}" if self.next_step else ""
        return f"{self.message}{rows}{step}"


class TrustError(ConfigError):
    """A recipe names a ``_target_`` or a ``hydra:`` section that the user has not trusted."""


class DumpError(PrecflowError):
    """A dump is missing, torn, unsealed, or not what its header says."""


class CurveError(PrecflowError):
    """A log of a training run cannot be read as the curve that is asked for."""


class SideError(PrecflowError):
    """An agent crashed, hung or refused to work.

    Args:
        message: What happened to the side.
        log: The last lines that the agent wrote.
        kind: Why the agent refused, in a word of its own (``KINDS`` of ``precflow.agent.failures``); ``""`` if it died, hung or
            was never started. An agent that refuses has answered; one that died has said nothing about what it was asked.
        breakdown: Where it broke, if the side got as far as running its workload.
    """

    def __init__(
        self,
        message: str,
        *,
        log: Sequence[str] = (),
        next_step: str = "",
        kind: str = "",
        breakdown: Breakdown | None = None,
    ) -> None:
        super().__init__(message, next_step=next_step)
        self.log = tuple(log)
        self.kind = kind
        self.breakdown = breakdown

    def __str__(self) -> str:
        rows = self.breakdown.rows() if self.breakdown is not None else []
        width = max((len(label) for label, _ in rows), default=0)
        known = "".join(f"\n   {label:<{width}}   {text}" for label, text in rows)
        lines = "".join(f"\n   | {line}" for line in self.log)
        return self.message + known + super().__str__()[len(self.message) :] + lines


class StoreError(PrecflowError):
    """A run folder or store cannot be read or written."""


class BusyError(PrecflowError):
    """Another live process works on the same stage instance."""


class ExecutorError(PrecflowError):
    """The cluster that should compare the tensors is not there, is of another version, or its workers die."""


class MissingExtraError(PrecflowError):
    """An optional library is needed and not installed.

    Args:
        library: What could not be imported.
        extra: The extra of precflow that brings it.
    """

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"{library} is not installed", next_step=f"pip install 'precflow[{extra}]'")
