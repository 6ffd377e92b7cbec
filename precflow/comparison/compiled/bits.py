"""Elements by their bit patterns: int32 is float32, int16 is bfloat16, uint16 is float16; all are decoded to float32's bits.

Integers are wrapped in ``int32(...)`` throughout: numba widens mixed arithmetic to 64 bits, which would halve the lanes.
Helpers whose result hangs on the type are overloads, because a kernel made by a closure is never found in the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic, overload, register_jitable

int32, uint32, float32, float64, int64, uint64 = np.int32, np.uint32, np.float32, np.float64, np.int64, np.uint64

FAST = {"reassoc", "contract", "nsz"}  # of sums alone: their rounding may differ, no comparison's outcome may
SIGN = int32(31)
MAGNITUDE = int32(0x7FFFFFFF)
_HALF_LARGEST = int32(0x477FE000)  # 65504, as float32's bits
_HALF_NORMAL = int32(0x38800000)  # 2^-14
_BRAIN_LARGEST = int32(0x7F7F0000)


@register_jitable
def as_float32(bits: Any) -> Any:
    """Return the float32 that has these bits."""
    return int32(bits).view(float32)


@register_jitable
def bits_of_float32(value: Any) -> Any:
    """Return the bits of a float32, as int32."""
    return float32(value).view(int32)


@register_jitable
def bits_of_float64(value: Any) -> Any:
    """Return the bits of a float64, as int64: the maximum of these is that of the values, where none is negative."""
    return float64(value).view(int64)


@register_jitable
def as_float64(bits: Any) -> Any:
    """Return the float64 that has these bits."""
    return int64(bits).view(float64)


def _multiply_add(_context, first, second, third):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  numba's own form
    """Return ``first * second + third`` of float32, rounded once, by whatever processor."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        """Build the one instruction."""
        return builder.fma(*arguments)

    return types.float32(first, second, third), code


multiply_add: Any = intrinsic(_multiply_add)


@register_jitable
def order(bits: Any, magnitude: Any) -> Any:
    """Return an integer in the order of the values, one apart for neighbours; -0 and +0 are both 0."""
    sign = int32(bits >> SIGN)
    return int32(int32(int32(bits & magnitude) ^ sign) - sign)


@register_jitable
def _decode_half(bits: Any) -> Any:
    scaled = bits_of_float32(as_float32(int32(int32(bits & int32(0x7FFF)) << int32(13))) * float32(2.0**112))
    return int32(scaled | int32(int32(bits & int32(0x8000)) << int32(16)))


@register_jitable
def _round_to_brain(bits: Any) -> Any:
    """Return bfloat16's bits, sign extended, of a float32; beyond the largest, the largest; ties go to even."""
    magnitude = min(int32(bits & MAGNITUDE), _BRAIN_LARGEST)
    odd = int32(int32(magnitude >> int32(16)) & int32(1))
    rounded = int32(int32(magnitude + int32(int32(0x7FFF) + odd)) >> int32(16))
    return int32(rounded | int32(int32(bits >> SIGN) & int32(-0x8000)))


@register_jitable
def _round_to_half(bits: Any) -> Any:
    """Return float16's bits, sign extended, of a float32; beyond the largest, the largest; ties go to even."""
    magnitude = min(int32(bits & MAGNITUDE), _HALF_LARGEST)
    odd = int32(int32(magnitude >> int32(13)) & int32(1))
    normal = int32(int32(int32(magnitude - int32(112 << 23)) + int32(int32(0xFFF) + odd)) >> int32(13))
    subnormal = int32(bits_of_float32(as_float32(magnitude) + float32(0.5)) - int32(0x3F000000))
    rounded = normal if magnitude >= _HALF_NORMAL else subnormal
    return int32(rounded | int32(int32(bits >> SIGN) & int32(-0x8000)))


def decode(element: Any) -> Any:  # noqa: ARG001  compiled below
    """Return float32's bits of an element; infinities and NaN of float16 become finite values from 65536 on."""
    raise RuntimeError("a compiled helper was called from Python")


def ranked(element: Any, partner: Any) -> Any:  # noqa: ARG001  compiled below
    """Return the place of an element among the values of the coarser of two types, the element rounded to it first."""
    raise RuntimeError("a compiled helper was called from Python")


def unranked(bits: Any, elements: Any, place: Any) -> Any:  # noqa: ARG001  compiled below
    """Return the bit pattern of an element as int32: of two elements of one type and sign, as far apart as their places.

    Args:
        bits: The element as float32's bits.
        elements: Bit patterns.
        place: Where it is.
    """
    raise RuntimeError("a compiled helper was called from Python")


def decoded(elements: Any, room: Any, seen: Any) -> Any:  # noqa: ARG001  compiled below
    """Return an array that begins with the elements as float32's bits: their own, or the room that they are decoded into.

    Args:
        elements: Bit patterns, a segment at most.
        room: Int32, as many as a segment has.
        seen: The same room, read-only, as tensors are: so that what reads the segment is compiled once.
    """
    raise RuntimeError("a compiled helper was called from Python")


def comparable(reference: Any, target: Any) -> Any:  # noqa: ARG001  compiled below
    """Say whether two arrays have one type, so that :func:`unranked` may be subtracted."""
    raise RuntimeError("a compiled helper was called from Python")


def exact(element: Any) -> Any:  # noqa: ARG001  compiled below
    """Return the value as float64, infinities and NaN included."""
    raise RuntimeError("a compiled helper was called from Python")


@overload(decode)
def _decode(element):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  numba compares it with what it returns
    if element == types.int32:
        return lambda element: element
    if element == types.int16:
        return lambda element: int32(int32(element) << int32(16))
    return lambda element: _decode_half(int32(element))


@overload(ranked)
def _ranked(element, partner):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  the same
    if element == partner == types.int32:
        return lambda element, partner: order(element, MAGNITUDE)  # noqa: ARG005  numba wants the same arguments
    if types.int16 in (element, partner) and element != types.int16:
        return lambda element, partner: order(_round_to_brain(decode(element)), int32(0x7FFF))  # noqa: ARG005  the same
    if element == types.int32:
        return lambda element, partner: order(_round_to_half(element), int32(0x7FFF))  # noqa: ARG005  the same
    return lambda element, partner: order(int32(np.int16(element)), int32(0x7FFF))  # noqa: ARG005  the same


@overload(unranked)
def _unranked(bits, elements, place):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG001  the same
    if elements.dtype == types.int32:
        return lambda bits, elements, place: bits  # noqa: ARG005  the same
    return lambda bits, elements, place: int32(np.int16(elements[place]))  # noqa: ARG005  the same


@overload(decoded)
def _decoded(elements, room, seen):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG001  the same
    if elements.dtype == types.int32:
        return lambda elements, room, seen: elements  # noqa: ARG005  the same

    def narrow(elements, room, seen) -> Any:  # type: ignore[no-untyped-def]  # noqa: ANN001  numba wants the form of _decoded
        """Decode two bytes an element."""
        for i in range(uint64(elements.size)):
            room[i] = decode(elements[i])
        return seen

    return narrow


@overload(comparable)
def _comparable(reference, target):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  the same
    same = reference.dtype == target.dtype
    return lambda reference, target: same  # noqa: ARG005  the same


@overload(exact)
def _exact(element):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  the same
    if element != types.uint16:
        return lambda element: float64(as_float32(decode(element)))

    def half(element) -> Any:  # type: ignore[no-untyped-def]  # noqa: ANN001  numba wants the form of _exact
        """Take float16's exponent of all ones for what it is: decoding gives it 65536 and more."""
        value = float64(as_float32(decode(element)))
        if abs(value) < 65536.0:
            return value
        return value * np.inf if abs(value) == 65536.0 else np.nan

    return half
