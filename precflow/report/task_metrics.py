"""Words and rows of task metrics for the page."""

from __future__ import annotations

from collections.abc import Iterator

from precflow import numbers
from precflow.task.outcome import TaskOutcome
from precflow.task.scores import Text

Token = tuple[int, bool, bool]  # the token, whether it differs, whether it is the first that does


def describe_worst(outcome: TaskOutcome) -> str:
    """Return the worst sample of a metric; ``""`` where there is one sample, or where samples are the same or not."""
    if outcome.worst is None or outcome.samples < 2 or (outcome.unit == "share" and outcome.worst in {0, 1}):
        return ""
    value = numbers.share(outcome.worst) if outcome.unit == "share" else numbers.number(outcome.worst)
    return f"{value} (no. {outcome.worst_sample})"


def lay_out_text(text: Text) -> Iterator[tuple[str, list[Token]]]:
    """Yield both sides of a text, token by token."""
    differs = [here != there for here, there in zip(text.reference, text.target, strict=True)]
    for side, tokens in (("reference", text.reference), ("target", text.target)):
        marked = enumerate(zip(tokens, differs, strict=True), start=text.start)
        yield side, [(token, other, place == text.first) for place, (token, other) in marked]
