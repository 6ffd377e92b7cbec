"""``${site.paths.models}``: a value that stands elsewhere in the same configuration, and nothing more.

No resolvers, no environment: a recipe that could read ``${oc.env:TOKEN}`` could carry it into a report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from precflow.config.documents import DottedPath
from precflow.config.plain import plain
from precflow.config.schema import RunConfig

_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_KEY = re.compile(r"[^\W\d][\w-]*(\.[\w-]+|\[\d+\])*")
_DEEPEST = 8
_MISSING = object()


class Interpolation:
    """Replaces references in plain data.

    Attributes:
        problems: ``(path, message)`` of every reference that leads nowhere.
    """

    def __init__(self, data: Mapping[str, Any], *, site: str) -> None:
        self._data = data
        self._site = site
        self._defaults: dict[str, Any] | None = None
        self.problems: list[tuple[DottedPath, str]] = []

    def resolve(self, value: Any, path: DottedPath = (), depth: int = 0) -> Any:
        """Return the value with its references replaced; those that lead nowhere are left and noted."""
        if isinstance(value, Mapping):
            return {key: self.resolve(item, (*path, str(key)), depth) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.resolve(item, (*path, str(number)), depth) for number, item in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        if depth > _DEEPEST:
            self.problems.append((path, f"`{value}` refers to itself"))
            return value
        whole = _REFERENCE.fullmatch(value)
        if whole:
            return self._looked_up(whole, path, depth)
        return _REFERENCE.sub(lambda match: str(self._looked_up(match, path, depth)), value)

    def _looked_up(self, match: re.Match[str], path: DottedPath, depth: int) -> Any:
        key = match[1].strip()
        if not _KEY.fullmatch(key):
            self.problems.append(
                (path, f"`{match[0]}`: only the name of another key is possible, such as `${{site.paths.models}}`")
            )
            return match[0]
        found = self._value(tuple(re.findall(r"[^.\[\]]+", key)))
        if found is _MISSING:
            self.problems.append((path, self._missing(key)))
            return match[0]
        return self.resolve(found, path, depth + 1)

    def _value(self, parts: DottedPath) -> Any:
        found = _descend(self._data, parts)
        if found is _MISSING and parts[0] != "site":
            self._defaults = self._defaults or plain(RunConfig())
            found = _descend(self._defaults, parts)
        return found

    def _missing(self, key: str) -> str:
        if not key.startswith("site."):
            return f"wants `{key}`, and nothing sets it"
        if not self._site:
            return f"wants `{key}`, and no site file was chosen: +site=NAME (see `precflow ls site`), or {key}=VALUE"
        return f"wants `{key}`, and the site file {self._site} does not have it"


def _descend(data: Any, parts: DottedPath) -> Any:
    for part in parts:
        if isinstance(data, Mapping) and part in data:
            data = data[part]
        elif isinstance(data, (list, tuple)) and part.isdigit() and int(part) < len(data):
            data = data[int(part)]
        else:
            return _MISSING
    return data
