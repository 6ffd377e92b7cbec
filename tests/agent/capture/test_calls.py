"""What a call of an operator has wrote: told from what it was given, whichever mode saw it."""

from types import SimpleNamespace

import pytest
import torch

from precflow.agent.capture.calls import OperatorCalls
from precflow.agent.capture.lineage import read_state


class Noted:
    """Lines that note what they are asked for, and are their own sources."""

    def __init__(self):
        self.sources = self
        self.substitute = None
        self.before_reading = None
        self.known = {}
        self.stored = []
        self.read_weights = []
        self.written = []
        self.emitted = []
        self.noted = []

    def note_running(self, module_call, operator, site, phase, tensors):
        self.running = (module_call.module, operator, site, phase, [index for index, _ in tensors])

    def describe(self, tensors, *, store, choice, returned=False):
        self.stored.append((store, choice))
        self.read_weights.append(returned)
        return [{"index": index, "source": self.find(tensor), "state": read_state(tensor)} for index, tensor in tensors]

    def note_write(self, tensor):
        self.written.append(tensor)

    def emit(self, heading, inputs, outputs):
        self.emitted.append((heading, [each["index"] for each in inputs], outputs))
        return 6 + len(self.emitted)

    def find(self, tensor):
        return self.known.get(id(tensor))

    def note_output(self, tensor, source, *, wrote, state=None):
        self.known[id(tensor)] = source
        self.noted.append((tensor.data_ptr(), source, wrote, state is not None))


@pytest.fixture
def lines():
    return Noted()


@pytest.fixture
def ended(lines):
    """Return a function that begins and ends a call, and returns its order."""

    def run(given, result, written=(), *, movement=False):
        calls = OperatorCalls(lines)
        tensors = [(str(number), tensor) for number, tensor in enumerate(given)]
        heading = SimpleNamespace(
            movement=movement, module_call=SimpleNamespace(module="m"), operator="add", site=0, phase="forward"
        )
        running = calls.begin(heading, "choice", tensors)
        chosen = [(index, tensor) for index, tensor in tensors if any(tensor is one for one in written)]
        return calls.end(running, result, chosen)

    return run


def indices(lines):
    ((_, inputs, outputs),) = lines.emitted
    return inputs, [record["index"] for record in outputs]


def test_inputs_and_what_came_back_are_one_line(lines, ended):
    x, y = torch.ones(3), torch.ones(3)
    assert ended([x, y], {"sum": x + y, "count": 3}) == 7
    assert indices(lines) == (["0", "1"], ["sum"])
    assert lines.stored == [(True, "choice"), (True, "choice")]


def test_what_was_written_is_read_even_if_it_is_a_weight(lines, ended):
    x = torch.ones(3)
    ended([x], x, written=[x])
    ended([x], x + 1)
    assert lines.read_weights == [False, True, False, False]


def test_what_moves_values_stores_none(lines, ended):
    x = torch.ones(3, 2)
    ended([x], x.t(), movement=True)
    assert lines.stored == [(False, "choice"), (False, "choice")]


@pytest.mark.parametrize("result", [None, 3, "x", [], {"size": (3,)}])
def test_a_call_that_returned_no_tensor_and_wrote_none_is_no_record(lines, ended, result):
    assert ended([torch.ones(3)], result) is None
    assert (lines.emitted, lines.noted) == ([], [])


def test_neither_is_one_that_returned_what_it_was_given(lines, ended):
    x = torch.ones(3)
    assert ended([x], [x]) is None
    assert lines.emitted == []


def test_an_operator_in_place_returns_what_it_was_given_and_is_a_record(lines, ended):
    x = torch.ones(3)
    assert ended([x], x, written=[x]) == 7
    assert indices(lines) == (["0"], ["0"])
    assert lines.written[0] is x
    assert all(wrote for _, _, wrote, _ in lines.noted)


def test_of_a_call_without_a_result_what_it_wrote_to_is_the_output(lines, ended):
    x, into = torch.ones(3), torch.zeros(3)
    ended([x, into], None, written=[into])
    assert indices(lines) == (["0", "1"], ["0"])


def test_several_tensors_that_it_wrote_to_keep_their_places(lines, ended):
    x, first, second = torch.ones(3), torch.zeros(3), torch.zeros(3)
    ended([x, first, second], None, written=[first, second])
    assert indices(lines) == (["0", "1", "2"], ["1", "2"])


def test_outputs_come_from_nowhere_and_what_comes_next_from_them(lines, ended):
    x = torch.ones(3)
    y = x * 2
    lines.known[id(y)] = (1, "stale")
    order = ended([x], y)
    assert lines.emitted[0][2][0]["source"] is None
    assert lines.known[id(y)] == (order, "0")


def test_a_view_is_not_said_to_be_new_memory(lines, ended):
    x = torch.ones(3, 2)
    view, copy = x.t(), x.clone()
    ended([x], [view, copy])
    assert [(address == x.data_ptr(), wrote) for address, _, wrote, _ in lines.noted] == [(True, False), (False, True)]


def test_a_view_of_what_was_written_to_is_known_by_both(lines, ended):
    x = torch.ones(3, 2)
    order = ended([x], x.t(), written=[x])
    assert lines.known[id(x)] == (order, "0")
    assert [(source, wrote) for _, source, wrote, _ in lines.noted] == [((order, "0"), True), ((order, "0"), False)]


def test_a_cast_carries_the_source_of_what_it_was_made_from(lines):
    x = torch.ones(3)
    half, same = x.half(), x.view(3)
    lines.known[id(x)] = (4, "0")
    OperatorCalls(lines).pass_source_on([x], half)
    OperatorCalls(lines).pass_source_on([x], same)
    assert [(source, wrote) for _, source, wrote, _ in lines.noted] == [((4, "0"), True), ((4, "0"), False)]


@pytest.mark.parametrize("known", [True, False])
def test_what_is_no_other_tensor_carries_nothing(lines, known):
    x = torch.ones(3)
    if known:
        lines.known[id(x)] = (4, "0")
    for positional, result in (([], x), ([x], x), ([x], "float32"), (["cpu"], x), ([x], None)):
        OperatorCalls(lines).pass_source_on(positional, result)
    assert lines.noted == []


def test_what_came_from_outside_leaves_no_source_behind(lines):
    x = torch.ones(3)
    OperatorCalls(lines).pass_source_on([x], x.half())
    assert lines.noted == []
