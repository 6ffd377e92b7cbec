"""The reference's choices, listed for a run that is given them in place of its own (what-if ``reference_choice``).

What depends on a near tie cannot be compared. If the target goes on with the reference's choice instead, everything behind is
computed from the same choices on both sides, and is compared like any other record. The agent's part is
``agent/session/given_choices.py``: it records the run's own choice first, so that each choice is judged as well.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from precflow.agent.contract import FORWARD
from precflow.diagnosis.evaluation import locate_all
from precflow.dumps.dtypes import is_floating
from precflow.dumps.protocol import Dump
from precflow.dumps.requests import CHOICES
from precflow.judgement import near_ties


def write_choices(path: Path, reference: Dump) -> int:
    """Write where the choices of the reference's forward pass lie, and return how many there are.

    Args:
        path: The file.
        reference: Dump of the reference. A choice that it did not keep cannot be given. If it keeps the tensors of some calls
            only, these may be others in a second pass, so that what is given are the choices that every pass keeps.
    """
    keeps_all = reference.header.capture.get("detail") == "tensors"
    choices: list[dict[str, Any]] = []
    for call in reference.calls():
        name = call.operator
        chooses = near_ties.is_known(name) or near_ties.is_draw(name) if keeps_all else near_ties.base_name(name) in CHOICES
        if call.phase != FORWARD or not name or call.movement or not chooses:
            continue
        chosen = [one for one in call.outputs if near_ties.is_rounding(name) or not is_floating(one.dtype)]
        for record, tensor in zip(chosen, locate_all(reference, chosen, moved=False), strict=False):
            if tensor is None:
                break
            dimension = near_ties.find_dimension(name, call.arguments) if near_ties.is_selection(name) else None
            choices.append({"record": record.text, "dimension": dimension, "tensor": tensor})
    path.write_text(json.dumps({"choices": choices}), encoding="utf-8")
    return len(choices)
