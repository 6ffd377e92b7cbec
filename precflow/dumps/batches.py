"""What the models of both sides were given: the same data, or others?

Inputs are compared by their bits first. Those that differ are of four kinds:

* **The same data.** Equal values in another type, or rounded to the type that the target runs in. Inputs that a script has
  computed on its device differ by rounding on every pair of devices, and still are the same batch; so may those of later calls
  of a loop of one's own. Token ids, labels and other whole numbers have to be equal.
* **Consequences.** What the model itself had made before (:mod:`precflow.dumps.origins`): chosen tokens, caches, the next
  sample. They differ because the model differs, and are no data.
* **Taken from elsewhere.** Made by the model, but not by the same call. If both calls are known and are of different steps, a
  buffer still holds what an earlier step left in it: the sides do not compute the same, whatever else is compared.
* **Other data.** What is computed from here on means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from precflow import keys
from precflow.dumps.dtypes import NUMPY_DTYPES, Array, is_floating, name_of
from precflow.dumps.header import ContentEntries, ContentEntry
from precflow.dumps.origins import Origins, parse_name
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Record
from precflow.dumps.starting_weights import NO_WEIGHTS, StartingWeights
from precflow.dumps.views.aligned_model_calls import NOTHING_FURTHER, FurtherCalls, ModelCalls
from precflow.dumps.warm_up import describe_place, is_zero_content
from precflow.errors import DumpError

# Other batches differ by a relative L2 of about 1.4 if they are independent, and by 0.5 and more if they are alike (images of
# one data set). Rounding in bfloat16 is 0.004 an operator.
LARGEST_ROUNDING = 0.1
_ROUNDING_OF_FLOAT32 = 2.0**-14  # a few operators of a script, all in float32; one rounding to float16 is 2^-12.3 on average
_MOMENTS = 1e-3  # of sums and norms, in which rounding averages out
_HALVES = ("bfloat16", "float16")
_COARSE = frozenset({*_HALVES, "float8_e4m3fn", "float8_e5m2"})
_MOST_VALUES = 4  # that are shown of an input; of a larger one it is how far the sides are apart

DATA, CHOICE, ELSEWHERE, STALE, CALLS = "data", "choice", "elsewhere", "stale", "calls"


@dataclass(frozen=True)
class DifferentInput:
    """An input that the sides were given different values of, so that nothing behind it can be compared.

    Attributes:
        name: Its name in the header, the reference's if it has it.
        kind: ``data``: it is not known to come from the model; ``choice``: the model chose it, and no record leads there;
            ``elsewhere``: the model made it in another call than on the reference; ``stale``: in another step, and both calls
            are known; ``calls``: one side has further calls of its models in that step, and records do not tell which modules
            run in the others.
        words: How it differs, such as ``955.182 (float32) / 956 (bfloat16)``; ``""`` if no values were kept.
        dtype: Element type on the reference, else on the target.
        shape: Sizes on the reference, else on the target.
        records: Its records on both sides, if it is data and both have one.
    """

    name: str
    kind: str
    words: str
    dtype: str
    shape: tuple[int, ...]
    records: tuple[Record, Record] | None = None


@dataclass(frozen=True)
class GivenInputs:
    """What the models of both sides were given.

    Attributes:
        entries: The target's inputs by the reference's names; what is the same has the reference's entry.
        different: Inputs that differ, in the order in which they were given.
        made: Names of inputs that differ because the model made them.
        retyped: Inputs of another type and of equal values, in words.
        further: Calls of models that one side makes more in a step.
        weights: How the weights differ that both sides start from.
        warm_up: Which side was given zeros alone where the first difference is, in words; ``""`` if none was.
    """

    entries: Mapping[str, ContentEntry]
    different: tuple[DifferentInput, ...] = ()
    made: tuple[str, ...] = ()
    retyped: tuple[str, ...] = ()
    further: tuple[FurtherCalls, ...] = ()
    weights: StartingWeights = NO_WEIGHTS
    warm_up: str = ""

    @property
    def start(self) -> DifferentInput | None:
        """The first input that differs, if there is one."""
        return self.different[0] if self.different else None

    @property
    def stale(self) -> tuple[DifferentInput, ...]:
        """The inputs that the model made in different steps on the two sides."""
        return tuple(each for each in self.different if each.kind == STALE)


NOTHING_GIVEN = GivenInputs({})


def find_given(dump: object) -> GivenInputs:
    """Return what the models of both sides were given, as a dump that is seen through views knows it."""
    given = getattr(dump, "given", None)
    return given if isinstance(given, GivenInputs) else NOTHING_GIVEN


def align_entries(
    reference: Dump, target: Dump, given: GivenInputs, calls: ModelCalls = NOTHING_FURTHER
) -> tuple[ContentEntries, ContentEntries]:
    """Return the inputs of both headers, without those of further calls; what is the same has the reference's entry in both."""
    entries, here = given.entries, reference.header.inputs
    left = calls.rename_inputs(here.entries, "reference")
    if len(left) < len(here.entries):
        here = ContentEntries(_digest(left), left)
    if entries == target.header.inputs.entries:  # nothing is seen as the same that is not
        return here, target.header.inputs
    # The agent's digest is over names and contents, so equal entries have the reference's.
    return here, ContentEntries(here.digest if entries == here.entries else _digest(entries), entries)


def _digest(entries: Mapping[str, ContentEntry]) -> str:
    return keys.digest(sorted(map(str, entries.items())))


def compare_given(reference: Dump, target: Dump, calls: ModelCalls = NOTHING_FURTHER) -> GivenInputs:
    """Return what the models of both sides were given, by headers and, where these differ, by what was recorded.

    Args:
        reference: The reference's dump.
        target: The target's.
        calls: How calls of models are paired where one side makes more of them.
    """
    here = calls.rename_inputs(reference.header.inputs.entries, "reference")
    there = _rename(here, calls.rename_inputs(target.header.inputs.entries, "target"))
    if here == there:
        return GivenInputs(there, further=calls.further)
    sides = _BothDumps(reference, target, calls)
    further = {(one.rank, one.step): one.text for one in calls.further if not one.placed}
    different: list[DifferentInput] = []
    made: list[str] = []
    retyped: list[str] = []
    entries = dict(there)
    for name in [*here, *(name for name in there if name not in here)]:
        one, two = here.get(name), there.get(name)
        if one == two:
            continue
        parts = parse_name(name)
        if parts is not None and (parts.rank, parts.step) in further:
            alone = one or two
            assert alone is not None
            different.append(DifferentInput(name, CALLS, further[parts.rank, parts.step], alone.dtype, alone.shape))
            continue
        if one is None or two is None:
            alone = one or two
            assert alone is not None
            words = f"only the {'reference' if two is None else 'target'} has it"
            different.append(DifferentInput(name, DATA, words, alone.dtype, alone.shape))
            continue
        kind, words = sides.compare(name, one, two)
        if kind in {DATA, CHOICE, ELSEWHERE, STALE}:
            records = sides.find_both(name, one, two) if kind == DATA else None
            different.append(DifferentInput(name, kind, words, one.dtype, one.shape, records))
            continue
        entries[name] = one
        made += [name] if kind == _MADE else []
        retyped += [f"{name}: {words}"] if kind == _RETYPED else []
    different.sort(key=lambda each: at.place if (at := parse_name(each.name)) else (-1, 0, 0))
    warm_up = _find_warm_up(here, there, different[0]) if different else ""
    return GivenInputs(entries, tuple(different), tuple(made), tuple(retyped), calls.further, warm_up=warm_up)


def _find_warm_up(here: Mapping[str, ContentEntry], there: Mapping[str, ContentEntry], first: DifferentInput) -> str:
    """Say that one side alone is given nothing but zeros in the call that the first other data reaches."""
    parts = parse_name(first.name)
    if parts is None or first.kind != DATA or first.name not in here or first.name not in there:
        return ""
    zero = [
        all(
            is_zero_content(entry.content, entry.dtype, entry.shape)
            for name, entry in side.items()
            if _is_of(name, parts.place)
        )
        for side in (here, there)
    ]
    if zero[0] == zero[1]:
        return ""
    where = describe_place((parts.rank, parts.step, parts.call))
    return f"{where} warms up on the {'reference' if zero[0] else 'target'}: its model is given zeros alone"


_MADE, _RETYPED, _ROUNDED = "made", "retyped", "rounded"  # kinds of inputs that are no other data


class _BothDumps:
    """Both dumps, with what is known of the inputs of each."""

    def __init__(self, reference: Dump, target: Dump, calls: ModelCalls) -> None:
        self._dumps = (reference, target)
        self._origins = (Origins(reference), Origins(target, calls.numbers))
        headers = (reference.header, target.header)
        self._dtypes = (headers[0].dtype, headers[1].dtype)
        self._of_scripts = all(header.script for header in headers)
        first = [parts.place[:2] for name in headers[0].inputs.entries if (parts := parse_name(name)) is not None]
        self._first = min(first, default=(0, 0))  # step and call

    def compare(self, name: str, one: ContentEntry, two: ContentEntry) -> tuple[str, str]:
        """Return the kind of a difference between two inputs of one name, and how they differ in words."""
        records = self._find_records(name, one, two)
        values = self._load_exactly(*records)
        if values is not None and one.dtype != two.dtype and one.shape == two.shape and _are_equal(*values):
            return _RETYPED, f"{one.dtype} / {two.dtype}, of equal values"
        words = _describe(values, one, two)
        here, there = (origins.find(name, entry) for origins, entry in zip(self._origins, (one, two), strict=True))
        if here is not None and there is not None and here.whens & there.whens:
            # A choice that is recorded is judged itself, and what depends on a near tie follows from the records.
            return _MADE if is_floating(one.dtype) or (here.linked and there.linked) else CHOICE, words
        if here is None or there is None:
            same = self._find_sameness(name, one, two, records, values)
            if same[0]:
                return same
            words = f"{words}, {same[1]}" if same[1] else words
        if here is None and there is None:
            return DATA, words
        makers = [f"{origin.shown if origin is not None else 'unknown'}" for origin in (here, there)]
        words = f"{words}{', ' if words else ''}made by {makers[0]} on the reference, {makers[1]} on the target"
        steps = [{step for _, step, _ in origin.whens} if origin is not None else set() for origin in (here, there)]
        # Whole numbers, such as tokens, are equal by chance.
        is_stale = all(steps) and not steps[0] & steps[1] and is_floating(one.dtype) and is_floating(two.dtype)
        return STALE if is_stale else ELSEWHERE, words

    def find_both(self, name: str, one: ContentEntry, two: ContentEntry) -> tuple[Record, Record] | None:
        """Return the records of an input; ``None`` if a side has none."""
        here, there = self._find_records(name, one, two)
        return None if here is None or there is None else (here, there)

    def _find_records(self, name: str, one: ContentEntry, two: ContentEntry) -> tuple[Record | None, Record | None]:
        here, there = self._origins
        return here.find_record(name, one), there.find_record(name, two)

    def _find_sameness(
        self,
        name: str,
        one: ContentEntry,
        two: ContentEntry,
        records: tuple[Record | None, Record | None],
        values: tuple[Array, Array] | None,
    ) -> tuple[str, str]:
        """Return why two floating inputs are the same data, and what to say about it; ``("", ...)`` if they are other data."""
        if one.shape != two.shape or not (is_floating(one.dtype) and is_floating(two.dtype)):
            return "", ""
        half = _find_rounding(*values) if values is not None else ""
        if half == two.dtype == self._dtypes[1] != self._dtypes[0]:  # the type that somebody chose for this side
            return _RETYPED, f"{one.dtype} / {two.dtype}, equal after rounding to {half}"
        parts = parse_name(name)
        may_round = self._of_scripts or (parts is not None and parts.place[:2] > self._first)
        left, right = records
        if half or not may_round or left is None or right is None:
            return "", f"equal after rounding to {half}" if half else ""
        most = self._find_largest_rounding(name, one, two)
        return _ROUNDED if _are_alike(self._dumps[0], left, self._dumps[1], right, most) else "", ""

    def _find_largest_rounding(self, name: str, one: ContentEntry, two: ContentEntry) -> float:
        """Return the largest relative L2 that is rounding: a model whose calls are not recorded may have had a part in it."""
        scripts = [origins.find_script(name, entry) for origins, entry in zip(self._origins, (one, two), strict=True)]
        here, there = scripts
        known = here is not None and there is not None and here.leaves == there.leaves and not here.dtypes & _COARSE
        return _ROUNDING_OF_FLOAT32 if known else LARGEST_ROUNDING

    def _load_exactly(self, one: Record | None, two: Record | None) -> tuple[Array, Array] | None:
        """Return both tensors if all of both was kept."""
        if one is None or two is None or not (is_whole(one) and is_whole(two)):
            return None
        try:
            return self._dumps[0].tensor(one), self._dumps[1].tensor(two)
        except DumpError:
            return None  # it cannot be read, so nothing is known of it


def is_whole(record: Record) -> bool:
    """Tell whether all elements of a tensor were kept."""
    return record.stored and not record.part


def _rename(here: Mapping[str, ContentEntry], there: Mapping[str, ContentEntry]) -> dict[str, ContentEntry]:
    """Return the target's inputs by the reference's names, where a wrapper around the model has given them others.

    Data parallelism calls ``inputs.0`` what the module inside calls ``ids``. Only inputs of the same call that have no partner
    are renamed: to that of the same bits, else to the only one that is left, if one of both goes by its position. Two names
    such as ``labels`` and ``decoder_input_ids`` stand for two inputs.
    """
    renamed = dict(there)
    for place in {parts.place for name in there if name not in here and (parts := parse_name(name)) is not None}:
        left = [
            [name for name in one if name not in two and _is_of(name, place)] for one, two in ((here, there), (there, here))
        ]
        by_content = {here[name].content: name for name in left[0]}
        names = {name: found for name in left[1] if (found := by_content.get(there[name].content))}
        rest = [[name for name in left[0] if name not in names.values()], [name for name in left[1] if name not in names]]
        if [len(each) for each in rest] == [1, 1] and here[rest[0][0]].shape == there[rest[1][0]].shape:
            pair = (rest[0][0], rest[1][0])
            names |= {pair[1]: pair[0]} if any(name.rpartition(".")[2].isdigit() for name in pair) else {}
        if len(set(names.values())) == len(names):
            renamed = {names.get(name, name): entry for name, entry in renamed.items()}
    return renamed


def _is_of(name: str, place: tuple[int, int, int]) -> bool:
    parts = parse_name(name)
    return parts is not None and parts.place == place


def _are_equal(one: Array, two: Array) -> bool:
    """Tell whether two tensors of other types have the same numbers."""
    if one.dtype.kind in "iub" and two.dtype.kind in "iub":
        return bool(np.array_equal(one, two))
    kind = np.complex128 if "c" in (one.dtype.kind, two.dtype.kind) else np.float64
    return bool(np.array_equal(one.astype(kind), two.astype(kind), equal_nan=True))


def _find_rounding(one: Array, two: Array) -> str:
    """Return the 16-bit type in which two tensors are equal that are farther apart than float32 rounds; ``""`` without one."""
    if "c" in (one.dtype.kind, two.dtype.kind):
        return ""
    with np.errstate(all="ignore"):
        wide = [array.astype(np.float64) for array in (one, two)]
        # In 16 bits 1.0000001 and 1 are equal too, and nobody has rounded to 16 bits there.
        if not np.linalg.norm(wide[1] - wide[0]) > _ROUNDING_OF_FLOAT32 * np.linalg.norm(wide[0]):
            return ""
        for half in _HALVES:
            rounded = [array.astype(np.float32).astype(NUMPY_DTYPES[half]).astype(np.float64) for array in wide]
            if any(np.array_equal(rounded[place], wide[1 - place], equal_nan=True) for place in (0, 1)):
                return half
    return ""


def _describe(values: tuple[Array, Array] | None, one: ContentEntry, two: ContentEntry) -> str:
    """Return how two inputs differ in words: a few numbers themselves, of more how many differ or how far they are apart."""
    types = [f" ({entry.dtype})" if one.dtype != two.dtype else "" for entry in (one, two)]
    if one.shape != two.shape:
        return f"shape {list(one.shape)} / {list(two.shape)}"
    if values is None:
        return f"{one.dtype} / {two.dtype}" if one.dtype != two.dtype else ""
    if values[0].size <= _MOST_VALUES or all((array == array.flat[0]).all() for array in values):
        texts = [_show_values(array) + kind for array, kind in zip(values, types, strict=True)]
        return " / ".join(texts)
    if is_floating(one.dtype) and is_floating(two.dtype):
        wide = [array.astype(np.complex128 if array.dtype.kind == "c" else np.float64) for array in values]
        apart = np.linalg.norm(wide[1] - wide[0]) / (np.linalg.norm(wide[0]) or 1.0)
        return f"relative_l2 {apart:.3g}" + (f" ({one.dtype} / {two.dtype})" if one.dtype != two.dtype else "")
    different = np.argwhere(values[0] != values[1])
    if not len(different):
        return ""
    first = tuple(different[0])
    return (
        f"{len(different)} of {values[0].size} differ, first {list(map(int, first))}: {values[0][first]} / {values[1][first]}"
    )


def _show_values(array: Array) -> str:
    """Return a few numbers as text; one for a tensor that holds the same everywhere."""
    wide = array.astype(np.float64) if is_floating(name_of(array.dtype)) else array
    texts = [f"{value:.6g}" if isinstance(value, float) else str(value) for value in wide.ravel().tolist()]
    return texts[0] if len(set(texts)) == 1 else f"[{', '.join(texts)}]"


def _are_alike(reference: Dump, one: Record, target: Dump, two: Record, most: float) -> bool:
    """Tell whether two tensors differ by no more than rounding: by their values, else by their sketches, else by their moments.

    The samples of a batch in another order have the same moments, and another sketch.
    """
    try:
        kept = _load(reference, one, target, two)
    except DumpError:
        return False  # it cannot be read, so nothing is known of it
    if kept is not None:
        values, others = (np.asarray(each, dtype=np.float64) for each in kept)
        return bool(np.linalg.norm(others - values) <= most * np.linalg.norm(values))
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
        and max(abs(low_too - low), abs(high_too - high)) <= most * max(abs(low), abs(high))
    )


def _load(reference: Dump, one: Record, target: Dump, two: Record) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """Return both tensors, or both sketches, which are linear and have the norms of the tensors but for some percent."""
    if one.stored and two.stored and not (one.part or two.part):
        return reference.tensor(one), target.tensor(two)
    here, there = reference.sketch(one), target.sketch(two)
    return None if here is None or there is None or here.shape != there.shape else (here, there)
