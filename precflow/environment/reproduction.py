"""Did both sides start from the same recipe, seed, weights and inputs? If not, no tensor needs to be compared."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from precflow.agent.contract import CHECKED
from precflow.dumps.batches import CALLS, CHOICE, ELSEWHERE, STALE, GivenInputs
from precflow.dumps.header import ContentEntries, Header
from precflow.dumps.protocol import Dump
from precflow.dumps.starting_weights import TiedWeight
from precflow.dumps.views.derived import count_parts, decodes_again
from precflow.environment.amounts import find_other_micro_batches
from precflow.environment.program import describe_other_program

_SHOWN = 5
_RANK = re.compile(r"rank\d+\.(.+)")  # of the names of weights
_STEP = re.compile(r"(?:rank\d+\.)?step(\d+)\.")  # of the names of a script's inputs


def find_blockers(reference: Header, target: Header, same: Sequence[str]) -> list[str]:
    """Return what makes a comparison of two dumps meaningless, in words; empty if nothing does.

    Where another tool has recorded a side, what its format does not hold is no obstacle: ``find_unknown`` says it.

    Args:
        reference: Header of the reference's dump.
        target: Header of the target's dump.
        same: What the recipe wants to be the same; weights and inputs are checked only if they are in it.
    """
    blockers = []
    if reference.recipe and target.recipe and reference.recipe != target.recipe:
        recipes = f"{reference.recipe} on the reference, {target.recipe} on the target"
        blockers.append(f"the dumps are of different recipes: {recipes}")
    ranks = [1 + len(header.sites_of_ranks) for header in (reference, target)]
    if ranks[0] != ranks[1]:
        blockers.append(
            f"the reference ran as {ranks[0]} ranks and the target as {ranks[1]}: ranks are compared with their own, "
            "or several with a single process"
        )
    is_foreign = bool(reference.tool or target.tool)
    seeds = (reference.determinism.get("seed"), target.determinism.get("seed"))
    if seeds[0] != seeds[1] and not is_foreign:
        blockers.append(f"the seeds differ: {seeds[0]} on the reference, {seeds[1]} on the target")
    elif reference.script and target.script:
        recorded = max(max(header.capture.get("step") or (0,)) for header in (reference, target))
        blockers += _find_different_scripts(reference.script, target.script, recorded)
    contents = (("weights", reference.weights, target.weights), ("inputs", reference.inputs, target.inputs))
    unknown = find_unknown(reference, target)
    different = [
        _describe_difference(name, here, there) for name, here, there in contents if name in same and name not in unknown
    ]
    if reference.script and target.script and different[-1:] and "inputs" in same:
        different[-1] = _describe_batches(reference.inputs, target.inputs) or different[-1]
    other = [] if is_foreign else describe_other_program(reference.facts, target.facts, same)
    return blockers + [text for text in different if text] + other


def find_unknown(reference: Header, target: Header) -> tuple[str, ...]:
    """Return what is not known to be the same at the start, ``weights`` or ``inputs``, because another tool did not keep it."""
    if not (reference.tool or target.tool):
        return ()
    return tuple(
        name for name in ("weights", "inputs") if not getattr(reference, name).digest or not getattr(target, name).digest
    )


def _find_different_scripts(reference: Mapping[str, Any], target: Mapping[str, Any], recorded: int) -> list[str]:
    """Return in which ways two runs of a script did not make the same steps up to the last recorded one, in words."""
    found = []
    seeds = [side.get("seeds", {}).get("torch") for side in (reference, target)]
    if seeds[0] != seeds[1]:
        found.append(f"the script sets different seeds: {seeds[0]} on the reference, {seeds[1]} on the target")
    # A skipped step that counts as one of its own is a finding; dumps of older agents do not count any.
    skipped = [side.get("merged", side.get("skipped", [])) for side in (reference, target)]
    different = find_other_micro_batches(reference, target)
    is_shifted = different is not None and different.step <= recorded
    # With as many micro batches in each step, steps are the same iterations: one side clears its gradients in between.
    if skipped[0] != skipped[1] and (is_shifted or not reference.get("micro_batches")):
        here, there = (f"in step {', '.join(map(str, steps))}" if steps else "in none" for steps in skipped)
        found.append(
            f"gradients were dropped without an optimizer's step {here} on the reference, {there} on the target, as a gradient "
            "scaler does after an overflow: from there on, steps are not the same iterations"
        )
        return found
    return found + ([different.text] if different is not None and is_shifted else [])


def _describe_batches(reference: ContentEntries, target: ContentEntries) -> str:
    """Say from which recorded step on the model of a script was given something else; ``""`` if it never was."""
    if not (reference.digest and target.digest) or reference.digest == target.digest:
        return ""
    names = find_different(reference, target)
    steps = [(int(match[1]), name) for name in names if (match := _STEP.match(name))]
    if not steps:
        return ""
    first = min(steps)[0]
    shown = [name for step, name in steps if step == first][:_SHOWN]
    return f"the sides were fed different batches from step {first} on: {', '.join(shown)}"


def describe_parting(given: GivenInputs, *, compared: bool = True) -> str:
    """Say from where on the models of both sides were given other data, and whether what came before is compared."""
    start = given.start
    assert start is not None
    what = {
        CHOICE: "each side's model is given what it chose itself",
        ELSEWHERE: "the sides' models are given outputs of other calls",
        STALE: "the sides' models are given outputs of other steps",
        CALLS: "one side calls its model more often",
    }.get(start.kind, "the sides' models are given other data")
    words = f": {'; '.join(filter(None, (start.words, given.warm_up)))}" if start.words or given.warm_up else ""
    more = f"; {len(given.different) - 1} more" if len(given.different) > 1 else ""
    return f"{what} from {start.name} on{words}{more}" + "; only what came before is compared" * compared


def describe_further(given: GivenInputs) -> tuple[str, ...]:
    """Say which calls of models one side makes more, of each side the first; all others are compared."""
    texts = []
    for side in ("reference", "target"):
        of_side = [one for one in given.further if one.side == side and one.placed]
        steps = len({(one.rank, one.step) for one in of_side}) - 1
        more = f"; so in {steps} more step{'s' * (steps > 1)}" if steps > 0 else ""
        texts += [f"{one.text}{more}" for one in of_side[:1]]
    return tuple(texts)


def describe_stale(given: GivenInputs) -> tuple[str, ...]:
    """Say which inputs the model made in different steps on the two sides; such sides are misaligned."""
    more = f"; {len(given.stale) - 1} more" if len(given.stale) > 1 else ""
    return tuple(
        f"{each.name} is an output of another step than on the reference: {each.words}{more}" for each in given.stale[:1]
    )


def describe_tied(one: TiedWeight) -> str:
    """Say that a weight is tied on one side only."""
    return f"{one.name} is tied to {one.shared} on the {one.side} only"


def describe_given(given: GivenInputs) -> tuple[str, ...]:
    """Say which inputs differ and are no other data."""
    texts = []
    if given.made:
        made = "one input differs" if len(given.made) == 1 else f"{len(given.made)} inputs differ"
        texts.append(f"{made} because the model itself made what it was given, which is no data: {_list_some(given.made)}")
    kinds = Counter(given.weights.retyped.values())
    for (here, there), count in kinds.most_common(_SHOWN):
        weights = "one weight is" if count == 1 else f"{count} weights are"
        texts.append(f"{weights} {there} on the target and {here} on the reference, equal after rounding")
    texts += [f"{describe_tied(one)}, with the same bits at the start" for one in given.weights.tied if one.is_equal]
    if given.retyped:
        texts.append(f"the same input in another type: {_list_some(given.retyped)}")
    return tuple(texts)


def describe_parts(reference: Dump, target: Dump) -> tuple[str, ...]:
    """Say that a side calls its model on parts of the batch, or on all tokens again, and what is compared of it."""
    return tuple(
        f"each call of the model on the {other} is {parts} on the {side}, on parts of its batch, which are compared joined"
        for side, other, dump in (("reference", "target", reference), ("target", "reference", target))
        if (parts := count_parts(dump)) > 1
    ) + tuple(
        f"the {side} decodes without a cache and computes all tokens again in each call, of which the last is compared"
        for side, dump in (("reference", reference), ("target", target))
        if decodes_again(dump)
    )


def find_disturbance(side: str, header: Header) -> str:
    """Say that a side capturing changes what it computes, or was not checked though that was asked for; else ``""``."""
    observer = header.observer
    if not observer.checked and header.determinism.get("observer") == CHECKED:
        return f"the {side} was not run without capture: it has no recorded step of an optimizer, or ran as one request"
    if not observer.different or header.repeat.different:  # a side that does not repeat itself says nothing about watching
        return ""
    more = f" and {len(observer.different) - _SHOWN} more" if len(observer.different) > _SHOWN else ""
    otherwise = "" if header.repeat.checked else ", or does not repeat itself (determinism.repeat=true shows it)"
    what = f"{', '.join(observer.different[:_SHOWN])}{more} after step {observer.step}"
    return f"the {side} capturing changes what it computes{otherwise}: {what}"


def describe_copy(reference: Header, target: Header) -> str:
    """Say that the target's dump is the reference's, copied or given twice; ``""`` if they are two dumps."""
    if not reference.id or reference.id != target.id:
        return ""
    return f"the dump of the target is the reference's own (id {target.id}): nothing of a target was recorded"


def find_different(reference: ContentEntries, target: ContentEntries) -> list[str]:
    """Return the names of entries that differ or are on one side only, in the reference's order."""
    names = [*reference.entries, *(name for name in target.entries if name not in reference.entries)]
    return [name for name in names if reference.entries.get(name) != target.entries.get(name)]


def find_partnerless(reference: ContentEntries, target: ContentEntries) -> list[str]:
    """Return the names of entries that only one side has, the reference's first."""
    alone = [name for name in reference.entries if name not in target.entries]
    return alone + [name for name in target.entries if name not in reference.entries]


def complete_ranks(weights: ContentEntries, other: ContentEntries) -> ContentEntries:
    """Return weights with an entry for each weight of a rank that only the other side lists.

    A header lists of the ranks behind the first only the weights that differ from those of rank 0, so that ``rank1.a`` without
    an entry is ``a``.
    """
    found = {name: match[1] for name in other.entries if name not in weights.entries and (match := _RANK.match(name))}
    more = {name: weights.entries[own] for name, own in found.items() if own in weights.entries}
    return replace(weights, entries={**weights.entries, **more}) if more else weights


def _describe_difference(name: str, reference: ContentEntries, target: ContentEntries) -> str:
    """Say how the weights or the inputs differ; ``""`` if they do not."""
    unknown = [side for side, one in (("reference", reference), ("target", target)) if not one.digest]
    if any(one.entries and not one.digest for one in (reference, target)):
        return f"the ranks were given parts of the {name} that were not kept, and cannot be joined: capture=tensors keeps them"
    if unknown:
        return f"the {name} of the {' and the '.join(unknown)} are not recorded, so it is unknown whether they are the same"
    if reference.digest == target.digest:
        return ""
    if name == "weights":
        reference, target = complete_ranks(reference, target), complete_ranks(target, reference)
    alone = find_partnerless(reference, target)
    names = [one for one in find_different(reference, target) if one not in set(alone)]
    texts = []
    if names:
        both = sum(one in target.entries for one in reference.entries)
        texts.append(f"the {name} differ in {len(names)} of {both}: {_list_some(names)}")
    if alone:
        also = f"{len(alone)} {name} are" if len(alone) > 1 else f"one of the {name} is"
        renamed = ": section `pairing` pairs what has another name" if name == "weights" else ""
        texts.append(f"{also} on one side only ({_list_some(alone)}){renamed}")
    return "; ".join(texts) or f"the {name} differ"


def _list_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
