"""How the target's weights come from the reference's: through a type of fewer bits, transposed, scaled, in another order.

A checkpoint is saved in bfloat16 and loaded into float32, a matrix is copied from a framework that stores it the other way
round, two matrices or two ranks' shards change places: each gives the target's weight from the reference's, and names the line
of the conversion that does it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from precflow.agent.contract import GRADIENT, OPTIMIZER, join_names
from precflow.diagnosis.evidence.input_changes import LARGEST, find_input_change
from precflow.diagnosis.evidence.pieces import Evidence
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.environment.reproduction import find_different
from precflow.errors import DumpError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from precflow.diagnosis.comparison import Comparison
    from precflow.dumps.header import ContentEntry
    from precflow.dumps.protocol import Dump
    from precflow.dumps.records import Record

EVIDENCE = {
    "weight_change": Evidence(
        "what gives these weights from the reference's",
        "In words, the first of them; absent if one of the weights that differ is not explained so.",
    ),
    "weight_changes": Evidence("weights and what gives them", "Up to five."),
    "weights_narrow": Evidence(
        "one side has values of that type", "All bits that this type lacks are zero there, of the first weights that were kept."
    ),
    "weights_untrained": Evidence(
        "of models that no optimizer trains",
        "All weights that differ are, beside a trained model: a script may fill them itself, with an average of others.",
    ),
    "weights_rounded": Evidence(
        "equal after rounding", "All weights that differ are the same after rounding to a type of fewer bits."
    ),
}

_NARROW = ("float16", "bfloat16")  # the one with more bits of a value first
_READ = 8  # most weights whose tensors are read
_SHOWN = 5


def gather(run: Comparison) -> dict[str, Any]:
    """Return what explains every weight that differs; nothing if one is not explained, or only one side has it."""
    here, there = run.reference.header.weights, run.target.header.weights
    if not (here.digest and there.digest) or here.digest == there.digest:
        return {}
    names = find_different(here, there)
    if not names or any(name not in here.entries or name not in there.entries for name in names):
        return {}
    rounded = {name: _find_rounding(here.entries[name], there.entries[name]) for name in names}
    owners: dict[str, list[str]] = {}
    for name, entry in here.entries.items():
        owners.setdefault(entry.content, []).append(name)
    changes = {name: change or _find_owner(there.entries[name], owners) for name, change in rounded.items()}
    left = [name for name, change in changes.items() if not change]
    if len(left) > _READ:
        return {}
    for name in left:
        changes[name] = _find_change(run, name)
        if not changes[name]:
            return {}
    return {
        "weight_change": changes[names[0]],
        "weight_changes": [f"{name}: {changes[name]}" for name in names[:_SHOWN]],
        "weights_untrained": _are_untrained(run, names),
        "weights_rounded": all(rounded.values()),
        "weights_narrow": all(rounded.values()) and any(_are_narrow(dump, names) for dump in (run.reference, run.target)),
    }


def _find_rounding(here: ContentEntry, there: ContentEntry) -> str:
    """Return after which rounding two weights of one type are the same, in words; ``""`` if that is not known."""
    for narrow in _NARROW:
        if here.dtype == there.dtype and here.rounded.get(narrow) and here.rounded[narrow] == there.rounded.get(narrow):
            return f"equal after rounding to {narrow}"
    return ""


def _are_untrained(run: Comparison, names: Sequence[str]) -> bool:
    """Tell whether weights are of models that no optimizer trains, while it trains another one."""
    trained = {
        join_names(call.module, call.outputs[0].index).partition(".")[0]
        for dump in (run.reference, run.target)
        for call in dump.calls()
        if call.phase in {GRADIENT, OPTIMIZER} and call.outputs
    }
    return bool(trained) and not any(name.partition(".")[0] in trained for name in names)


def _are_narrow(dump: Dump, names: Sequence[str]) -> bool:
    """Tell whether the first weights that a dump holds have values of a type of fewer bits."""
    records = [record for record in (_find_record(dump, name) for name in names[:_READ]) if record is not None]
    try:
        values = [np.asarray(dump.tensor(record), np.float64) for record in records]
    except DumpError:
        return False
    with np.errstate(all="ignore"):
        return bool(values) and any(
            all(np.array_equal(one, one.astype(NUMPY_DTYPES[narrow]).astype(np.float64)) for one in values)
            for narrow in _NARROW
        )


def _find_owner(there: ContentEntry, owners: Mapping[str, Sequence[str]]) -> str:
    """Return which other weight of the reference a matrix is, in words; ``""`` if it is none. Vectors of ones are alike."""
    names = owners.get(there.content, ())
    return f"it is {names[0]} there" if len(names) == 1 and len(there.shape) > 1 else ""


def _find_change(run: Comparison, name: str) -> str:
    """Return what gives a weight of the target from the reference's, in words; ``""`` if nothing does, or it was not kept."""
    one, two = (_find_record(dump, name) for dump in (run.reference, run.target))
    if one is None or two is None or max(math.prod(one.shape), math.prod(two.shape)) > LARGEST:
        return ""
    try:
        change = find_input_change(run.reference.tensor(one), run.target.tensor(two))
    except DumpError:
        return ""
    return "" if change is None else change.text


def _find_record(dump: Dump, name: str) -> Record | None:
    """Return a record that holds a weight as it was at the start."""
    content = dump.header.weights.entries[name].content
    for call in dump.calls():
        for record in call.inputs:
            if record.weight == name and record.stored and not record.part and record.content == content:
                return record
    return None
