"""Looks up in the rules of a scan what is missing where a side broke, or else the line of the source that it broke at."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from precflow.breakdown import Breakdown, Instead
from precflow.errors import PrecflowError
from precflow.scan.index import Index
from precflow.scan.missing import find_rules, find_types
from precflow.scan.rules import GROUP, NUMBERS, TYPES, RuleSet, load_rules
from precflow.scan.tree import scan_tree

_MOST = 3  # rules that are named


def advise(broke: Breakdown, team: Mapping[str, Sequence[Path]]) -> Breakdown:
    """Return a breakdown with what rules know about what is missing, or else about the line of the user's source.

    Args:
        broke: What is known.
        team: Folders of a team's files by what they hold.
    """
    try:
        rules = load_rules(team.get(GROUP, ()))
    except PrecflowError:  # a team's rules are not usable: the breakdown is what counts here
        return broke
    instead = (*_find_other_type(broke, rules), *(_find_missing(broke, rules) or _scan_line(broke, rules)))
    return dataclasses.replace(broke, instead=instead[:_MOST])


def _find_other_type(broke: Breakdown, rules: RuleSet) -> tuple[Instead, ...]:
    """Return which element types the operator takes there, where it was given one that its published list does not name."""
    name = broke.missing or broke.operator
    known = find_types(name, rules.types) if name and broke.kind == "exception" else None
    given = broke.inputs[0].dtype if broke.inputs else ""  # lists name the types of the first argument
    if known is None or given not in TYPES or given in known[1]:
        return ()
    why = f"The published list of its element types does not name {given}."
    return (Instead("support.types", known[0], why, f"it takes {', '.join(known[1])}"),)


def _find_missing(broke: Breakdown, rules: RuleSet) -> tuple[Instead, ...]:
    if not broke.missing:
        return ()
    return tuple(
        Instead(rule.id, found, rule.why.replace("{found}", found), rule.do.replace("{found}", found))
        for found, rule in find_rules(broke.missing, Index(rules), inside=broke.missing_in)
    )


def _scan_line(broke: Breakdown, rules: RuleSet) -> tuple[Instead, ...]:
    """Return what a scan finds at the line of the source, if that lies on this machine."""
    path = Path(broke.file) if broke.file else None
    if path is None or broke.kind != "exception" or not path.is_file():
        return ()
    try:
        found = scan_tree(path, rules).findings
    except PrecflowError:
        return ()
    return tuple(
        Instead(place.rule, place.found, place.why, place.do)
        for place in found
        if place.line <= broke.line <= place.end_line and place.weight != NUMBERS
    )
