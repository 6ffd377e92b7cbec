"""What a correct chip may be off by that adds up in parts, and rounds each part to its own 16-bit type.

A product whose operands have 512 features may be computed as eight products of 64, each stored in bfloat16, which are then
added up in bfloat16 (split-K). How far that is off depends on the operands: where parts are large and cancel, their rounding
is many times that of the result. So for a given product it is computed: the same operands, in up to 64 parts along what is
summed over, of at least 16 terms each.

Parts are made by cutting both operands, or by masking: a product is linear in each operand, so that the parts of one operand,
with zeros elsewhere, give parts of the product. In the backward pass it is the arriving gradient that is masked.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch

from precflow.agent.replay import operators
from precflow.agent.replay.calls import CannotCompute, parse_argument
from precflow.agent.replay.numbers import measure, round_once
from precflow.agent.replay.readings import Exact

MOST_PARTS = 64
FEWEST_TERMS = 16  # in a part
_MOST_MASKED = 1 << 26  # elements of all masked copies of an operand
_BY_ROWS = frozenset("matmul mm bmm mv dot npu_bmmV2".split())
_ADDED_TO = frozenset("addmm baddbmm addmv".split())
_CONVOLUTIONS = frozenset("conv1d conv2d conv3d convolution thnn_conv2d mkldnn_convolution".split())
_BY_CHANNEL = frozenset("group_norm batch_norm instance_norm".split())
_LOOK_UPS = frozenset("embedding index index_select getitem gather take take_along_dim".split())

_ADDING = frozenset({operators.MATMUL, operators.REDUCTION, operators.PARTS})
_COARSE = ("float16", "bfloat16")
_SIZES = ("eta", "worst_row")
# Times the reference's own error, from which on it is computed what partial sums are off by: half of the judge's line without.
_FAR_WORSE = 4.0

Numbers = Dict[str, Any]
Shape = Sequence[int]
Axes = Tuple[int, ...]


def add_partial_sums(
    own: Mapping[str, Numbers],
    measured: Mapping[str, Numbers],
    kinds: Mapping[str, str],
    exact: Exact,
    run_in_parts: Callable[[], Mapping[str, torch.Tensor]],
) -> None:
    """Add to the numbers of outputs that are far worse than the reference's what partial sums in their own type are off by.

    It stands under ``partial_sums``, as ``eta`` and ``worst_row``; outputs whose parts are not known have none.

    Args:
        own: The numbers of the reference, by index.
        measured: Those of the side.
        kinds: Index -> kind.
        exact: float64 at the side's inputs.
        run_in_parts: Returns the outputs with rounded parts.
    """
    doubtful = [
        index
        for index, line in measured.items()
        if kinds.get(index) in _ADDING and "why" not in line and _is_far_worse(line, own.get(index, {}))
    ]
    if not doubtful:
        return
    try:
        made = run_in_parts()
    except Exception:  # noqa: BLE001  without it the output is held to a fixed line
        return
    for index in doubtful:
        result = exact.outputs[index]
        if index in made and made[index].shape == result.shape:
            rounded = made[index].to(getattr(torch, measured[index]["dtype"]))
            found = measure(rounded, result, exact.terms.get(index), residue=False)
            measured[index]["partial_sums"] = {name: found[name] for name in _SIZES}


def _is_far_worse(line: Numbers, own: Numbers) -> bool:
    """Tell whether an output in 16 bits is many times as far off as the reference in the same type, or as one rounding."""
    if line["dtype"] not in _COARSE:
        return False
    usual = own if own.get("dtype") == line["dtype"] else line["control"] or {}
    known = [(line[name], usual.get(name)) for name in _SIZES]
    return any(value is not None and of is not None and value > _FAR_WORSE * of for value, of in known)


def add_in_parts(parts: Iterable[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Return a sum as a chip makes it that rounds its parts and adds these up, one after the other, in the same type.

    A large part costs more if many are added after it than before. So they are added from both ends, and of each element the
    sum is taken that is farther off.

    Args:
        parts: In float64.
        dtype: The type.
    """
    exact: Optional[torch.Tensor] = None
    rounded: List[torch.Tensor] = []
    for part in parts:
        exact = part if exact is None else exact + part
        rounded.append(round_once(part.contiguous(), dtype).to(dtype))
    assert exact is not None
    forth, back = (_add(rounded, dtype), _add(rounded[::-1], dtype))
    return torch.where((forth - exact).abs() >= (back - exact).abs(), forth, back)


def _add(rounded: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    total = rounded[0].to(torch.float64)
    for part in rounded[1:]:
        total = round_once(total + part, dtype)
    return total


def count_parts(terms: int) -> int:
    """Return in how many parts so many terms are added."""
    return max(1, min(MOST_PARTS, terms // FEWEST_TERMS))


def mask_parts(operand: torch.Tensor, axes: Axes) -> Iterator[torch.Tensor]:
    """Yield an operand with all but a part of what is summed over replaced by zeros.

    Args:
        operand: The operand.
        axes: Those that are summed over.

    Raises:
        CannotCompute: It would take minutes: each part costs as much as the whole.
    """
    terms = math.prod([operand.shape[axis] for axis in axes])
    count = count_parts(terms)
    if count == 1:
        yield operand
        return
    if operand.numel() * count > _MOST_MASKED:
        raise CannotCompute("%d parts of %d elements are too many" % (count, operand.numel()))
    shape = [1] * operand.dim()
    for axis in axes:
        shape[axis] = operand.shape[axis]
    places = (torch.arange(terms) * count // terms).reshape(shape)
    for part in range(count):
        yield torch.where(places == part, operand, torch.zeros((), dtype=operand.dtype))


def split_operands(operands: Mapping[str, torch.Tensor], summed: Mapping[str, Axes]) -> Iterator[Dict[str, torch.Tensor]]:
    """Yield the parts of the operands of a product, by path.

    Args:
        operands: By path.
        summed: Path -> the axes that are summed over. If both operands have one, they are cut, which costs no more than the
            product at once; else the first is masked.
    """
    if len(summed) == 1:
        ((path, axes),) = summed.items()
        for part in mask_parts(operands[path], axes):
            yield {path: part}
        return
    terms = {operands[path].shape[axis] for path, (axis,) in summed.items()}.pop()
    count = count_parts(terms)
    for place in range(count):
        begin, end = (-(-terms * edge // count) for edge in (place, place + 1))
        yield {path: operands[path].narrow(axis, begin, end - begin) for path, (axis,) in summed.items()}


def find_summed(operator: str, arguments: Mapping[str, str], inputs: Mapping[str, torch.Tensor]) -> Dict[str, Axes]:
    """Return the axes of the operands of a product that are summed over, by path: of both operands, or of one.

    Args:
        operator: Canonical name.
        arguments: Text of the arguments that are no tensors.
        inputs: By path.

    Raises:
        CannotCompute: It is not known of this operator.
    """
    name = operator.rstrip("_")
    if name == "linear":
        paths = _find_path(inputs, "0", "input"), _find_path(inputs, "1", "weight")
        return {path: (inputs[path].dim() - 1,) for path in paths}
    if name in _BY_ROWS:
        first, second = _find_path(inputs, "0", "input", "self"), _find_path(inputs, "1", "other", "mat2")
        return {first: (inputs[first].dim() - 1,), second: (max(inputs[second].dim() - 2, 0),)}
    if name in _ADDED_TO:
        path = _find_path(inputs, "1", "mat1", "batch1", "mat")
        return {path: (inputs[path].dim() - 1,)}
    if name in _CONVOLUTIONS and "True" not in (arguments.get("6"), arguments.get("transposed")):
        path = _find_path(inputs, "1", "weight")
        return {path: tuple(range(1, inputs[path].dim()))}
    if name == "einsum":
        operands, made = _read_equation(arguments)
        path = _find_path(inputs, "1", "1.0")
        return {path: tuple(axis for axis, letter in enumerate(operands[0]) if letter not in made)}
    raise CannotCompute("what %s sums over is not known" % operator)


def _find_path(inputs: Mapping[str, torch.Tensor], *paths: str) -> str:
    for path in paths:
        if path in inputs:
            return path
    raise CannotCompute("its operands are not known")


def _read_equation(arguments: Mapping[str, str]) -> Tuple[Sequence[str], str]:
    """Return the letters of the operands and those of the result.

    Raises:
        CannotCompute: The equation leaves some out, or has not two operands.
    """
    equation = str(parse_argument(arguments.get("0", arguments.get("equation", "''")))).replace(" ", "")
    operands, arrow, made = equation.partition("->")
    if not arrow or "." in equation or operands.count(",") != 1:
        raise CannotCompute("equation %s is not known" % equation)
    return operands.split(","), made


def find_summed_of_gradient(  # noqa: PLR0911, PLR0913  one case for each form of a sum
    operator: str, arguments: Mapping[str, str], path: str, shape: Shape, made: Shape, *, is_product: bool
) -> Axes:
    """Return the axes of an arriving gradient that the gradient of an input is summed over.

    Args:
        operator: Canonical name of the function of the forward.
        arguments: Text of its arguments that are no tensors.
        path: Of the input.
        shape: Of the input.
        made: Of what the function made, which is the arriving gradient's.
        is_product: The function multiplies and adds up.

    Raises:
        CannotCompute: It is not known of this function.
    """
    name, count, is_first = operator.rstrip("_"), len(made), path in ("0", "input", "self")
    if name == "linear":
        return (count - 1,) if is_first else tuple(range(count - 1))
    if name in ("matmul", "mm", "bmm") and min(len(shape), count) > 1:
        axes = _find_repeated(shape[:-2], made[:-2])
        return (*axes, count - 1 if is_first else count - 2)
    if name in _CONVOLUTIONS and count > 2:  # a batch, a channel and space
        return (1,) if is_first else (0, *range(2, count))
    if name == "einsum":
        operands, letters = _read_equation(arguments)
        own = operands[0 if path in ("1", "1.0") else 1]
        return tuple(axis for axis, letter in enumerate(letters) if letter not in own)
    if is_product and name not in _LOOK_UPS:
        raise CannotCompute("unknown what the gradient of %s sums over" % operator)
    if name in _LOOK_UPS:
        return tuple(range(max(count - 1, 1)))
    if math.prod(shape) >= math.prod(made):
        return ()
    if name in _BY_CHANNEL:
        return (0, *range(2, count))
    return _find_repeated(shape, made)


def _find_repeated(shape: Shape, made: Shape) -> Axes:
    """Return the axes of a result along which an input was repeated.

    Raises:
        CannotCompute: The input does not broadcast to this shape.
    """
    row = (1,) * (len(made) - len(shape)) + tuple(shape)
    if len(row) != len(made) or any(own not in (1, size) for own, size in zip(row, made)):
        raise CannotCompute("an input of shape %s was not repeated to %s" % (tuple(shape), tuple(made)))
    return tuple(axis for axis, (own, size) in enumerate(zip(row, made)) if own < size)
