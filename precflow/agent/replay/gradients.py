"""What the gradients of a module have to be in float64, from the functions that it called and the gradients around them.

Each function is differentiated by autograd at the tensors that a side recorded of it, from the last one to the first. So the
gradients in between are not rounded, as those of a device are: how much that makes, the reference shows by its own error.

A gradient's error is measured by the sum of the absolute terms that it adds up, taken through all functions on the way: the
gradient of a bias or of an attention's keys may cancel to nothing.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from precflow.agent.replay import numbers, operators
from precflow.agent.replay.calls import CannotCompute, Function, GradientGraph, find_dtype, parse_argument
from precflow.agent.replay.partial_sums import add_in_parts, find_summed_of_gradient, mask_parts
from precflow.agent.replay.readings import (
    Exact,
    adapt,
    choose_tolerance,
    measure_distance,
    outputs_of,
    run_closest,
    widen,
)
from precflow.agent.replay.saved_statistics import find_saved_type, run_with_saved
from precflow.agent.replay.terms import TERMS

Tensors = Dict[str, torch.Tensor]

# Conversions: float64 stays float64.
_CONVERSIONS = frozenset("to float half bfloat16 double type type_as".split())
_BY_ELEMENT = frozenset(
    "gelu silu sigmoid tanh relu relu6 elu selu celu leaky_relu mish hardtanh hardswish hardsigmoid softplus softsign "
    "logsigmoid exp expm1 log log1p log2 sqrt rsqrt reciprocal square neg abs sin cos erf clamp clip clamp_min "
    "clamp_max".split()
)
# Autograd multiplies by a slope that it computes from the rounded result of these. That of a tanh near 1 is a difference of
# nearly equal numbers: a result that is right to two units in the last place has another slope than the exact one.
_SLOPES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": lambda made: 1 - made * made,
    "sigmoid": lambda made: made * (1 - made),
    "exp": lambda made: made,
    "sqrt": lambda made: 0.5 / made,
    "rsqrt": lambda made: -0.5 * made**3,
    "reciprocal": lambda made: -made * made,
}
_OF_PRODUCTS = frozenset("mul div multiply divide true_divide".split())
_HANDING_ON = frozenset("add sub".split()) | _CONVERSIONS  # the gradient leaves as it arrived, where nothing was repeated
_LOOK_UPS = frozenset("embedding embedding_bag index index_select getitem gather take take_along_dim".split())
_JOINING = frozenset("cat concat concatenate stack hstack vstack dstack pad constant_pad_nd".split())  # nothing is repeated
_FINE_DIGITS = 24  # of the significand, from which on a type is fine
_RIGHT = 1e-6  # distance of a result from the exact one up to which it differs by rounding
_SMALLEST = 1e-300  # in place of 0, where an absolute value has no gradient


class _Sum(NamedTuple):
    """A gradient, as far as it is added up.

    Attributes:
        exact: In float64.
        terms: Sum of the absolute terms.
        digits: Bits of the significand of the coarsest type on the way.
        kind: ``other``, ``parts`` where rounded values were added up, ``matmul`` with a product of matrices on the way,
            ``reduction`` where it was summed over rows.
        is_computed: A function that does more than move values is on the way. What was recorded where a tensor has several uses
            is a sum of its own beside autograd's, and a chip that rounds by chance makes it another one.
        is_rounded: What was recorded was rounded again on the way.
    """

    exact: torch.Tensor
    terms: torch.Tensor
    digits: int
    kind: str = operators.OTHER
    is_computed: bool = False
    is_rounded: bool = False


def _join_kinds(kinds: Sequence[str]) -> str:
    return max(kinds, key=(operators.OTHER, operators.PARTS, operators.MATMUL, operators.REDUCTION).index)


_LOST = None
"""In place of a sum: some part of the gradient is not known."""
_Sums = Dict[str, Optional[_Sum]]


class GradientComputation:
    """Computes the gradients of a module call. The first side that it is given chooses how functions are read.

    Args:
        graph: Its functions and what is known.

    Attributes:
        functions: They, in order of the forward; each reads its call as the first side asks for.
        kinds: Index of a result -> its kind; filled by :meth:`run`.
    """

    def __init__(self, graph: GradientGraph) -> None:
        self._graph = graph
        self.functions = [Differentiated(each) for each in graph.functions]
        self.kinds: Dict[str, str] = {}

    def run(self, inputs: Mapping[str, torch.Tensor], recorded: Mapping[str, torch.Tensor]) -> Exact:
        """Return what gradients have to be; those that cannot be said are left out.

        Args:
            inputs: The tensors of a side.
            recorded: Its gradients that are results, by index.
        """
        return self._choose_results(self._add_up(inputs), recorded)

    def run_with_saved_statistics(
        self, inputs: Mapping[str, torch.Tensor], recorded: Mapping[str, torch.Tensor]
    ) -> Optional[Exact]:
        """Return the gradients where norms keep their statistics in 16 bits; ``None`` where none may.

        See :mod:`precflow.agent.replay.saved_statistics`.

        Args:
            inputs: The tensors of a side.
            recorded: Its gradients that are results, by index.
        """
        if not any(function.may_round_statistics for function in self.functions):
            return None
        return self._choose_results(self._add_up(inputs, saved=True), recorded)

    def run_in_parts(self, inputs: Mapping[str, torch.Tensor], recorded: Mapping[str, torch.Tensor]) -> Tensors:
        """Return the gradients of a chip that rounds what leaves each function, and the parts of its sums.

        See :mod:`precflow.agent.replay.partial_sums`. Those of functions whose sums are not known are left out.

        Args:
            inputs: The tensors of a side.
            recorded: Its gradients that are results, by index.
        """
        exact = self._choose_results(self._add_up(inputs, in_parts=True), recorded)
        return {
            index: numbers.round_once(gradient.contiguous(), recorded[index].dtype) for index, gradient in exact.outputs.items()
        }

    def _add_up(self, inputs: Mapping[str, torch.Tensor], *, in_parts: bool = False, saved: bool = False) -> _Sums:
        """Return the gradients of all tensors of the graph, by key."""
        sums: _Sums = {}
        for key, names in self._graph.parts.items():
            for name in names:
                _add(sums, key, _take(inputs, name))
        for function in reversed(self.functions):
            arriving: _Sums = {}
            for path, slot in function.outputs.items():
                if slot.key in self._graph.total:
                    arriving[path] = _take(inputs, self._graph.total[slot.key])
                elif slot.key in sums:
                    arriving[path] = sums[slot.key]
            for key, gradient in function.find_leaving(arriving, inputs, in_parts=in_parts, saved=saved):
                _add(sums, key, gradient)
        return sums

    def _choose_results(self, sums: _Sums, recorded: Mapping[str, torch.Tensor]) -> Exact:
        """Return the results that are known, and note their kinds."""
        exact = Exact({}, {})
        for result in self._graph.results:
            found, output = sums.get(result.of), recorded.get(result.index)
            # Autocast keeps gradients in float32 that it computed in 16 bits, from operands that it rounded unseen.
            if found is None or output is None or not found.is_computed or found.exact.shape != output.shape:
                continue
            if found.digits < numbers.format_of(output.dtype).digits:
                continue
            exact.outputs[result.index], exact.terms[result.index] = found.exact, found.terms
            self.kinds[result.index] = found.kind
        return exact


def _take(inputs: Mapping[str, torch.Tensor], name: str) -> Optional[_Sum]:
    """Return a gradient that was recorded."""
    gradient = inputs.get(name)
    if gradient is None or not gradient.is_floating_point():
        return _LOST
    exact = widen(gradient)
    return _Sum(exact, exact.abs(), numbers.format_of(gradient.dtype).digits)


def _add(sums: _Sums, key: str, part: Optional[_Sum]) -> None:
    known = sums.get(key)
    if part is None or (known is None and key in sums) or (known is not None and known.exact.shape != part.exact.shape):
        sums[key] = _LOST
    elif known is None:
        sums[key] = part
    else:
        # Where rounded parts cancel, an element may be off by any number of its own roundings.
        added = operators.PARTS if known.is_rounded or part.is_rounded else operators.OTHER
        sums[key] = _Sum(
            known.exact + part.exact,
            known.terms + part.terms,
            min(known.digits, part.digits),
            _join_kinds([known.kind, part.kind, added]),
            known.is_computed or part.is_computed,
            is_rounded=True,
        )


class Ran(NamedTuple):
    """A function that ran with a graph: how its call was read, its inputs, its outputs, and the inputs that have gradients."""

    reading: operators.Reading
    inputs: Tensors
    outputs: Tensors
    leaves: Tensors


class Differentiated:
    """A function whose gradients are computed.

    Args:
        function: What was recorded of it.

    Attributes:
        name: Its canonical name, that of a function in place without the underscore.
        floats: Its inputs that have gradients, by path.
        outputs: What it returned, by path.
        multiplies: It is a product of matrices, or has one inside.
        moves: It only moves values, or gives them another type.
        converts: It only gives them another type.
        may_round_statistics: It is a norm that may keep its statistics in 16 bits.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._call = function.call
        self.outputs = function.outputs
        self.name = self._name = self._call.operator.rstrip("_")
        self._kind = operators.kind_of(self._call)
        self._readings: Optional[Sequence[operators.Reading]] = None
        self._size = max((math.prod(slot.shape) for slot in self.outputs.values()), default=0)
        types = [find_dtype(slot.dtype) for slots in (function.inputs, function.outputs) for slot in slots.values()]
        self._is_real = not any(dtype.is_complex for dtype in types)
        floats = [dtype for dtype in types if dtype.is_floating_point]
        self._digits = [numbers.format_of(dtype).digits for dtype in floats]
        self._single = torch.float64 not in floats
        self.floats = {path: slot for path, slot in function.inputs.items() if find_dtype(slot.dtype).is_floating_point}
        self._saved = find_saved_type(self._name, {path: find_dtype(slot.dtype) for path, slot in function.inputs.items()})
        self.may_round_statistics = self._saved is not None
        self.multiplies = self._kind == operators.MATMUL
        self.converts = self._name in _CONVERSIONS
        self.moves = self.converts or (self._kind == operators.MOVEMENT and self._name not in _LOOK_UPS)

    @property
    def is_known(self) -> bool:
        """Its gradients can be computed: nothing of it is missing, complex or drawn."""
        return self._function.is_whole and self._is_real and self._kind != operators.RANDOM

    def find_leaving(
        self, arriving: _Sums, values: Mapping[str, torch.Tensor], *, in_parts: bool = False, saved: bool = False
    ) -> List[Tuple[str, Optional[_Sum]]]:
        """Return what the function adds to the gradients of its inputs: their keys, and what is added.

        Args:
            arriving: Gradients of its outputs, by path; none of those that nothing depends on.
            values: The tensors of a side, by key.
            in_parts: Round what arrives and leaves, and the parts of sums.
            saved: Round the statistics of a norm that may keep them in 16 bits.
        """
        if not arriving:
            return []
        known = {path: part for path, part in arriving.items() if part is not None}
        lost: List[Tuple[str, Optional[_Sum]]] = [(slot.key, _LOST) for slot in self.floats.values()]
        if len(known) < len(arriving) or not self.is_known:
            return lost
        try:
            leaving = (
                self._differentiate_in_parts(known, values) if in_parts else self._differentiate(known, values, saved=saved)
            )
        except Exception:  # noqa: BLE001  a function is data: what torch makes of it says nothing of the others
            return lost
        digits = min([*self._digits, *[part.digits for part in known.values()]])
        kinds = [part.kind for part in known.values()]
        moves = self._kind == operators.MOVEMENT and self._name not in _LOOK_UPS
        hands_on = moves or self._name in _HANDING_ON
        computed, rounded = (any(getattr(part, name) for part in known.values()) for name in ("is_computed", "is_rounded"))
        return [
            (
                self.floats[path].key,
                _Sum(
                    exact,
                    terms,
                    digits,
                    _join_kinds([*kinds, self._kind_of(path)]),
                    is_computed=computed or not moves,
                    is_rounded=rounded or not hands_on or (exact.numel() < self._size and self._name not in _JOINING),
                ),
            )
            for path, (exact, terms) in leaving.items()
        ]

    def _kind_of(self, path: str) -> str:
        """Return the kind of what the function adds: that of an input which was repeated along rows is a sum over them."""
        slot = self._function.inputs[path]
        repeated = math.prod(slot.shape) < self._size and self._name not in _JOINING
        # A row of a table is added up as often as it was looked up, most often once.
        if self._name in _LOOK_UPS or (self._kind == operators.MATMUL and len(slot.shape) > 1):
            return operators.MATMUL
        return operators.REDUCTION if repeated else operators.OTHER

    def _differentiate(
        self, arriving: Mapping[str, _Sum], values: Mapping[str, torch.Tensor], *, saved: bool
    ) -> Dict[str, Tuple[torch.Tensor, torch.Tensor]]:
        """Return gradient and sum of absolute terms by path of the inputs."""
        if self.converts:
            (part,) = arriving.values()
            return {next(iter(self._function.inputs)): (part.exact, part.terms)}
        ran = self.run(values)
        if saved:
            ran = ran._replace(outputs=self._round_statistics(ran))
        exact = pull_back(ran.outputs, ran.leaves, {path: part.exact for path, part in arriving.items()})
        terms = self._find_terms(ran, {path: part.terms for path, part in arriving.items()}, exact)
        return {
            path: (gradient, torch.where(terms[path].isfinite(), terms[path].abs(), gradient.abs()))
            for path, gradient in exact.items()
        }

    def _differentiate_in_parts(
        self, arriving: Mapping[str, _Sum], values: Mapping[str, torch.Tensor]
    ) -> Dict[str, Tuple[torch.Tensor, torch.Tensor]]:
        """Return gradients by path of the inputs, each twice, as a chip makes them that rounds the parts of its sums.

        Raises:
            CannotCompute: What a gradient is summed over is not known.
        """
        types = {path: find_dtype(self.outputs[path].dtype) for path in arriving}
        rounded = {path: numbers.round_once(part.exact.contiguous(), types[path]) for path, part in arriving.items()}
        if self.converts:
            (made,) = rounded.values()
            return {next(iter(self._function.inputs)): (made, made)}
        _, _, outputs, leaves = self.run(values)
        found = {}
        for path, leaf in leaves.items():
            once = pull_back(outputs, {path: leaf}, rounded).get(path)
            if once is None:
                continue
            axes = {each: self._find_summed(path, each) for each in rounded}
            if not any(axes.values()):
                made = numbers.round_once(once.contiguous(), next(iter(types.values())))
            elif len(rounded) > 1:
                raise CannotCompute("several gradients arrive at a sum")
            else:
                ((output, whole),) = rounded.items()
                parts = (pull_back(outputs, {path: leaf}, {output: part})[path] for part in mask_parts(whole, axes[output]))
                made = add_in_parts(parts, types[output])
            found[path] = (made, made)
        return found

    def _find_summed(self, path: str, output: str) -> Tuple[int, ...]:
        """Return the axes of the gradient of an output that the gradient of an input is summed over."""
        if self._name in _JOINING:
            return ()
        shapes = self._function.inputs[path].shape, self.outputs[output].shape
        is_product = self._kind == operators.MATMUL
        return find_summed_of_gradient(self._name, self._call.arguments, path, *shapes, is_product=is_product)

    def run(self, values: Mapping[str, torch.Tensor], *, rounds: bool = False) -> Ran:
        """Compute the function with a graph.

        Args:
            values: The tensors of a side, by key.
            rounds: Differentiate at the recorded result, as it was rounded, in 16 bits too.

        Raises:
            CannotCompute: No reading of the call runs.
        """
        inputs = {path: self._find_value(slot.key, path, values) for path, slot in self._function.inputs.items()}
        recorded = {path: values[slot.key] for path, slot in self.outputs.items() if slot.key in values}
        readings = self._readings
        if readings is None:
            readings = operators.find_readings(self._call, functools.partial(adapt, single=self._single))
        leaves = _make_leaves(inputs)
        shapes = {path: slot.shape for path, slot in self.outputs.items()}
        reading, outputs = run_closest(
            readings,
            lambda reading: _run(reading, {**inputs, **leaves}, shapes),
            lambda outputs: (measure_distance(outputs, recorded), choose_tolerance(recorded)),
            "no computation fits",
        )
        self._readings = [reading]
        return Ran(reading, inputs, self._take_slopes(outputs, recorded, leaves, rounds=rounds), leaves)

    def _take_slopes(self, outputs: Tensors, recorded: Tensors, leaves: Tensors, *, rounds: bool) -> Tensors:
        """Return what was recorded of a result in place of the exact one, with the slope that autograd computes from it.

        Only in types whose rounding is small, if it is not what is asked for; and if the result is right: another one is a
        matter of the forward.
        """
        slopes = _SLOPES if not rounds else {**_SLOPES, "softmax": None}
        if self._name not in slopes or set(outputs) != set(recorded) or len(leaves) != 1:
            return outputs
        ((path, made),), (leaf,) = recorded.items(), leaves.values()
        is_fine = min(self._digits) >= _FINE_DIGITS
        near = _RIGHT if is_fine else choose_tolerance(recorded)
        if made.shape != leaf.shape or not (is_fine or rounds) or not measure_distance(outputs, recorded) <= near:
            return outputs
        wide, slope = widen(made), slopes[self._name]
        with torch.enable_grad():
            if slope is not None:
                return {path: wide + slope(wide) * (leaf - leaf.detach())}
            arguments = {name: parse_argument(text) for name, text in self._call.arguments.items()}
            change = leaf - leaf.detach()
            axis = _FunctionArguments({}, arguments).find(1, "dim")
            return {path: wide + wide * (change - (wide * change).sum(axis, keepdim=True))}

    def _round_statistics(self, ran: Ran) -> Tensors:
        """Return the outputs of what ran, those of a norm with the graph of statistics that were kept in 16 bits."""
        if self._saved is None or set(ran.outputs) != {"0"}:
            return ran.outputs
        given = _FunctionArguments({}, {name: parse_argument(text) for name, text in self._call.arguments.items()})
        with torch.enable_grad():
            made = run_with_saved(self._name, given.find, ran.leaves, self._saved)
        return ran.outputs if made is None else {"0": made}

    def _find_value(self, key: str, path: str, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return an input; one that was not kept because it does not count is 0."""
        slot = self._function.inputs[path]
        if key in values and tuple(values[key].shape) == slot.shape:
            return widen(values[key])
        dtype = find_dtype(slot.dtype)
        return torch.zeros(slot.shape, dtype=torch.float64 if dtype.is_floating_point else dtype)

    def _find_terms(self, ran: Ran, arriving: Tensors, exact: Tensors) -> Tensors:
        """Return the sums of absolute terms of the gradients: their own size where the function hides what it adds up."""
        reading, inputs, outputs, leaves = ran
        if self._name in _BY_ELEMENT and len(leaves) == 1:
            return pull_back(outputs, leaves, arriving)
        if self._name in _NORMS and set(arriving) == {"0"}:
            arguments = {name: parse_argument(text) for name, text in self._call.arguments.items()}
            return {
                **_sizes(exact),
                **_NORMS[self._name](_FunctionArguments(inputs, arguments), outputs["0"].detach(), arriving["0"]),
            }
        adds = operators.adds_terms(self._call) or self._kind == operators.MOVEMENT or self._name in _OF_PRODUCTS
        if not adds:
            return _sizes(exact)
        readings: Sequence[operators.Reading] = [reading]
        if operators.adds_terms(self._call):  # it adds up what it subtracts
            readings = operators.find_term_readings(self._call, functools.partial(adapt, single=self._single)) or readings
        positive = {path: tensor.abs().clamp(min=_SMALLEST) if path in leaves else tensor for path, tensor in inputs.items()}
        shapes = {path: slot.shape for path, slot in self.outputs.items()}
        for each in readings:
            fresh = _make_leaves(positive)
            try:
                return {**_sizes(exact), **pull_back(_run(each, {**positive, **fresh}, shapes), fresh, arriving)}
            except Exception:  # noqa: BLE001, S112  this reading does not fit the arguments; another may
                continue
        return _sizes(exact)


def _sizes(exact: Tensors) -> Tensors:
    return {path: gradient.abs() for path, gradient in exact.items()}


def _make_leaves(inputs: Tensors) -> Tensors:
    return {path: tensor.clone().requires_grad_() for path, tensor in inputs.items() if tensor.is_floating_point()}


def _run(reading: operators.Reading, tensors: Tensors, shapes: Mapping[str, Tuple[int, ...]]) -> Tensors:
    """Run a function with a graph.

    Raises:
        TypeError: It returns other tensors than were recorded.
    """
    with torch.enable_grad():  # an operator in place may write to copies alone
        made = outputs_of(reading.run({path: tensor.clone() for path, tensor in tensors.items()}))
    if any(path not in made or tuple(made[path].shape) != shape for path, shape in shapes.items()):
        raise TypeError("it returns other shapes")
    return made


def pull_back(outputs: Tensors, leaves: Tensors, arriving: Tensors) -> Tensors:
    """Return the gradients of leaves that the outputs depend on, by path."""
    paths = [path for path in arriving if outputs[path].requires_grad]
    if not paths or not leaves:
        return {}
    found = torch.autograd.grad(
        [outputs[path] for path in paths],
        list(leaves.values()),
        [arriving[path] for path in paths],
        retain_graph=True,
        allow_unused=True,
    )
    return {path: gradient for path, gradient in zip(leaves, found) if gradient is not None}


class _FunctionArguments(NamedTuple):
    """The arguments of a function of Python: tensors and others, by name or position."""

    tensors: Tensors
    arguments: Mapping[str, Any]

    def find(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument."""
        given = {**self.arguments, **self.tensors}
        return given.get(name, given.get(str(place), default))

    def name(self, terms: Sequence[torch.Tensor], names: Sequence[Tuple[int, str]]) -> Tensors:
        """Return terms by the paths that their tensors were given at."""
        return {name if name in self.tensors else str(place): each for each, (place, name) in zip(terms, names)}


def _layer_norm(given: _FunctionArguments, _: torch.Tensor, gradient: torch.Tensor) -> Tensors:
    values, weight = given.find(0, "input"), given.find(2, "weight")
    shape = given.find(1, "normalized_shape")
    axes = tuple(range(-len(shape), 0))
    inverse = (values.var(axes, unbiased=False, keepdim=True) + given.find(4, "eps", 1e-5)).rsqrt()
    mean = values.mean(axes, keepdim=True)
    terms = TERMS["native_layer_norm_backward"](gradient, values, shape, mean, inverse, weight)
    return given.name(terms, [(0, "input"), (2, "weight"), (3, "bias")])


def _group_norm(given: _FunctionArguments, _: torch.Tensor, gradient: torch.Tensor) -> Tensors:
    values, weight, groups = given.find(0, "input"), given.find(2, "weight"), given.find(1, "num_groups")
    count, channels = values.shape[:2]
    rows = values.reshape(count, groups, -1)
    inverse = (rows.var(-1, unbiased=False) + given.find(4, "eps", 1e-5)).rsqrt()
    size = values[0, 0].numel()
    backward = TERMS["native_group_norm_backward"]
    terms = backward(gradient, values, rows.mean(-1), inverse, weight, count, channels, size, groups)
    return given.name(terms, [(0, "input"), (2, "weight"), (3, "bias")])


def _softmax(given: _FunctionArguments, output: torch.Tensor, gradient: torch.Tensor, *, name: str) -> Tensors:
    return given.name([TERMS[name](gradient, output, given.find(1, "dim"))], [(0, "input")])


_NORMS: Dict[str, Callable[[_FunctionArguments, torch.Tensor, torch.Tensor], Tensors]] = {
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "softmax": functools.partial(_softmax, name="softmax_backward_data"),
    "log_softmax": functools.partial(_softmax, name="log_softmax_backward_data"),
}
