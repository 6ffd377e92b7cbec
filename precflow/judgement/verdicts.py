"""Statuses of records and the verdict of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from precflow.environment.changes import RunChange

STATUSES = (
    "pass",
    "fail",
    "blind",
    "accepted",
    "unpaired_reference",
    "unpaired_target",
    "covered",  # it has no partner, and a module around it was compared
    "shape",
    "dtype",
    "nonfinite",
    "unreadable",
    "undecided",  # too little was kept of it to tell whether it stays within its limits
    "artefact",  # one side did not compute it: it warms up, or rows of padding alone differ
    "near_tie",  # a choice that differs because the values chosen between are nearer than their noise
    "not_comparable",  # it depends on a near tie
    "sampled_out",
    "not_judged",  # movement, inputs, integers of an operator's own: shown, never counted
)
# Reason of a pass that its limits do not give: they are so wide that nothing could fail.
BY_BITS = "equal bit for bit; its limits prove nothing"
MISALIGNED_STATUSES = frozenset({"fail", "shape", "dtype", "nonfinite"})
INCOMPLETE_STATUSES = frozenset({"unpaired_reference", "unpaired_target", "unreadable", "undecided", "artefact"})
VERDICTS = ("aligned", "misaligned", "inconclusive")
AS_IS_STATES = ("not_run", "agrees", "differs", "not_comparable", "failed")
EXIT_CODES = {"aligned": 0, "misaligned": 1, "inconclusive": 3}  # 2 says that the program could not do its work


@dataclass(frozen=True, slots=True)  # slots: there may be a million of them
class Judged:
    """One record's status, and the condition that decided it.

    Attributes:
        record: Identity text.
        status: One of ``STATUSES``.
        metric: Metric of the tightest condition.
        value: Its value.
        limit: Its limit.
        ratio: How much of the limit is used; above 1 fails. For "at least" metrics ``(1 - value) / (1 - limit)``.
        standard: Where the limit comes from: a standard's name, ``tolerance``, or the pattern of a rule.
        reason: In words, for every status but ``pass``, which has one if it passes ``BY_BITS``.
        floor: Noise floor in ``metric`` that the limit was made of; ``None`` for a fixed limit.
    """

    record: str
    status: str
    metric: str = ""
    value: float = 0.0
    limit: float = 0.0
    ratio: float = 0.0
    standard: str = ""
    reason: str = ""
    floor: float | None = None


@dataclass(frozen=True)
class AsIsStep:
    """One step of the two runs in which the recipe changed nothing.

    Attributes:
        step: Number of the step, from 0.
        reference: Its loss on the reference; ``None`` if no loss was seen.
        target: The same on the target.
        loss: Difference of the losses, relative to the larger one; ``None`` without losses.
        loss_limit: How far apart they may be.
        gradients: ``relative_l2`` of all gradients together; ``None`` if the sides do not have the same.
        gradients_limit: How far apart they may be.
        noise: The larger of what ``loss`` and ``gradients`` are between two such runs of one side; ``None`` if none was made.
    """

    step: int
    reference: float | None = None
    target: float | None = None
    loss: float | None = None
    loss_limit: float = 0.0
    gradients: float | None = None
    gradients_limit: float = 0.0
    noise: float | None = None


@dataclass(frozen=True)
class AsIs:
    """What was seen of both sides when each was run once more as it is: without what the recipe changes.

    Attributes:
        state: One of ``AS_IS_STATES``.
        text: That in words, as it follows a verdict; ``""`` if there is nothing to say.
        steps: The steps that were compared.
    """

    state: str = "not_run"
    text: str = ""
    steps: tuple[AsIsStep, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """Outcome of a run.

    Attributes:
        verdict: ``aligned``, ``misaligned`` or ``inconclusive``.
        reasons: Why, most important first; empty for ``aligned``.
        counts: Status -> number of records.
        coverage: Share of judgeable records that were compared, or are covered by a module that was, 0 to 1.
        compared: Records compared.
        total: Records that should have been compared.
        could_fail: Compared records whose limit could have failed (not blind).
        estimated: Compared records that differ and were judged by sketches or statistics, without their tensors.
        sampled: Share of the elements of the compared records that was looked at; below 1 for slices and samples.
        standards: Standard or plain limit, as shown -> met.
        not_applied: Standard -> why nothing could be held to it, or not enough. Such a standard is not met.
        sources: Published standard -> where its numbers come from, with the date.
        closest: Record with the highest ratio among the passing ones, or ``""``.
        unseen: What ran in compiled code and could not be compared inside, in words.
        warnings: Things a reader must know that do not change the verdict.
        changes: What the recipe changed in what ran; the verdict is that of the changed runs.
        links: What was seen of each link of a converted model, in words; none for sides that run in torch.
        as_is: What comparing runs without those changes has shown.
    """

    verdict: str
    reasons: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    coverage: float = 0.0
    compared: int = 0
    total: int = 0
    could_fail: int = 0
    estimated: int = 0
    sampled: float = 1.0
    standards: Mapping[str, bool] = field(default_factory=dict)
    not_applied: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    closest: str = ""
    unseen: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    changes: tuple[RunChange, ...] = ()
    links: tuple[str, ...] = ()
    as_is: AsIs = field(default_factory=AsIs)


def describe_not_applied(standard: str, why: str) -> str:
    """Return the reason that stands in a verdict for a standard that was not applied, or not in full."""
    return f"standard {standard} was not applied in full: {why}"
