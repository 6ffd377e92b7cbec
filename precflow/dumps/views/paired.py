"""A dump seen through the pairing rules of a recipe, so that two implementations of one model have records of the same names.

Records of two sides are paired by name (:mod:`precflow.comparison.pairing`). Where the sides name or cut their tensors
differently, the rules of the section ``pairing`` say how the target's become the reference's. For example, a projection that
the target computes as one product, and the reference as three::

    pairing:
      rules:
        - {reference: ["*.q_proj", "*.k_proj", "*.v_proj"], target: ["*.qkv_proj"], axis: -1}

The target's call ``layers.0.qkv_proj / linear`` then becomes three calls, whose outputs are parts of the recorded one. They are
computed when somebody asks for them; the dump itself is not changed.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from precflow import keys
from precflow.agent.contract import FORWARD, OUTSIDE, ROOT_MODULE, Identity, module_text
from precflow.config.schema import PairingRule
from precflow.dumps.header import ContentEntries, ContentEntry
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.dumps.views.aligned_operators import align_calls
from precflow.dumps.views.derivation import Derivation
from precflow.dumps.views.derived import DerivedDump, MadeTensor
from precflow.dumps.views.joined_calls import join_calls
from precflow.dumps.views.joined_ranks import count_ranks, join_ranks
from precflow.dumps.views.last_tokens import see_last_tokens
from precflow.dumps.views.one_request import find_request, see_request
from precflow.dumps.views.same_start import see_same_start
from precflow.errors import ConfigError

NAME, SEQUENCE = "name", "sequence"
"""How a pair was made, besides the rules: by the same name, or in order where several records of a side share a name."""
_OPERATOR = " / "
Captured = tuple[str, ...]


class PairedDump(DerivedDump):
    """A dump whose calls have the names, and whose tensors have the parts, that the rules give them.

    Args:
        whole: The dump.
        rules: The recipe's, in order; the first that matches a call counts. If it is about one output alone (``index``), later
            rules for the same names are about the others.
        side: ``reference`` or ``target``. Of the reference only parts are taken (``reference_slices``).
        reference: The other dump; tensors are filled up to its shapes (``pad``).
    """

    def __init__(self, whole: Dump, rules: Sequence[PairingRule], side: str, reference: Dump | None = None) -> None:
        super().__init__(whole)
        self._rules = rules
        self._is_target = side == "target"
        self._reference = reference

    @functools.cached_property
    def pairing(self) -> Mapping[Identity, str]:
        """Identity of an output -> the rule that gave it its name or its tensor, as ``pairing.rules[0]``."""
        return self._paired[1]

    def _derive_calls(self) -> list[Call]:
        """Return the calls by their new names.

        Raises:
            ConfigError: A rule cannot be applied to a tensor that it matches.
        """
        return self._paired[0]

    @functools.cached_property
    def _paired(self) -> tuple[list[Call], Mapping[Identity, str]]:
        calls: list[Call] = []
        pairing: dict[Identity, str] = {}
        parts: dict[tuple[Any, ...], dict[int, Call]] = defaultdict(dict)  # of tensors that are joined
        for call in self.whole.calls():
            matches = self._match(call)
            if not matches:
                calls.append(call)
                continue
            number, place, captured = matches[0]
            rule = self._rules[number]
            numbers = [number] * len(call.outputs)
            if self._is_target and len(rule.target) > 1:
                key = (number, captured, call.level, call.operator, call.call, call.ordinal, call.phase, call.step, call.rank)
                together = parts[key]
                together[place] = call
                if len(together) < len(rule.target):
                    continue
                paired = [self._join([together[part] for part in range(len(rule.target))], number, captured)]
                together.clear()  # the same calls of a later turn, as in a loop, are joined anew
            else:
                numbers = self._find_rules(call, matches)
                if self._is_target:
                    paired = [self._change(call, numbers, captured, name, part) for part, name in enumerate(rule.reference)]
                else:
                    paired = [self._take_part(call, numbers)]
            calls += paired
            pairing.update(
                {
                    record.identity: f"pairing.rules[{given}]"
                    for pair in paired
                    for given, record in zip(numbers, pair.outputs, strict=True)
                }
            )
        calls += [call for together in parts.values() for call in together.values()]  # without the others they stay alone
        calls.sort(key=lambda call: (call.rank, call.step, call.order))
        return calls, pairing

    def _match(self, call: Call) -> list[tuple[int, int, Captured]]:
        """Return number of each rule that matches a call, which of its patterns does, and what its stars stand for."""
        matches: list[tuple[int, int, Captured]] = []
        if call.module == OUTSIDE:
            return matches
        for number, rule in enumerate(self._rules):
            if not (self._is_target or rule.reference_slices):
                continue
            # A rule without a phase is about all of them, or about the forward if it changes tensors.
            changes = changes_tensors(rule) or rule.reference_slices
            if call.phase != (rule.phase or (FORWARD if changes else call.phase)):
                continue
            for place, pattern in enumerate(rule.target if self._is_target else rule.reference):
                captured = match_call(pattern, call)
                if captured is not None:
                    matches.append((number, place, captured))
                    break
        return matches

    def _find_rules(self, call: Call, matches: Sequence[tuple[int, int, Captured]]) -> list[int]:
        """Return the number of each output's rule: the first that matches the call, or a later one with the output's ``index``.

        The later one has to give the call the same name.
        """
        first, _, captured = matches[0]
        names = [fill_pattern(pattern, captured) for pattern in self._rules[first].reference]
        alike = [
            number
            for number, _, stars in matches
            if not self._is_target or [fill_pattern(pattern, stars) for pattern in self._rules[number].reference] == names
        ]
        return [
            next((number for number in alike if self._rules[number].index in {"", record.index}), first)
            for record in call.outputs
        ]

    def _change(self, call: Call, numbers: Sequence[int], captured: Captured, name: str, part: int) -> Call:
        """Return a call of the target by its name on the reference; of a tensor that is cut, one part.

        Args:
            call: The call.
            numbers: The rule of each output.
            captured: What the stars of the call's name stand for.
            name: Pattern of the name on the reference.
            part: Number of the part.
        """
        renamed = _rename(call, name, captured)
        outputs = []
        for number, record, source in zip(numbers, renamed.outputs, call.outputs, strict=True):
            rule = self._rules[number]
            if rule.index not in {"", record.index} or not changes_tensors(rule):
                outputs.append(record)
                continue
            derivation = Derivation(
                axis=rule.axis,
                part=part if len(rule.reference) > 1 else -1,
                parts=len(rule.reference),
                sizes=rule.sizes,
                groups=rule.groups,
                permute=rule.permute,
                slices=rule.slices,
                padding=rule.pad,
                padded=self._reference_shapes.get(record.identity, ()) if rule.pad is not None else (),
            )
            outputs.append(self._make_by_rule(record, (source,), derivation, number))
        return msgspec.structs.replace(renamed, outputs=tuple(outputs))

    def _join(self, calls: Sequence[Call], number: int, captured: Captured) -> Call:
        """Return several calls of the target as the one that the reference has."""
        rule, last = self._rules[number], max(calls, key=lambda call: call.order)
        renamed = _rename(msgspec.structs.replace(calls[0], order=last.order), rule.reference[0], captured)
        outputs = []
        for place, record in enumerate(renamed.outputs):
            sources = [call.outputs[place] for call in calls if place < len(call.outputs)]
            if rule.index not in {"", record.index} or len(sources) < len(calls):
                outputs.append(record)
                continue
            derivation = Derivation(
                axis=rule.axis, parts=len(calls), groups=rule.groups, permute=rule.permute, slices=rule.slices
            )
            outputs.append(self._make_by_rule(record, tuple(sources), derivation, number))
        return msgspec.structs.replace(renamed, outputs=tuple(outputs))

    def _take_part(self, call: Call, numbers: Sequence[int]) -> Call:
        """Return a call of the reference with the part of its outputs that the target has, by the rule of each output."""
        outputs = [
            self._make_by_rule(record, (record,), Derivation(slices=self._rules[number].reference_slices), number)
            if self._rules[number].index in {"", record.index}
            else record
            for number, record in zip(numbers, call.outputs, strict=True)
        ]
        return msgspec.structs.replace(call, outputs=tuple(outputs))

    def _make_by_rule(self, record: Record, sources: tuple[Record, ...], derivation: Derivation, number: int) -> Record:
        """Return a record whose tensor is made of others.

        Raises:
            ConfigError: The rule does not fit their shapes.
        """
        shapes = [source.shape for source in sources]
        try:
            shape = derivation.find_shape(shapes)
        except ValueError as error:
            raise ConfigError(
                f"pairing.rules[{number}] cannot be applied to {sources[0].text}, shape {list(shapes[0])}: {error}",
                next_step="narrow the rule: a pattern `module / operator`, `index` for one of several outputs, or `phase`",
            ) from error
        return self._make(record, MadeTensor(sources, derivation.apply), shape, derivation)

    @functools.cached_property
    def _reference_shapes(self) -> Mapping[Identity, tuple[int, ...]]:
        calls = self._reference.calls() if self._reference is not None else []
        return {record.identity: record.shape for call in calls for record in call.outputs}


def see_through_rules(reference: Dump, target: Dump, rules: Sequence[PairingRule], same: Sequence[str]) -> tuple[Dump, Dump]:
    """Return both dumps with the names and tensors that pairing rules give them.

    Without rules they are the dumps as recorded, but for these:

    * Several ranks are seen as one process if the other side is one.
    * Calls of a model on parts of a batch are seen as one call, and calls that decode without a cache by their last tokens.
    * Collectives are numbered by what they carry, and operators by what they read.
    * Both end where their models are given other data.

    Args:
        reference: The reference's dump.
        target: The target's.
        rules: The rules of the recipe.
        same: What has to be the same on both sides.
    """
    request = find_request(rules)
    if request is not None:
        reference, target = see_request(reference, target, request)
    if not rules and count_ranks(reference) != count_ranks(target):
        return join_ranks(reference, target)  # what the ranks were given is joined before it is compared
    if not rules:
        reference, target = see_last_tokens(*join_calls(reference, target))
    reference, target = see_same_start(reference, target, same)
    target = align_calls(reference, target)
    if not rules:
        return reference, target
    seen = PairedDump(reference, rules, "reference")
    other = PairedDump(target, rules, "target", seen)
    weights = _rename_weights(reference.header.weights, target.header.weights, rules)
    seen.header, other.header = replace(seen.header, weights=weights[0]), replace(other.header, weights=weights[1])
    return seen, other


def _rename_weights(
    reference: ContentEntries, target: ContentEntries, rules: Sequence[PairingRule]
) -> tuple[ContentEntries, ContentEntries]:
    """Return the weights of both sides by the reference's names, without those of modules that a rule cuts or joins.

    The contents of a fused weight and of its parts cannot be compared: only digests of whole weights are in a header. The same
    holds for weights of another shape in a module whose tensors a rule changes, such as a vocabulary that is padded.
    """
    if not (reference.digest and target.digest and reference.entries and target.entries):
        return reference, target
    here, there = dict(reference.entries), dict[str, ContentEntry]()
    for name, entry in target.entries.items():
        module, _, weight = name.rpartition(".")
        name_of_target = module or module_text(ROOT_MODULE)
        for rule in rules:
            captured = match_text(rule.target[0], module) if len(rule.target) == 1 else None
            parts = [match_text(pattern, module) for pattern in rule.target]
            if len(rule.reference) == 1 and captured is not None:
                module = fill_pattern(rule.reference[0], captured)
                name = ".".join(filter(None, (module if module != module_text(ROOT_MODULE) else "", weight)))  # noqa: PLW2901
                if name in here and here[name].shape != entry.shape and _is_changed(name_of_target, rules):
                    del here[name]
                else:
                    there[name] = entry
                break
            matched = next((part for part in parts if part is not None), None)
            if matched is not None:
                for pattern in rule.reference:
                    here.pop(f"{fill_pattern(pattern, matched)}.{weight}", None)
                break
        else:
            there[name] = entry
    digests = [keys.digest(sorted((name, str(entry)) for name, entry in entries.items())) for entries in (here, there)]
    return ContentEntries(digests[0], here), ContentEntries(digests[1], there)


def _is_changed(module: str, rules: Sequence[PairingRule]) -> bool:
    """Tell whether a rule changes the tensors of a module of the target, or of an operator in it."""
    return any(
        match_text(pattern.partition(_OPERATOR)[0], module) is not None
        for rule in rules
        if changes_tensors(rule) or rule.reference_slices
        for pattern in rule.target
    )


def list_ruled(dump: Dump) -> Mapping[Identity, str]:
    """Return identity of an output -> the rule that gave it its name or its tensor, for a dump that is seen through rules."""
    return dump.pairing if isinstance(dump, PairedDump) else {}


def changes_tensors(rule: PairingRule) -> bool:
    """Tell whether a rule does more than rename."""
    cut = len(rule.reference) > 1 or len(rule.target) > 1
    return cut or bool(rule.permute or rule.slices) or rule.pad is not None


def match_call(pattern: str, call: Call) -> Captured | None:
    """Return what the stars of a pattern stand for in the name of a call; ``None`` if it does not match."""
    module, _, operator = pattern.partition(_OPERATOR)
    captured = match_text(module, call.module if call.module != ROOT_MODULE else module_text(ROOT_MODULE))
    if captured is None or not operator:
        return captured
    inside = match_text(operator, call.operator)
    return None if inside is None else (*captured, *inside)


def match_text(pattern: str, text: str) -> Captured | None:
    """Return what each ``*`` of a pattern stands for; ``None`` if the pattern does not match the whole text.

    Each star but the last takes as little as it can. No regular expression is used, so that no pattern takes long.

    >>> match_text("layers.*.attn.*", "layers.10.attn.qkv"), match_text("a.*", "b.c"), match_text("*", "x.y")
    (('10', 'qkv'), None, ('x.y',))
    """
    first, *rest = pattern.split("*")
    if not rest:
        return () if text == pattern else None
    if not text.startswith(first) or len(text) < len(first) + len(rest[-1]) or not text.endswith(rest[-1]):
        return None
    at, end, captured = len(first), len(text) - len(rest[-1]), []
    for literal in rest[:-1]:
        start = text.find(literal, at, end)
        if start < 0:
            return None
        captured.append(text[at:start])
        at = start + len(literal)
    return (*captured, text[at:end])


def fill_pattern(pattern: str, captured: Captured) -> str:
    """Return a pattern with its stars replaced, in order.

    >>> fill_pattern("layers.*.attn.*_proj", ("10", "q"))
    'layers.10.attn.q_proj'
    """
    first, *rest = pattern.split("*")
    return first + "".join(text + literal for text, literal in zip(captured, rest, strict=True))


def _rename(call: Call, pattern: str, captured: Captured) -> Call:
    """Return a call, with its records, by the name that a pattern gives it."""
    module, _, operator = fill_pattern(pattern, captured).partition(_OPERATOR)
    module = ROOT_MODULE if module == module_text(ROOT_MODULE) else module
    operator = operator or call.operator

    def rename(record: Record) -> Record:
        """Return a record of the call under the call's new name; a weight of the call's module moves along."""
        weight = record.weight
        if weight.startswith(f"{call.module}."):
            weight = ".".join(filter(None, (module, weight[len(call.module) + 1 :])))
        whose = record.whose._replace(module=module, operator=operator, order=call.order)
        return msgspec.structs.replace(record, whose=whose, weight=weight)

    return msgspec.structs.replace(
        call,
        module=module,
        operator=operator,
        inputs=tuple(map(rename, call.inputs)),
        outputs=tuple(map(rename, call.outputs)),
    )
