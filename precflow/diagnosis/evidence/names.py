"""All evidence that a rule may use, by name.

A rule that uses any other name is refused when it is loaded. What a piece of evidence means stands in the module that gathers
it, as ``EVIDENCE``. A new piece is best a module of its own, see :mod:`precflow.diagnosis.evidence.pieces`: those are found.
"""

from __future__ import annotations

from precflow.diagnosis import dropped_steps
from precflow.diagnosis.evidence import collect, communication, in_place, run, suspect, training
from precflow.diagnosis.evidence.overflows import overflow, skipped_steps
from precflow.diagnosis.evidence.pieces import Evidence, list_of_run, list_of_suspect
from precflow.diagnosis.training import updates

_OF_RUN: dict[str, Evidence] = {
    **collect.EVIDENCE_OF_RUN,
    **run.EVIDENCE,
    **communication.EVIDENCE_OF_RUN,
    **overflow.EVIDENCE,
    **dropped_steps.EVIDENCE,
    **skipped_steps.EVIDENCE,
    **updates.EVIDENCE,
    **training.EVIDENCE,
    **{name: one for piece in list_of_run() for name, one in piece.evidence.items()},
}
_OF_SUSPECT: dict[str, Evidence] = {
    **collect.EVIDENCE_OF_SUSPECT,
    **communication.EVIDENCE_OF_SUSPECT,
    **suspect.EVIDENCE,
    **in_place.EVIDENCE,
    **{name: one for piece in list_of_suspect() for name, one in piece.evidence.items()},
}
EVIDENCE = _OF_RUN | _OF_SUSPECT
"""Name -> label and meaning. Names of a suspect are known only in rules about one."""
OF_SUSPECT = frozenset(_OF_SUSPECT)
