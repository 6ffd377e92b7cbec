"""Writes a composed recipe as YAML: sections in their fixed order, each line with the file and line that set its value."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from precflow.config import key_tree, units
from precflow.config.documents import DottedPath, Mark, dotted
from precflow.config.schema import RunConfig
from precflow.config.trust import explain_refusal

_WIDE = 100  # columns: a longer list gets a line for each item
_PLAIN = re.compile(r"[^\W\d][\w ./+=-]*")
_EMPTY: tuple[Any, ...] = (None, "", (), [], {})


def format_lines(data: Mapping[str, Any]) -> Iterator[tuple[DottedPath, str]]:
    """Yield ``(path, line of YAML)`` of plain data."""
    for key, value in data.items():
        yield from _format_entry((str(key),), f"{_format_scalar(str(key))}:", value, 0)


def format_yaml(data: Mapping[str, Any]) -> str:
    """Return plain data as YAML, one entry a line."""
    return "".join(f"{line}\n" for _, line in format_lines(data))


def fill_defaults(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was set, in the order of the schema, and every other key that has a default."""
    return _fill_section(RunConfig, data, RunConfig())


def keep_portable(data: Mapping[str, Any], mark: Callable[[DottedPath], Mark]) -> dict[str, Any]:
    """Return the effective recipe without what belongs to a machine, so that it gives the same run on another one."""
    return _keep_settable(fill_defaults(_drop_site_values(data, (), mark)), ())


def _keep_settable(data: Mapping[str, Any], path: DottedPath) -> dict[str, Any]:
    """Return the part of plain data that a recipe may set."""
    kept: dict[str, Any] = {}
    for key, value in data.items():
        here = (*path, str(key))
        inner = _keep_settable(value, here) if isinstance(value, Mapping) and value else value
        if inner is not value and inner:
            kept[key] = inner
        elif inner is value and not explain_refusal(here, "" if "${" in str(value) else value):
            kept[key] = value
    return kept


def describe_place(path: DottedPath, provenance: Mapping[str, str]) -> str:
    """Say where a line's value was set: the place of the value, or of all its items if they share one, or ``default``."""
    key = dotted(path)
    if key in provenance:
        return provenance[key]
    inner = {place for other, place in provenance.items() if other.startswith((f"{key}.", f"{key}["))}
    return "" if len(inner) > 1 else next(iter(inner), "default")


def _drop_site_values(data: Mapping[str, Any], path: DottedPath, mark: Callable[[DottedPath], Mark]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in data.items():
        here = (*path, str(key))
        if isinstance(value, Mapping) and value:
            inner = _drop_site_values(value, here, mark)
            if inner:
                kept[key] = inner
        elif mark(here).group != "site":
            kept[key] = value
    return kept


def _fill_section(kind: type, data: Mapping[str, Any], defaults: Any) -> dict[str, Any]:
    filled: dict[str, Any] = {}
    for name, hint in key_tree.fields(kind).items():
        inner = key_tree.without_none(hint)
        default = getattr(defaults, key_tree.attribute(name))
        if key_tree.is_section(inner) and (default is not None or name in data):
            section = _fill_section(inner, data.get(name) or {}, default if default is not None else inner())
            if section:
                filled[name] = section
        elif name in data:
            filled[name] = data[name]
        elif default not in _EMPTY and units.format_value(inner, default) != 0:
            plain = list(default) if isinstance(default, tuple) else default
            filled[name] = units.format_value(inner, default) if inner in units.PARSERS else plain
    return filled


def _format_entry(path: DottedPath, head: str, value: Any, indent: int) -> Iterator[tuple[DottedPath, str]]:
    space = " " * indent
    flow = _format_flow(value)
    if flow is not None and (len(space) + len(head) + len(flow) < _WIDE or not isinstance(value, (list, tuple))):
        yield path, f"{space}{head} {flow}"
        return
    yield path, f"{space}{head}"
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _format_entry((*path, str(key)), f"{_format_scalar(str(key))}:", item, indent + 2)
    else:
        for number, item in enumerate(value):
            yield from _format_list_item((*path, str(number)), item, indent + 2)


def _format_list_item(path: DottedPath, item: Any, indent: int) -> Iterator[tuple[DottedPath, str]]:
    """Yield one `- ` entry; the first key of a map stands behind the dash."""
    if isinstance(item, Mapping) and item:
        for number, (key, value) in enumerate(item.items()):
            rows = list(_format_entry((*path, str(key)), f"{_format_scalar(str(key))}:", value, indent + 2))
            if number == 0:
                first_path, first = rows[0]
                rows[0] = (first_path, f"{' ' * indent}- {first[indent + 2 :]}")
            yield from rows
    else:
        flow = _format_flow(item, always=True)
        yield path, f"{' ' * indent}- {flow}"


def _format_flow(value: Any, *, always: bool = False) -> str | None:
    """Return a value on one line, or ``None`` for maps and lists of maps, which take several."""
    if isinstance(value, Mapping):
        if value and not always:
            return None
        return (
            "{"
            + ", ".join(f"{_format_scalar(str(key))}: {_format_flow(item, always=True)}" for key, item in value.items())
            + "}"
        )
    if isinstance(value, (list, tuple)):
        items = [_format_flow(item, always=always) for item in value]
        return None if any(item is None for item in items) else "[" + ", ".join(str(item) for item in items) + "]"
    return _format_scalar(value)


def _format_scalar(value: Any) -> str:
    """Return one scalar as YAML that any reader takes for the same value."""
    if isinstance(value, str):
        resolvers = yaml.SafeLoader.yaml_implicit_resolvers
        # A pattern of YAML 1.1 that matches makes another value of an unquoted word: of `off`, `null` or `1e3`.
        patterns = [pattern for _, pattern in (*resolvers.get(value[:1], ()), *resolvers.get(None, ()))]
        plain = _PLAIN.fullmatch(value) and not value.endswith(" ") and not any(pattern.match(value) for pattern in patterns)
        return value if plain else str(yaml.safe_dump(value, default_style='"', allow_unicode=True, width=10**9)).rstrip("\n")
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
