"""A tensor that came to a suspect from outside of everything recorded: noise that a loop draws, a table that a script makes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from precflow.agent.contract import parse_identity
from precflow.diagnosis.evidence.input_changes import LARGEST, find_input_change
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.dumps.batches import is_whole
from precflow.dumps.dtypes import is_floating
from precflow.errors import DumpError

if TYPE_CHECKING:
    from precflow.diagnosis.comparison import Comparison
    from precflow.diagnosis.evidence.tensors import ObservedCall
    from precflow.dumps.protocol import Dump
    from precflow.dumps.records import Record

EVIDENCE = {
    "given_tensor": Evidence(
        "given otherwise",
        "An input that differs, that no recorded call made, and before which nothing fails; absent without one.",
    ),
    "given_change": Evidence("what gives it from the reference's", "In words; empty if nothing that can be named does."),
    "given_error": Evidence("its difference", "Relative L2; absent if its tensors were not kept."),
    "given_draws": Evidence(
        "random numbers on both sides",
        "They are distributed alike, and do not depend on each other or are the same ones elsewhere.",
    ),
}

_LEAST = 64  # numbers whose distribution is looked at
_DEVIATIONS = 5.0  # of a mean, a spread or a correlation of so many random numbers

_Numbers = npt.NDArray[np.float64]


def gather(run: Comparison, call: ObservedCall) -> dict[str, Any]:
    """Return which input it is and how it differs; nothing for other suspects."""
    suspect = call.suspect
    if not suspect.given:
        return {}
    one, two = (_find_record(dump, suspect.arrives) for dump in (run.reference, run.target))
    found: dict[str, Any] = {"given_tensor": f"input {parse_identity(suspect.given).index}", "given_change": ""}
    if one is None or two is None or not (is_whole(one) and is_whole(two)):
        return found
    if max(math.prod(one.shape), math.prod(two.shape)) > LARGEST:
        return found
    try:
        here, there = run.reference.tensor(one), run.target.tensor(two)
    except DumpError:  # it cannot be read, so nothing more is known of it
        return found
    change = find_input_change(here, there)
    found["given_change"] = change.text if change is not None else ""
    if is_floating(one.dtype) and is_floating(two.dtype):
        found |= _compare(np.asarray(here, np.float64).ravel(), np.asarray(there, np.float64).ravel(), change is not None)
    return found


def _find_record(dump: Dump, text: str) -> Record | None:
    """Return an input by its identity."""
    name = parse_identity(text)
    for call in dump.calls():
        if (call.module, call.operator, call.step, call.rank) == (name.module, name.operator, name.step, name.rank):
            for record in call.inputs:
                if record.identity == name:
                    return record
    return None


def _compare(here: _Numbers, there: _Numbers, is_explained: bool) -> dict[str, Any]:  # noqa: FBT001  private
    """Return how far two tensors are apart, and whether both are random numbers."""
    found: dict[str, Any] = {}
    size = float(np.linalg.norm(here))
    if here.shape != there.shape or not size or not (np.isfinite(here).all() and np.isfinite(there).all()):
        return found
    found["given_error"] = float(np.linalg.norm(there - here)) / size
    if is_explained or here.size < _LEAST or not (_are_normal(here, there) or _are_uniform(here, there)):
        return found
    if np.array_equal(np.sort(here), np.sort(there)):
        return found | {"given_change": "the same random numbers at other places", "given_draws": True}
    correlation = float(np.corrcoef(here, there)[0, 1])
    if abs(correlation) * math.sqrt(here.size) <= _DEVIATIONS:
        found |= {"given_change": "other random numbers of the same distribution", "given_draws": True}
    return found


def _are_normal(*sides: _Numbers) -> bool:
    """Tell whether tensors look like draws with mean 0 and deviation 1."""
    bound = _DEVIATIONS / math.sqrt(sides[0].size)
    return all(abs(side.mean()) <= bound and abs(side.std() - 1.0) <= bound for side in sides)


def _are_uniform(*sides: _Numbers) -> bool:
    """Tell whether tensors look like draws between 0 and 1."""
    bound = _DEVIATIONS / math.sqrt(12 * sides[0].size)
    return all(
        side.min() >= 0.0 and side.max() <= 1.0 and abs(side.mean() - 0.5) <= bound and abs(side.std() - 12**-0.5) <= bound
        for side in sides
    )
