"""How the modules of both sides are set, as their dumps say it: eps and momentum of norms, slopes of activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from precflow.agent.contract import MODULES


def read_module_settings(facts: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
    """Return name of a module -> its settings; nothing from a dump that does not have them.

    Args:
        facts: Of a dump's header.
    """
    modules = facts.get(MODULES)
    if not isinstance(modules, Mapping):
        return {}
    return {str(name): settings for name, settings in modules.items() if isinstance(settings, Mapping)}


def find_other_module_settings(reference: Mapping[str, Any], target: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return name of a module -> ``setting: reference / target`` for each setting that both sides know and that differs.

    Args:
        reference: Facts of the reference's header.
        target: The target's.
    """
    here, there = read_module_settings(reference), read_module_settings(target)
    found = {
        name: [f"{each}: {one} / {there[name][each]}" for each, one in settings.items() if there[name].get(each, one) != one]
        for name, settings in here.items()
        if name in there
    }
    return {name: texts for name, texts in found.items() if texts}
