"""Section ``pairing`` of a recipe: rules that no tensor could be paired by."""

from __future__ import annotations

from collections.abc import Sequence

from precflow.agent.sampling import parse_slices
from precflow.config.documents import DottedPath, PathProblems
from precflow.config.schema import PairingRule, RunConfig
from precflow.config.vocabulary import ESCALATING

# Recipes come from others: these bound what one may cost for every record.
_MOST_RULES, _MOST_PARTS, _MOST_STARS, _LONGEST_PATTERN = 200, 64, 8, 300
_MOST_GROUPS, _MOST_AXES, _MOST_TOKENS = 1 << 20, 16, 1 << 30


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
        if rule.pair_by:
            yield from _check_request(path, rule, config.pairing.rules)
            continue
        if rule.batch or rule.reference_batch:
            yield path, "has the sizes of a batch, which mean something with `pair_by: request` only"
        for side, patterns in (("reference", rule.reference), ("target", rule.target)):
            if not patterns:
                yield (*path, side), f'is needed: the names of the {side}, such as ["*.qkv_proj"]'
            if any(not 1 <= len(pattern) <= _LONGEST_PATTERN or pattern.count("*") > _MOST_STARS for pattern in patterns):
                yield (*path, side), f"has a pattern that is empty, longer than {_LONGEST_PATTERN}, or of over {_MOST_STARS} *"
        yield from _check_patterns(path, rule)
        yield from _check_change(path, rule)


def _check_request(path: DottedPath, rule: PairingRule, rules: Sequence[PairingRule]) -> PathProblems:
    """Yield what makes a rule that pairs by request unusable: both sides need the same number of tokens."""
    if sum(bool(other.pair_by) for other in rules) > 1:
        yield path, "is not the only rule with `pair_by`: one request is compared at a time"
    if rule.reference or rule.target or rule.permute or rule.sizes or rule.pad is not None:
        yield path, "pairs by request in every record: it has no names, and changes nothing else"
    counts = []
    for key, batch, slices in (
        ("reference_batch", rule.reference_batch, rule.reference_slices),
        ("batch", rule.batch, rule.slices),
    ):
        if len(batch) not in {1, 2} or min(batch) < 1 or max(batch) > _MOST_TOKENS:
            yield (*path, key), "is the sizes of the batch: prompts and tokens, such as [3, 77], or packed tokens, such as [31]"
            continue
        try:
            counts.append(_count_tokens(batch, slices))
        except ValueError as error:
            yield (*path, "slices" if key == "batch" else "reference_slices"), str(error)
    if len(set(counts)) > 1 or 0 in counts:
        yield path, f"takes {counts[0]} tokens of the reference and {counts[-1]} of the target; expected as many, and some"


def _count_tokens(batch: Sequence[int], slices: str) -> int:
    """Return how many tokens of a batch an index takes.

    >>> _count_tokens((3, 77), "[0, :7]"), _count_tokens((31,), "[12:19]")
    (7, 7)

    Raises:
        ValueError: The index does not fit the batch.
    """
    axes = parse_slices(slices)
    if len(axes) != len(batch) or "..." in axes:
        raise ValueError(f"{slices or 'nothing'} is no index of the batch {list(batch)}: it takes one entry for each size")
    count = 1
    for axis, size in zip(axes, batch, strict=True):
        if isinstance(axis, int) and not -size <= axis < size:
            raise ValueError(f"{slices} is beyond the batch {list(batch)}")
        count *= len(range(size)[axis]) if isinstance(axis, slice) else 1
    return count


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
