"""Disturbances as small as rounding: what a correct device may do otherwise, done to a model while it runs.

They act in a dispatch mode below capture, in forward and backward, so capture sees the disturbed results::

    model  ->  hooks and modes of capture  ->  a mode of this file  ->  the operator

Their random numbers come from a generator of their own, so the workload draws the same numbers as without them.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch._C import DisableTorchFunction
from torch.utils._python_dispatch import TorchDispatchMode  # documented to users of torch_dispatch, only its module is private

from precflow.agent.capture.nesting import leaves
from precflow.agent.capture.operator_names import aten_name
from precflow.agent.contract import ALLOCATION, MOVEMENT, PLACEMENT
from precflow.agent.session.choices import Choices
from precflow.agent.session.random_numbers import DRAWING, DROPOUT

_top_mode: Optional[Callable[[], Any]] = getattr(  # of torch's stack; private, and missing on some versions
    sys.modules["torch.utils._python_dispatch"], "_get_current_dispatch_mode", None
)
_SEED = 20111  # of the generator that draws the directions
_RARE = 16  # one of so many elements moves by two units
_FINE = (torch.float32, torch.float64)  # in lower precision devices compute in float32 and round once
_BLOCK = 1 << 20  # elements: the temporaries of so many need no fresh pages of memory each time
_PARTS = 4  # into which a matrix product is cut
_AT_ONCE = 16  # products that a matrix unit adds to its accumulator at a time
_LOST = 0.36 * 2.0**-23  # share of its value that an accumulator in float32 loses on average when it rounds towards zero
_UNIT = 2.0**-24  # half a unit in the last place of 1 in float32
_TILE = (0.334, 0.473, 0.872, 1.704)  # relative errors of the rows, and of the columns, of a tile of Winograd's F(4x4, 3x3)
_INTEGERS: Dict[int, torch.dtype] = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes of a float -> integer of its size

# Operators whose result every device gives bit for bit: a choice among their inputs, a constant, a change of sign.
_EXACT: FrozenSet[str] = frozenset(
    "abs neg negative sign sgn relu relu6 threshold threshold_backward hardtanh hardtanh_backward clamp clamp_min clamp_max "
    "maximum minimum max min amax amin aminmax fmax fmin where masked_fill fill zero embedding index gather scatter take "
    "topk sort kthvalue median cummax cummin max_pool2d_with_indices max_pool3d_with_indices floor ceil round trunc "
    "nan_to_num constant_pad_nd pad reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d "
    "zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full arange linspace eye scalar_tensor "
    "copy copy_ set resize real imag conj conj_physical resolve_conj view_as_real view_as_complex ldexp frexp nextafter "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d masked_scatter index_fill index_copy diag diag_embed".split()
)
_UNROUNDED = _EXACT | MOVEMENT | PLACEMENT | ALLOCATION | DRAWING | DROPOUT


class Schema:
    """What torch declares about an aten operator, as far as a disturbance needs it.

    Attributes:
        name: Canonical name.
        rounds: Its results are rounded numbers, which may differ between devices.
    """

    def __init__(self, function: Any) -> None:
        schema = function._schema  # noqa: SLF001  the declaration has no public name
        self._function = function
        self._tensors = frozenset(place for place, argument in enumerate(schema.arguments) if str(argument.type) == "Tensor")
        self._written: List[Tuple[int, str]] = [
            (place, argument.name)
            for place, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self._fresh = [place for place, value in enumerate(schema.returns) if value.alias_info is None]
        self.name = aten_name(function)
        self.rounds = not ({self.name, self.name.rstrip("_")} & _UNROUNDED)

    def run(self, positional: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Run the operator; ``x & 3`` arrives as the overload for two tensors, which refuses a number."""
        number = any(place in self._tensors and isinstance(value, (int, float)) for place, value in enumerate(positional))
        return (self._function.overloadpacket if number else self._function)(*positional, **keywords)

    def results(self, positional: Sequence[Any], keywords: Mapping[str, Any], result: Any) -> Iterator[torch.Tensor]:
        """Yield the tensors that the operator computed: new ones, and those of its arguments that it wrote to.

        Views of its arguments are neither. Of written tensors, single numbers are left out: they are counters (the steps of an
        optimizer), which are exact.
        """
        returned = result if isinstance(result, tuple) else (result,)
        for place in self._fresh:
            if place < len(returned):
                yield from _tensors_in(returned[place])
        for place, name in self._written:
            value = positional[place] if place < len(positional) else keywords.get(name)
            yield from (tensor for tensor in _tensors_in(value) if tensor.numel() > 1)


class SchemaMode(TorchDispatchMode, ABC):
    """Runs every aten operator with its schema at hand; a context manager."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not annotated it
        self._schemas: Dict[Any, Schema] = {}

    def __torch_dispatch__(
        self, func: Any, types: Tuple[type, ...], args: Sequence[Any] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        """Run an operator on behalf of torch."""
        del types
        schema = self._schemas.get(func)
        if schema is None:
            schema = self._schemas[func] = Schema(func)
        return self.run_operator(func, schema, args, kwargs or {})

    @abstractmethod
    def run_operator(self, function: Any, schema: Schema, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Run an operator and return what the program gets for it."""


class Disturbance(SchemaMode):
    """Runs every aten operator, disturbed; a context manager.

    Args:
        is_quiet: Tells whether capture works at the moment: its own operators (sums over a tensor) must not be disturbed.
        choices: Makes disturbed runs choose as the plain one did.
    """

    def __init__(self, is_quiet: Callable[[], bool], choices: Optional[Choices] = None) -> None:
        super().__init__()
        self._is_quiet = is_quiet
        self._choices = choices

    def __enter__(self) -> Disturbance:  # noqa: PYI034  Self came with Python 3.11
        """Disturb what runs from here on."""
        if self._choices is not None:
            self._choices.start()
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Disturb nothing any more."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch has not annotated it
        if self._choices is not None:
            self._choices.stop()

    def run_operator(self, function: Any, schema: Schema, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Run an operator of the program disturbed, and one of capture as it is."""
        if self._is_quiet():
            return schema.run(positional, keywords)
        # An operator that torch computes by calling others is seen in inference mode only: elsewhere torch has taken it apart.
        if torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CompositeImplicitAutograd"):  # noqa: SLF001
            self.start()
            try:
                with DisableTorchFunction():  # a mode for torch functions would run the operator whole again
                    return function.decompose(*positional, **keywords)
            finally:
                super().__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch has not annotated it
        with DisableTorchFunction():  # the modes for torch functions would see what happens here as calls of the model
            result = self.compute(function, schema, positional, keywords)
            return result if self._choices is None else self._choices.settle(schema.name, positional, keywords, result)

    def compute(self, function: Any, schema: Schema, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Compute one operator; without a disturbance, as in the plain run."""
        del function
        return schema.run(positional, keywords)

    def start(self) -> None:
        """Come back to the top of torch's stack of modes."""
        super().__enter__()  # type: ignore[no-untyped-call]  # torch has not annotated it

    def step_aside(self) -> bool:
        """Leave torch's stack of modes while capture works, if this mode is at its top; return whether it did.

        Capture runs many more operators (sums over every tensor) than the model; each would come by here to be left alone.
        """
        if _top_mode is None or _top_mode() is not self:
            return False
        super().__exit__(None, None, None)  # type: ignore[no-untyped-call]  # the same
        return True


class RoundedOnce(Disturbance):
    """Computes matrix products of 16-bit types on a CPU in float32 and rounds once, which is 6 to 70 times faster there."""

    def compute(self, function: Any, schema: Schema, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Compute one operator, in float32 if it is such a product."""
        result = _multiply_in_parts(1, function, schema, positional, keywords) if _is_slow(positional) else None
        return schema.run(positional, keywords) if result is None else result


class Jitter(RoundedOnce):
    """Moves every result that is rounded by one unit in the last place, up or down at random.

    Args:
        is_quiet: See :class:`Disturbance`.
        directions: Draws the directions.
        choices: The same.
    """

    def __init__(self, is_quiet: Callable[[], bool], directions: Directions, choices: Optional[Choices] = None) -> None:
        super().__init__(is_quiet, choices)
        self._directions = directions

    def compute(self, function: Any, schema: Schema, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Compute one operator and move its results."""
        result = super().compute(function, schema, positional, keywords)
        if schema.rounds:
            for tensor in schema.results(positional, keywords, result):
                self._directions.move(tensor)
        return result


class Chunks(Disturbance):
    """Cuts every matrix product into parts along the dimension that is summed over, and adds the parts up.

    Sums in float32 lose what an accumulator loses that rounds towards zero, as those of some matrix units do. It errs in one
    direction, with every 16 products that it adds, so in long sums its error is many times larger than that of random rounding.
    Convolutions in float32 that devices compute from transformed tiles (Winograd) get an error as large as theirs.

    Args:
        is_quiet: See :class:`Disturbance`.
        directions: Draws the errors of tiles.
        choices: The same.
    """

    def __init__(self, is_quiet: Callable[[], bool], directions: Directions, choices: Optional[Choices] = None) -> None:
        super().__init__(is_quiet, choices)
        self._directions = directions

    def compute(self, function: Any, schema: Schema, positional: Sequence[Any], keywords: Dict[str, Any]) -> Any:
        """Compute one operator, in parts if it is a matrix product."""
        result = _multiply_in_parts(_PARTS, function, schema, positional, keywords)
        if result is None:
            return schema.run(positional, keywords)
        for tensor, errors in _errors_of_tiles(schema, positional, keywords, result):
            tensor.add_(errors.mul_(self._directions.draw(tensor)))
        return result


class Directions:
    """Draws for each element whether it goes up or down, and how far, from a generator of its own on each device."""

    def __init__(self) -> None:
        self._generators: Dict[torch.device, torch.Generator] = {}

    def draw(self, like: torch.Tensor) -> torch.Tensor:
        """Return normally distributed numbers of shape, type and device of a tensor."""
        return torch.empty_like(like).normal_(generator=self._generator(like.device))

    def move(self, tensor: torch.Tensor) -> None:
        """Move every element by one unit in the last place, in place; in float32 and float64 one of 16 by two.

        Vector functions of devices (exp, tanh, division) are specified to within one or two units there. Two for a few elements
        show in the largest error, and hardly in the norm of all of them.

        The bits of a float are those of an integer that grows with its magnitude, so adding 1 or -1 to them gives a neighbour::

            1.0 = 0x3F800000   ->   0x3F800001 = 1.00000012   or   0x3F7FFFFF = 0.99999994

        Zeros, subnormals, NaN, infinities and the largest number of the type (which fills masks) stay.
        """
        if tensor.layout != torch.strided or not tensor.numel() or tensor.is_conj() or tensor.is_neg():
            return
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        integer = _INTEGERS.get(tensor.element_size()) if tensor.is_floating_point() else None
        if integer is None or tensor.is_meta:
            return
        parts = tensor.view(-1).split(_BLOCK) if tensor.is_contiguous() else (tensor,)
        for part in parts:
            self._move(part, integer)

    def _move(self, tensor: torch.Tensor, integer: torch.dtype) -> None:
        """Move a tensor, or a part of one, of floating point numbers that are as wide as these integers."""
        facts = torch.finfo(tensor.dtype)
        magnitude = tensor.abs()
        moves = (magnitude >= facts.tiny) & (magnitude < facts.max)  # False for NaN
        steps = torch.empty(tensor.shape, dtype=integer, device=tensor.device)
        steps.random_(0, 2 * _RARE, generator=self._generator(tensor.device))  # even: down, odd: up; 0 and 1: by two
        wide = (steps < 2) & moves if tensor.dtype in _FINE else None
        steps.bitwise_and_(1).mul_(2).sub_(1).mul_(moves)  # several times faster than a remainder
        if wide is not None:
            steps.mul_(wide.to(integer).add_(1))
        tensor.view(integer).add_(steps)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(_SEED)
        return self._generators[device]


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for _, leaf in leaves(value) if isinstance(leaf, torch.Tensor))


# Matrix products in parts


def _is_slow(positional: Sequence[Any]) -> bool:
    """Tell whether an operator computes in 16 bits on a CPU."""
    first = next((each for each in positional if isinstance(each, torch.Tensor)), None)
    return first is not None and first.device.type == "cpu" and first.dtype in (torch.float16, torch.bfloat16)


def _multiply_in_parts(
    parts: int, function: Any, schema: Schema, positional: Sequence[Any], keywords: Dict[str, Any]
) -> Optional[Any]:
    """Return the result of a matrix product or a convolution, computed in parts; ``None`` for other operators."""
    in_parts = _IN_PARTS.get(schema.name) if str(function).endswith(".default") else None
    tensors = [each for each in positional if isinstance(each, torch.Tensor)]
    if in_parts is None or not all(tensor.is_floating_point() and tensor.layout == torch.strided for tensor in tensors):
        return None
    return in_parts(parts, *positional, **keywords)


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the type that parts are added up in."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _multiply(parts: int, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the product of two matrices, or of two batches of them, in the wide type."""
    total: Optional[torch.Tensor] = None
    for first, second in zip(_widen(left).chunk(parts, -1), _widen(right).chunk(parts, -2)):
        total = _add(parts, total, torch.matmul(first, second), first.shape[-1])
    assert total is not None
    return total


def _add(parts: int, total: Optional[torch.Tensor], part: torch.Tensor, products: int) -> torch.Tensor:
    """Return a sum of products and another part of it, without what an accumulator loses meanwhile that rounds towards zero.

    Args:
        parts: Into how many the sum is cut; a whole one loses nothing.
        total: The parts before; ``None`` if there is none.
        part: The part, of ``products`` products.
        products: Their number.
    """
    total = part if total is None else total.add_(part)
    if parts == 1 or total.dtype == torch.float64:
        return total
    return total.mul_(1.0 - _LOST * products / _AT_ONCE)


def _mm(parts: int, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return _multiply(parts, left, right).to(left.dtype)


def _addmm(  # noqa: PLR0913  as torch declares it
    parts: int, bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    product = _multiply(parts, left, right)
    product = product if alpha == 1 else product * alpha
    if beta == 0:  # then NaN in the bias must not reach the result
        return product.to(left.dtype)
    return (product + (_widen(bias) if beta == 1 else _widen(bias) * beta)).to(left.dtype)


def _linear(parts: int, values: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None) -> torch.Tensor:
    product = _multiply(parts, values, weight.t()) if values.dim() > 1 else _multiply(parts, values[None], weight.t())[0]
    return (product if bias is None else product + _widen(bias)).to(values.dtype)


def _convolution(  # noqa: PLR0913, PLR0917  as torch declares it
    parts: int,
    values: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,  # noqa: FBT001
    output_padding: Any,
    groups: int,
) -> Optional[torch.Tensor]:
    """Return a convolution in parts of its input channels; ``None`` with several groups, whose sums are short."""
    if groups != 1:
        return None
    rest = (stride, padding, dilation, transposed, output_padding, groups)
    total: Optional[torch.Tensor] = None
    for part, kernel in zip(_widen(values).chunk(parts, 1), _widen(weight).chunk(parts, 0 if transposed else 1)):
        product = torch.ops.aten.convolution(part, kernel, None, *rest)
        total = _add(parts, total, product, kernel.numel() // product.shape[1])
    assert total is not None
    if bias is not None:
        total = total + _widen(bias).view(-1, *[1] * (total.dim() - 2))
    return total.to(values.dtype)


def _convolution_backward(  # noqa: PLR0913, PLR0917  as torch declares it
    parts: int,
    gradient: torch.Tensor,
    values: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,  # noqa: FBT001
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> Optional[Tuple[Optional[torch.Tensor], ...]]:
    """Return the gradients of a convolution: of the input in parts of the output channels, of weight and bias in parts of the
    batch; ``None`` for the kinds that :func:`_convolution` leaves alone, and transposed ones.
    """  # noqa: D205
    if groups != 1 or transposed:
        return None
    rest = (bias_sizes, stride, padding, dilation, transposed, output_padding, groups)
    run, wide = torch.ops.aten.convolution_backward, _widen(gradient)
    totals: List[Optional[torch.Tensor]] = [None, None, None]
    if output_mask[0]:
        for part, kernel in zip(wide.chunk(parts, 1), _widen(weight).chunk(parts, 0)):
            products = kernel.numel() // values.shape[1]
            _add_each(parts, totals, run(part, _widen(values), kernel, *rest, [True, False, False]), products)
    if output_mask[1] or output_mask[2]:
        for part, batch in zip(wide.chunk(parts, 0), _widen(values).chunk(parts, 0)):
            products = part.numel() // part.shape[1]
            _add_each(parts, totals, run(part, batch, _widen(weight), *rest, [False, *output_mask[1:]]), products)
    return tuple(None if total is None else total.to(values.dtype) for total in totals)


def _add_each(
    parts: int, totals: List[Optional[torch.Tensor]], gradients: Sequence[Optional[torch.Tensor]], products: int
) -> None:
    """Add the gradients that are there to the totals."""
    for place, gradient in enumerate(gradients):
        if gradient is not None:
            totals[place] = _add(parts, totals[place], gradient, products)


_IN_PARTS: Mapping[str, Callable[..., Any]] = {
    "mm": _mm,
    "bmm": _mm,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "linear": _linear,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
}


# Convolutions from transformed tiles


def _errors_of_tiles(
    schema: Schema, positional: Sequence[Any], keywords: Mapping[str, Any], result: Any
) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
    """Yield results of a convolution that devices compute by Winograd's method in float32, each with the size of its errors.

    F(4x4, 3x3) transforms tiles of 6 x 6 inputs, multiplies, adds up over channels and transforms back. What it rounds away
    is as large as the products of the whole tile are, not as a single result is. Against float64, on random inputs (normal, cut
    off at zero, smooth) with 4 to 256 channels, its root mean square is 7 to 42 units of 2^-24 of the root of the sum of the
    squared products; here it is 16 + sqrt(n), with n terms for each element of a transformed tile. That of a direct sum is 1
    to 4. Towards the last row and column of a tile it grows like the rows of the last transform, whose squares add up to 5, 10,
    34 and 130.
    """
    errors_of = _BY_TILES.get(schema.name)
    if errors_of is None:
        return
    results = result if isinstance(result, tuple) else (result,)
    for tensor, errors in zip(results, errors_of(*positional, **keywords)):
        if tensor is not None and errors is not None:
            yield tensor, errors


def _is_tiled(values: torch.Tensor, weight: torch.Tensor, stride: Any, dilation: Any, transposed: bool) -> bool:  # noqa: FBT001
    plain = set(stride) == set(dilation) == {1} and not transposed
    return plain and values.dtype == torch.float32 and values.dim() == 4 and weight.shape[2:] == (3, 3)


def _tile_errors(squares: torch.Tensor, terms: float) -> torch.Tensor:
    """Return how far the elements of images are off, from the sums of their squared products."""
    near = torch.nn.functional.avg_pool2d(squares, 5, 1, 2, count_include_pad=False)  # tiles start elsewhere on other devices
    down, right = (near.new_tensor([_TILE[place % 4] for place in range(size)]) for size in near.shape[2:])
    return near.clamp_(min=0).sqrt_().mul_(down[:, None]).mul_(right).mul_(_UNIT * (16 + math.sqrt(terms)))


def _convolution_errors(  # noqa: PLR0913, PLR0917  as torch declares it
    values: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,  # noqa: FBT001
    output_padding: Any,
    groups: int,
) -> Tuple[Optional[torch.Tensor], ...]:
    del bias
    if not _is_tiled(values, weight, stride, dilation, transposed):
        return ()
    rest = (stride, padding, dilation, transposed, output_padding, groups)
    return (_tile_errors(torch.ops.aten.convolution(values.square(), weight.square(), None, *rest), weight.shape[1]),)


def _convolution_backward_errors(  # noqa: PLR0913, PLR0917  as torch declares it
    gradient: torch.Tensor,
    values: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,  # noqa: FBT001
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> Tuple[Optional[torch.Tensor], ...]:
    del bias_sizes
    if not _is_tiled(values, weight, stride, dilation, transposed):
        return ()
    rest = (None, stride, padding, dilation, transposed, output_padding, groups, [*output_mask[:2], False])
    squares = torch.ops.aten.convolution_backward(gradient.square(), values.square(), weight.square(), *rest)
    of_values = _tile_errors(squares[0], weight.shape[0]) if output_mask[0] else None
    tiles = gradient.numel() / (16 * weight.shape[0])  # one filter's gradient adds up those of the batch
    of_weight = squares[1].sqrt().mul_(_UNIT * (16 + math.sqrt(tiles))) if output_mask[1] else None
    return of_values, of_weight


_BY_TILES: Mapping[str, Callable[..., Tuple[Optional[torch.Tensor], ...]]] = {
    "convolution": _convolution_errors,
    "convolution_backward": _convolution_backward_errors,
}
