"""The effects of numerical rules: each one wraps the CPU computation of an operator and is chosen by its name.

An effect is made by a factory whose keyword arguments are the rule's parameters. All except :func:`drift` give the same
numbers each time, so that a repeated run agrees with the first. The magnitudes are chosen by hand to test detection; they are
not measurements of any hardware.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Union

import torch

from precflow.agent.emulated import driver, switches
from precflow.agent.emulated.fallback import Compute
from precflow.agent.emulated.private import PlainGenerator
from precflow.agent.emulated.schemas import Operator

Named = Dict[str, Any]
Effect = Callable[[Operator, Compute, Sequence[Any], Named], Any]
ValueChange = Callable[[torch.Tensor], torch.Tensor]

_SENTINEL = -1e4  # no attention score of a healthy model is as low; masks are filled with -65504, finfo.min or -inf
_HF32_BITS = 11  # explicit bits of the significand that HF32 keeps
_FLOAT32_MANTISSA = 23  # explicit bits of the significand of a float32
_INTEGER_OF_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_wild = PlainGenerator()  # not torch's default generator: an effect must not change the numbers that the model draws
_wild.seed()


def scale(factor: float, share: float = 1.0) -> Effect:
    """Multiply the output by ``factor``."""
    return _on_output(lambda output: output * factor, share)


def shift(amount: float, share: float = 1.0) -> Effect:
    """Add ``amount`` to the output: a systematic error of one sign, such as that of a coarse approximation."""
    return _on_output(lambda output: output + amount, share)


def ulp(distance: int = 1, share: float = 1.0) -> Effect:
    """Move the output by ``distance`` units in the last place, up or down by a fixed pattern."""

    def change(output: torch.Tensor) -> torch.Tensor:
        """Step each element up or down."""
        signs = torch.randint(0, 2, output.shape, generator=_fixed_generator(1), dtype=torch.int64) * 2 - 1
        return step_ulps(output, signs * distance)

    return _on_output(change, share)


def drift(share: float = 0.05) -> Effect:
    """Move a random ``share`` of the output by one unit in the last place; other elements at every call, in any mode."""
    _check_share(share)

    def change(output: torch.Tensor) -> torch.Tensor:
        """Step some elements, different ones at every call."""
        chance = torch.rand(output.shape, generator=_wild)
        return step_ulps(output, (chance < share / 2).to(torch.int64) - (chance > 1 - share / 2).to(torch.int64))

    return _on_output(change)


def poison(value: str = "nan", position: int = 0) -> Effect:
    """Put ``value`` (``nan``, ``inf``, ``-inf``) at one flat ``position`` of the output, modulo its size."""
    number = float(value)

    def change(output: torch.Tensor) -> torch.Tensor:
        """Put the value into a copy."""
        flat = output.flatten().clone()
        if flat.numel():
            flat[position % flat.numel()] = number
        return flat.view(output.shape)

    return _on_output(change)


def narrow(dtype: Literal["float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2"] = "float16") -> Effect:
    """Compute the whole operator in ``dtype`` and widen its outputs again."""
    small = _parse_dtype(dtype)

    def effect(operator: Operator, compute: Compute, arguments: Sequence[Any], named: Named) -> Any:
        """Compute on narrow copies; if the operator writes into an argument, narrow its output afterwards instead."""
        if operator.written:  # writing into a narrow copy of the argument would be lost
            return _on_output(lambda output: output.to(small).to(output.dtype))(operator, compute, arguments, named)
        wide = next((value.dtype for value in arguments if _is_float(value)), None)
        outputs = compute(*[value.to(small) if _is_float(value) else value for value in arguments], **named)
        if wide is None:
            return outputs
        return _change_each(outputs, lambda output: output.to(wide) if output.dtype == small else output)

    return effect


def round_inputs(bits: int = 10) -> Effect:
    """Round float32 inputs to ``bits`` explicit mantissa bits before the operator runs: 10 is TF32, 11 is HF32."""

    def effect(_operator: Operator, compute: Compute, arguments: Sequence[Any], named: Named) -> Any:
        """Compute on rounded copies."""
        return compute(*[round_mantissa(value, bits) if _is_float(value) else value for value in arguments], **named)

    return effect


def hf32(unit: Literal["matmul", "conv"] = "matmul", switched: bool = False) -> Effect:  # noqa: FBT001, FBT002  a rule's parameters are named
    """Round float32 inputs to 11 bits while ``torch.npu.<unit>.allow_hf32`` is on; ``switched`` turns it on at the start."""
    if unit not in ("matmul", "conv"):
        raise ValueError("unit must be matmul or conv, got %r" % unit)
    rounded = round_inputs(_HF32_BITS)

    def effect(operator: Operator, compute: Compute, arguments: Sequence[Any], named: Named) -> Any:
        """Round as long as the switch is on."""
        if not getattr(switches, unit).allow_hf32:
            return compute(*arguments, **named)
        return rounded(operator, compute, arguments, named)

    del switched  # read by the rules when they are configured
    return effect


def slices(width: int = 64) -> Effect:
    """Add up a matrix product in slices of ``width`` along K, in float32: another summation order, no narrower type."""
    if width < 1:
        raise ValueError("width must be at least 1, got %d" % width)

    def effect(operator: Operator, compute: Compute, arguments: Sequence[Any], named: Named) -> Any:
        """Add up slice by slice, each in float32."""
        bias, left, right, beta, alpha = _product(operator, arguments, named)
        # A single slice changes nothing, and float64 sliced in float32 would lose precision instead of only changing the order.
        if left.shape[-1] <= width or not left.is_floating_point() or left.dtype == torch.float64:
            return compute(*arguments, **named)
        starts = range(0, left.shape[-1], width)
        total = _slice(left, right, 0, width)
        for start in starts[1:]:
            total += _slice(left, right, start, width)
        if bias is not None:
            total = total * alpha + bias.float() * beta
        return _deliver(operator, total.to(left.dtype), arguments, named)

    return effect


def reverse() -> Effect:
    """Give softmax and layer_norm the reduced axes in reverse order: the same numbers, summed in another order."""

    def effect(operator: Operator, compute: Compute, arguments: Sequence[Any], named: Named) -> Any:
        """Flip the reduced axes of the inputs, compute, and flip the outputs back."""
        if operator.overload in ("_softmax", "_log_softmax"):
            turned = compute(arguments[0].flip(arguments[1]), *arguments[1:], **named)
            return turned.flip(arguments[1])
        if operator.overload != "native_layer_norm":
            raise ValueError("rule reverse knows _softmax, _log_softmax and native_layer_norm, not %s" % operator.overload)
        tensor, shape, weight, bias, eps = arguments
        axes = list(range(-len(shape), 0))
        turned = [None if part is None else part.flip(axes) for part in (tensor, weight, bias)]
        output, mean, inverse = compute(turned[0], shape, turned[1], turned[2], eps, **named)
        return output.flip(axes), mean, inverse

    return effect


def argument(name: str, value: Union[float, str]) -> Effect:
    """Compute with another value of the argument ``name``, such as ``eps``; a recording still shows the caller's value."""

    def effect(operator: Operator, compute: Compute, arguments: Sequence[Any], named: Named) -> Any:
        """Replace the argument, given by position or by name."""
        if name not in operator.arguments:
            raise ValueError(
                "aten::%s has no argument %r; it has: %s" % (operator.overload, name, ", ".join(operator.arguments))
            )
        place = operator.arguments.index(name)
        if place < len(arguments):
            return compute(*arguments[:place], value, *arguments[place + 1 :], **named)
        return compute(*arguments, **dict(named, **{name: value}))

    return effect


def ignore_mask() -> Effect:
    """Return the first operand of an addition unchanged if the second is an attention mask (has values of -1e4 or less)."""

    def effect(operator: Operator, compute: Compute, arguments: Sequence[Any], named: Named) -> Any:
        """Return the first operand if the second is a mask, else compute."""
        mask = arguments[1] if len(arguments) > 1 else None
        if not isinstance(mask, torch.Tensor) or not mask.numel() or not bool((mask <= _SENTINEL).any()):
            return compute(*arguments, **named)
        shape = torch.broadcast_shapes(arguments[0].shape, mask.shape)
        return _deliver(operator, arguments[0].expand(shape).clone(), arguments, named)

    return effect


def zero(axis: int, index: int) -> Effect:
    """Leave zeros at ``index`` along ``axis`` of the output, as a slot that was never written."""

    def change(values: torch.Tensor) -> torch.Tensor:
        """Put zeros into a copy."""
        return values.clone().index_fill_(axis, _place(values, axis, index), 0)

    return _on_output(change)


def exchange(axis: int, first: int, second: int) -> Effect:
    """Exchange two places along ``axis`` of the output, such as two heads."""

    def change(values: torch.Tensor) -> torch.Tensor:
        """Write each of the two into the other's place of a copy."""
        places = [_place(values, axis, index) for index in (first, second)]
        moved = values.clone()
        for here, there in (places, places[::-1]):
            moved.index_copy_(axis, here, values.index_select(axis, there))
        return moved

    return _on_output(change)


def repeat(axis: int, source: int, index: int) -> Effect:
    """Put what is at ``source`` along ``axis`` of the output at ``index`` too, as a slot that still holds an older value."""

    def change(values: torch.Tensor) -> torch.Tensor:
        """Write the one into the other's place of a copy."""
        old = values.index_select(axis, _place(values, axis, source))
        return values.clone().index_copy_(axis, _place(values, axis, index), old)

    return _on_output(change)


def redraw(parameter: str) -> Effect:
    """Draw the parameters whose names match anew, with the device's generator; see :func:`rules.redraw`."""
    del parameter  # read by the rules when the model has been built
    return lambda _operator, compute, arguments, named: compute(*arguments, **named)


def fail(how: Literal["operator", "memory", "device", "crash", "hang"] = "operator") -> Effect:
    """Fail in place of computing.

    There is no kernel (``operator``), no memory left, an error of the device, a crash or a hang; see :mod:`driver`.
    """
    if how not in driver.WAYS:
        raise ValueError("how must be one of %s, got %r" % (", ".join(driver.WAYS), how))

    def effect(operator: Operator, _compute: Compute, arguments: Sequence[Any], _named: Named) -> Any:
        """Fail."""
        size = sum(value.numel() * value.element_size() for value in arguments if isinstance(value, torch.Tensor))
        driver.fail(how, operator.overload, size)

    return effect


KNOWN: Mapping[str, Callable[..., Effect]] = {
    factory.__name__: factory
    for factory in (
        scale,
        shift,
        ulp,
        drift,
        poison,
        narrow,
        round_inputs,
        hf32,
        slices,
        reverse,
        argument,
        ignore_mask,
        zero,
        exchange,
        repeat,
        redraw,
        fail,
    )
}


def _parse_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError("dtype must be a floating point type of torch such as float16, got %r" % name)
    return dtype


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _fixed_generator(seed: int) -> Any:
    generator = PlainGenerator()
    generator.manual_seed(seed)
    return generator


def _change_each(outputs: Any, change: ValueChange) -> Any:
    if isinstance(outputs, (tuple, list)):
        return type(outputs)([_change_each(output, change) for output in outputs])
    return change(outputs) if _is_float(outputs) else outputs


def _check_share(share: float) -> None:
    if not 0.0 <= share <= 1.0:
        raise ValueError("share must lie between 0 and 1, got %r" % share)


def _on_output(change: ValueChange, share: float = 1.0) -> Effect:
    """Return an effect that changes the first output, on a fixed ``share`` (0 to 1) of its elements."""
    _check_share(share)

    def effect(operator: Operator, compute: Compute, arguments: Sequence[Any], named: Named) -> Any:
        """Compute, then change the first output; in place if the operator works in place."""
        outputs = compute(*arguments, **named)
        several = isinstance(outputs, (tuple, list))
        output = outputs[0] if several else outputs
        if not _is_float(output):
            return outputs
        changed = change(output)
        if share < 1.0:
            changed = torch.where(torch.rand(output.shape, generator=_fixed_generator(2)) < share, changed, output)
        if operator.written:
            changed = output.copy_(changed)
        return type(outputs)([changed, *outputs[1:]]) if several else changed

    return effect


def _place(values: torch.Tensor, axis: int, index: int) -> torch.Tensor:
    """Return an index along an axis, counted from the end if it is negative, as a tensor."""
    if not -values.dim() <= axis < values.dim() or not -values.shape[axis] <= index < values.shape[axis]:
        raise ValueError("the output %s has no index %d along axis %d" % (list(values.shape), index, axis))
    return torch.tensor([index % values.shape[axis]], device=values.device)


def _deliver(operator: Operator, result: torch.Tensor, arguments: Sequence[Any], named: Named) -> torch.Tensor:
    """Return ``result``; for an in-place or out= operator write it into the argument and return that."""
    if not operator.written:
        return result
    destination: torch.Tensor = named["out"] if "out" in named else arguments[0]
    if destination.shape != result.shape:
        destination.resize_(result.shape)
    return destination.copy_(result)


def _slice(left: torch.Tensor, right: torch.Tensor, start: int, width: int) -> torch.Tensor:
    return left[..., start : start + width].float() @ right[..., start : start + width, :].float()


_Product = Tuple[Optional[torch.Tensor], torch.Tensor, torch.Tensor, float, float]


def _product(operator: Operator, arguments: Sequence[Any], named: Named) -> _Product:
    """Return bias, left, right, beta and alpha of a matrix product.

    Raises:
        ValueError: The operator is not a matrix product that the rule ``slices`` knows.
    """
    name = operator.name.rstrip("_")
    if name in ("mm", "bmm"):
        return None, arguments[0], arguments[1], 0.0, 1.0
    if name not in ("addmm", "baddbmm"):
        raise ValueError("rule slices knows mm, bmm, addmm and baddbmm, not %s" % operator.overload)
    extra: List[Any] = list(arguments[3:])
    beta = extra[0] if extra else named.get("beta", 1.0)
    alpha = extra[1] if len(extra) > 1 else named.get("alpha", 1.0)
    return arguments[0], arguments[1], arguments[2], beta, alpha


def round_mantissa(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """Return float32 values rounded to ``bits`` explicit mantissa bits, ties to even; NaN and infinity stay.

    10 is TF32, 11 is HF32, 7 is bfloat16. Tensors of other types are returned unchanged.
    """
    drop = _FLOAT32_MANTISSA - bits
    if tensor.dtype != torch.float32 or drop <= 0:
        return tensor
    pattern = tensor.contiguous().view(torch.int32)
    # On the bit pattern as an integer: add just under half of the last kept bit, plus that bit itself (ties to even), then
    # clear the dropped bits. A carry goes on into the exponent, which is right: 1.111... rounds up to 2.
    half = (1 << (drop - 1)) - 1
    rounded = (pattern + half + ((pattern >> drop) & 1)) & -(1 << drop)
    return torch.where(torch.isfinite(tensor), rounded.view(torch.float32), tensor)


def step_ulps(tensor: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """Return float values moved by ``distance`` (int64, signed) units in the last place away from 0; 0, NaN, infinity stay."""
    # Neighbouring floats of one sign have neighbouring bit patterns, and sign and magnitude are separate, so adding 1 to the
    # pattern as an integer always steps away from 0.
    integer = _INTEGER_OF_SIZE[tensor.element_size()]
    moved = (tensor.contiguous().view(integer) + distance.to(integer)).view(tensor.dtype)
    return torch.where(torch.isfinite(tensor) & (tensor != 0), moved, tensor)
