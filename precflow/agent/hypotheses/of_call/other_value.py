"""Another value of an argument: which ones a backend could have taken in place of the one that a call was given, as one table.

A kernel that lacks ``align_corners``, pads with zeros whatever the mode, or knows one ``alpha`` alone computes its call as if
the argument had another value. To add a function, add a row to ``_TABLE``: its canonical name, and for each argument a way to
vary it::

    "elu": (argument("alpha", 1, 1.0, among(0.1, 0.5, 1.0, 2.0)),)

Left out are arguments that have rules of their own: the form of a GELU, the epsilon of layer_norm, group_norm and batch_norm.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch
from torch.nn import functional

from precflow.agent.hypotheses.arguments import CallArguments, Other, Tensors
from precflow.agent.hypotheses.subject import Candidate, Hypothesis, Subject
from precflow.agent.replay.calls import CannotCompute, RecordedCall


def propose(subject: Subject) -> Iterator[Candidate]:
    """Yield the call with each other value, in the order of the table."""
    return (other.as_candidate(subject) for other in list_others(subject.call))


def list_others(call: RecordedCall) -> List[Other]:
    """Return the calls to try, in the order of the table; none for other functions."""
    given = CallArguments(call)
    return [other for way in _TABLE.get(call.operator.rstrip("_"), ()) for other in _vary(way, given)]


def _vary(way: Way, given: CallArguments) -> Iterator[Other]:
    try:
        yield from way(given)
    except (CannotCompute, IndexError, TypeError, ValueError):  # an argument of a form that is not known here
        return


Way = Callable[[CallArguments], Iterable[Other]]
Values = Callable[[CallArguments, Any], Iterable[Any]]


def argument(names: str, place: int, default: Any, others: Values) -> Way:
    """Return how an argument may have another value by itself.

    Args:
        names: Its name, and others of the same argument behind a space.
        place: Among positional arguments; -1 where it is given by name alone.
        default: Its value where a call does not give it.
        others: Returns other values.
    """

    def vary(given: CallArguments) -> Iterator[Other]:
        """Yield the calls with other values."""
        recorded = given.value(names, place, default=default)
        for value in others(given, recorded):
            if value != recorded:
                yield Other(names.split(maxsplit=1)[0], repr(recorded), repr(value), given.replaced(names, place, value))

    return vary


# Other values.


def flip(_: CallArguments, value: Any) -> Iterable[Any]:
    """The other one of true and false."""
    return (not value,)


def either(_: CallArguments, value: Any) -> Iterable[Any]:
    """True and false, of an argument that may be ``None`` too."""
    return [other for other in (True, False) if other is not value]


def among(*values: Any) -> Values:
    """These, but for the one that the call has; numbers are compared as numbers."""
    return lambda _, value: [other for other in values if other != value]


def beside(_: CallArguments, value: Any) -> Iterable[Any]:
    """The whole numbers beside it, and 0."""
    return dict.fromkeys([value + 1, value - 1, *([0] if value else [])])


def negative(_: CallArguments, value: Any) -> Iterable[Any]:
    """Its negative, of each number of a list."""
    return [[-each for each in value] if isinstance(value, (list, tuple)) else -value]


def axes(given: CallArguments, value: Any) -> Iterable[Any]:
    """The other axes of the first tensor, the last and the first ones before those between; none where several are given."""
    count = len(given.shape("input self", 0))
    several = isinstance(value, (list, tuple))
    if (several and len(value) != 1) or (not several and (value is None or isinstance(value, bool))):
        return []
    own = (value[0] if several else value) % count
    others = [axis for axis in dict.fromkeys([count - 1, 0, *range(count)]) if axis != own]
    return [[axis] if several else axis for axis in others]


def reductions(given: CallArguments, value: Any) -> Iterable[Any]:
    """Mean and sum; operators of aten have numbers for them."""
    if given.call.level == "operator":
        return [number for number in (1, 2) if number != value]
    of_batch = ("batchmean",) if given.call.operator == "kl_div" else ()
    return [name for name in ("mean", "sum", *of_batch) if name != value]


def _reduction(place: int) -> Way:
    def vary(given: CallArguments) -> Iterator[Other]:
        """Yield the other reductions."""
        default = 1 if given.call.level == "operator" else "mean"
        yield from argument("reduction", place, default, reductions)(given)

    return vary


def switch(names: str, place: int, *, default: Optional[bool] = None) -> Way:
    """Return an argument that is true or false."""
    return argument(names, place, default, flip)


# Ways that an argument of the function does not say, or not alone.


def without(name: str, place: int) -> Way:
    """A tensor that has no effect, as if it were ``None``."""

    def vary(given: CallArguments) -> Iterator[Other]:
        """Yield the call without it."""
        path = given.path(name, place)
        call = given.call._replace(arguments={**given.call.arguments, path: "None"})
        yield Other(name, "a tensor", "None", call, functools.partial(_drop, path))

    return vary


def _drop(path: str, tensors: Tensors) -> Dict[str, torch.Tensor]:
    return {key: tensor for key, tensor in tensors.items() if key != path}


def inverted(name: str, place: int) -> Way:
    """A mask of true and false that is read the other way round."""

    def vary(given: CallArguments) -> Iterator[Other]:
        """Yield the call with the other mask."""
        change = functools.partial(_invert, given.path(name, place))
        yield Other(name, "the mask", "its inverse", given.call, change)

    return vary


def _invert(path: str, tensors: Tensors) -> Dict[str, torch.Tensor]:
    if tensors[path].dtype is not torch.bool:
        raise CannotCompute("it is not a boolean mask")
    return {**tensors, path: tensors[path].logical_not()}


def exclusive(neutral: float) -> Way:
    """A running sum or product without the element itself."""

    def vary(given: CallArguments) -> Iterator[Other]:
        """Yield the call with all elements one place later, and a neutral one first."""
        axis = given.value("dim", 1, default=None)
        change = functools.partial(_shift, given.path("input self", 0), axis, neutral)
        yield Other("exclusive", "False", "True", given.call, change)

    return vary


def _shift(path: str, axis: int, neutral: float, tensors: Tensors) -> Dict[str, torch.Tensor]:
    values = tensors[path]
    first = torch.full_like(values.narrow(axis, 0, 1), neutral)
    return {**tensors, path: torch.cat([first, values.narrow(axis, 0, values.shape[axis] - 1)], axis)}


def summed_in(name: str) -> Way:
    """A running sum that is kept in a narrower type."""

    def vary(given: CallArguments) -> Iterator[Other]:
        """Yield the sum that is rounded to the type after each element."""
        axis = given.value("dim", 1, default=None)
        compute = functools.partial(_sum_in, getattr(torch, name), given.path("input self", 0), axis)
        yield Other("accumulator", "'the type of its result'", repr(name), given.call, compute=compute)

    return vary


def _sum_in(dtype: torch.dtype, path: str, axis: int, tensors: Tensors) -> Dict[str, torch.Tensor]:
    total = torch.zeros_like(tensors[path].select(axis, 0))
    sums: List[torch.Tensor] = []
    for values in tensors[path].unbind(axis):
        total = (total + values).to(dtype).to(torch.float64)
        sums.append(total)
    return {"0": torch.stack(sums, axis)}


def order_gates(names: str, weights: int) -> Way:
    """The gates of a recurrent cell in another order, as another library keeps them.

    Args:
        names: One letter for each gate, in torch's order.
        weights: Place of the first weight, or of the list of weights.
    """

    def vary(given: CallArguments) -> Iterator[Other]:
        """Yield the calls whose weights have their parts in another order."""
        paths = given.find_from(weights)
        for order in itertools.permutations(range(len(names))):
            if order != tuple(range(len(names))):
                text = ", ".join(names[place] for place in order)
                yield Other("gates", repr(", ".join(names)), repr(text), given.call, functools.partial(_order, paths, order))

    return vary


def _order(paths: Sequence[str], order: Sequence[int], tensors: Tensors) -> Dict[str, torch.Tensor]:
    changed = dict(tensors)
    for path in paths:
        parts = tensors[path].chunk(len(order))
        changed[path] = torch.cat([parts[place] for place in order])
    return changed


def turn_kernel(given: CallArguments) -> Iterator[Other]:
    """A kernel of a convolution that is mirrored along its axes of space, or has these, or its channels, exchanged."""
    if given.value("transposed", -1, default=False):
        return
    path, shape = given.path("weight", 1), given.shape("weight", 1)
    space = tuple(range(2, len(shape)))
    turns: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    if max(shape[2:], default=1) > 1:
        turns["mirrored"] = lambda kernel: kernel.flip(space)
        several = space[:2] if len(space) > 1 and min(shape[2:4]) > 1 else ()
        turns.update({"mirrored along axis %d" % axis: functools.partial(torch.flip, dims=(axis,)) for axis in several})
    if len(space) > 1 and shape[-1] == shape[-2] > 1:
        turns["rows and columns exchanged"] = lambda kernel: kernel.transpose(-1, -2)
    if shape[0] == shape[1] > 1:
        turns["channels exchanged"] = lambda kernel: kernel.transpose(0, 1)
    for text, turn in turns.items():
        yield Other("weight", "'as it is'", repr(text), given.call, functools.partial(_turn, path, turn))


def _turn(path: str, turn: Callable[[torch.Tensor], torch.Tensor], tensors: Tensors) -> Dict[str, torch.Tensor]:
    return {**tensors, path: turn(tensors[path])}


def _expand(value: Any, count: int) -> List[int]:
    """Return one number for each axis: of ``1``, ``(1,)`` or ``(1, 1)``.

    Raises:
        CannotCompute: It is text, such as ``'same'``, or missing.
    """
    if isinstance(value, (str, type(None))):
        raise CannotCompute("the padding is not a number")
    numbers = [int(each) for each in value] if isinstance(value, (list, tuple)) else [int(value)]
    return numbers * count if len(numbers) == 1 else numbers


def _pad(path: str, sides: Sequence[Tuple[int, int]], mode: str, fill: float, tensors: Tensors) -> Dict[str, torch.Tensor]:
    flat = [size for pair in reversed(sides) for size in pair]
    values = tensors[path]
    padded = functional.pad(values, flat, value=fill) if mode == "constant" else functional.pad(values, flat, mode=mode)
    return {**tensors, path: padded}


def pad_otherwise(given: CallArguments) -> Iterator[Other]:
    """A convolution whose borders are padded with other values, or one place more at one end than at the other."""
    if given.value("transposed", -1, default=False):
        return
    path = given.path("input", 0)
    count = len(given.shape("weight", 1)) - 2
    recorded = given.value("padding", 4, default=0)
    sizes = _find_padding(given, recorded, count)
    if not any(sizes):
        return
    call = given.replaced("padding", 4, [0] * count)
    both = [(size, size) for size in sizes]
    for mode in ("replicate", "reflect", "circular"):
        yield Other("padding_mode", "'zeros'", repr(mode), call, functools.partial(_pad, path, both, mode, 0.0))
    for more in (1, -1):
        moved = [(size - more, size + more) if size else (0, 0) for size in sizes]
        text = "(%s before, %s after)" % tuple([pair[end] for pair in moved] for end in (0, 1))
        yield Other("padding", repr(recorded), text, call, functools.partial(_pad, path, moved, "constant", 0.0))


def _find_padding(given: CallArguments, recorded: Any, count: int) -> List[int]:
    """Return how many places a convolution pads at both ends of each axis."""
    if recorded == "valid":
        return [0] * count
    if recorded != "same":
        return _expand(recorded, count)
    spans = zip(given.shape("weight", 1)[2:], _expand(given.value("dilation", 5, default=1), count))
    return [step * (size - 1) // 2 for size, step in spans]


def dilate_otherwise(padding: int, dilation: int) -> Way:
    """A kernel whose elements stand closer or farther apart around the same middle, so that the shape stays."""

    def vary(given: CallArguments) -> Iterator[Other]:
        """Yield the calls with one step less, and one more."""
        if given.value("transposed", -1, default=False):
            return
        sizes = _find_kernel(given)
        recorded = given.value("dilation", dilation, default=1)
        steps, places = _expand(recorded, len(sizes)), _expand(given.value("padding", padding, default=0), len(sizes))
        for more in (-1, 1):
            moved = [place + more * (size - 1) // 2 for size, place in zip(sizes, places)]
            if min(moved) < 0 or min(steps) + more < 1:
                continue
            spread = CallArguments(given.replaced("padding", padding, moved))
            value = [step + more for step in steps]
            yield Other("dilation", repr(recorded), repr(value), spread.replaced("dilation", dilation, value))

    return vary


def _find_kernel(given: CallArguments) -> List[int]:
    if "pool" in given.call.operator:
        count = int(given.call.operator.partition("pool")[2][:1])
        return _expand(given.value("kernel_size", 1, default=None), count)
    return list(given.shape("weight", 1)[2:])


def fill_maximum(given: CallArguments) -> Iterator[Other]:
    """A maximum whose border counts as 0 in place of minus infinity."""
    sizes = _expand(given.value("padding", 3, default=0), len(_find_kernel(given)))
    if any(sizes):
        call = given.replaced("padding", 3, [0] * len(sizes))
        change = functools.partial(_pad, given.path("input self", 0), [(size, size) for size in sizes], "constant", 0.0)
        yield Other("padding_value", "-inf", "0", call, change)


def interpolate_otherwise(given: CallArguments) -> Iterator[Other]:
    """Another mode of an interpolation, whose corners are not aligned; modes that fit the number of axes."""
    recorded = given.value("mode", 3, default="nearest")
    of_axes = {3: ("linear", "area"), 4: ("bilinear", "bicubic", "area"), 5: ("trilinear", "area")}
    fitting = of_axes.get(len(given.shape("input", 0)), ())
    plain = CallArguments(given.replaced("align_corners", 4, None))
    if given.value("antialias", 6, default=False):
        plain = CallArguments(plain.replaced("antialias", 6, value=False))
    for mode in ("nearest", "nearest-exact", *fitting):
        if mode != recorded:
            yield Other("mode", repr(recorded), repr(mode), plain.replaced("mode", 3, mode))


def correct_otherwise(given: CallArguments) -> Iterator[Other]:
    """A variance that is divided by n in place of n - 1, or the other way round."""
    arguments = given.call.arguments
    if "correction" in arguments or given.call.level == "operator":
        yield from argument("correction", -1, 1, among(0, 1))(given)
        return
    place = 1 if arguments.get("1") in ("True", "False") else 2  # var(unbiased), or var(dim, unbiased)
    yield from switch("unbiased", place, default=True)(given)


def limit_otherwise(given: CallArguments) -> Iterator[Other]:
    """Both limits of a hardtanh: those of its default, or of a relu6."""
    recorded = given.value("min_val", 1, default=-1.0), given.value("max_val", 2, default=1.0)
    for low, high in ((-1.0, 1.0), (0.0, 6.0)):
        if low != recorded[0] and high != recorded[1]:
            call = CallArguments(given.replaced("min_val", 1, low)).replaced("max_val", 2, high)
            yield Other("min_val, max_val", repr(recorded), repr((low, high)), call)


def pad_sides_otherwise(given: CallArguments) -> Iterator[Other]:
    """The places at the ends of the axes: the two ends exchanged, moved by one, or the axes counted from the first."""
    recorded = list(given.value("pad padding", 1, default=None))
    pairs = [recorded[start : start + 2] for start in range(0, len(recorded), 2)]
    others = [
        [pair[::-1] for pair in pairs],
        pairs[::-1],
        [[low - 1, high + 1] if low else [low, high] for low, high in pairs],
        [[low + 1, high - 1] if high else [low, high] for low, high in pairs],
    ]
    for value in [list(itertools.chain(*other)) for other in others]:
        if value != recorded:
            yield Other("pad", repr(recorded), repr(value), given.replaced("pad padding", 1, value))


# The table.

_AXIS = argument("dim axis", 1, -1, axes)
_AXIS_OF_NONE = argument("dim axis", 1, None, axes)
_POWERS = among(1.0, 2.0, float("inf"))
_EPSILONS = among(0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-3)
_SLOPES = among(0.0, 0.01, 0.1, 0.2, 0.25)
_ONE = among(1)

_CONVOLUTION: Tuple[Way, ...] = (pad_otherwise, dilate_otherwise(4, 5), without("bias", 2), turn_kernel)
_MAXIMUM: Tuple[Way, ...] = (
    fill_maximum,
    dilate_otherwise(3, 4),
    switch("ceil_mode", 5, default=False),
)
_AVERAGE: Tuple[Way, ...] = (
    switch("count_include_pad", 5, default=True),
    switch("ceil_mode", 4, default=False),
    argument("divisor_override", 6, None, among(None, 1)),
)
_FOURIER: Tuple[Way, ...] = (
    argument("norm", 3, None, among("backward", "ortho", "forward")),
    argument("dim", 2, -1, axes),
)


def _all_of(names: str, *ways: Way) -> Dict[str, Tuple[Way, ...]]:
    return dict.fromkeys(names.split(), ways)


_TABLE: Dict[str, Tuple[Way, ...]] = {
    # Convolutions and pooling.
    **_all_of("conv1d conv2d conv3d convolution mkldnn_convolution cudnn_convolution", *_CONVOLUTION),
    **_all_of("conv_transpose1d conv_transpose2d conv_transpose3d", without("bias", 2)),
    **_all_of("max_pool1d max_pool2d max_pool3d max_pool1d_with_indices", *_MAXIMUM),
    **_all_of("max_pool2d_with_indices max_pool3d_with_indices", *_MAXIMUM),
    **_all_of("avg_pool2d avg_pool3d", *_AVERAGE),
    "avg_pool1d": _AVERAGE[:2],
    **_all_of("lp_pool1d lp_pool2d", argument("norm_type", 1, None, _POWERS), switch("ceil_mode", 4, default=False)),
    # Interpolation and sampling.
    "interpolate": (
        argument("align_corners", 4, None, either),
        switch("antialias", 6, default=False),
        argument("recompute_scale_factor", 5, None, either),
        interpolate_otherwise,
    ),
    **_all_of(
        "upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d",
        switch("align_corners", 2),
    ),
    **_all_of("upsample_bilinear2d_aa upsample_bicubic2d_aa", switch("align_corners", 2)),
    "grid_sample": (
        argument("align_corners", 4, None, either),
        argument("padding_mode", 3, "zeros", among("zeros", "border", "reflection")),
        argument("mode", 2, "bilinear", among("bilinear", "nearest", "bicubic")),
    ),
    **_all_of(
        "grid_sampler grid_sampler_2d grid_sampler_3d",
        switch("align_corners", 4),
        argument("padding_mode", 3, None, among(0, 1, 2)),
        argument("interpolation_mode", 2, None, among(0, 1, 2)),
    ),
    **_all_of("affine_grid affine_grid_generator", argument("align_corners", 2, None, either)),
    # Padding and other movement.
    "pad": (
        argument("mode", 2, "constant", among("constant", "reflect", "replicate", "circular")),
        argument("value", 3, None, among(0.0, 1.0)),
        pad_sides_otherwise,
    ),
    "constant_pad_nd": (argument("value", 2, 0, among(0.0)), pad_sides_otherwise),
    **_all_of("reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d", pad_sides_otherwise),
    **_all_of("tril triu", argument("diagonal", 1, 0, beside)),
    "diagonal": (argument("offset", 1, 0, beside),),
    "roll": (argument("shifts", 1, None, negative), argument("dims", 2, None, axes)),
    "flip": (argument("dims", 1, None, axes),),
    "rot90": (argument("k", 1, 1, negative),),
    **_all_of("gather index_select take_along_dim", argument("dim", 1, None, axes)),
    "scatter": (argument("reduce", -1, None, among(None, "add", "multiply")), argument("dim", 1, None, axes)),
    "scatter_reduce": (
        switch("include_self", -1, default=True),
        argument("reduce", 4, None, among("sum", "mean", "prod", "amax", "amin")),
        argument("dim", 1, None, axes),
    ),
    "scatter_add": (argument("dim", 1, None, axes),),
    "index_add": (argument("alpha", -1, 1, among(1, -1)), argument("dim", 1, None, axes)),
    "index_put": (switch("accumulate", 3, default=False),),
    "embedding": (argument("max_norm", 3, None, among(None)), argument("norm_type", 4, 2.0, _POWERS)),
    "embedding_bag": (
        argument("mode", 6, "mean", among("mean", "sum", "max")),
        argument("max_norm", 3, None, among(None)),
        switch("include_last_offset", 9, default=False),
        without("per_sample_weights", 8),
    ),
    # Norms and distances.
    "batch_norm": (switch("training", 5, default=False), without("weight", 3), without("bias", 4)),
    "native_batch_norm": (switch("training", 5),),
    "instance_norm": (
        switch("use_input_stats", 5, default=True),
        argument("eps", 7, 1e-5, _EPSILONS),
        without("weight", 3),
        without("bias", 4),
    ),
    "local_response_norm": (
        argument("k", 4, 1.0, among(1.0, 2.0)),
        argument("alpha", 2, 1e-4, lambda given, alpha: [alpha * given.value("size", 1, default=1), 1e-4]),
        argument("beta", 3, 0.75, among(0.75, 0.5)),
    ),
    "normalize": (
        argument("p", 1, 2.0, _POWERS),
        argument("dim", 2, 1, axes),
        argument("eps", 3, 1e-12, _EPSILONS),
    ),
    "norm": (argument("p", 1, "fro", _POWERS), argument("dim", 2, None, axes)),
    "linalg_norm": (argument("ord", 1, None, _POWERS), argument("dim", 2, None, axes)),
    "linalg_vector_norm": (argument("ord", 1, 2.0, _POWERS), argument("dim", 2, None, axes)),
    "cosine_similarity": (argument("dim", 2, 1, axes), argument("eps", 3, 1e-8, _EPSILONS)),
    "pairwise_distance": (argument("p", 2, 2.0, _POWERS), argument("eps", 3, 1e-6, _EPSILONS)),
    "cdist": (argument("p", 2, 2.0, _POWERS),),
    "pdist": (argument("p", 1, 2.0, _POWERS),),
    # Activations.
    **_all_of("leaky_relu", argument("negative_slope", 1, 0.01, _SLOPES)),
    **_all_of("elu celu", argument("alpha", 1, 1.0, among(0.1, 0.5, 1.0, 1.6732632423543772, 2.0))),
    "softplus": (
        argument("beta", 1, 1.0, among(0.5, 1.0, 2.0)),
        argument("threshold", 2, 20.0, among(1.0, 5.0, 10.0, 20.0)),
    ),
    **_all_of("hardshrink softshrink", argument("lambd", 1, 0.5, among(0.0, 0.1, 0.5, 1.0))),
    "threshold": (
        argument("value", 2, None, lambda given, _: [0.0, given.value("threshold", 1, default=0.0)]),
        argument("threshold", 1, None, among(0.0, 1.0)),
    ),
    "hardtanh": (
        argument("min_val", 1, -1.0, among(-1.0, 0.0)),
        argument("max_val", 2, 1.0, among(1.0, 6.0)),
        limit_otherwise,
    ),
    "clamp": (argument("min", 1, None, among(None, 0)), argument("max", 2, None, among(None))),
    "logit": (argument("eps", 1, None, among(None, 1e-6)),),
    "glu": (argument("dim", 1, -1, axes),),
    "div": (argument("rounding_mode", -1, None, among(None, "floor", "trunc")),),
    "round": (argument("decimals", -1, 0, among(0)),),
    "nan_to_num": (argument("nan", 1, 0.0, among(0.0)),),
    # Along an axis.
    **_all_of("softmax log_softmax softmin logsumexp", argument("dim", 1, None, axes)),
    "cumsum": (_AXIS_OF_NONE, exclusive(0.0), summed_in("float16"), summed_in("bfloat16")),
    "cumprod": (_AXIS_OF_NONE, exclusive(1.0)),
    **_all_of("cummax cummin logcumsumexp", _AXIS_OF_NONE),
    **_all_of("sum mean nansum amax amin max min argmax argmin all any median nanmedian mode", _AXIS_OF_NONE),
    **_all_of("prod count_nonzero", _AXIS_OF_NONE),
    **_all_of("var std var_mean std_mean", correct_otherwise, _AXIS_OF_NONE),
    "cov": (argument("correction", -1, 1, among(0, 1)),),
    **_all_of("sort argsort", switch("descending", 2, default=False), _AXIS),
    "topk": (switch("largest", 3, default=True), argument("dim", 2, -1, axes)),
    "kthvalue": (argument("k", 1, None, beside), argument("dim", 2, -1, axes)),
    **_all_of(
        "quantile nanquantile",
        argument("interpolation", -1, "linear", among("linear", "lower", "higher", "midpoint", "nearest")),
        argument("dim", 2, None, axes),
    ),
    **_all_of("searchsorted bucketize", switch("right", -1, default=False)),
    "diff": (argument("dim", 2, -1, axes),),
    "cross": (argument("dim", 2, None, axes),),
    # Factors of sums and products.
    **_all_of("addmm baddbmm addbmm addmv addr", argument("beta", -1, 1, _ONE), argument("alpha", -1, 1, _ONE)),
    **_all_of("add sub rsub", argument("alpha", -1, 1, _ONE)),
    **_all_of("addcmul addcdiv", argument("value", -1, 1, _ONE)),
    # Recurrent cells.
    **_all_of("lstm lstm_cell", order_gates("ifgo", 2)),
    **_all_of("gru gru_cell", order_gates("rzn", 2)),
    # Attention.
    "scaled_dot_product_attention": (
        switch("is_causal", 5, default=False),
        argument("scale", -1, None, among(None, 1.0)),
        without("attn_mask", 3),
        inverted("attn_mask", 3),
    ),
    **_all_of(
        "scaled_dot_product_flash_attention scaled_dot_product_efficient_attention scaled_dot_product_cudnn_attention "
        "scaled_dot_product_flash_attention_for_cpu scaled_dot_product_fused_attention_overrideable",
        switch("is_causal", -1, default=False),
        argument("scale", -1, None, among(None, 1.0)),
    ),
    # Losses.
    **_all_of("mse_loss l1_loss soft_margin_loss", _reduction(4)),
    "kl_div": (_reduction(4), switch("log_target", 5, default=False)),
    "smooth_l1_loss": (argument("beta", 5, 1.0, among(0.1, 0.5, 1.0, 1.0 / 9.0)), _reduction(4)),
    "huber_loss": (argument("delta", 3, 1.0, among(0.1, 0.5, 1.0)), _reduction(2)),
    "cross_entropy": (
        argument("label_smoothing", 7, 0.0, among(0.0, 0.1)),
        argument("ignore_index", 4, -100, among(-100, -1, 0)),
        without("weight", 2),
        _reduction(6),
    ),
    **_all_of("nll_loss_forward nll_loss2d_forward", without("weight", 2)),
    "nll_loss": (argument("ignore_index", 4, -100, among(-100, -1, 0)), without("weight", 2), _reduction(6)),
    "binary_cross_entropy": (without("weight", 2), _reduction(5)),
    "binary_cross_entropy_with_logits": (
        without("pos_weight", 6),
        without("pos_weight", 3),
        without("weight", 2),
        _reduction(5),
    ),
    "poisson_nll_loss": (
        switch("log_input", 2, default=True),
        switch("full", 3, default=False),
        _reduction(7),
        argument("eps", 5, 1e-8, _EPSILONS),
    ),
    "gaussian_nll_loss": (switch("full", 3, default=False), _reduction(5), argument("eps", 4, 1e-6, _EPSILONS)),
    "hinge_embedding_loss": (argument("margin", 2, 1.0, among(0.0, 0.5, 1.0)),),
    **_all_of("margin_ranking_loss cosine_embedding_loss", argument("margin", 3, 0.0, among(0.0, 0.5, 1.0))),
    "triplet_margin_loss": (
        argument("p", 4, 2.0, _POWERS),
        switch("swap", 6, default=False),
        argument("margin", 3, 1.0, among(0.0, 0.5, 1.0)),
        _reduction(9),
    ),
    "ctc_loss": (switch("zero_infinity", 6, default=False), _reduction(5)),
    # Linear algebra and Fourier transforms.
    **_all_of("cholesky", switch("upper", 1, default=False)),
    **_all_of("linalg_cholesky linalg_cholesky_ex", switch("upper", -1, default=False)),
    "cholesky_inverse": (switch("upper", 1, default=False),),
    "cholesky_solve": (switch("upper", 2, default=False),),
    **_all_of("linalg_eigh linalg_eigvalsh", argument("UPLO", 1, "L", among("L", "U"))),
    "triangular_solve": (
        switch("upper", 2, default=True),
        switch("transpose", 3, default=False),
        switch("unitriangular", 4, default=False),
    ),
    "linalg_solve_triangular": (
        switch("upper", -1, default=False),
        switch("unitriangular", -1, default=False),
        switch("left", -1, default=True),
    ),
    **_all_of("fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft", *_FOURIER),
    **_all_of("fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn", _FOURIER[0]),
    "stft": (
        switch("normalized", 7, default=False),
        argument("pad_mode", 6, "reflect", among("reflect", "constant", "replicate", "circular")),
        without("window", 4),
    ),
    "istft": (switch("normalized", 6, default=False), without("window", 4)),
}

HYPOTHESIS = Hypothesis("argument", propose)
