"""The noise floor of every record: how far rounding alone carries in this model.

The reference's workload was run again with disturbances as small as rounding (see ``precflow/agent/session/noise.py``). The
floor of a record is the largest difference that any of them made to it, in each of the metrics below. A correct other device
stays within a small multiple of it, and standard ``calibrated`` takes that multiple as the limit.

A record of few elements is a lottery: a loss may happen to come out right although everything that it was computed from is
off. So a small record has at least the floor of its inputs, and small records with the same content have the same floor. That
of a single number is three times the largest of the draws: three draws say little of how large a fourth may be.

So is the step of an optimizer that divides by the size of the gradient, such as Adam: an element whose gradient is within
rounding of zero moves by a whole step, up or down by chance. Which element of which weight is hit differs between runs, so
every weight has at least the floor that the largest change of any weight in that step would give it, in one of its elements.
The same holds for copies of the weights that a script keeps, such as an average: of each, the largest change of any.

And so are the calls of the next steps that read such a weight: each has at least the floor that one such element makes of its
output, and hands it on through the forward and the backward pass: whole through products and norms and backward, weakened where
it is added to something larger. The gradient of a matrix is made of what came into its layer both ways.

Under autocast, rounding to 16 bits swallows what a disturbance in float32 has changed. A float32 sum of 16-bit numbers may come
out the same in every run then, and not on a device that adds up in another order: it has at least the floor of that.

A number that an optimizer keeps of a weight, such as its root mean square in Adafactor, has at least the floor of the weight.

The worst element is a lottery too. In trained models one element may be a hundred times as large as the others, and the whole
error is how many units in the last place it moved. So its floor grows with the largest element.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from precflow.agent.contract import BACKWARD, COPY_IN, FORWARD, GRADIENT, OPTIMIZER
from precflow.comparison.measure import Measure
from precflow.dumps.dtypes import coarsest, float_facts
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.judgement import lines

MAIN_METRIC = "relative_l2"
METRICS = (MAIN_METRIC, "worst_row_error", "max_rms_error")
"""Metrics that floors are measured in: of the whole tensor, its worst row, and its worst element."""

_ROW, _LARGEST = METRICS[1:]
_COUNTER = "step"  # state of an optimizer: how many steps it made

_Numbers = Mapping[str, float]
_Source = tuple[int, int, int, str]  # step, rank and order of a call, and the index of its output
_Stepped = tuple[float, float, str, Sequence[int]]  # change of an element, size of the weight, disturbance, shape
_Values = dict[str, tuple[float, str]]  # metric -> floor and disturbance
_Carried = tuple[_Values, float]  # what an output hands on, and its root mean square


@dataclass(frozen=True)
class Floor:
    """The noise floor of one record.

    Attributes:
        record: Identity text.
        metrics: Metric -> floor; metrics that the dumps kept too little for are absent.
        noises: Metric -> the disturbance that made the largest difference, or ``inputs``.
    """

    record: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    noises: Mapping[str, str] = field(default_factory=dict)


def gather_floors(reference: Dump, measured: Mapping[str, Sequence[Measure]]) -> list[Floor]:
    """Return the floor of every record that was compared, in the reference's order.

    Args:
        reference: Dump of the reference.
        measured: Disturbance -> the measures of its dump against the reference's.
    """
    found: dict[str, _Values] = defaultdict(dict)
    peaks: dict[str, tuple[float, str, str, float]] = {}  # largest element, type, disturbance, and a gradient's largest row
    for noise, measures in measured.items():
        for measure in measures:
            if measure.join == "paired" and measure.judged and not measure.movement:
                _keep_larger(found[measure.record], {name: (value, noise) for name, value in _list_values(measure)})
                row_peak = measure.row_peak if measure.phase in {BACKWARD, GRADIENT} else 0.0
                peak = (measure.peak, measure.target_dtype, noise, row_peak)
                peaks[measure.record] = max(peak, peaks.get(measure.record, peak))
    calls = reference.calls()
    for text in (record.text for call in calls for record in call.outputs if math.prod(record.shape) == 1):
        for name, (value, noise) in found.get(text, {}).items():
            found[text][name] = lines.SINGLE_NUMBER * value, noise
    _raise_sums(calls, found)
    _pool(calls, found)
    _raise_readers(calls, _share_steps(calls, measured, found), found)
    _raise_numbers_of_weights(calls, found)
    for record, each in found.items():
        largest, dtype, noise, largest_row = peaks[record]
        _raise_largest(each, largest, dtype, noise)
        _raise_worst_row(each, largest_row, dtype, noise)
    return [_make_floor(record, each) for record, each in found.items() if each]


def find_floors_of_inputs(calls: Iterable[Call], floors: Mapping[str, Floor]) -> Callable[[Record], Floor | None]:
    """Return a function that gives the floor of an input: that of the output which it is, also through movement.

    Movement (a view, a transpose) has no floor of its own and hands on the largest of its inputs'. What no recorded call made
    has none.

    Args:
        calls: Of the reference, in order of execution.
        floors: Identity text of an output -> its floor.
    """
    leaving: dict[_Source, Floor] = {}
    for call in calls if floors else ():
        sources = [(call.step, call.rank, *record.source) for record in call.inputs if record.source is not None]
        arriving = [leaving[source] for source in sources if source in leaving] if call.movement else []
        for record in call.outputs:
            floor = floors.get(record.text) or _merge(record.text, arriving)
            if floor is not None:
                leaving[call.step, call.rank, call.order, record.index] = floor

    def find(record: Record) -> Floor | None:
        """Look up by the call that made the input."""
        whose = record.whose
        return None if record.source is None else leaving.get((whose.step, whose.rank, *record.source))

    return find


def _merge(record: str, floors: Sequence[Floor]) -> Floor | None:
    merged: _Values = {}
    for floor in floors:
        _keep_larger(merged, {name: (value, floor.noises.get(name, "inputs")) for name, value in floor.metrics.items()})
    return _make_floor(record, merged) if merged else None


def _make_floor(record: str, found: Mapping[str, tuple[float, str]]) -> Floor:
    values, noises = {name: value for name, (value, _) in found.items()}, {name: noise for name, (_, noise) in found.items()}
    return Floor(record, values, noises)


def _list_values(measure: Measure) -> Iterable[tuple[str, float]]:
    """Yield the metrics of a measure; of one that two sketches estimate, the largest value that they allow."""
    for name in METRICS:
        if name in measure.metrics:
            value = measure.ranges[name][1] if name in measure.ranges else measure.metrics[name]
            yield name, math.inf if math.isnan(value) else value


def _keep_larger(kept: _Values, others: Mapping[str, tuple[float, str]]) -> None:
    for name, other in others.items():
        if name not in kept or other[0] > kept[name][0]:
            kept[name] = other


def _raise_sums(calls: Sequence[Call], found: Mapping[str, _Values]) -> None:
    """Raise the floors of what is computed in 32 bits or more of numbers of 16 bits.

    Steps of an optimizer are left out: a weight moves by so little that its floor would hide a wrong step.
    """
    narrow = {_name_module_call(call) for call in calls if call.phase == BACKWARD and _has_narrow(call.inputs)}
    for call in calls:
        made_of_narrow = _name_module_call(call) in narrow if call.phase == GRADIENT else _has_narrow(call.inputs)
        for record in call.outputs if made_of_narrow and call.phase != OPTIMIZER else ():
            own, dtype = found.get(record.text), coarsest([record.dtype])
            if own and dtype and float_facts(dtype).digits >= lines.FINE_DIGITS:
                least = lines.SUM_ROUNDINGS * 2.0 ** -float_facts(dtype).digits
                _keep_larger(own, dict.fromkeys(own, (least, "inputs")))


def _has_narrow(records: Iterable[Record]) -> bool:
    dtype = coarsest(record.dtype for record in records)
    return bool(dtype) and float_facts(dtype).digits < lines.FINE_DIGITS


def _name_module_call(call: Call) -> tuple[int, int, str, int]:
    return call.step, call.rank, call.module, call.call


def _pool(calls: Iterable[Call], found: dict[str, _Values]) -> None:
    """Raise the floors of small records to those of their inputs, in order of execution.

    An operator on lists, such as the ``_foreach_mul_`` that clips gradients, computes each output from the input of its number:
    a gradient that is zero but for rounding must not make those of all other parameters blind.
    """
    leaving: dict[_Source, _Values] = {}  # what each output hands on, movement included
    small: dict[tuple[str, tuple[int, ...]], list[_Values]] = defaultdict(list)
    for call in calls:
        arriving: _Values = {}
        each_arriving: dict[str, _Values] = {}  # by the index of the input
        for record in call.inputs:
            if record.source is not None:
                source = leaving.get((call.step, call.rank, *record.source), {})
                each_arriving[record.index] = {name: (value, "inputs") for name, (value, _) in source.items()}
                _keep_larger(arriving, each_arriving[record.index])
        for record in call.outputs:
            own = found.get(record.text)
            is_counter = call.phase == OPTIMIZER and not record.shape  # of steps: exact, and as large in all parameters
            if call.operator.startswith("foreach_"):
                arriving = each_arriving.get(f"0.{record.index}", {})
            if own and math.prod(record.shape) < lines.FEW_ELEMENTS and not is_counter:
                _keep_larger(own, {name: arriving[name] for name in own if name in arriving})
                small[_content(record)].append(own)
            leaving[call.step, call.rank, call.order, record.index] = arriving if own is None else own
    for alike in small.values():
        for each in alike[1:]:
            _keep_larger(alike[0], each)
        for each in alike[1:]:
            _keep_larger(each, alike[0])


def _share_steps(
    calls: Iterable[Call], measured: Mapping[str, Sequence[Measure]], found: Mapping[str, _Values]
) -> dict[str, tuple[float, float, str]]:
    """Raise the floors of stepped weights and their copies: one element may move as far as the farthest of any weight.

    Returns:
        Identity text of such a weight -> that change, the root mean square of the weight, and the disturbance.
    """
    weights = {
        record.text: record
        for call in calls
        if call.phase == OPTIMIZER
        for record in call.outputs
        if _name_copy(record) is not None and record.shape and math.prod(record.shape) > 0
    }
    # Step, rank and name of the copy -> largest change of an element, and disturbance.
    furthest: dict[tuple[int, int, str | None], tuple[float, str]] = {}
    sizes: dict[str, float] = {}  # root mean square of a weight
    for noise, measures in measured.items():
        for measure in measures:
            record, change = weights.get(measure.record), measure.metrics.get("max_abs_error", 0.0)
            if record is None or measure.record not in found or not 0 < change < math.inf:
                continue
            where = (record.whose.step, record.whose.rank, _name_copy(record))
            furthest[where] = max(furthest.get(where, (0.0, noise)), (change, noise))
            if relative := measure.metrics.get(_LARGEST, 0.0):
                sizes[measure.record] = change / relative
    moved: dict[str, tuple[float, float, str]] = {}
    for text, record in weights.items():
        far, noise = furthest.get((record.whose.step, record.whose.rank, _name_copy(record)), (0.0, ""))
        size = sizes.get(text) or _root_mean_square(record)
        own = found.get(text)
        if own and far and size:
            if not _name_copy(record):
                moved[text] = far, size, noise
            of_all = _spread_element(far / size, record.shape, noise)
            _keep_larger(own, {name: value for name, value in of_all.items() if name in own})
    return moved


def _raise_numbers_of_weights(calls: Iterable[Call], found: Mapping[str, _Values]) -> None:
    """Give every number that an optimizer keeps of a weight at least the relative floor of that weight.

    Half of a weight's elements may step the other way and leave its root mean square as it was: three draws do not show how far
    it moves. The number of steps is exact.
    """
    for call in calls:
        outputs = call.outputs if call.phase == OPTIMIZER else ()
        weights = {record.index: record for record in outputs if "." not in record.index and math.prod(record.shape) > 1}
        for record in outputs:
            weight = weights.get(record.index.partition(".")[0])
            of_weight = found.get(weight.text, {}) if weight else {}
            is_number = math.prod(record.shape) == 1 and record.index.rpartition(".")[2] != _COUNTER
            if is_number and MAIN_METRIC in of_weight:
                own = found.get(record.text, {})
                _keep_larger(own, dict.fromkeys(own, of_weight[MAIN_METRIC]))


def _name_copy(record: Record) -> str | None:
    """Return the name of the copy of a weight, ``""`` of the weight itself, ``None`` of other state of an optimizer."""
    _, _, state = record.index.partition(".")
    return state.removeprefix(COPY_IN) if state.startswith(COPY_IN) or not state else None


def _spread_element(largest: float, shape: Sequence[int], noise: str) -> _Values:
    """Return what one element makes of each metric: it is the whole error of its tensor, and of its row, the last axis.

    Args:
        largest: Change of the element over the root mean square of the tensor.
        shape: Of the tensor.
        noise: The disturbance.
    """
    of_all, of_row = largest / math.sqrt(math.prod(shape)), largest / math.sqrt(shape[-1])
    return {MAIN_METRIC: (of_all, noise), _ROW: (of_row, noise), _LARGEST: (largest, noise)}


def _raise_readers(
    calls: Iterable[Call],
    moved: Mapping[str, tuple[float, float, str]],
    found: Mapping[str, _Values],
) -> None:
    """Give calls of later steps that read a stepped weight at least the floor that one element of it makes of their output.

    A table or a matrix hands its own relative error on to what is looked up in it or multiplied with it, forward and backward.
    A vector is added or scales, so its change counts against the size of the output: a bias that began at zero must not make
    its layer blind.

    Args:
        calls: Of the reference, ordered by rank, step and completion.
        moved: As ``_share_steps`` returns it.
        found: Floors, which are raised.
    """
    stepped: dict[tuple[int, str], dict[str, _Stepped]] = defaultdict(dict)  # by rank and module, and by name
    passes: dict[tuple[int, int], _Pass] = defaultdict(_Pass)  # by rank and step
    for call in calls:
        if call.phase == OPTIMIZER:
            for record in call.outputs:
                if record.text in moved:
                    stepped[call.rank, call.module][record.index] = (*moved[record.text], record.shape)
                weight, _, is_state = record.index.partition(".")
                if is_state:  # such as a running mean of the gradients
                    _raise(record, passes[call.rank, call.step].gradients.get((call.module, weight), {}), found)
        elif stepped:
            read = [] if call.phase == GRADIENT else _find_read(call, stepped)
            _raise_outputs(call, read, passes[call.rank, call.step], found)


@dataclass
class _Pass:
    """What the calls of one step have handed on so far of the elements that moved.

    Attributes:
        leaving: Order of a call and index of its output -> what it handed on.
        same: Content of an output -> the same.
        largest: Shape of a gradient -> the largest that a call handed on with one of that shape.
        given: Phase and module -> what arrived at its last call.
        gradients: Module and weight -> what its gradient carries.
    """

    leaving: dict[tuple[int, str], _Carried] = field(default_factory=dict)
    same: dict[object, _Carried] = field(default_factory=dict)
    largest: dict[tuple[int, ...], _Carried] = field(default_factory=dict)
    given: dict[tuple[str, str], list[_Carried]] = field(default_factory=dict)
    gradients: dict[tuple[str, str], _Values] = field(default_factory=dict)

    def note(self, call: Call, record: Record, carried: _Carried) -> None:
        """Remember what an output hands on."""
        self.leaving[call.order, record.index] = self.same[_content(record)] = carried
        if call.phase == BACKWARD:
            shape = tuple(record.shape)
            self.largest[shape] = max(self.largest.get(shape, carried), carried, key=_measure_carried)
        elif call.phase == GRADIENT:
            self.gradients[call.module, record.index] = carried[0]


def _raise_outputs(call: Call, read: Sequence[_Stepped], so_far: _Pass, found: Mapping[str, _Values]) -> None:
    """Raise the floors of a call's outputs, and note what it hands on.

    Args:
        call: Of the forward, the backward, or the gradients of a module's weights.
        read: The stepped weights that it reads.
        so_far: What the calls before it in its step have handed on.
        found: Floors, which are raised.
    """
    sources = [record.source for record in call.inputs if record.source is not None]
    arriving = [so_far.leaving[source] for source in sources if source in so_far.leaving]
    moves = max((size for _, size in arriving), default=0.0) if call.movement else 0.0
    if call.phase == BACKWARD or _is_product(call):
        arriving = [(values, math.inf) for values, _ in arriving]  # twice the input is twice the output: nothing is weakened
    if call.phase == BACKWARD:
        read = [weight for weight in read if len(weight[-1]) > 1]  # nothing goes back through a bias
        # A gradient that no call handed on is a sum of those of several, such as where a residual branch begins.
        for record in (record for record in call.inputs if record.source is None and tuple(record.shape) in so_far.largest):
            part = _carry_elements(_root_mean_square(record), [], [so_far.largest[tuple(record.shape)]])
            arriving += [(part, math.inf)] if part else []
    if not call.operator:
        so_far.given[call.phase, call.module] = arriving
    for record in call.outputs:
        if math.prod(record.shape) < lines.FEW_ELEMENTS:  # a mean over many elements hardly notices one
            continue
        size = _root_mean_square(record) or moves  # movement has no statistics of its own, and changes none
        if call.phase == GRADIENT:  # a product of both
            both = (BACKWARD, FORWARD) if len(record.shape) > 1 else (BACKWARD,)
            given = [so_far.given.get((phase, call.module), ()) for phase in both]
            arriving = [(values, math.inf) for each in given for values, _ in each]
        content = _content(record)  # a module returns what its last call did
        known = [so_far.same[content]] if content in so_far.same else []
        if raised := _carry_elements(size, read, [*arriving, *known]):
            so_far.note(call, record, (raised, size))
            _raise(record, raised, found)


def _raise(record: Record, raised: _Values, found: Mapping[str, _Values]) -> None:
    """Raise the floors of a record to what it carries, in the metrics that it has a floor in."""
    own = found.get(record.text, {})
    _keep_larger(own, {name: value for name, value in raised.items() if name in own})


def _is_product(call: Call) -> bool:
    """Tell whether a call multiplies what it is given, by a weight or its own norm, and so hands on relative errors."""
    name = call.operator or call.class_name.lower()
    return any(part in name for part in ("norm", "linear", "conv", "mul", "mm", "div"))


def _measure_carried(carried: _Carried) -> float:
    values, size = carried
    return values[MAIN_METRIC][0] * size


def _carry_elements(size: float, read: Iterable[_Stepped], arriving: Iterable[_Carried]) -> _Values:
    """Estimate how far single elements of weights, those it reads and those its inputs came from, carry into an output.

    Args:
        size: Root mean square of the output; 0 if it is not known.
        read: The weights.
        arriving: What the inputs hand on, each with its size.
    """
    raised: _Values = {}
    for far, of_weight, noise, shape in read:
        if relative_to := of_weight if len(shape) > 1 else size:
            _keep_larger(raised, _spread_element(far / relative_to, shape, noise))
    for values, of_input in arriving:
        kept = min(of_input / size, 1.0) if size else 0.0
        _keep_larger(raised, {name: (kept * value, noise) for name, (value, noise) in values.items()})
    return raised


def _find_read(call: Call, stepped: Mapping[tuple[int, str], Mapping[str, _Stepped]]) -> list[_Stepped]:
    """Return the stepped weights that a call reads: those that it names, and of a call of a module also its own."""
    owned = [record.weight.rpartition(".") for record in call.inputs if record.weight]
    read = {(owner, name): stepped.get((call.rank, owner), {}).get(name) for owner, _, name in owned}
    if not call.operator:
        read |= {(call.module, name): weight for name, weight in stepped.get((call.rank, call.module), {}).items()}
    return [weight for weight in read.values() if weight]


def _root_mean_square(record: Record) -> float:
    """Return the root mean square of a tensor by its statistics; 0 without any."""
    square = record.statistics.square if record.statistics else None
    return math.sqrt(square / math.prod(record.shape)) if square else 0.0


def _raise_largest(own: _Values, peak: float, dtype: str, noise: str) -> None:
    """Raise the floor of the worst element, which is a matter of luck.

    It is at least four times that of the norm: of errors that are spread like a normal distribution, one in 16 000 is beyond
    four times their root mean square. A single element far beyond the others has an error as much larger, and the disturbances
    drew it no more than a few times. And it is at least what rounding does to the largest element.
    """
    if _LARGEST not in own:
        return
    if MAIN_METRIC in own:
        value, of_norm = own[MAIN_METRIC]
        times = lines.WORST_OF_NORM + lines.WORST_OF_PEAK * max(peak - lines.WORST_OF_NORM, 0.0)
        _keep_larger(own, {_LARGEST: (times * value, of_norm)})
    if part := coarsest([dtype]):  # of complex numbers the type of their parts
        _keep_larger(own, {_LARGEST: (lines.WORST_ROUNDINGS * 2.0 ** -float_facts(part).digits * peak, noise)})


def _raise_worst_row(own: _Values, peak: float, dtype: str, noise: str) -> None:
    """Raise the floor of a gradient's worst row to what rounding does to the largest one.

    Rows of a gradient are differences of numbers of one size, such as ``sigmoid(x) - label`` of each sample: in one that the
    model has right already it cancels. The reference may make it exactly zero in all of its runs, and a correct chip that
    computes the sigmoid otherwise leaves the rounding of what cancelled, which is that of the rows that did not.
    """
    part = coarsest([dtype])
    if part and _ROW in own:
        _keep_larger(own, {_ROW: (lines.ROW_ROUNDINGS * 2.0 ** -float_facts(part).digits * peak, noise)})


def _content(record: Record) -> tuple[str, tuple[int, ...]]:
    """Return a key that records with the same bits share; one that no other record has if the content is not known."""
    return (record.known, record.shape) if record.known else (record.text, ())
