"""Choices that differ between the sides, and what depends on them.

Two correct devices now and then choose differently between values that are as near as rounding
(:mod:`precflow.judgement.near_ties`). What comes behind such a near tie has other values, or even another shape, on a healthy
device: nothing can be said about it by comparison. So the graph of each side is followed from every near tie::

    gate / linear        pass
    gate / softmax       pass
    gate / topk          near tie          2 of 64 tokens go to another expert
    experts.1 / linear   not comparable    13 tokens on the reference, 12 on the target
    layers.1 / norm      pass              its error is within its limit although it depends on the near tie

What agrees in spite of the near tie keeps its status. A choice that differs by more than noise fails, and so does what depends
on it. Where the values that were chosen between were not kept, the choice is undecided; where they are blind, so is the choice.
If the target was given the reference's choices (:mod:`precflow.diagnosis.given_choices`), nothing depends on its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from precflow.agent.contract import BACKWARD, FORWARD, GRADIENT
from precflow.comparison.measure import Measure
from precflow.diagnosis.gradient_choices import GradientChoice, explains, find_gradients_behind
from precflow.diagnosis.graph import build_graph
from precflow.diagnosis.nodes import CallKey, CallNode, OutputKey
from precflow.dumps.dtypes import coarsest, is_floating
from precflow.dumps.protocol import Dump
from precflow.dumps.records import Call, Record
from precflow.judgement import gradient_choices, near_ties
from precflow.judgement.floors import Floor
from precflow.judgement.inputs import JudgeInput
from precflow.judgement.judge import SettleChoices
from precflow.judgement.verdicts import Judged

MARGIN = "choice_margin"
"""What the status of a choice names: the distance of the values chosen over their root mean square, against their noise."""

_Nodes = Mapping[CallKey, CallNode]
_MOST = 1e300  # stands for infinity, which JSON does not have
_FLOOR = "max_rms_error"
_DEPENDENT = frozenset({"fail", "shape", "nonfinite", "unpaired_reference", "unpaired_target", "undecided"})
_OF_VALUES = frozenset({"fail", "undecided"})
_GRADIENTS = frozenset({BACKWARD, GRADIENT})
_AGREES = frozenset({"pass", "blind", "accepted"})
_ORIGINS = {"near_tie": "the near tie", "undecided": "the undecided choice", "blind": "the choice between blind values"}


class _Choice(NamedTuple):
    """A choice that differs.

    Attributes:
        status: ``near_tie``, ``undecided``, or ``blind`` where the values that were chosen between are.
        name: Name of its call.
    """

    status: str
    name: str


class _Sides(NamedTuple):
    """A record on both sides."""

    reference: Record
    target: Record


def make_settler(
    reference: Dump, target: Dump, judge_input: JudgeInput, floors: Mapping[str, Floor] | None = None
) -> SettleChoices:
    """Return a function that marks near ties and what depends on them.

    Args:
        reference: Dump of the reference.
        target: Dump of the target.
        judge_input: Judges the values that were chosen between.
        floors: Identity text -> noise floor, if it was measured.
    """

    def settle_choices(measures: Sequence[Measure], judged: Sequence[Judged]) -> list[Judged]:
        """Read tensors and follow the graphs only if any choice differs, which is rare."""
        # A choice that may differ is of integers and booleans, or of numbers rounded to whole ones.
        flipped = {
            record.record
            for measure, record in zip(measures, judged, strict=True)
            if record.status in {"fail", "shape"} and (measure.exact or near_ties.is_rounding(measure.operator))
        }
        if failing := {record.record for record in judged if record.status in {"fail", "shape"}} - flipped:
            flipped |= _list_given_other_integers(failing, reference, target)
        if not flipped and not _may_choose_gradients(measures, judged):
            return list(judged)
        return _Settling(reference, target, measures, judged, judge_input, floors or {}).settle(flipped)

    return settle_choices


def find_dependent(reference: Dump, other: Dump, measures: Sequence[Measure]) -> set[str]:
    """Return the outputs that differ because a choice differs between two runs that are both right, choices included.

    What noise does to them is another route, and no measure of how far rounding carries. Nothing depends on a choice in whose
    place the other run was given the reference's.

    Args:
        reference: One run.
        other: The same run with a disturbance as small as rounding.
        measures: Their comparison.
    """
    flipped = {
        measure.record
        for measure in measures
        if measure.exact and (measure.join == "shape" or measure.metrics.get("bitwise_equal") == 0)
    }
    if not flipped:
        return set()

    flipped -= _list_given(other)
    has_equal_bits = _index_bits(reference, other)
    behind: set[str] = set()
    for dump in (reference, other):
        follower = _Follower(build_graph(dump.calls(), outside=_list_outside(dump)), has_equal_bits)
        behind.update(
            follower.follow(lambda node, record: _Choice("near_tie", node.call.name) if record.text in flipped else None)
        )
    return behind


def _list_given_other_integers(failing: Collection[str], reference: Dump, target: Dump) -> set[str]:
    """Return the failing outputs whose call was given whole numbers that differ: they may come from a cast that chose."""
    # Few calls read whole numbers, and to spell the names of all others would take long.
    readers = [call for call in reference.calls() if call.outputs and any(not is_floating(one.dtype) for one in call.inputs)]
    wanted = {call.outputs[0].identity for call in readers}
    theirs = {call.outputs[0].identity: call for call in target.calls() if call.outputs and call.outputs[0].identity in wanted}
    return {
        record.text
        for call in readers
        if call.outputs[0].identity in theirs
        for record in call.outputs
        if record.text in failing
        and any(
            not is_floating(pair.reference.dtype) and not _is_equal(pair)
            for pair in _pair_inputs(call, theirs[call.outputs[0].identity]).values()
        )
    }


def _may_choose_gradients(measures: Sequence[Measure], judged: Sequence[Judged]) -> bool:
    """Tell whether gradients fail, and an operator of the forward may have sent them elsewhere."""
    pairs = list(zip(measures, judged, strict=True))
    return any(record.status == "fail" and measure.phase in _GRADIENTS for measure, record in pairs) and any(
        measure.phase == FORWARD and gradient_choices.is_known(measure.operator) for measure, _ in pairs
    )


def _index_bits(*dumps: Dump) -> Callable[[Record], bool]:
    """Return a function that tells whether an input or output has the same bits on both sides."""
    contents = [
        {record.identity: record.content for call in dump.calls() for record in (*call.inputs, *call.outputs)} for dump in dumps
    ]

    def has_equal_bits(record: Record) -> bool:
        """Compare content ids; without them nothing is known."""
        one, other = (side.get(record.identity, "") for side in contents)
        return bool(one) and one == other

    return has_equal_bits


class _Settling:
    """One run over both graphs."""

    def __init__(  # noqa: PLR0913, PLR0917  what `make_settler` was given, and what is settled
        self,
        reference: Dump,
        target: Dump,
        measures: Sequence[Measure],
        judged: Sequence[Judged],
        judge_input: JudgeInput,
        floors: Mapping[str, Floor],
    ) -> None:
        self._dumps = (reference, target)
        self._measures = measures
        self._judged = judged
        self._statuses = {record.record: record for record in judged}
        self._has_equal_bits = _index_bits(reference, target)
        self._judge_input = judge_input
        self._floors = floors
        self._calls = [{record.text: call for call in dump.calls() for record in call.outputs} for dump in self._dumps]
        self._given = _list_given(target)
        self._settled: dict[str, Judged] = {}
        self._chosen: dict[str, list[GradientChoice]] = {}  # gradient -> near ties of the forward that it went through
        self._contents: dict[tuple[str, str], Judged] = {}  # of near ties: a module hands on what its operator chose

    def settle(self, flipped: set[str]) -> list[Judged]:
        """Return the statuses with choices and what depends on them marked."""
        nodes = [build_graph(dump.calls(), outside=_list_outside(dump)) for dump in self._dumps]
        choices: dict[str, _Choice] = {}

        def decide(node: CallNode, record: Record) -> _Choice | None:
            """Decide a choice that depends on no earlier one."""
            if record.text in flipped and record.text not in choices:
                choice = self._decide_choice(nodes[0], node, record.text)
                # Where the target was given the reference's choice, its own was recorded, and nothing was computed from it.
                if choice is not None and record.text not in self._given:
                    choices[record.text] = choice
            return choices.get(record.text)

        behind = _Follower(nodes[0], self._has_equal_bits).follow(decide)
        either = {**self._follow(nodes[1], choices), **behind}
        gradients = self._find_chosen_gradients(nodes[0], either)
        flipped_only = {**self._follow(nodes[1], gradients), **self._follow(nodes[0], gradients)}
        return [
            self._mark(measure, record, either, flipped_only)
            for measure, record in zip(self._measures, self._judged, strict=True)
        ]

    def _follow(self, nodes: _Nodes, choices: Mapping[str, _Choice]) -> dict[str, _Choice]:
        """Return what depends on choices that are known, by record."""
        if not choices:
            return {}
        return dict(_Follower(nodes, self._has_equal_bits).follow(lambda _, record: choices.get(record.text)))

    def _mark(self, measure: Measure, judged: Judged, behind: Mapping[str, _Choice], flipped: Mapping[str, _Choice]) -> Judged:
        """Return the status of a record: of a choice what was decided, of what depends on one ``not_comparable``.

        Args:
            measure: Its metrics.
            judged: Its status so far.
            behind: Record -> the choice of the forward that it depends on; its shape may depend on it too.
            flipped: Record -> the choice that sent gradients elsewhere; those have the same shape, and a bound.
        """
        if measure.record in self._settled:
            return self._settled[measure.record]
        origin = behind.get(measure.record)
        if origin is None and judged.status in _OF_VALUES and self._is_explained(measure):
            origin = flipped.get(measure.record)
        if origin is None or judged.status not in _DEPENDENT or (judged.status == "nonfinite" and self._has_new_nan(measure)):
            return judged
        handed_on = self._find_handed_on(measure.record)
        if handed_on is not None:
            return replace(handed_on, record=measure.record)
        what = _ORIGINS[origin.status]
        shapes = f"; {judged.reason}" if judged.status == "shape" else ""
        return Judged(measure.record, "not_comparable", reason=f"depends on {what} at {origin.name}{shapes}")

    def _find_chosen_gradients(self, nodes: _Nodes, behind: Collection[str]) -> dict[str, _Choice]:
        """Return the gradients that went to other elements at near ties of the forward, which are remembered.

        Args:
            nodes: The graph of the reference.
            behind: Records that depend on another choice: how far they are off says nothing.
        """
        failing = {
            one.record
            for one, measure in zip(self._judged, self._measures, strict=True)
            if one.status == "fail" and measure.phase in _GRADIENTS and one.record not in behind
        }
        found: dict[str, _Choice] = {}
        for node in nodes.values() if failing else ():
            if node.call.phase != FORWARD or not gradient_choices.is_known(node.call.operator):
                continue
            choice = self._examine_gradient_choice(nodes, node)
            behind = find_gradients_behind(nodes, choice) & failing if choice is not None else set()
            if choice is None or not behind:
                continue
            for text in behind:
                self._chosen.setdefault(text, []).append(choice)
                found.setdefault(text, _Choice("near_tie", node.call.name))
            before = self._statuses[choice.text]
            if before.status in _AGREES:
                self._settled[choice.text] = replace(
                    before, status="near_tie", reason=f"{choice.flips.text}; its gradient goes elsewhere, and its values agree"
                )
        return found

    def _examine_gradient_choice(self, nodes: _Nodes, node: CallNode) -> GradientChoice | None:
        """Return a near tie of an operator that sends its gradient to the elements it took; ``None`` if it is none."""
        text = node.call.outputs[0].text
        pairs = _pair_inputs(node.call, self._calls[1][text]) if text in self._calls[1] else {}
        if (
            not pairs
            or all(map(_is_equal, pairs.values()))
            or not all(record.stored for pair in pairs.values() for record in pair)
        ):
            return None
        if not {self._judge_values(nodes, node, pair) for pair in pairs.values()} <= _AGREES:
            return None
        given = {index: self._read(nodes, node, pair) for index, pair in pairs.items()}
        flips = gradient_choices.examine(node.call.operator, node.call.arguments, given)
        return GradientChoice(node, text, flips) if flips is not None and flips.near and flips.differing else None

    def _is_explained(self, measure: Measure) -> bool:
        """Tell whether the near ties before a gradient may make it differ by as much as it does."""
        choices = self._chosen.get(measure.record)
        return choices is None or explains(choices, measure.metrics.get("relative_l2"))

    def _find_handed_on(self, record: str) -> Judged | None:
        """Return the status of the near tie whose very tensors a record holds on both sides."""
        if not all(record in calls for calls in self._calls):
            return None
        contents = self._contents_of(record)
        return self._contents.get(contents) if all(contents) else None

    def _find_output(self, side: int, record: str) -> Record:
        return next(output for output in self._calls[side][record].outputs if output.text == record)

    def _has_new_nan(self, measure: Measure) -> bool:
        """Tell whether only one side has NaN: another choice moves values elsewhere, and makes no number into NaN."""
        counts = []
        for side in (0, 1):
            record = self._find_output(side, measure.record)
            if record.statistics is not None:
                counts.append(int(record.statistics.nan))
            elif record.stored:
                counts.append(int(np.isnan(self._dumps[side].tensor(record)).sum()))
            else:
                return True
        return (counts[0] > 0) != (counts[1] > 0)

    def _decide_choice(self, nodes: _Nodes, node: CallNode, text: str) -> _Choice | None:
        """Decide one choice that differs, and remember its status; ``None`` if it fails."""
        call, other = self._calls[0][text], self._calls[1][text]
        if not call.operator:
            return self._decide_module(nodes, node, text)
        pairs = _pair_inputs(call, other)
        differing = [pair for pair in pairs.values() if not _is_equal(pair)]
        numbers = [pair for pair in differing if is_floating(pair.reference.dtype)]
        # Integers that differ were chosen before: their choice was found to be no near tie, or was a cast, which is no record.
        statuses = {self._judge_values(nodes, node, pair) for pair in numbers}
        if not pairs or len(numbers) < len(differing) or not statuses <= _AGREES:
            return self._decide_casts(nodes, node, text, differing) if differing and not numbers else None
        mine, theirs = self._find_output(0, text), self._find_output(1, text)
        if not all(record is not None and record.stored for record in (mine, theirs, *itertools.chain(*pairs.values()))):
            is_open = differing or near_ties.is_selection(call.operator)  # which may choose freely between equal values
            return self._leave_open(text, call, "the values chosen between were not kept") if is_open else None
        if near_ties.is_draw(call.operator):
            return self._leave_open(text, call, "how near the draw was to its edge is not known") if differing else None
        given = {index: self._read(nodes, node, pair) for index, pair in pairs.items()}
        flips = self._examine(call.operator, call.arguments, given, mine, theirs)
        if flips is None:
            unknown = differing and not near_ties.is_known(call.operator)
            return self._leave_open(text, call, "it is not known how this operator chooses") if unknown else None
        return self._conclude(text, call, flips, statuses)

    def _decide_casts(self, nodes: _Nodes, node: CallNode, text: str, differing: Sequence[_Sides]) -> _Choice | None:
        """Decide a call that was given other whole numbers: a cast of recorded values may have made them, which is no record.

        T5 does so where it sorts distances into buckets: ``log(2) / log(16) * 8`` is 2 or the number below it, and the cast
        makes that 2 or 1.
        """
        names = []
        for pair in differing:
            source = next((edge.source for edge in node.edges if edge.record is pair.reference and not edge.guessed), None)
            text_before = _text_of(nodes, source) if source is not None else ""
            if text_before not in self._calls[1]:
                return None
            before = _Sides(self._find_output(0, text_before), self._find_output(1, text_before))
            if not is_floating(before.reference.dtype) or self._statuses[text_before].status not in _AGREES:
                return None
            if not all(record.stored for record in (*before, *pair)):
                return self._leave_open(text, node.call, "the values that were cast to whole numbers were not kept")
            floor = self._floors.get(text_before)
            size = floor.metrics.get(_FLOOR, 0.0) if floor is not None else 0.0
            given = near_ties.ChoiceInput(
                self._dumps[0].tensor(before.reference),
                self._dumps[1].tensor(before.target),
                coarsest((before.reference.dtype, before.target.dtype)),
                size if math.isfinite(size) else 0.0,
            )
            cast = "bool" if pair.reference.dtype == "bool" else "long"
            flips = self._examine(cast, {}, {"0": given}, pair.reference, pair.target)
            if flips is None or not flips.near:
                return None
            names.append(f"the cast of {self._calls[0][text_before].name} to whole numbers")
        return _Choice("near_tie", names[0])

    def _decide_module(self, nodes: _Nodes, node: CallNode, text: str) -> _Choice | None:
        """Decide integers that a module returns and that no recorded operator chose, such as a cast, which is not recorded."""
        mine, theirs = self._find_output(0, text), self._find_output(1, text)
        inside = [nodes[key].call for key in node.inside if nodes[key].call.operator]
        for call in reversed(inside):
            for record in call.outputs:
                if record.text not in self._calls[1] or not is_floating(record.dtype):
                    continue
                pair = _Sides(record, self._find_output(1, record.text))
                if not (pair.reference.stored and pair.target.stored):
                    continue
                given = {"0": self._read(nodes, node, pair)}
                flips = self._examine("long", {}, given, mine, theirs) if record.shape == mine.shape else None
                status = self._judge_values(nodes, node, pair)
                if flips is not None and flips.near and status in _AGREES:
                    return self._conclude(text, node.call, flips, {status})
        if inside or not any(is_floating(record.dtype) for record in node.call.inputs):
            return None
        return self._leave_open(text, node.call, "the operator that chooses was not recorded")

    def _examine(
        self,
        operator: str,
        arguments: Mapping[str, str],
        given: Mapping[str, near_ties.ChoiceInput],
        mine: Record,
        theirs: Record,
    ) -> near_ties.Flips | None:
        if not (mine.stored and theirs.stored):
            return None
        tensors = self._dumps[0].tensor(mine), self._dumps[1].tensor(theirs)
        return near_ties.examine(operator, arguments, given, *tensors)

    def _conclude(self, text: str, call: Call, flips: near_ties.Flips, statuses: Collection[str]) -> _Choice | None:
        """Remember the status of a choice whose values were read; between values that could not have failed it is blind."""
        ratio = min(flips.margin / flips.noise, _MOST) if flips.noise else 0.0 if flips.near else _MOST
        status, why = ("near_tie" if flips.near else "fail"), flips.text
        if flips.near and "blind" in statuses:
            status, why = "blind", f"{why}; but any other values would have passed as well, so it proves nothing"
        judged = Judged(text, status, MARGIN, min(flips.margin, _MOST), flips.noise, ratio, MARGIN, why)
        self._settled[text] = judged
        if not flips.near:
            return None
        self._contents[self._contents_of(text)] = judged
        return _Choice(status, call.name)

    def _contents_of(self, text: str) -> tuple[str, str]:
        return self._find_output(0, text).content, self._find_output(1, text).content

    def _leave_open(self, text: str, call: Call, why: str) -> _Choice:
        before = self._statuses[text]
        self._settled[text] = Judged(text, "undecided", reason=f"{before.reason}; a near tie or a fault: {why}")
        return _Choice("undecided", call.name)

    def _judge_values(self, nodes: _Nodes, node: CallNode, pair: _Sides) -> str:
        """Return the status of values that were chosen between, by the limits that outputs have."""
        source = next((edge.source for edge in node.edges if edge.record is pair.reference), None)
        made = self._statuses.get(_text_of(nodes, source)) if source is not None else None
        is_accepted = made is not None and made.status == "accepted"
        return "accepted" if is_accepted else self._judge_input(pair.reference, pair.target).status

    def _read(self, nodes: _Nodes, node: CallNode, pair: _Sides) -> near_ties.ChoiceInput:
        source = next((edge.source for edge in node.edges if edge.record is pair.reference), None)
        floor = self._floors.get(_text_of(nodes, source)) if source is not None else None
        size = floor.metrics.get(_FLOOR, 0.0) if floor is not None else 0.0
        return near_ties.ChoiceInput(
            self._dumps[0].tensor(pair.reference),
            self._dumps[1].tensor(pair.target),
            coarsest((pair.reference.dtype, pair.target.dtype)),
            size if math.isfinite(size) else 0.0,
        )


def _text_of(nodes: _Nodes, output: OutputKey) -> str:
    key, index = output
    return next((record.text for record in nodes[key].call.outputs if record.index == index), "")


def _list_given(dump: Dump) -> frozenset[str]:
    """Return the identity texts of the choices that were recorded, and replaced by the reference's for all that is behind."""
    return frozenset(dump.header.determinism.get("choices_given", ()))


def _list_outside(dump: Dump) -> frozenset[str]:
    return frozenset(entry.content for entry in dump.header.inputs.entries.values())


def _pair_inputs(call: Call, other: Call) -> dict[str, _Sides]:
    """Return the inputs of a call on both sides by index; none if they are not the same ones."""
    theirs = {record.index: record for record in other.inputs}
    if {record.index for record in call.inputs} != theirs.keys():
        return {}
    return {record.index: _Sides(record, theirs[record.index]) for record in call.inputs}


def _is_equal(pair: _Sides) -> bool:
    one, other = pair.reference, pair.target
    return bool(one.content) and one.content == other.content and one.dtype == other.dtype


class _Follower:
    """Follows choices through the graph of one side; calls come in order of completion.

    Args:
        nodes: The graph.
        is_equal: Tells whether an input or output has the same bits on both sides.

    Attributes:
        behind: Identity text of each output that depends on a choice -> the first such choice.
    """

    def __init__(self, nodes: _Nodes, is_equal: Callable[[Record], bool]) -> None:
        self._nodes = nodes
        self._is_equal = is_equal
        self._outputs: dict[OutputKey, _Choice] = {}
        self._calls: dict[CallKey, _Choice] = {}
        self._forward: dict[tuple[int, int], _Choice] = {}  # rank and step -> the first choice in its forward
        self._around: dict[CallKey, CallKey] = {}  # call -> the innermost module call around it, which completes later
        for key, node in nodes.items():
            for inner in node.inside:
                self._around.setdefault(inner, key)
        self.behind: dict[str, _Choice] = {}

    def follow(self, decide: Callable[[CallNode, Record], _Choice | None]) -> Mapping[str, _Choice]:
        """Visit all calls, and return ``behind``; ``decide`` returns the choice that an output is, if it is one."""
        for key, node in self._nodes.items():
            arriving = None  # the choice that an input depends on, or for a module something inside it
            if self._outputs:
                inside = next((self._calls[key] for key in node.inside if key in self._calls), None)
                arriving = inside or self._find_given(node)
            for record in node.call.outputs:
                choice = arriving or decide(node, record)
                if choice is not None and not (arriving and self._is_equal(record)):
                    self._outputs[key, record.index] = choice
                    self._calls.setdefault(key, choice)
                    if node.call.phase == FORWARD:
                        self._forward.setdefault(key[:2], choice)
                    self.behind[record.text] = choice
        return self.behind

    def _find_given(self, node: CallNode) -> _Choice | None:
        for edge in node.edges:
            if edge.source is not None and not edge.guessed and edge.source in self._outputs:
                return self._outputs[edge.source]
        unrecorded = (edge.record for edge in node.edges if (edge.source is None or edge.guessed) and not edge.record.weight)
        unknown = [record for record in unrecorded if not self._is_equal(record)]
        if any(record.whose.phase == BACKWARD for record in unknown) and node.key[:2] in self._forward:
            # Every gradient comes from the loss, which depends on all choices of the forward.
            return self._forward[node.key[:2]]
        # What nothing recorded made was made inside the module around the call, from what that module was given.
        around = self._around.get(node.key)
        return self._find_given(self._nodes[around]) if unknown and around is not None else None
