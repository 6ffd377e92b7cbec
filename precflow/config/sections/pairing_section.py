"""Section ``pairing`` of a recipe: rules that no tensor could be paired by."""

from __future__ import annotations

from precflow.agent.sampling import parse_slices
from precflow.config.documents import DottedPath, PathProblems
from precflow.config.schema import PairingRule, RunConfig
from precflow.config.vocabulary import ESCALATING

# Recipes come from others: these bound what one may cost for every record.
_MOST_RULES, _MOST_PARTS, _MOST_STARS, _LONGEST_PATTERN = 200, 64, 8, 300
_MOST_GROUPS, _MOST_AXES = 1 << 20, 16


def find_problems(config: RunConfig) -> PathProblems:
    """Yield pairing rules that no tensor could be paired by. Numbers are bounded, because a recipe may come from anywhere."""
    if len(config.pairing.rules) > _MOST_RULES:
        yield ("pairing", "rules"), f"has {len(config.pairing.rules)} rules; at most {_MOST_RULES}"
        return
    if config.pairing.rules and config.capture.detail == ESCALATING:
        yield (
            ("pairing", "rules"),
            "the second pass of escalating capture asks both sides for the same names: use capture=tensors",
        )
    for number, rule in enumerate(config.pairing.rules):
        path: DottedPath = ("pairing", "rules", str(number))
        for side, patterns in (("reference", rule.reference), ("target", rule.target)):
            if not patterns:
                yield (*path, side), f'is needed: the names of the {side}, such as ["*.qkv_proj"]'
            if any(not 1 <= len(pattern) <= _LONGEST_PATTERN or pattern.count("*") > _MOST_STARS for pattern in patterns):
                yield (*path, side), f"has a pattern that is empty, longer than {_LONGEST_PATTERN}, or of over {_MOST_STARS} *"
        yield from _check_patterns(path, rule)
        yield from _check_change(path, rule)


def _check_patterns(path: DottedPath, rule: PairingRule) -> PathProblems:
    several = len(rule.reference) > 1, len(rule.target) > 1
    if all(several):
        yield path, f"pairs {len(rule.target)} names with {len(rule.reference)}; expected one name on one side at least"
    if max(len(rule.reference), len(rule.target)) > _MOST_PARTS:
        yield path, f"has more than {_MOST_PARTS} names on a side"
    patterns = (*rule.reference, *rule.target)
    if len({pattern.count("*") for pattern in patterns}) > 1:
        yield path, "needs the same number of * in each name: they stand for the same texts"
    if len({" / " in pattern for pattern in patterns}) > 1:
        yield path, "names a module on one side and a `module / operator` on the other"
    if len(set(rule.reference)) < len(rule.reference) or len(set(rule.target)) < len(rule.target):
        yield path, "has the same name twice on a side"
    cuts = any(several)
    if rule.sizes and len(rule.sizes) != len(rule.reference):
        yield (*path, "sizes"), f"has {len(rule.sizes)} sizes for {len(rule.reference)} names of the reference"
    if not cuts and (rule.groups != 1 or rule.axis != -1):
        yield path, "has `groups` or `axis`, which mean nothing with one name on each side: nothing is cut or joined"
    if (
        not cuts
        and rule.reference == rule.target
        and not (rule.permute or rule.slices or rule.reference_slices or rule.pad is not None)
    ):
        yield path, "changes nothing: both sides have the same name"


def _check_change(path: DottedPath, rule: PairingRule) -> PathProblems:
    if any(size < 1 for size in rule.sizes):
        yield (*path, "sizes"), "are sizes of parts: whole numbers above 0"
    if not 1 <= rule.groups <= _MOST_GROUPS:
        yield (*path, "groups"), f"is a number of groups from 1 to {_MOST_GROUPS}"
    if not -_MOST_AXES <= rule.axis < _MOST_AXES:
        yield (*path, "axis"), f"is the number of an axis, from -{_MOST_AXES} to {_MOST_AXES - 1}"
    if rule.permute and (len(rule.permute) > _MOST_AXES or sorted(rule.permute) != list(range(len(rule.permute)))):
        yield (*path, "permute"), "names every axis once, from 0, such as [0, 2, 1, 3]"
    if rule.pad is not None and len(rule.target) > 1:
        yield (*path, "pad"), "and several names of the target exclude each other"
    for key in ("slices", "reference_slices"):
        if text := getattr(rule, key):
            try:
                parse_slices(text)
            except ValueError as error:
                yield (*path, key), str(error)
