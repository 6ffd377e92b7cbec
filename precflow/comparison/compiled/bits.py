"""Compiled helpers that read elements by their bit patterns, all decoded to the bits of float32.

numba has no bfloat16, so the type of an array stands for that of its elements: int32 for float32, int16 for bfloat16 and uint16
for float16. Integers are wrapped in ``int32(...)`` throughout: numba widens mixed arithmetic to 64 bits, and a vector register
holds only half as many of those. Helpers that differ by type are overloads; a function made for each type by a closure would
never be found in numba's cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic, overload, register_jitable

int32, uint32, float32, float64, int64, uint64 = np.int32, np.uint32, np.float32, np.float64, np.int64, np.uint64

FAST = {"reassoc", "contract", "nsz"}  # used only for sums, whose rounding may differ; comparisons must not come out otherwise
SIGN = int32(31)  # shift that leaves the sign: -1 or 0
MAGNITUDE = int32(0x7FFFFFFF)  # mask of all bits but the sign
_HALF_LARGEST = int32(0x477FE000)  # 65504, as float32's bits
_HALF_NORMAL = int32(0x38800000)  # 2^-14, float16's smallest normal value
_BRAIN_LARGEST = int32(0x7F7F0000)  # bfloat16's largest finite value


def _reinterpret(given: Any, wanted: Any) -> Any:
    """Return a compiled function that takes the bits of one type for those of another.

    ``value.view(float32)`` does the same, but numba compiles it anew for every caller: a tenth of the time of the whole pass.
    """

    def reinterpret(_context: Any, value: Any) -> Any:  # noqa: ARG001  numba asks for the name
        """Return the types of the cast and what builds it, as numba wants an intrinsic to."""

        def code(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            """Build LLVM's cast, which moves no bit."""
            return builder.bitcast(arguments[0], context.get_value_type(wanted))

        return wanted(given), code

    return intrinsic(reinterpret)


as_float32 = _reinterpret(types.int32, types.float32)
bits_of_float32 = _reinterpret(types.float32, types.int32)
# The bits of values that are not negative have the same order as the values.
bits_of_float64, as_float64 = _reinterpret(types.float64, types.int64), _reinterpret(types.int64, types.float64)


def _multiply_add(_context, first, second, third):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  numba's own form
    """Return ``first * second + third`` of float32, rounded once, on every processor."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        """Build LLVM's fused multiply-add."""
        return builder.fma(*arguments)

    return types.float32(first, second, third), code


multiply_add: Any = intrinsic(_multiply_add)


@register_jitable
def order(bits: Any, magnitude: Any) -> Any:
    """Return an integer that orders values: neighbouring values are 1 apart, and -0 and +0 are both 0.

    Args:
        bits: The value's bits, sign-extended to int32.
        magnitude: Mask of all bits but the sign.
    """
    # Negative floats grow in the wrong direction as integers, so their magnitude is negated: (m ^ -1) - (-1) = -m.
    sign = int32(bits >> SIGN)
    return int32(int32(int32(bits & magnitude) ^ sign) - sign)


@register_jitable
def _decode_half(bits: Any) -> Any:
    """Return float32's bits of a float16's bits; infinities and NaN become finite values from 65536 on."""
    # Exponent and significand are moved to where float32 has them. Its exponent is biased by 127 and not by 15, hence 2^112;
    # the multiplication also makes subnormal values of float16 normal.
    scaled = bits_of_float32(as_float32(int32(int32(bits & int32(0x7FFF)) << int32(13))) * float32(2.0**112))
    return int32(scaled | int32(int32(bits & int32(0x8000)) << int32(16)))


@register_jitable
def _round_to_brain(bits: Any) -> Any:
    """Round a float32's bits to bfloat16's, sign-extended; ties to even, and values beyond the largest become the largest."""
    magnitude = min(int32(bits & MAGNITUDE), _BRAIN_LARGEST)
    # Adding just under half a unit, plus one where the last bit kept is 1, carries exactly where rounding goes up.
    odd = int32(int32(magnitude >> int32(16)) & int32(1))
    rounded = int32(int32(magnitude + int32(int32(0x7FFF) + odd)) >> int32(16))
    return int32(rounded | int32(int32(bits >> SIGN) & int32(-0x8000)))


@register_jitable
def _round_to_half(bits: Any) -> Any:
    """Round a float32's bits to float16's, sign-extended; ties to even, and values beyond the largest become the largest."""
    magnitude = min(int32(bits & MAGNITUDE), _HALF_LARGEST)
    odd = int32(int32(magnitude >> int32(13)) & int32(1))
    normal = int32(int32(int32(magnitude - int32(112 << 23)) + int32(int32(0xFFF) + odd)) >> int32(13))
    # Around 0.5 float32 has steps of 2^-24, as subnormal float16 has, so this addition rounds to them.
    subnormal = int32(bits_of_float32(as_float32(magnitude) + float32(0.5)) - int32(0x3F000000))
    rounded = normal if magnitude >= _HALF_NORMAL else subnormal
    return int32(rounded | int32(int32(bits >> SIGN) & int32(-0x8000)))


def decode(element: Any) -> Any:  # noqa: ARG001  compiled below
    """Return an element as the bits of a float32; infinities and NaN of float16 become finite values from 65536 on."""
    raise RuntimeError("a compiled helper was called from Python")


def ranked(element: Any, partner: Any) -> Any:  # noqa: ARG001  compiled below
    """Return the place of an element among all values of the less precise of two types, after rounding it to that type.

    The difference of two places is the distance in units in the last place.
    """
    raise RuntimeError("a compiled helper was called from Python")


def unranked(bits: Any, elements: Any, place: Any) -> Any:  # noqa: ARG001  compiled below
    """Return the bit pattern of an element as int32, a cheaper form of :func:`ranked`.

    If two elements have the same type and sign, the difference of their patterns is that of their places, up to its sign.

    Args:
        bits: The element as float32's bits.
        elements: Bit patterns of the segment.
        place: Index of the element in it.
    """
    raise RuntimeError("a compiled helper was called from Python")


def decoded(elements: Any, room: Any, seen: Any) -> Any:  # noqa: ARG001  compiled below
    """Return an array that begins with the elements as float32's bits: the elements themselves, or ``seen`` after decoding.

    Args:
        elements: Bit patterns, at most a segment.
        room: Int32, as many as a segment has; narrower elements are decoded into it.
        seen: A read-only view of ``room``. Tensors are read-only too, so code that reads segments is compiled for one type.
    """
    raise RuntimeError("a compiled helper was called from Python")


def comparable(reference: Any, target: Any) -> Any:  # noqa: ARG001  compiled below
    """Tell whether two arrays have the same type, so that results of :func:`unranked` may be subtracted."""
    raise RuntimeError("a compiled helper was called from Python")


def exact(element: Any) -> Any:  # noqa: ARG001  compiled below
    """Return the value of an element as float64, including infinities and NaN."""
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
        """Turn decoded values of 65536 and more back into infinity and NaN: float16's largest finite value is 65504."""
        value = float64(as_float32(decode(element)))
        if abs(value) < 65536.0:
            return value
        return value * np.inf if abs(value) == 65536.0 else np.nan

    return half
