"""Which suspects causes are looked for at: one of each kind before a second of one, because each may have its own cause."""

from __future__ import annotations

from collections.abc import Sequence

from precflow.agent.contract import OPTIMIZER, parse_identity
from precflow.diagnosis.findings import Suspect

FEWEST, MOST = 3, 8
"""Suspects that are examined where there are so many: three of one kind, and up to eight of as many kinds."""


def choose_examined(suspects: Sequence[Suspect]) -> list[Suspect]:
    """Return the suspects to examine, in their order: the first of each kind, and more of them while there are less than three.

    A kind is an operator in a class of modules, in one phase: twenty-five layer norms with another epsilon are one, the linear
    layer that is wrong among them another.
    """
    first = {find_kind(suspect): suspect.record for suspect in reversed(suspects)}
    wanted = {suspect.record for suspect in suspects if first[find_kind(suspect)] == suspect.record}
    kinds = [suspect for suspect in suspects if suspect.record in wanted][:MOST]
    others = [suspect for suspect in suspects if suspect.record not in wanted][: max(0, FEWEST - len(kinds))]
    chosen = {suspect.record for suspect in (*kinds, *others)}
    return [suspect for suspect in suspects if suspect.record in chosen]


def find_kind(suspect: Suspect) -> tuple[str, str, str]:
    """Return an operator, the class of its module, and the phase; one optimizer updates the weights of all classes."""
    phase = parse_identity(suspect.record).phase
    return suspect.operator, "" if phase == OPTIMIZER else suspect.class_name, phase
