"""Record lines: each call with its tensors as one line of JSON in the dump, in the order in which calls end.

A line is built in two steps. While the model runs, a call becomes a :class:`Heading` and a list of tensor records whose tickets
are still empty. Once enough tensors wait, they are measured together, the tickets are filled in, and the lines become text.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from precflow.agent.capture.lineage import Sources, Storages, read_state
from precflow.agent.capture.measurement_cache import NO_CONTENT, MeasurementCache
from precflow.agent.capture.trail import MOST_TENSORS, Running, Trail
from precflow.agent.capture.trail import format_tensor as format_call_tensor
from precflow.agent.contract import FORWARD, NONE, Identity, identity_text, module_text, operator_of
from precflow.agent.measure.content_id import dtype_name
from precflow.agent.measure.parts import choose_part
from precflow.agent.selection import Choice

if TYPE_CHECKING:
    import torch

    from precflow.agent.capture.call_stack import ModuleCall
    from precflow.agent.capture.measurement_cache import Measurer
    from precflow.agent.capture.nesting import TensorWithPath
    from precflow.agent.capture.weights import Weights
    from precflow.agent.dump.writer import Writer
    from precflow.agent.measure.ticket import Ticket

MOST_LINES = 512  # lines that wait for their tensors to be measured, at most

_CONTENT_ONLY = Choice("digest", None)
_SHAPE_ONLY = Choice(NONE, None)
_OWN = 4  # the first statistics (extremes and sums) differ from tensor to tensor; the others are counts

Record = Dict[str, Any]  # one tensor of a line, with the ticket of its measurement
Substitute = Callable[["Mapping[str, torch.Tensor]", "Sequence[torch.Tensor]"], "Sequence[torch.Tensor]"]
"""Takes the outputs of a recorded operator by identity text, and its inputs; returns the outputs whose values it replaced."""


class Heading(NamedTuple):
    """What a line says about its call, besides the tensors.

    Attributes:
        level: ``module``, ``api`` or ``operator``.
        module_call: The module call that it belongs to.
        operator: Canonical name, ``""`` for the module itself.
        ordinal: How often the operator ran before in this module call.
        site: Number of the call site.
        movement: The operator only moves values: its tensors are not stored.
        arguments: The arguments that are not tensors.
        phase: ``forward``, ``backward``, ``gradient``, ``optimizer``.
        forward: Orders of the forward lines that a line of another phase belongs to.
    """

    level: str
    module_call: ModuleCall
    operator: str
    ordinal: int
    site: int
    movement: bool
    arguments: Mapping[str, str]
    phase: str = "forward"
    forward: Sequence[int] = ()


_Pending = Tuple[int, Heading, Sequence[Record], Sequence[Record]]  # order, heading, inputs, outputs


class Lines:
    """Builds the lines of a run and hands them to the writer.

    Lines wait until their tensors are measured, many at once: see :meth:`flush`.

    Args:
        writer: Where lines go; ``None`` writes nothing.
        weights: The weights of the model.
        detail: What is kept of tensors unless a choice says otherwise: one of ``contract.DETAILS``.
        rank: Rank of this process.
        fine: Sketches keep high and low parts apart.
        keep_weights: Detail ``tensors`` stores the weights that go into a call too.
        measurer: What measures tensors; a :class:`MeasurementCache` if not given.

    Attributes:
        sources: Which call's output a tensor is.
        records: Number of tensor records so far, in all steps.
        phases: Phases that have records so far, in all steps.
        before_reading: Called with the tensors that are about to be described.
        substitute: Called with what an operator returned, once it is described; see :data:`Substitute`.
        trail: What is remembered for the case that the workload breaks.
    """

    def __init__(  # noqa: PLR0913  the options of a recorder
        self,
        writer: Optional[Writer],
        weights: Weights,
        *,
        detail: str,
        rank: int,
        fine: bool = False,
        keep_weights: bool = False,
        measurer: Optional[Measurer] = None,
    ) -> None:
        self._storages = Storages()
        self.sources = Sources(self._storages)
        self.records = 0
        self.phases: Set[str] = set()
        self.before_reading: Optional[Callable[[Sequence[torch.Tensor]], None]] = None
        self.substitute: Optional[Substitute] = None
        self.trail = Trail()
        self._writer = writer
        self._weights = weights
        self._measurer: Measurer = measurer or MeasurementCache(writer, self._storages, fine=fine)
        self._default = Choice(detail, None)
        self._keeps_weights = keep_weights
        self._rank = rank
        self._step = 0
        self._order = 0
        self._pending: List[_Pending] = []
        self._output_contents: Dict[str, str] = {}

    def begin_step(self, step: int) -> None:
        """Begin a step.

        Raises:
            WriteError: The step before cannot be written, or the files of this one cannot be opened.
        """
        self.flush()
        self._step = self.trail.step = step
        self._order = 0
        self._output_contents = {}
        self.sources.clear()
        self._measurer.clear()
        if self._writer is not None:
            self._writer.open_step(step, self._rank)

    @property
    def keeps_weights(self) -> bool:
        """Detail ``tensors`` stores the weights that go into a call."""
        return self._keeps_weights

    @property
    def failed(self) -> bool:
        """The writer cannot go on: nothing is recorded from here on."""
        return self._writer is not None and self._writer.failure is not None

    @property
    def output_contents(self) -> Dict[str, str]:
        """Content id of every output of this step, by identity text.

        Raises:
            WriteError: Waiting lines cannot be written.
        """
        self.flush()
        return self._output_contents

    def describe(
        self, tensors: Sequence[TensorWithPath], *, store: bool, returned: bool = False, choice: Optional[Choice] = None
    ) -> List[Record]:
        """Return a record of each tensor as it is now. Its content is read at once or copied: the model may overwrite it.

        Args:
            tensors: With their paths.
            store: ``False`` keeps no more than the content id; with detail ``statistics``, no more than type and shape.
            returned: The call returned the tensors. A weight that goes in is read only if it is to be stored whole: the header
                has the content ids that weights started with.
            choice: What is kept of the call; the general detail if not given.

        Raises:
            WriteError: A tensor cannot be stored.
        """
        if self.before_reading is not None:
            self.before_reading([tensor for _, tensor in tensors])
        chosen = choice or self._default
        if not store:
            chosen = _SHAPE_ONLY if chosen.detail == "statistics" else _CONTENT_ONLY
        records: List[Record] = []
        for index, tensor in tensors:
            state = read_state(tensor)
            weight = self._weights.find_name(tensor, state)
            kept = None if chosen.part is None else choose_part(tuple(tensor.shape), chosen.part.slices, chosen.part.sample)
            # An operator can only be computed again with its weights. The measurer hashes each of them once a step.
            stored = self._keeps_weights and chosen.detail == "tensors" and kept is None
            skipped = chosen is _SHAPE_ONLY or (weight and not returned and not stored)
            ticket = NO_CONTENT if skipped else self._measurer.measure(tensor, chosen.detail, kept, state)
            record: Record = {
                "index": index,
                "dtype": dtype_name(tensor.dtype),
                "shape": () if tensor.is_nested else tuple(tensor.shape),  # the rows of a nested tensor differ in length
                "source": None if weight else self.sources.find(tensor, state),
                "weight": weight,
                "detail": chosen.detail,
                "ticket": ticket,
                "state": state,
            }
            records.append(record)
        return records

    def note_running(
        self,
        module_call: ModuleCall,
        operator: str = "",
        site: int = -1,
        phase: str = FORWARD,
        tensors: Sequence[TensorWithPath] = (),
    ) -> None:
        """Note a call that is about to run, in case it raises an exception or this process does not survive it.

        Args:
            module_call: The module that runs, or that calls the operator.
            operator: Canonical name; ``""`` for the module itself.
            site: Number of the call site.
            phase: ``forward`` or ``backward``.
            tensors: What it is given.
        """
        if self._writer is None:
            return
        sites = self._writer.sites
        place = sites[site] if 0 <= site < len(sites) else ""
        given = "; ".join([format_call_tensor(each) for each in tensors[:MOST_TENSORS]])
        name, last = module_text(module_call.module), self.trail.describe_last()
        running = self.trail.running = Running(phase, name, module_call.class_name, operator, place, last, given)
        self._writer.note_running("\n".join((str(self._step), *running)))

    def note_write(self, tensor: torch.Tensor) -> None:
        """Note that a call wrote to the tensor's memory: it is measured again when it comes next."""
        self._measurer.note_write(tensor)

    def forget_contents(self) -> None:
        """Note that code ran whose writes were not seen: every tensor is measured again when it comes next."""
        self._measurer.clear()

    def emit(self, heading: Heading, inputs: Sequence[Record], outputs: Sequence[Record]) -> int:
        """Queue the line of a call and return its order. The lists belong to the line from now on.

        Raises:
            WriteError: Lines cannot be written.
        """
        order = self._order
        self._order += 1
        self.records += len(inputs) + len(outputs)
        self.phases.add(heading.phase)
        self._pending.append((order, heading, inputs, outputs))
        role, records = ("output", outputs) if outputs else ("input", inputs)
        if records:
            call, operator, ordinal = heading.module_call, operator_of(heading.level, heading.operator), heading.ordinal
            place = (call.module, call.number, operator, ordinal, heading.phase)
            self.trail.last = Identity(*place, role, records[-1]["index"], self._step, self._rank)
        if self._measurer.full or len(self._pending) >= MOST_LINES:
            self.flush()
        return order

    def identify(self, heading: Heading, index: str) -> str:
        """Return the identity text of an output of a call in this step."""
        module_call, operator = heading.module_call, operator_of(heading.level, heading.operator)
        # The ordinal differs from call to call, so it is no argument of the cached function but put in between.
        head, tail = _identity_parts(
            module_call.module, module_call.number, operator, heading.phase, index, self._step, self._rank
        )
        return head + str(heading.ordinal) + tail if operator else head

    def flush(self) -> None:
        """Measure the waiting tensors and write the waiting lines; nothing happens once the writer has failed.

        Raises:
            WriteError: A line or a tensor cannot be written.
        """
        pending, self._pending = self._pending, []
        if self.failed:
            return
        self._measurer.flush()
        self.sources.purge()
        self._storages.purge()
        when = (self._step, self._rank)  # all waiting lines are of this step: begin_step flushes
        for _, heading, _, outputs in pending:
            for record in outputs:
                self._output_contents[self.identify(heading, record["index"])] = record["ticket"].known
        if self._writer is not None and pending:
            lines = [format_line(order, heading, when, inputs, outputs) for order, heading, inputs, outputs in pending]
            records = sum([len(inputs) + len(outputs) for _, _, inputs, outputs in pending])
            # Arguments may hold lone surrogates, such as those of file names that are not UTF-8; UTF-8 cannot encode them.
            self._writer.append("".join(lines).encode("utf-8", "backslashreplace"), len(lines), records)


@lru_cache(maxsize=8192)
def _identity_parts(  # noqa: PLR0913, PLR0917  the fields of an identity
    module: str, number: int, operator: str, phase: str, index: str, step: int, rank: int
) -> Tuple[str, str]:
    """Return the identity of an output in two parts, between which the ordinal of its operator belongs."""
    text = identity_text(Identity(module, number, operator, 0, phase, "output", index, step, rank))
    if not operator:  # a module's own output has no ordinal
        return text, ""
    place = text.rindex(".0/%s.output." % phase) + 1
    return text[:place], text[place + 1 :]


# The text of a line. ``json.dumps`` of the whole would write the same characters, but it took a good part of the time of a
# capture. Here the parts that lines share (names, shapes, measurements of a tensor) are quoted once and kept.

_LINE = (
    '{"order": %d, "level": %s, "module": %s, "class": %s, "call": %d, "operator": %s, "ordinal": %d, "phase": %s, "step": %d, '
    '"rank": %d, "site": %d, "forward": [%s], "movement": %s, "compiled": %s, "arguments": {%s}, "inputs": [%s], '
    '"outputs": [%s]}\n'
)
_TENSOR = '{"index": %s, "source": %s, "weight": %s, %s}'
_MEASURED = '"dtype": "%s", "shape": %s, "content": "%s", "stored": %s'


def format_line(
    order: int, heading: Heading, when: Tuple[int, int], inputs: Sequence[Record], outputs: Sequence[Record]
) -> str:
    """Return the line of a call, with the newline.

    Args:
        order: Its number in the step.
        heading: What it says besides the tensors.
        when: Step and rank.
        inputs: Tensors that went in, their tickets filled in.
        outputs: Tensors that came out, the same.
    """
    module_call = heading.module_call
    arguments = ", ".join(["%s: %s" % (quote(name), quote(text)) for name, text in heading.arguments.items()])
    return _LINE % (
        order,
        quote(heading.level),
        quote(module_call.module),
        quote(module_call.class_name),
        module_call.number,
        quote(heading.operator),
        heading.ordinal,
        quote(heading.phase),
        when[0],
        when[1],
        heading.site,
        ", ".join(map(str, heading.forward)) if heading.forward else "",
        "true" if heading.movement else "false",
        "true" if module_call.compiled else "false",
        arguments,
        ", ".join([format_tensor(record) for record in inputs]),
        ", ".join([format_tensor(record) for record in outputs]),
    )


def format_tensor(record: Record) -> str:
    """Return one tensor of a line; what its detail does not ask for is left out."""
    source, weight = record["source"], record["weight"]
    ticket: Ticket = record["ticket"]
    detail = record["detail"]
    return _TENSOR % (
        quote(record["index"]),
        "null" if source is None else "[%d, %s]" % (source[0], quote(source[1])),
        quote(weight) if weight else '""',
        # The ticket keeps its text: a tensor that goes from call to call has several records.
        ticket.text[1] if ticket.text[0] == detail else _format_measurement(record, ticket, detail),
    )


def _format_measurement(record: Record, ticket: Ticket, detail: str) -> str:
    """Return type, shape and what the ticket knows, as far as a line of this detail shows it."""
    only_content = detail in ("digest", NONE)
    text = _MEASURED % (
        record["dtype"],
        format_shape(record["shape"]),
        ticket.content,
        "true" if ticket.stored and not only_content else "false",
    )
    # A ticket may know more than this record asks for: it is shared with records of other details.
    if ticket.statistics is not None and not only_content and detail != "tensors":
        numbers = ", ".join(map(_format_number, ticket.statistics[:_OWN]))
        text += ', "statistics": [%s, %s]' % (numbers, _format_counts(tuple(ticket.statistics[_OWN:])))
        if ticket.mark:
            text += ', "mark": "%s"' % ticket.mark
        if ticket.row_norms is not None:
            text += ', "row_norms": ["%s", %d, %d]' % ticket.row_norms
    if ticket.kept is not None and not only_content:
        text += ', "share": %r, "part": %s' % (ticket.kept.part.share, quote(ticket.kept.name))
    if ticket.known:  # NO_CONTENT is the ticket of many tensors, each with its own dtype and shape
        ticket.text = (detail, text)
    return text


@lru_cache(maxsize=1024)
def _format_counts(counts: Tuple[Optional[float], ...]) -> str:
    """Return the counts of special values, which are 0 for nearly all tensors."""
    return ", ".join(map(_format_number, counts))


def _format_number(number: Optional[float]) -> str:
    return "null" if number is None else repr(number)


@lru_cache(maxsize=8192)
def quote(text: str) -> str:
    """Return a text as JSON."""
    return json.dumps(text, ensure_ascii=False)


@lru_cache(maxsize=8192)
def format_shape(shape: Tuple[Any, ...]) -> str:
    """Return sizes as JSON."""
    return "[%s]" % ", ".join(map(str, shape))
