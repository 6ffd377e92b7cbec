"""The gradient of each parameter on both sides: norm and direction in each step, and what happened to it before the optimizer.

A step may use a gradient otherwise than backward left it: a scaler divides it by the loss scale, clipping shortens it, a main
gradient in 16 bits rounds it. Between the record of backward and that of the optimizer this shows::

    head.weight/gradient.output.weight      as backward leaves it
    head.weight/optimizer.input.weight      as the optimizer sees it

A loop that does not clear gradients adds those of a step to what the step before has left: the difference between the sides is
then the gradient of that step. Sketches are linear, so that they show it too. Of models that are trained in turn, such as those
of a GAN, the step before is the last one in which the parameter had a gradient.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

from precflow.agent.contract import GRADIENT, OPTIMIZER, parse_identity
from precflow.comparison.fused.value_classes import widen
from precflow.comparison.measure import Measure
from precflow.diagnosis.findings import Region, Suspect
from precflow.diagnosis.training.optimizers import Floats
from precflow.dumps.dtypes import FLOATS, float_facts, is_floating
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.errors import DumpError

LARGEST_WORK = 1 << 32
"""Bytes of gradients that are read at most; of those that come later only statistics are used."""
_SAME_DIRECTION = 1.0 - 1e-5
_SAME_FACTOR = 1e-3
_SPREAD_OF_FACTOR = 0.02  # norms may be so much farther apart, of the logarithm between the factors
_SCALED_SPREAD = 0.05  # and so far at most
_SAME_PRODUCT = 1e-5  # relative; of float32 products, and of sketches, which are sums in float32
_SAME_VALUE = 1e-6
_LEFT = 1e-2  # largest part of the last step's gradient that the difference of the sides may leave unexplained
_FEW = 0.5  # share of gradients of the other side that fit into 16 bits too
_NARROW = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}

Place = tuple[int, int, str]
"""Rank, step and full name of a parameter."""


@dataclass(frozen=True)
class GradientRow:
    """The gradient of one parameter in one step, on both sides.

    Attributes:
        parameter: Full name.
        step: Number of the step, from 0.
        rank: Rank.
        reference: Norm on the reference, over ordinary elements; ``None`` if too little was kept.
        target: Norm on the target.
        cosine: Cosine between both; ``None`` if it is not known, or a side is zero.
        multiple: Factor that smallest, largest, sum and norm share, where the cosine is not known; ``None`` without one.
    """

    parameter: str
    step: int
    rank: int
    reference: float | None
    target: float | None
    cosine: float | None
    multiple: float | None = None

    @property
    def factor(self) -> float | None:
        """The target as a multiple of the reference; ``None`` if they have another direction, or it is not known."""
        if self.cosine is None:
            return self.multiple
        if self.cosine < _SAME_DIRECTION or not self.reference or not self.target:
            return None
        return self.target / self.reference


@dataclass(frozen=True)
class GradientChange:
    """What happened to the gradients of one step of one side between backward and the optimizer.

    Attributes:
        side: ``reference`` or ``target``.
        step: Number of the step.
        rank: Rank.
        kind: ``none``, ``scaled`` (all by one factor: unscaled, or clipped by their common norm), ``scaled each`` (each
            parameter by its own), ``cut off`` (elements beyond a limit), ``bfloat16`` or ``float16`` (rounded), ``other``.
        amount: The factor, or the limit; 0 where there is none.
        norm: Norm of all gradients as the optimizer sees them.
        peak: Their largest magnitude.
        each: Parameter -> its factor, and the norm that the optimizer sees; only of ``scaled each``.
        rounding: How far rounding to the coarsest type of these gradients moves a factor of them; relative.
    """

    side: str
    step: int
    rank: int
    kind: str
    amount: float = 0.0
    norm: float = 0.0
    peak: float = 0.0
    each: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rounding: float = 0.0


@dataclass(frozen=True)
class LeftGradients:
    """Gradients of one side that still hold those of the step before.

    Attributes:
        side: ``reference`` or ``target``.
        step: First step in which they do.
        parameters: Number of parameters whose gradient is the other side's and that of the last step.
        compared: Number of parameters that could be looked at.
    """

    side: str
    step: int
    parameters: int
    compared: int


@dataclass(frozen=True)
class Gradients:
    """What both sides recorded of gradients.

    Attributes:
        rows: Every parameter in every step, in order.
        changes: What happened to them before the optimizer; empty if either phase was not recorded.
        narrow: Side -> the 16-bit type that holds all gradients that its optimizer sees, though they have another type.
        left: Gradients that were not cleared on one side; ``None`` if both cleared them, or neither did.
        given: The same as ``rows``, of what the optimizer sees in the first step; empty if either phase was not recorded.
    """

    rows: tuple[GradientRow, ...] = ()
    changes: tuple[GradientChange, ...] = ()
    narrow: Mapping[str, str] | None = None
    left: LeftGradients | None = None
    given: tuple[GradientRow, ...] = ()


def measure_gradients(reference: Dump, target: Dump, measures: Iterable[Measure] = ()) -> Gradients:
    """Measure the gradients of both sides.

    A step that accumulates has several records of one gradient, of which the last is the whole.

    Args:
        reference: Evidence of the reference.
        target: Evidence of the target.
        measures: Measures of the pairs, for cosines of gradients whose tensors were not kept; sketches give the others.
    """
    sides = [_Side(dump) for dump in (reference, target)]
    cosines = {measure.record: measure.metrics.get("cosine_similarity") for measure in measures}
    rows = _measure_rows(sides, [side.gradients or side.given for side in sides], cosines)
    changes = [
        change for name, side in zip(("reference", "target"), sides, strict=True) for change in _find_changes(name, side)
    ]
    # Under autocast most gradients fit into 16 bits anyway, and those of sums by chance.
    narrow = {
        name: side.narrow
        for name, side, other in zip(("reference", "target"), sides, reversed(sides), strict=True)
        if side.narrow and (other.narrow or other.measure_fitting(side.narrow) <= _FEW)
    }
    first = min((row.step for row in rows), default=0)
    given = [{place: record for place, record in side.given.items() if place[1] == first} for side in sides]
    both = all(side.gradients for side in sides)
    seen = _measure_rows(sides, given, cosines) if both else []
    return Gradients(tuple(rows), tuple(changes), narrow, _find_left(sides), tuple(seen))


class _Side:
    """The gradients of one side.

    Attributes:
        gradients: As backward left them last.
        given: As the optimizer saw them.
        steps: The steps of both, in order.
        narrow: The 16-bit type that holds all of ``given``; ``""`` for none.
    """

    def __init__(self, dump: Dump) -> None:
        self._dump = dump
        self._room = LARGEST_WORK
        self.gradients: dict[Place, Record] = {}
        self.given: dict[Place, Record] = {}
        for call in dump.calls():
            records = call.outputs if call.phase == GRADIENT else call.inputs[:1] if call.phase == OPTIMIZER else ()
            kept = self.gradients if call.phase == GRADIENT else self.given
            for record in records:
                kept[call.rank, call.step, f"{call.module}.{record.index}".lstrip(".")] = record
        self.steps = sorted({step for _, step, _ in (*self.gradients, *self.given)})
        self.narrow = self._find_narrow()

    def read(self, record: Record) -> Floats | None:
        """Return a whole gradient as flat float64; ``None`` if it was not kept whole, is damaged, or is too much to read."""
        size = math.prod(record.shape) * 8
        if not record.stored or record.part or record.dtype not in FLOATS or size > self._room:
            return None
        self._room -= size
        try:
            return widen(np.ascontiguousarray(self._dump.tensor(record)).reshape(-1))
        except DumpError:
            return None

    def read_linear(self, record: Record) -> Floats | None:
        """Return a gradient, else its sketch, whose sums and differences are those of the gradients; ``None`` without both."""
        whole = self.read(record)
        return self._read_sketch(record) if whole is None else whole

    def keep(self, record: Record) -> _Kept | None:
        """Return what was kept of a gradient; ``None`` without its statistics, or if only those tell that it is not finite."""
        whole = self.read(record)
        if whole is not None:
            limits = (float(whole.min()), float(whole.max())) if whole.size else (0.0, 0.0)
            return _Kept(record, whole, whole=True, range=limits, norm=float(np.linalg.norm(whole)))
        kept = record.statistics
        if kept is None or record.share < 1 or kept.nonfinite or kept.sentinel or kept.rounding is not None:
            return None
        low, high, total, norm = (float(value or 0) for value in (kept.minimum, kept.maximum, kept.sum, _norm_of(record)))
        sketch = self._read_sketch(record)
        values = np.array([low, high, total, norm]) if sketch is None else sketch
        return _Kept(record, values, whole=False, range=(low, high), norm=norm)

    def _read_sketch(self, record: Record) -> Floats | None:
        """Return the sums of a sketch, float64; ``None`` if none was kept, or it is damaged."""
        sketch = getattr(self._dump, "sketch", None)
        try:
            kept = None if sketch is None else sketch(record)
        except DumpError:
            return None
        return None if kept is None else np.asarray(kept, np.float64).sum(axis=0).reshape(-1)

    def measure_fitting(self, dtype: str) -> float:
        """Return the share of gradients in a wider type that a 16-bit type holds; 0 where none could be read."""
        values = [value for record in self._list_wide() if (value := self.read(record)) is not None and value.any()]
        return sum(_fits(value, _NARROW[dtype]) for value in values) / len(values) if values else 0.0

    def _list_wide(self) -> list[Record]:
        return [record for record in self.given.values() if record.dtype in {"float32", "float64"}]

    def _find_narrow(self) -> str:
        wide = self._list_wide()
        values = [value for record in wide if (value := self.read(record)) is not None and value.any()]
        if not wide or len(values) < len(wide) / 2:
            return ""
        return next((name for name, dtype in _NARROW.items() if all(_fits(one, dtype) for one in values)), "")


def _measure_rows(
    sides: Sequence[_Side], records: Sequence[Mapping[Place, Record]], cosines: Mapping[str, float | None]
) -> list[GradientRow]:
    here, there = records
    rows = []
    for place, record in here.items():
        other = there.get(place)
        if other is None or other.shape != record.shape or not is_floating(record.dtype):
            continue
        rank, step, name = place
        norms_and_cosine = _compare(sides, record, other, cosines)
        multiple = _find_multiple(record, other) if norms_and_cosine[-1] is None else None
        rows.append(GradientRow(name, step, rank, *norms_and_cosine, multiple))
    return rows


def _compare(
    sides: Sequence[_Side], record: Record, other: Record, cosines: Mapping[str, float | None]
) -> tuple[float | None, float | None, float | None]:
    """Return the norms of both gradients and their cosine, from their tensors, else from what was kept of them."""
    left, right = sides[0].read(record), sides[1].read(other)
    if left is None or right is None:
        cosine = 1.0 if record.known and record.known == other.known else cosines.get(record.text)
        if cosine is None:
            cosine = _find_cosine(sides[0].read_linear(record), sides[1].read_linear(other))
        return _norm_of(record), _norm_of(other), cosine
    ordinary = np.isfinite(left) & np.isfinite(right)
    left, right = left[ordinary], right[ordinary]
    norms = float(np.linalg.norm(left)), float(np.linalg.norm(right))
    cosine = float(left @ right) / (norms[0] * norms[1]) if norms[0] and norms[1] else None
    return (*norms, None if cosine is None else max(-1.0, min(1.0, cosine)))


def _find_cosine(left: Floats | None, right: Floats | None) -> float | None:
    """Return the cosine of two sketches; ``None`` where one is missing, zero or not finite.

    A sketch is linear: that of a multiple is the multiple of the sketch. Of gradients in other directions it is an estimate.
    """
    if left is None or right is None or left.shape != right.shape:
        return None
    size = float(np.linalg.norm(left)) * float(np.linalg.norm(right))
    return max(-1.0, min(1.0, float(left @ right) / size)) if 0.0 < size < math.inf else None


def _find_multiple(record: Record, other: Record) -> float | None:
    """Return the factor that smallest, largest, sum and norm share; ``None`` without one, or if a value is not finite."""
    here, there = record.statistics, other.statistics
    norms = _norm_of(record), _norm_of(other)
    if (
        here is None
        or there is None
        or not norms[0]
        or not norms[1]
        or any(one.nonfinite or one.sentinel for one in (here, there))
    ):
        return None
    factor = norms[1] / norms[0]
    numbers = [[float(number or 0.0) for number in (one.minimum, one.maximum, one.sum)] for one in (here, there)]
    peak = max(map(abs, numbers[0][:2]))
    slack = [_SAME_FACTOR * factor * size for size in (peak, peak, norms[0])]
    fits = (abs(b - factor * a) <= most for a, b, most in zip(*numbers, slack, strict=True))
    return factor if all(fits) else None


def _norm_of(record: Record) -> float | None:
    square = None if record.statistics is None or record.share < 1 else record.statistics.square
    return None if square is None else math.sqrt(square)


# Gradients that were not cleared


def find_left_gradients(reference: Dump, target: Dump) -> LeftGradients | None:
    """Return the first step whose gradients are, on one side only, those of the other side and of the last step.

    Args:
        reference: Evidence of the reference.
        target: Evidence of the target.
    """
    return _find_left([_Side(dump) for dump in (reference, target)])


def describe_left(left: LeftGradients) -> str:
    """Say which side does not clear its gradients.

    >>> describe_left(LeftGradients("target", 1, 4, 4))
    'the target does not clear its gradients: in step 1 they still hold those of the step before'
    """
    return f"the {left.side} does not clear its gradients: in step {left.step} they still hold those of the step before"


def blame_left(region: Region, left: LeftGradients | None, calls: Sequence[Call]) -> Region:
    """Return a region that begins at gradients that were not cleared, if nothing is suspected before them.

    Gradients that a script scales down before its optimizer steps are small beside the next ones: no record fails then.
    """
    step = None if left is None else left.step
    gradients = [call for call in calls if call.phase == GRADIENT and call.step == step]
    if left is None or not gradients or any(parse_identity(one.record).step <= left.step for one in region.suspects):
        return region
    call = min(gradients, key=lambda one: one.order)
    record = call.outputs[0].text
    suspects = (Suspect.of(call, record, 1.0, describe_left(left)), *region.suspects)
    roles = {**(region.roles or {}), record: "introduces"}
    return replace(region, start=suspects[0].name, suspects=suspects, roles=roles)


def follow_clipping(region: Region, reference: Dump, target: Dump, *, kept: Collection[str] = ()) -> Region:
    """Return a region whose optimizer's steps inherit what comes before them, if clipping by the common norm handed it on.

    One wrong gradient changes the norm of all, and so the factor that shortens those that agree.

    Args:
        region: The region.
        reference: Evidence of the reference.
        target: Evidence of the target.
        kept: Records of suspects that are wrong by themselves, at their own inputs.
    """
    start = parse_identity(region.suspects[0].record) if region.suspects else None
    if start is None or start.phase == OPTIMIZER:
        return region
    behind = {
        suspect.record: (identity.step, identity.rank)
        for suspect in region.suspects
        if (identity := parse_identity(suspect.record)).phase == OPTIMIZER
        and (identity.step, identity.rank) == (start.step, start.rank)
        and suspect.record not in kept
    }
    if not behind or not _are_clipped_alike(reference, target, (start.step, start.rank)):
        return region
    suspects = tuple(suspect for suspect in region.suspects if suspect.record not in behind)
    made = [call.outputs for call in reference.calls() if call.phase == OPTIMIZER]
    follow = {one.text for outputs in made if any(one.text in behind for one in outputs) for one in outputs}
    roles = {
        record: "inherits" if role == "introduces" and record in follow else role
        for record, role in (region.roles or {}).items()
    }
    return replace(region, suspects=suspects, roles=roles)


def _are_clipped_alike(reference: Dump, target: Dump, when: tuple[int, int]) -> bool:
    """Tell whether the sides multiply the gradients of a step and rank by other factors, and treat them alike all the same."""
    changes = [
        [change for change in _find_changes(name, _Side(dump)) if (change.step, change.rank) == when]
        for name, dump in (("reference", reference), ("target", target))
    ]
    if not all(len(found) == 1 and found[0].kind in {"none", "scaled"} for found in changes):
        return False
    both = [found[0] for found in changes]
    factors = [change.amount if change.kind == "scaled" else 1.0 for change in both]
    is_another = not math.isclose(*factors, rel_tol=_SAME_PRODUCT)
    return is_another and is_same_scaling(factors, [change.norm for change in both], max(change.rounding for change in both))


def _find_left(sides: Sequence[_Side]) -> LeftGradients | None:
    here, there = (side.gradients for side in sides)
    shared = [place for place in here if place in there]
    for step in sorted({place[1] for place in shared if not _is_equal(here[place], there[place])}):
        places = [place for place in shared if place[1] == step]
        for name, (side, other) in (("target", (sides[1], sides[0])), ("reference", (sides[0], sides[1]))):
            fitting = _count_left(side, other, places)
            if fitting:
                return LeftGradients(name, step, fitting, len(places))
    return None


def _is_equal(record: Record, other: Record) -> bool:
    return bool(record.known) and record.known == other.known


def _count_left(side: _Side, other: _Side, places: Sequence[Place]) -> int:
    """Return how many gradients are those of the other side and of the last step; 0 if one is not, of which no more is read.

    Those that are equal on both sides are cleared, as those of a critic are beside those of a generator.
    """
    fitting = 0
    for place in places:
        if _is_equal(side.gradients[place], other.gradients[place]):
            continue
        share = _measure_left(side, other, place)
        if share is None:
            continue
        if share > _LEFT:
            return 0
        fitting += 1
    return fitting


def _measure_left(side: _Side, other: _Side, place: Place) -> float | None:
    """Return what of the last step's gradient the difference between the sides does not show; ``None`` if it is not known."""
    rank, step, name = place
    earlier = ((rank, one, name) for one in reversed(side.steps) if one < step)
    seen = (side.given.get(one) or side.gradients.get(one) for one in earlier)
    last = next(filter(None, seen), None)
    if last is None:
        return None
    tensors = [side.read_linear(side.gradients[place]), other.read_linear(other.gradients[place]), side.read_linear(last)]
    known = [tensor for tensor in tensors if tensor is not None]
    if len(known) < len(tensors) or len({tensor.shape for tensor in known}) > 1:
        return None
    mine, theirs, left = known
    size = float(np.linalg.norm(left))
    share = float(np.linalg.norm(mine - theirs - left)) / size if size else math.inf
    return share if not math.isnan(share) else math.inf


# Between backward and the optimizer


def is_same_scaling(factors: Sequence[float], norms: Sequence[float], rounding: float = 0.0) -> bool:
    """Tell whether the same treatment may have multiplied gradients by these factors, given their norms afterwards.

    Clipped by their norm, gradients that differ have other factors and the same norm afterwards, or a smaller one that is below
    the limit. With another loss scale they have the same norm but for what rounding does, which grows with the scale.

    Args:
        factors: Of the reference and of the target.
        norms: Of all gradients afterwards, on both sides.
        rounding: How far rounding to 16 bits moves a factor or a norm; relative.
    """
    same = max(_SAME_FACTOR, rounding)
    if math.isclose(*factors, rel_tol=same):
        return True
    if not all(factor > 0.0 for factor in factors) or not all(norms):
        return False
    apart = math.log(norms[1] / norms[0])
    if (factors[0] > factors[1] and apart > same) or (factors[1] > factors[0] and apart < -same):
        return True  # the one that is not clipped, or only unscaled, is shorter than the one that is clipped
    return abs(apart) <= max(same, min(_SCALED_SPREAD, _SPREAD_OF_FACTOR * abs(math.log(factors[1] / factors[0]))))


@dataclass(frozen=True)
class _Kept:
    """What was kept of a gradient.

    Attributes:
        record: Its record.
        values: All values, else a sketch, else smallest, largest, sum and norm: each is multiplied with the gradient.
        whole: They are all values.
        range: Smallest and largest value.
        norm: Norm.
    """

    record: Record
    values: Floats
    whole: bool
    range: tuple[float, float]
    norm: float


@dataclass(frozen=True)
class _Pair:
    """The gradient of one parameter in one step, as backward left it and as the optimizer saw it, in the same form."""

    made: _Kept
    seen: _Kept

    @property
    def is_unchanged(self) -> bool:
        """Both have the same values."""
        made, seen = self.made.record, self.seen.record
        same_bits = bool(made.known) and (made.known, made.dtype) == (seen.known, seen.dtype)
        return same_bits or (self.made.whole and np.array_equal(self.made.values, self.seen.values))

    @property
    def factor(self) -> float:
        """What the gradient is multiplied by, if it is."""
        made = self.made.values
        return float(made @ self.seen.values) / float(made @ made)

    @property
    def rounding(self) -> float:
        """What rounding to the coarser of both types may change; relative."""
        types = [one.record.dtype for one in (self.made, self.seen) if one.record.dtype in FLOATS]
        return max((2.0 * 2.0 ** -float_facts(dtype).digits for dtype in types), default=0.0)

    @property
    def is_multiplied(self) -> bool:
        """Nothing but one factor and its rounding changed the gradient."""
        expected = self.factor * self.made.values
        rounding = max(_SAME_PRODUCT, self.rounding)
        if self.made.whole:
            return np.allclose(self.seen.values, expected, rtol=rounding, atol=0)
        return float(np.linalg.norm(self.seen.values - expected)) <= rounding * float(np.linalg.norm(expected))

    def is_rounded(self, dtype: Any) -> bool:
        """Tell whether the gradient was rounded to a type; of one that was not kept whole, whether it may have been."""
        made, seen = self.made.values, self.seen.values
        if self.made.whole:
            return np.array_equal(_round(made, dtype), seen)
        unit = float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
        return float(np.linalg.norm(seen - made)) <= unit * float(np.linalg.norm(made))

    def is_cut_off(self, limit: float) -> bool:
        """Tell whether values beyond the limit became it, and no other changed."""
        if self.made.whole:
            return np.allclose(np.clip(self.made.values, -limit, limit), self.seen.values, rtol=_SAME_VALUE, atol=0)
        if _find_peak(self.made) <= limit:
            return self.is_unchanged
        return np.allclose(np.clip(self.made.range, -limit, limit), self.seen.range, rtol=_SAME_VALUE, atol=0)


def _find_changes(name: str, side: _Side) -> list[GradientChange]:
    steps: dict[tuple[int, int], list[Place]] = defaultdict(list)
    for place in side.given:
        if place in side.gradients:
            steps[place[:2]].append(place)
    found = (_describe_change(name, side, places) for places in steps.values())
    return [change for change in found if change is not None]


def _describe_change(name: str, side: _Side, places: Sequence[Place]) -> GradientChange | None:
    """Say what happened to the gradients of one step; ``None`` if too little was kept of one of them."""
    rank, step = places[0][:2]
    pairs = {}
    for place in places:
        made, seen = side.keep(side.gradients[place]), side.keep(side.given[place])
        if made is None or seen is None or made.values.shape != seen.values.shape or made.whole != seen.whole:
            return None
        pairs[place[2]] = _Pair(made, seen)
    kind, amount = _classify(list(pairs.values()))
    norm = math.sqrt(math.fsum(pair.seen.norm**2 for pair in pairs.values()))
    peak = max(_find_peak(pair.seen) for pair in pairs.values())
    each = {name: (pair.factor, pair.seen.norm) for name, pair in pairs.items() if pair.made.values.any()}
    rounding = max(pair.rounding for pair in pairs.values())
    return GradientChange(name, step, rank, kind, amount, norm, peak, each if kind == "scaled each" else {}, rounding)


def _classify(pairs: Sequence[_Pair]) -> tuple[str, float]:
    """Return the kind of a change of gradients, and its amount."""
    if all(pair.is_unchanged for pair in pairs):
        return "none", 0.0
    pairs = [pair for pair in pairs if pair.made.values.any()]
    if not pairs or not all(np.isfinite(one.values).all() for pair in pairs for one in (pair.made, pair.seen)):
        return "other", 0.0
    for name, dtype in _NARROW.items() if any(pair.made.whole for pair in pairs) else ():
        if all(pair.is_rounded(dtype) for pair in pairs):
            return name, 0.0
    return _find_factors(pairs) or _find_limit(pairs) or ("other", 0.0)


def _find_factors(pairs: Sequence[_Pair]) -> tuple[str, float] | None:
    if not all(pair.is_multiplied for pair in pairs):
        return None
    factors = [pair.factor for pair in pairs]
    middle = statistics.median(factors)
    is_one = all(math.isclose(pair.factor, middle, rel_tol=max(_SAME_FACTOR, pair.rounding)) for pair in pairs)
    return "scaled" if is_one else "scaled each", middle


def _find_limit(pairs: Sequence[_Pair]) -> tuple[str, float] | None:
    limit = max(_find_peak(pair.seen) for pair in pairs)
    return ("cut off", limit) if all(pair.is_cut_off(limit) for pair in pairs) else None


def _find_peak(kept: _Kept) -> float:
    return max(map(abs, kept.range))


def _fits(values: Floats, dtype: Any) -> bool:
    return np.array_equal(_round(values, dtype), values)


def _round(values: Floats, dtype: Any) -> Floats:
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(dtype).astype(np.float64)
