"""From the record of a call to something that can be run: the operator by its canonical name, its arguments at their places.

A canonical name does not say how an operator was called: ``add`` is ``torch.add``, ``Tensor.add``, ``x + y`` or ``1 + x``. So a
call has several *readings*, the likeliest first; the first that reproduces what the reference computed is taken.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import sys
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

import torch

from precflow.agent.capture.operator_names import is_movement
from precflow.agent.contract import split_path
from precflow.agent.replay.calls import CannotCompute, RecordedCall, parse_argument
from precflow.agent.replay.compositions import COMPOSITIONS
from precflow.agent.replay.terms import TERMS

MATMUL, MOVEMENT, SUM, RANDOM, OTHER = KINDS = ("matmul", "movement", "sum", "random", "other")
PARTS, REDUCTION = "parts", "reduction"
"""Kinds of gradients: added up from parts that were rounded, and summed over rows, such as that of a bias."""

_MATMULS = frozenset(
    "mm bmm addmm baddbmm addbmm matmul linear einsum mv dot vdot inner addmv addr tensordot bilinear chain_matmul "
    "multi_dot conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution "
    "convolution_overrideable convolution_backward convolution_backward_overrideable mkldnn_convolution thnn_conv2d "
    "slow_conv2d_forward npu_linear npu_bmmV2 linear_backward cudnn_convolution miopen_convolution".split()
)
# These contain matmuls, so they have the rounding of matmuls; but they are no sums of products that could be taken as absolute.
_WITH_MATMULS = frozenset(
    "scaled_dot_product_attention multi_head_attention_forward npu_fusion_attention npu_fusion_attention_v2 lstm gru "
    "rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell mkldnn_rnn_layer mkldnn_rnn_layer_backward "
    "native_multi_head_attention transformer_encoder_layer_fwd".split()
)
_SUMS = frozenset(
    "sum nansum mean add sub rsub cumsum addcmul addcdiv index_add scatter_add embedding_dense_backward embedding_bag "
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d mean_dim trace "
    "avg_pool2d_backward upsample_bilinear2d upsample_nearest2d_backward upsample_bilinear2d_backward "
    "adaptive_avg_pool2d_backward".split()
)
_MOVES = frozenset(
    "embedding masked_fill where index index_put setitem select_copy constant_pad_nd pad fill zero zeros ones full "
    "zeros_like ones_like full_like new_zeros new_ones new_full upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "pixel_shuffle pixel_unshuffle channel_shuffle unsafe_split unsafe_chunk take_along_dim npu_transpose "
    "npu_confusion_transpose reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d detach index_copy "
    "index_fill masked_scatter scatter slice_copy as_strided_copy".split()
)
_DRAWS = frozenset(
    "bernoulli rand randn randint randperm normal uniform exponential multinomial poisson rand_like randn_like "
    "randint_like native_dropout dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout "
    "feature_dropout rrelu rrelu_with_noise gumbel_softmax log_normal cauchy geometric random fused_dropout binomial "
    "npu_dropout kaiming_uniform kaiming_normal xavier_uniform xavier_normal trunc_normal".split()
)
_DROPOUTS = frozenset("dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout".split())

# A sum of absolute terms: what is subtracted counts like what is added.
_ABSOLUTE = {"sub": "add", "sub_": "add_", "rsub": "add"}
_ADDENDS = frozenset("add sub rsub".split())  # numbers among their arguments are terms or factors of terms
_FACTORS = frozenset("alpha beta value other".split())

_REFLECTED: Dict[str, Callable[[Any, Any], Any]] = {
    "sub": operator.sub,
    "div": operator.truediv,
    "pow": operator.pow,
    "matmul": operator.matmul,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "bitwise_left_shift": operator.lshift,
    "bitwise_right_shift": operator.rshift,
}
_OF_PYTHON: Dict[str, Callable[..., Any]] = {"getitem": operator.getitem, "contains": operator.contains}
# Where functions of the Python interface are found by their names: `linalg_norm` is torch.linalg.norm, and so on.
_SPACES: Tuple[Any, ...] = (
    torch.nn.functional,
    torch,
    torch.Tensor,
    *[getattr(torch._C, name) for name in ("_nn", "_linalg", "_fft", "_special") if hasattr(torch._C, name)],  # noqa: SLF001
)

_PLAIN_TYPES = frozenset("Tensor number float int bool complex str".split())  # as schemas of aten operators write them

Tensors = Mapping[str, torch.Tensor]


class Reading(NamedTuple):
    """One way to run a call.

    Attributes:
        name: What is run, such as ``torch.nn.functional.softmax``.
        run: Takes the input tensors by path and returns what the operator returns; it may write to the tensors.
    """

    name: str
    run: Callable[[Tensors], Any]


def kind_of(call: RecordedCall) -> str:  # noqa: PLR0911  one case for each kind
    """Return which of ``KINDS`` an operator is: by it the judge chooses the line, and the evaluation what to compare.

    Attention and recurrent cells count as ``matmul``: most of their rounding is that of matmuls.
    """
    name = call.operator if call.operator in _MOVES or call.operator in _DRAWS else call.operator.rstrip("_")
    if name in _DRAWS:
        return RANDOM if _is_drawing(call, name) else MOVEMENT
    if name == "interpolate" and call.arguments.get("mode", "'nearest'") in ("'nearest'", "'nearest-exact'"):
        return MOVEMENT
    if name == "embedding" and call.arguments.get("max_norm", "None") != "None":
        return OTHER  # it scales rows of its weight
    if name == "pad" and call.arguments.get("mode", "'constant'") not in (
        "'constant'",
        "'reflect'",
        "'replicate'",
        "'circular'",
    ):
        return OTHER
    if name == "index_put" and "True" in (call.arguments.get("accumulate"), call.arguments.get("3")):
        return SUM
    if name in _MOVES or is_movement(call.operator):
        return MOVEMENT
    if name in _MATMULS or name in _WITH_MATMULS or name.startswith("scaled_dot_product"):
        return MATMUL
    return SUM if name in _SUMS else OTHER


def _is_drawing(call: RecordedCall, name: str) -> bool:
    if name not in _DROPOUTS:
        return True
    return call.arguments.get("training", call.arguments.get("train", call.arguments.get("2", "True"))) != "False" and (
        call.arguments.get("p", call.arguments.get("1", "0.5")) not in ("0.0", "0")
    )


def adds_terms(call: RecordedCall) -> bool:
    """Tell whether an operator adds up products or values, so that its error is measured by the sum of absolute terms."""
    name = call.operator.rstrip("_")
    return name in _MATMULS or name in _SUMS or name in TERMS


def find_term_readings(call: RecordedCall, adapt: Callable[[Any], Any]) -> List[Reading]:
    """Return the ways to add up the absolute terms of a call; empty if it is no sum. They take the tensors as they are.

    Args:
        call: The call.
        adapt: As of :func:`find_readings`.

    Raises:
        CannotCompute: An argument cannot be read.
    """
    if call.operator in TERMS:
        arguments = {name: adapt(parse_argument(text)) for name, text in call.arguments.items()}
        return [Reading("terms of %s" % call.operator, _Bound(TERMS[call.operator], arguments, python=True))]
    if not adds_terms(call):
        return []
    return [
        Reading(reading.name, functools.partial(_run_absolute, reading.run))
        for reading in find_readings(_as_absolute(call), adapt)
    ]


def _run_absolute(run: Callable[[Tensors], Any], tensors: Tensors) -> Any:
    return run(
        {
            path: tensor.abs() if tensor.is_floating_point() or tensor.is_complex() else tensor
            for path, tensor in tensors.items()
        }
    )


def _as_absolute(call: RecordedCall) -> RecordedCall:
    """Return the call that adds up the absolute terms, if it is given the absolute values of its tensors."""
    name = call.operator
    arguments = {
        key: text.lstrip("-") if key in _FACTORS or (key.isdigit() and name.rstrip("_") in _ADDENDS) else text
        for key, text in call.arguments.items()
    }
    return call._replace(operator=_ABSOLUTE.get(name, name), arguments=arguments)


def find_readings(
    call: RecordedCall, adapt: Callable[[Any], Any] = lambda value: value, *, composed: bool = True
) -> List[Reading]:
    """Return the ways to run a call, the likeliest first.

    Args:
        call: The call; only its name, level and arguments are looked at.
        adapt: Changes each argument that is no tensor, such as an element type that does not fit the evaluation.
        composed: Take a fused operator's definition, if there is one, in place of the operator itself.

    Raises:
        CannotCompute: There is none, or an argument cannot be read.
    """
    if not call.operator:
        raise CannotCompute("a module's own settings are not recorded: record level api or operator")
    arguments = {name: adapt(parse_argument(text)) for name, text in call.arguments.items()}
    readings = list(_read_as(call, arguments, composed=composed))
    if not readings:
        raise CannotCompute("no computation is known for %s" % call.operator)
    return readings


def _read_as(call: RecordedCall, arguments: Mapping[str, Any], *, composed: bool) -> Iterator[Reading]:
    name = call.operator
    if composed and name in COMPOSITIONS:
        yield Reading("composition of %s" % name, _Bound(COMPOSITIONS[name], arguments, python=True))
        return
    if call.level == "operator":
        yield from _aten_readings(name, arguments)
        return
    # Python's reflected methods name their argument: `1 - x` is recorded as sub(x, other=1), `x - 1` as sub(x, 1).
    if name in _REFLECTED and set(arguments) == {"other"}:
        yield Reading("reflected %s" % name, functools.partial(_run_reflected, _REFLECTED[name], arguments["other"]))
    if name == "setitem":
        yield Reading("Tensor.__setitem__", functools.partial(_set_items, arguments))
        return
    if name in _OF_PYTHON:
        yield Reading("Tensor.__%s__" % name, _Bound(_OF_PYTHON[name], arguments, python=False, containers=tuple))
        return
    spaces = (*_SPACES, *[sys.modules[name] for name in ("torch_npu",) if name in sys.modules])
    for space in spaces:
        function = getattr(space, name, None)
        if callable(function) and not isinstance(function, type):
            python = inspect.isfunction(function)
            yield Reading("%s.%s" % (space.__name__, name), _Bound(function, arguments, python=python))
    yield from _aten_readings(name, arguments)


def _run_reflected(function: Callable[[Any, Any], Any], other: Any, tensors: Tensors) -> Any:
    return function(other, tensors["0"])


def _set_items(arguments: Mapping[str, Any], tensors: Tensors) -> torch.Tensor:
    positional, _ = assemble(tensors, arguments, tuple)
    changed: torch.Tensor = positional[0]
    changed[positional[1]] = positional[2]
    return changed


class _Bound:
    """A function of Python with the arguments of a call.

    Args:
        function: What to run.
        arguments: Arguments that are no tensors, by name or position.
        python: It is written in Python, so that its parameters have names.
        containers: Type of a list of tensors and other values: an index such as ``x[mask, :]`` is a tuple.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        *,
        python: bool,
        containers: Callable[[Sequence[Any]], Any] = list,
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._containers = containers
        self._names: Sequence[str] = ()
        if python:
            kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            self._names = [
                parameter.name for parameter in inspect.signature(function).parameters.values() if parameter.kind in kinds
            ]

    def __call__(self, tensors: Tensors) -> Any:
        """Run it.

        Raises:
            TypeError: The arguments do not fit.
        """
        positional, named = assemble(tensors, self._arguments, self._containers)
        named.pop("out", None)  # memory for the result, no input
        if self._names and len(positional) <= len(self._names):
            given = {self._names[place]: value for place, value in positional.items() if place < len(self._names)}
            if set(given) & set(named):
                raise TypeError("an argument is given twice")
            return self._function(**given, **named)
        if sorted(positional) != list(range(len(positional))):
            raise TypeError("an argument is missing among the positional ones")
        return self._function(*[positional[place] for place in range(len(positional))], **named)


def assemble(
    tensors: Tensors, arguments: Mapping[str, Any], containers: Callable[[Sequence[Any]], Any] = list
) -> Tuple[Dict[int, Any], Dict[str, Any]]:
    """Return the arguments of a call by position and by name; tensors in containers go back into them.

    Args:
        tensors: By path: ``0``, ``1.0``, ``weight``.
        arguments: All others, by name or path.
        containers: Makes a container of its items.

    >>> assemble({}, {"0": 1, "1.0": 2, "1.1": None, "eps": 3})
    ({0: 1, 1: [2, None]}, {'eps': 3})
    """
    root: Dict[str, Any] = {}
    for path, value in [*tensors.items(), *arguments.items()]:
        place = root
        *outer, last = split_path(path)
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = _Leaf(value)
    whole = {name: _build(node, containers) for name, node in root.items()}
    return (
        {int(name): value for name, value in whole.items() if name.isdigit()},
        {name: value for name, value in whole.items() if not name.isdigit()},
    )


class _Leaf(NamedTuple):
    """A value, to tell it from the dictionaries of containers."""

    value: Any


def _build(node: Any, containers: Callable[[Sequence[Any]], Any]) -> Any:
    if isinstance(node, _Leaf):
        return node.value
    if all(key.isdigit() for key in node):
        return containers([_build(node[key], containers) for key in sorted(node, key=int)])
    return {_read_key(key): _build(child, containers) for key, child in node.items()}


def _read_key(name: str) -> str:
    return str(ast.literal_eval(name)) if name[0] in "'\"" else name


# Level `operator`: aten operators, whose declarations name every argument.


def _aten_readings(name: str, arguments: Mapping[str, Any]) -> Iterator[Reading]:
    for overload in _list_overloads(name):
        yield Reading(overload.name, functools.partial(_run_overload, overload, arguments))


class _Declared(NamedTuple):
    """A declared argument of an overload; ``argument`` is torch's own, which is slow to ask for its name and type."""

    name: str
    type: str
    keyword_only: bool
    argument: Any


class _Overload(NamedTuple):
    """One overload of an aten operator."""

    name: str
    function: Any
    arguments: Sequence[_Declared]


@functools.lru_cache(maxsize=None)  # a model has few operators, and many calls of each
def _list_overloads(name: str) -> Sequence[_Overload]:
    """Return the overloads of an operator, and of its variants in torch, that return new tensors."""
    found: List[_Overload] = []
    for space, written in ((owner, text) for owner in ("aten", "npu") for text in (name, "_" + name, "__%s__" % name)):
        packet: Any = getattr(getattr(torch.ops, space), written, None)
        if not hasattr(packet, "overloads"):  # not there, or a method of the namespace itself, such as __gt__
            continue
        for overload in packet.overloads():
            function = getattr(packet, overload)
            declared = function._schema.arguments  # noqa: SLF001  the declaration has no public name
            if not any(argument.is_out for argument in declared):
                row = [_Declared(one.name, str(one.type), one.kwarg_only, one) for one in declared]
                found.append(_Overload(str(function), function, row))
    return found


def _run_overload(overload: _Overload, arguments: Mapping[str, Any], tensors: Tensors) -> Any:
    """Run one overload of an aten operator.

    Raises:
        TypeError: The arguments are not those that it declares.
    """
    positional, named = assemble(tensors, arguments)
    row: List[Any] = []
    rest: Dict[str, Any] = {}
    for place, declared in enumerate(overload.arguments):
        if place in positional:
            value = positional.pop(place)
        elif declared.name in named:
            value = named.pop(declared.name)
        elif declared.argument.has_default_value():
            value = declared.argument.default_value
        elif declared.type.startswith("Optional"):
            value = None
        else:
            raise TypeError("argument %s is missing" % declared.name)
        # torch would convert a number where a tensor is declared, and the other way round.
        # A list it refuses, and first prints every element.
        is_tensor = isinstance(value, torch.Tensor)
        if (is_tensor != (declared.type == "Tensor") and declared.type in _PLAIN_TYPES) or (
            is_tensor and "List[" in declared.type
        ):
            raise TypeError("argument %s is %s" % (declared.name, type(value).__name__))
        if declared.keyword_only:
            rest[declared.name] = value
        else:
            row.append(value)
    if positional or named:
        raise TypeError("it does not take %s" % ", ".join(map(str, [*positional, *named])))
    return overload.function(*row, **rest)
