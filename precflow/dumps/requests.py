"""Requests: the JSON that goes to an agent, made from a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from precflow.agent.contract import REQUEST_SCHEMA
from precflow.config.plain import plain
from precflow.config.schema import RunConfig, Side

_OF_CAPTURE = ("level", "phase", "scope", "step", "rank", "detail", "budget")  # timeout and slowdown change no record
_OF_WORKLOAD = ("model", "inputs", "mode", "tokenizer")
_OF_DETERMINISM = ("seed", "algorithms", "random_numbers", "dropout", "repeat")


def declared(config: RunConfig, side: str) -> dict[str, Any]:
    """Return what a dump of this side depends on by declaration: no paths of the run, nothing of the site.

    Args:
        config: The composed recipe.
        side: ``reference``, ``target`` or ``golden``. Faults of the emulation belong to the target alone.
    """
    settings = _side(config, side)
    return {
        "schema": REQUEST_SCHEMA,
        "side": side,
        "device": list(settings.device),
        "dtype": settings.dtype,
        "emulate": _emulate(config, side),
        "workload": _part(config.workload, _OF_WORKLOAD),
        "determinism": _part(config.determinism, _OF_DETERMINISM),
        "capture": _part(config.capture, _OF_CAPTURE),
    }


def environment_request(config: RunConfig, side: str, output: Path, *, ci: bool) -> dict[str, Any]:
    """Return the request for the facts of a side, with the switches that its dump will have."""
    return {**_common(config, side, output, ci=ci), "action": "environment"}


def dump_request(  # noqa: PLR0913  each is a fact of its own, and all but three go by name
    config: RunConfig,
    side: str,
    output: Path,
    *,
    ci: bool,
    declared_key: str,
    trusted: Sequence[str],
    import_paths: Sequence[str],
) -> dict[str, Any]:
    """Return the request for a dump of a side.

    Args:
        config: The composed recipe.
        side: ``reference``, ``target`` or ``golden``.
        output: Folder that exists; the agent writes there.
        ci: Take an emulated device only where it is the single one named.
        declared_key: Hash of :func:`declared`.
        trusted: Packages whose functions the workload may name.
        import_paths: Folders where they are looked for, after the interpreter's own.
    """
    return {
        **_common(config, side, output, ci=ci),
        "action": "dump",
        "declared": declared_key,
        "trusted": list(trusted),
        "import_paths": [str(path) for path in import_paths],
    }


def _common(config: RunConfig, side: str, output: Path, *, ci: bool) -> dict[str, Any]:
    return {**declared(config, side), "recipe": config.recipe, "output": str(output.resolve()), "ci": ci, "parent": None}


def _emulate(config: RunConfig, side: str) -> dict[str, Any]:
    if side != "target":
        return {"name": "", "rules": []}
    return {"name": config.emulate.name, "rules": plain(config.emulate.rules)}


def _part(section: object, keys: Sequence[str]) -> dict[str, Any]:
    whole = plain(section)
    return {key: whole[key] for key in keys}


def _side(config: RunConfig, side: str) -> Side:
    settings: Side | None = getattr(config, side)
    assert settings is not None, f"recipe without side {side}"
    return settings
