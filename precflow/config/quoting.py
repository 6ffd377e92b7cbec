"""Quotes values that Hydra's grammar refuses: ``2^-10``, ``s3://桶/模型``, ``~/x``, ``/data/a=b``, ``/data/x(1)``.

A value that Hydra can parse stays as it is, so that lists, maps and sweeps keep working. In a list or map only the entries that
do not parse are put in double quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

_WORD = re.compile(r"(?P<prefix>\+\+|\+|~)?(?P<key>[^=]*?)(?:=(?P<value>.*))?", re.DOTALL)
_OPENING = {"[": "]", "{": "}", "(": ")"}
_PARSER = OverridesParser.create()


def split_word(word: str) -> tuple[str, str, str | None]:
    """Return prefix (``+``, ``++``, ``~`` or ``""``), key and value of one word; the value is ``None`` without an ``=``."""
    match = _WORD.fullmatch(word)
    if match is None:  # the pattern takes any text
        return "", word, None
    return match["prefix"] or "", match["key"], match["value"]


def parse_override(word: str) -> Override | None:
    """Return one word as parsed by Hydra, or ``None`` if its grammar refuses it."""
    try:
        return _PARSER.parse_override(word)
    except (HydraException, ValueError):  # the second: a number of more digits than Python reads
        return None


def quote(value: str, *, many: bool = False) -> str:
    """Return a value in a form that Hydra's grammar accepts and reads as the same text.

    Args:
        value: The text after the ``=``.
        many: Commas separate the values of a sweep.

    >>> quote("2^-10"), quote("[a,--config=b.yaml]"), quote("0.5")
    ('"2^-10"', '[a,"--config=b.yaml"]', '0.5')
    """
    if _is_taken(value):  # Hydra parses it as it is
        return value
    attempts: list[Callable[[], str]] = []
    if value.startswith("[") and value.endswith("]"):
        attempts.append(lambda: "[" + ",".join(quote(item.strip()) for item in split_at_commas(value[1:-1])) + "]")
    if value.startswith("{") and value.endswith("}"):
        attempts.append(lambda: "{" + ",".join(_entry(item) for item in split_at_commas(value[1:-1])) + "}")
    if many and "," in value:
        attempts.append(lambda: ",".join(quote(item) for item in split_at_commas(value)))
    for attempt in attempts:
        text = attempt()
        if _is_taken(text):
            return text
    return put_in_quotes(value)


def put_in_quotes(text: str) -> str:
    r"""Return text in double quotes, with the escapes of Hydra's grammar.

    >>> put_in_quotes('say "hi"')
    '"say \\"hi\\""'
    """
    # In Hydra's grammar backslashes are escapes only before a quote. Those before an inner or the closing quote are doubled;
    # all others stay.
    inner = re.sub(r'(\\*)"', lambda match: match[1] * 2 + '\\"', text)
    trailing = len(inner) - len(inner.rstrip("\\"))
    return f'"{inner}{chr(92) * trailing}"'


def split_at_commas(text: str) -> Iterator[str]:
    """Yield the parts between commas; a comma in brackets or quotes does not count."""
    level, start, quote, escaped = 0, 0, "", False
    for number, character in enumerate(text):
        if escaped or (quote and character != quote):
            escaped = character == "\\" and not escaped
        elif character in "\"'":
            quote = "" if quote else character
        elif character in _OPENING:
            level += 1
        elif character in _OPENING.values():
            level -= 1
        elif character == "," and level == 0:
            yield text[start:number]
            start = number + 1
    if text:
        yield text[start:]


def _entry(text: str) -> str:
    key, colon, value = text.partition(":")
    return f"{key}:{quote(value.strip())}" if colon else text


def _is_taken(value: str) -> bool:
    return parse_override(f"key={value}") is not None
