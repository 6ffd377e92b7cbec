"""Quotes what Hydra's grammar refuses and people type: ``2^-10``, ``s3://桶/模型``, ``~/x``, ``/data/a=b``, ``/data/x(1)``.

What Hydra takes as it is stays as it is, so its lists, maps and sweeps keep working; only the part that does not parse is put
in double quotes.
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


def split(word: str) -> tuple[str, str, str | None]:
    """Return prefix (``+``, ``++``, ``~`` or ``""``), key and value text of one word; ``None`` where there is no ``=``."""
    match = _WORD.fullmatch(word)
    if match is None:  # the pattern takes any text
        return "", word, None
    return match["prefix"] or "", match["key"], match["value"]


def parse(word: str) -> Override | None:
    """Return what Hydra makes of one word, or ``None`` where its grammar refuses it."""
    try:
        return _PARSER.parse_override(word)
    except (HydraException, ValueError):  # the second: a number of more digits than Python reads
        return None


def quoted(value: str, *, many: bool = False) -> str:
    """Return a value that Hydra's grammar takes and that means the same text.

    Args:
        value: What stands behind the ``=``.
        many: Commas separate the values of a sweep.

    >>> quoted("2^-10"), quoted("[a,--config=b.yaml]"), quoted("0.5")
    ('"2^-10"', '[a,"--config=b.yaml"]', '0.5')
    """
    if _is_taken(value):
        return value
    attempts: list[Callable[[], str]] = []
    if value.startswith("[") and value.endswith("]"):
        attempts.append(lambda: "[" + ",".join(quoted(item.strip()) for item in parts(value[1:-1])) + "]")
    if value.startswith("{") and value.endswith("}"):
        attempts.append(lambda: "{" + ",".join(_entry(item) for item in parts(value[1:-1])) + "}")
    if many and "," in value:
        attempts.append(lambda: ",".join(quoted(item) for item in parts(value)))
    for attempt in attempts:
        text = attempt()
        if _is_taken(text):
            return text
    return in_quotes(value)


def in_quotes(text: str) -> str:
    r"""Return text in double quotes, with the escapes of Hydra's grammar.

    >>> in_quotes('say "hi"')
    '"say \\\\"hi\\\\""'
    """
    inner = re.sub(r'(\\*)"', lambda match: match[1] * 2 + '\\"', text)
    trailing = len(inner) - len(inner.rstrip("\\"))
    return f'"{inner}{chr(92) * trailing}"'


def parts(text: str) -> Iterator[str]:
    """Yield what stands between the commas of the outermost level; brackets and quotes hold together."""
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
    return f"{key}:{quoted(value.strip())}" if colon else text


def _is_taken(value: str) -> bool:
    return parse(f"key={value}") is not None
