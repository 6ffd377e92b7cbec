"""What a script's model was given on both sides: the same batches, or others?

The inputs of a script's model are read on its device, and a script may have computed them there: the noisy images of
a diffusion model, what a generator hands to its critic. Such inputs differ by rounding on every pair of devices, and
still are the same batch. Token ids, labels and other whole numbers have to be equal.

A loop of one's own may hand its model what the model made before: a memory, or the sample that a scheduler computes from the
last one. So there only the inputs of the first call have to be the same numbers.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow import keys
from precflow.agent.contract import FORWARD
from precflow.dumps.dtypes import is_floating
from precflow.dumps.header import ContentEntries, ContentEntry
from precflow.dumps.reader import Dump
from precflow.dumps.records import Record
from precflow.errors import DumpError

# Other batches differ by a relative L2 of about 1.4 if they are independent, and by 0.5 and more if they are alike (images of
# one data set). Rounding in bfloat16 is 0.004 an operator.
LARGEST_ROUNDING = 0.1
_READ_AT_CALL = re.compile(r"(rank\d+\.)?step(?P<step>\d+)\.(?P<later>call\d+\.)?")
_MOMENTS = 1e-3  # of sums and norms, in which rounding averages out


def align_inputs(reference: Dump, target: Dump) -> Dump:
    """Return the target's dump with the reference's entries for inputs that differ by no more than rounding.

    Of a workload every input has to be equal. Dumps whose inputs are equal already come back as they are.
    """
    here, there = reference.header, target.header
    if here.inputs.digest == there.inputs.digest:
        return target
    of_scripts = bool(here.script and there.script)
    rounded = {
        name: here.inputs.entries[name]
        for name in _find_rounded(reference, target)
        if of_scripts or _is_behind_a_call(name, here.inputs.entries)
    }
    if not rounded:
        return target
    entries = {**there.inputs.entries, **rounded}
    # The agent's digest is over names and contents, so equal entries have the reference's.
    digest = here.inputs.digest if entries == here.inputs.entries else keys.digest(sorted(map(str, entries.items())))
    seen = copy.copy(target)
    seen.header = replace(there, inputs=ContentEntries(digest, entries))
    return seen


def _find_rounded(reference: Dump, target: Dump) -> Iterator[str]:
    """Yield the names of floating inputs that differ, but not by more than rounding."""
    records = [[record for call in dump.calls() for record in call.inputs] for dump in (reference, target)]
    by_content = [{record.content: record for record in side} for side in records]
    for name, entry in reference.header.inputs.entries.items():
        other = target.header.inputs.entries.get(name)
        if other is None or other == entry or not _are_comparable(entry, other):
            continue
        one = by_content[0].get(entry.content) or _find_without_content(records[0], name, entry)
        two = by_content[1].get(other.content) or _find_without_content(records[1], name, other)
        if one is not None and two is not None and _are_alike(reference, one, target, two):
            yield name


def _is_behind_a_call(name: str, names: Iterable[str]) -> bool:
    """Tell whether an input was read at a call of the model that another one came before; no workload has inputs so named."""
    here = _READ_AT_CALL.match(name)
    steps = [int(each["step"]) for each in map(_READ_AT_CALL.match, names) if each]
    return here is not None and (here["later"] is not None or int(here["step"]) > min(steps))


def _find_without_content(records: Sequence[Record], name: str, entry: ContentEntry) -> Record | None:
    """Return the one record that can be an input, among those of which only statistics are kept."""
    fitting = {
        record.mark: record
        for record in records
        if not record.content
        and record.shape == entry.shape
        and record.dtype == entry.dtype
        and not record.whose.operator
        and record.whose.phase == FORWARD
        and name.startswith(f"step{record.whose.step}.")
    }
    return next(iter(fitting.values())) if len(fitting) == 1 else None


def _are_comparable(entry: ContentEntry, other: ContentEntry) -> bool:
    return is_floating(entry.dtype) and is_floating(other.dtype) and entry.shape == other.shape


def _are_alike(reference: Dump, one: Record, target: Dump, two: Record) -> bool:
    """Tell whether two tensors differ by no more than rounding: by their values, else by their sketches, else by their moments.

    The samples of a batch in another order have the same moments, and another sketch.
    """
    try:
        kept = _load(reference, one, target, two)
    except DumpError:
        return False  # it cannot be read, so nothing is known of it
    if kept is not None:
        values, others = (np.asarray(each, dtype=np.float64) for each in kept)
        return bool(np.linalg.norm(others - values) <= LARGEST_ROUNDING * np.linalg.norm(values))
    facts, others_facts = one.statistics, two.statistics
    if facts is None or others_facts is None:
        return False
    moments = [(each.minimum, each.maximum, each.sum, each.square) for each in (facts, others_facts)]
    if any(value is None for values in moments for value in values):
        return False
    (low, high, total, square), (low_too, high_too, total_too, square_too) = (tuple(map(float, values)) for values in moments)  # type: ignore[arg-type]  # no None is left
    scale, count = math.sqrt(square), max(1, math.prod(one.shape))
    return (
        abs(math.sqrt(square_too) - scale) <= _MOMENTS * scale
        and abs(total_too - total) <= _MOMENTS * scale * math.sqrt(count)
        and max(abs(low_too - low), abs(high_too - high)) <= LARGEST_ROUNDING * max(abs(low), abs(high))
    )


def _load(reference: Dump, one: Record, target: Dump, two: Record) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """Return both tensors, or both sketches, which are linear and have the norms of the tensors but for some percent."""
    if one.stored and two.stored and not (one.part or two.part):
        return reference.tensor(one), target.tensor(two)
    here, there = reference.sketch(one), target.sketch(two)
    return None if here is None or there is None or here.shape != there.shape else (here, there)
