"""How numbers are written for people, everywhere: at most three digits, thousands apart, shares as percent.

The functions are named as the filters of Jinja are, by what they give: ``{{ ratio | share }}``.
"""

from __future__ import annotations

import math

_INFINITY = 1e300  # stands for infinity in the files of stages, because JSON has none
_TIMES = "\u00d7"


def number(value: float) -> str:
    """Return a number in at most three significant digits; shares just below 1 keep two digits of what is missing.

    >>> number(0.0140), number(4.213e-2), number(0.62), number(344912.0), number(0.99998)
    ('1.4e-2', '4.21e-2', '0.62', '344 912', '0.99998')
    >>> number(0.0), number(float("nan")), number(float("-inf")), number(1.5e-05)
    ('0', 'NaN', '-infinity', '1.5e-5')
    >>> number(0.9999987), number(0.995), number(1 - 2e-16), number(1e300)
    ('0.9999987', '0.995', '0.9999999999999998', 'infinity')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value) or abs(value) == _INFINITY:
        return "infinity" if value > 0 else "-infinity"
    if 0.99 < value < 1:
        digits = 1 - math.floor(math.log10(1 - value))
        return f"{value:.{min(digits, 16)}f}".rstrip("0")  # a double has no more digits
    size = abs(value)
    # 999.5 and not 1000: three digits of 999.7 are "1e+03", so from there on it is shown as a whole number.
    if 999.5 <= size < 1e7:
        return count(round(value))
    if size == 0 or 0.1 <= size < 999.5:
        return f"{value + 0.0:.3g}"  # + 0.0 turns -0.0 into 0.0
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def count(value: int) -> str:
    """Return a whole number with its thousands apart.

    >>> count(1214), count(12), count(-20604)
    ('1 214', '12', '-20 604')
    """
    return f"{value:,}".replace(",", " ")


def plural(value: int, one: str, many: str = "") -> str:
    """Return a count with its noun, in the singular or the plural.

    >>> plural(1, "record"), plural(1214, "record"), plural(0, "entry", "entries")
    ('1 record', '1 214 records', '0 entries')
    """
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def share(value: float) -> str:
    """Return a share in percent; only 1 is shown as 100 %, and only 0 as 0 %.

    >>> share(1.0), share(0.62), share(0.99996), share(0.00004), share(0.0)
    ('100 %', '62 %', '99.9 %', '0.1 %', '0 %')
    """
    if not math.isfinite(value):
        return number(value)
    percent = value * 100
    if 0 < percent < 1:
        return f"{max(percent, 0.1):.1f} %"
    if 99 < percent < 100:
        return f"{math.floor(percent * 10) / 10:g} %"
    return f"{count(round(percent))} %"


def factor(ratio: float) -> str:
    r"""Return how much of a limit is used, for a table: in percent up to twice the limit, as a factor above.

    >>> factor(0.62), factor(1.5), factor(1836.2) == "1 836 \u00d7", factor(math.inf)
    ('62 %', '150 %', True, 'infinity')
    """
    if ratio <= 2 or not math.isfinite(ratio):
        return share(ratio)
    return f"{number(ratio)} {_TIMES}"
