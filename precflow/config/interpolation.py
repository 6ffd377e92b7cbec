"""Replaces references such as ``${site.paths.models}`` by the value of another key of the same configuration.

OmegaConf's resolvers are not supported, above all not those that read the environment: a recipe that may say
``${oc.env:TOKEN}`` could copy a secret into a report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from precflow.config.documents import DottedPath
from precflow.config.schema import RunConfig, plain

# How much references may copy in a whole configuration. Without a bound, eight keys that each refer to the one before ten times
# would make 10^8 values.
MOST_COPIED = 100_000  # values
LONGEST_COPIED = 1 << 20  # characters
REFERENCE = re.compile(r"\$\{([^{}]*)\}")
KEY = re.compile(r"[^\W\d][\w-]*(\.[\w-]+|\[\d+\])*")
_DEEPEST = 8  # references that lead to references
_MOST_PROBLEMS = 100  # problems that are kept to be shown
_MISSING = object()


class Interpolation:
    """Replaces references in plain data.

    Attributes:
        problems: ``(path, message)`` of every reference that leads nowhere.
        read: Path of a value with references -> every path that was read for it, its own included. A value is trusted only as
            much as the least trusted of them.
    """

    def __init__(self, data: Mapping[str, Any], *, site: str) -> None:
        self._data = data
        self._site = site
        self._defaults: dict[str, Any] | None = None
        self._copied = self._characters = 0
        self.problems: list[tuple[DottedPath, str]] = []
        self.read: dict[DottedPath, set[DottedPath]] = {}

    def resolve(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data with its references replaced; those that lead nowhere stay as text, and are added to ``problems``."""
        try:
            resolved: dict[str, Any] = self._resolve(data, (), (), ())
        except _TooMuchError as error:
            most = f"more than {MOST_COPIED} values or {LONGEST_COPIED} characters"
            self.problems.append(
                (error.reference, f"references bring in {most}: they refer to one another, each several times")
            )
            return dict(data)
        return resolved

    def _resolve(
        self, value: Any, path: DottedPath, source: DottedPath, trail: tuple[DottedPath, ...], *, text: bool = False
    ) -> Any:
        """Return a value with its references replaced.

        Args:
            value: The value as written.
            path: Where the result goes.
            source: Where the value is written.
            trail: Paths of the references that led here, the first one first.
            text: The result becomes a part of the text at ``path``.
        """
        if isinstance(value, (Mapping, list, tuple)) and value:
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            resolved = {
                key: self._resolve(item, path if text else (*path, str(key)), (*source, str(key)), trail, text=text)
                for key, item in items
            }
            return resolved if isinstance(value, Mapping) else list(resolved.values())
        if trail:
            self._count(value, trail[0])
            self.read.setdefault(path, set()).update((*trail, source))
        if not isinstance(value, str) or "${" not in value:
            return value
        if source in trail or len(trail) > _DEEPEST:
            self._note(path, f"`{value}` refers to itself")
            return value
        trail = (*trail, source)
        whole = REFERENCE.fullmatch(value)
        if whole:
            return self._resolve_reference(whole, path, trail, text=text)
        return REFERENCE.sub(lambda match: str(self._resolve_reference(match, path, trail, text=True)), value)

    def _resolve_reference(self, match: re.Match[str], path: DottedPath, trail: tuple[DottedPath, ...], *, text: bool) -> Any:
        key = match[1].strip()
        if not KEY.fullmatch(key):
            self._note(path, f"`{match[0]}`: only the name of another key is possible, such as `${{site.paths.models}}`")
            return match[0]
        parts = tuple(re.findall(r"[^.\[\]]+", key))
        value = _look_up(self._data, parts)
        if value is _MISSING and parts[0] != "site":  # a key that nobody set has its default
            self._defaults = self._defaults or plain(RunConfig())
            value = _look_up(self._defaults, parts)
        if value is not _MISSING:
            return self._resolve(value, path, parts, trail, text=text)
        if not key.startswith("site."):
            self._note(path, f"wants `{key}`, and nothing sets it")
        elif self._site:
            self._note(path, f"wants `{key}`, and the site file {self._site} does not have it")
        else:
            self._note(path, f"wants `{key}`, and no site file was chosen: +site=NAME (see `precflow ls site`), or {key}=VALUE")
        return match[0]

    def _note(self, path: DottedPath, message: str) -> None:
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append((path, message))

    def _count(self, value: Any, reference: DottedPath) -> None:
        """Count one value that a reference copies, and its characters.

        Raises:
            _TooMuchError: All references together copy more than any recipe needs.
        """
        self._copied += 1
        self._characters += len(value) if isinstance(value, str) else 1
        if self._copied > MOST_COPIED or self._characters > LONGEST_COPIED:
            raise _TooMuchError(reference)


class _TooMuchError(Exception):
    """References copy more than ``MOST_COPIED`` values or ``LONGEST_COPIED`` characters."""

    def __init__(self, reference: DottedPath) -> None:
        super().__init__()
        self.reference = reference


def _look_up(data: Any, parts: DottedPath) -> Any:
    for part in parts:
        if isinstance(data, Mapping) and part in data:
            data = data[part]
        elif isinstance(data, (list, tuple)) and part.isdigit() and int(part) < len(data):
            data = data[int(part)]
        else:
            return _MISSING
    return data
