"""Numbers with their units, as people write them in recipes: ``1%``, ``2^-10``, ``8ulp``, ``2GB``, ``45m``.

Each ``parse_*`` takes what YAML or the command line gave (text or a number) and raises ``ValueError`` with the units that
are known. :func:`format_value` is the way back: ``parse(written(value)) == value``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from precflow.config.schema import Bytes, Seconds, Seed, Share, Ulp

_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_TIMES = {
    "d": ("day", "days"),
    "h": ("hr", "hrs", "hour", "hours"),
    "m": ("min", "mins", "minute", "minutes"),
    "s": ("sec", "secs", "second", "seconds"),
    "ms": ("millisecond", "milliseconds"),
}
_SPOKEN_BYTES = {spoken.casefold(): unit for unit in _BYTES for spoken in (unit, unit.removesuffix("B"))}  # 2gb, 2G
_SPOKEN_SECONDS = {spoken: unit for unit, words in _TIMES.items() for spoken in (unit, *words)}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_POWER = re.compile(r"(\d+(?:\.\d+)?)\^([+-]?\d{1,6})")
_WITH_UNIT = re.compile(r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?) *(?P<unit>[A-Za-z%]+)")
_RANGE = re.compile(r"(?P<first>\d{1,9})(?: *- *(?P<last>\d{1,9}))?")
MOST_NUMBERS = 100_000  # a range is written out, and 0-9999999999 would fill the memory
UNSEEDED = "script"  # in place of a seed: the script sets its own
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[dhms]))+")


def parse_number(value: Any) -> float:
    """Return a finite number: ``0.001``, ``1e-3`` or a power such as ``2^-10``.

    Raises:
        ValueError: It is none of these.
    """
    number = _read_number(value)
    if number is None:
        raise ValueError("expected a number such as 0.001, 1e-3 or 2^-10")
    return number


def parse_share(value: Any) -> float:
    """Return a share of one, not negative: ``0.01`` for ``1%``, ``0.0009765625`` for ``2^-10``.

    Raises:
        ValueError: It is not a share.
    """
    known = "expected a share such as 0.999, 1% or 2^-10"
    return _refuse_negative(_parse_with_units(value, {"%": 0.01}, known), known)


def parse_ulp(value: Any) -> float:
    """Return a number of units in the last place: ``8.0`` for ``8ulp`` or ``8``.

    Raises:
        ValueError: It is not one.
    """
    known = "expected units in the last place such as 8ulp"
    return _refuse_negative(_parse_with_units(value, {"ulp": 1.0}, known), known)


def parse_bytes(value: Any) -> int:
    """Return a number of bytes: ``2_000_000_000`` for ``2GB``, ``2**30`` for ``1GiB``; a bare number is refused except 0.

    Raises:
        ValueError: There is no unit, or an unknown one.
    """
    if _read_number(value) == 0:
        return 0
    match = _WITH_UNIT.fullmatch(value.strip()) if isinstance(value, str) else None
    known = f"expected a size with its unit such as {_suggest(match, _SPOKEN_BYTES) or '2GB'} (units: {', '.join(_BYTES)})"
    if match is None or match["unit"] not in _BYTES:
        raise ValueError(known)
    return round(_refuse_negative(float(match["number"]) * _BYTES[match["unit"]], known))


def parse_seconds(value: Any) -> float:
    """Return seconds: ``2700.0`` for ``45m``, ``5400.0`` for ``1h30m``; a bare number is refused except 0.

    Raises:
        ValueError: There is no unit, or an unknown one.
    """
    if _read_number(value) == 0:
        return 0.0
    text = value.replace(" ", "") if isinstance(value, str) else ""
    if not _DURATION.fullmatch(text):
        example = _suggest(_WITH_UNIT.fullmatch(text), _SPOKEN_SECONDS) or "45m or 1h30m"
        raise ValueError(f"expected a duration with its unit such as {example} (units: {', '.join(_SECONDS)})")
    return math.fsum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"([\d.]+)(ms|[dhms])", text))


def parse_numbers(value: Any) -> range:
    """Return the whole numbers that are meant: ``range(3, 4)`` for ``3``, ``range(0, 4)`` for ``"0-3"``.

    Raises:
        ValueError: It is neither a number from 0 nor a range of them, or a range of more than ``MOST_NUMBERS``.
    """
    match = _RANGE.fullmatch(str(value).strip()) if isinstance(value, (str, int)) and not isinstance(value, bool) else None
    first = int(match["first"]) if match else 0
    last = int(match["last"] or first) if match else -1
    if last < first:
        raise ValueError('expected a whole number from 0, or a range of them such as "0-3"')
    if last - first >= MOST_NUMBERS:
        raise ValueError(f"expected a range of at most {MOST_NUMBERS} numbers")
    return range(first, last + 1)


def parse_seed(value: object) -> int | str:
    """Return a seed: a whole number, or ``script`` for none.

    Raises:
        ValueError: It is something else.
    """
    if value == UNSEEDED:
        return UNSEEDED
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"expected a whole number or `{UNSEEDED}`, for a script that sets its own")  # noqa: TRY004  as all parsers
    if not 0 <= value < 2**63:
        raise ValueError("expected a whole number below 2^63")
    return value


PARSERS: Mapping[Any, Callable[[Any], Any]] = {
    Share: parse_share,
    Ulp: parse_ulp,
    Bytes: parse_bytes,
    Seconds: parse_seconds,
    Seed: parse_seed,
    float: parse_number,
}


def format_value(kind: Any, value: float) -> Any:
    """Return a value of one of the unit types as a recipe would say it; other kinds come back as they are."""
    if kind is Bytes:
        unit = next((unit for unit in ("TB", "GB", "MB", "kB") if value and value % _BYTES[unit] == 0), "B")
        return f"{int(value) // _BYTES[unit]}{unit}" if value else 0
    if kind is Seconds:
        unit = next((unit for unit in ("h", "m") if value and value % _SECONDS[unit] == 0), "s")
        return f"{_format_digits(value / _SECONDS[unit])}{unit}" if value else 0
    return f"{_format_digits(value)}ulp" if kind is Ulp and value else value


def _format_digits(value: float) -> str:
    """Return the shortest digits without an exponent that read back as the same number."""
    if float(value).is_integer():
        return str(int(value))
    text = repr(value)
    return text if "e" not in text else f"{value:.{-int(text.split('e')[1]) + 17}f}".rstrip("0")


def _read_number(value: Any) -> float | None:
    """Return the number that is meant, or ``None``; NaN, infinities and booleans are none."""
    if isinstance(value, bool):
        return None
    if not isinstance(value, (int, float, str)):
        return None
    try:
        if not isinstance(value, str):
            return float(value) if math.isfinite(value) else None
        power = _POWER.fullmatch(value.strip())
        number = float(power[1]) ** int(power[2]) if power else float(value) if _NUMBER.fullmatch(value.strip()) else None
    except (OverflowError, ZeroDivisionError):
        return None
    return number if number is not None and math.isfinite(number) else None


def _suggest(match: re.Match[str] | None, spoken: Mapping[str, str]) -> str:
    """Return the value with the unit that was meant by another spelling of it; ``""`` where none was."""
    unit = spoken.get(match["unit"].casefold(), "") if match else ""
    return f"{match['number']}{unit}" if match and unit else ""


def _parse_with_units(value: Any, factors: Mapping[str, float], known: str) -> float:
    number = _read_number(value)
    if number is not None:
        return number
    match = _WITH_UNIT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match["unit"] not in factors:
        raise ValueError(known)
    exact = float(match["number"])
    # A division by 100 is rounded once and gives the number that people mean: 35 / 100 is 0.35, 35 * 0.01 is not.
    return exact / 100.0 if match["unit"] == "%" else exact * factors[match["unit"]]


def _refuse_negative(number: float, known: str) -> float:
    if not 0 <= number < math.inf:
        raise ValueError(f"{known}, not negative")
    return number
