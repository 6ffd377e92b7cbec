import pytest
import torch

from precflow.agent.capture import autograd
from precflow.agent.capture.call_stack import CallStack, ModuleCall
from precflow.agent.capture.graph import Graph, Recomputations, Timeline
from precflow.agent.capture.guard import Guard
from precflow.agent.capture.record_lines import Heading, Lines
from precflow.agent.capture.weights import Weights
from precflow.agent.selection import Selection


class Emitted(Lines):
    """Lines that note what they are given."""

    def __init__(self):
        super().__init__(None, Weights(), detail="digest", rank=0)
        self.headings = []

    def emit(self, heading: Heading, inputs, outputs):
        self.headings.append((heading.module_call.module, len(inputs), len(outputs)))
        return super().emit(heading, inputs, outputs)


@pytest.fixture
def lines():
    return Emitted()


@pytest.fixture
def stack():
    return CallStack(Selection(("*",), detail="digest"))


def graph(lines, stack, *, modules=True):
    made = Graph(lines, Guard(), stack, modules=modules)
    made.begin_step(stack.outside)
    return made


def run(graph, stack, x, operate=torch.sin):
    """Let a module call operate on a tensor."""
    module_call = stack.enter("block", "Block", compiled=False)
    graph.enter(module_call, [("0", x)])
    result = operate(x)
    stack.leave("block")
    graph.leave(module_call, [("0", result)], stack.innermost)
    return module_call, result


def test_gradients_of_a_call_are_one_line(lines, stack):
    x = torch.ones(3, requires_grad=True)
    watched = graph(lines, stack)
    _, result = run(watched, stack, x)
    result.sum().backward()
    assert lines.headings == [("block", 1, 1)]
    watched.end_step()
    assert lines.headings == [("block", 1, 1)]


def test_nodes_made_in_a_call_belong_to_it_and_the_rest_to_what_is_around(lines, stack):
    x = torch.ones(3, requires_grad=True)
    watched = graph(lines, stack)
    module_call, result = run(watched, stack, x)
    behind = result.cos()
    assert watched.timeline.find_call(autograd.sequence_of(result.grad_fn)) is module_call
    assert watched.timeline.find_call(autograd.sequence_of(behind.grad_fn)) is stack.outside


def test_where_modules_are_no_records_only_the_timeline_is_kept(lines, stack):
    x = torch.ones(3, requires_grad=True)
    watched = graph(lines, stack, modules=False)
    module_call, result = run(watched, stack, x)
    result.sum().backward()
    assert (lines.headings, module_call.input_edges) == ([], None)
    assert watched.timeline.find_call(autograd.sequence_of(result.grad_fn)) is module_call


def test_after_the_end_nothing_listens(lines, stack):
    x = torch.ones(3, requires_grad=True)
    watched = graph(lines, stack)
    _, result = run(watched, stack, x)
    watched.end_step()
    result.sum().backward()
    assert lines.headings == []


def test_the_end_takes_hooks_off_also_where_a_line_cannot_be_written(lines, stack, monkeypatch):
    x = torch.ones(3, requires_grad=True)
    watched = graph(lines, stack)
    _, result = run(watched, stack, x)
    monkeypatch.setattr(watched._gradients, "flush", lambda: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        watched.end_step()
    result.sum().backward()
    assert lines.headings == []


def test_a_second_step_knows_nothing_of_the_first(lines, stack):
    x = torch.ones(3, requires_grad=True)
    watched = graph(lines, stack)
    _, result = run(watched, stack, x)
    stack.begin_step(1)
    watched.begin_step(stack.outside)
    assert watched.timeline.find_call(autograd.sequence_of(result.grad_fn)) is None
    result.sum().backward()
    assert lines.headings == []


def test_what_runs_again_inside_backward_is_the_call_that_ran_without_a_graph(lines, stack):
    """As checkpoints do: the first run builds no graph, the second one does, while backward runs."""
    x = torch.ones(3, requires_grad=True)
    watched = graph(lines, stack)
    with torch.no_grad():
        run(watched, stack, x)

    def again(_):
        with torch.enable_grad():
            watched.enter_again("block", "Block", [("0", x)])
            repeated = x.sin()
            watched.leave_again("block", [("0", repeated)])
            repeated.sum().backward()

    other = torch.ones(3, requires_grad=True)
    other.register_hook(again)
    other.sum().backward()
    watched.flush()
    assert lines.headings == [("block", 1, 1)]


def module_call(name):
    return ModuleCall(name, "Block", 0, in_scope=True, compiled=False)


def node_of(x):
    return autograd.sequence_of(x.grad_fn)


def test_nodes_belong_to_the_call_that_ran_when_they_were_made():
    timeline, x = Timeline(), torch.ones(2, requires_grad=True)
    before = x.sin()
    outer, inner = module_call("outer"), module_call("inner")
    timeline.clear()
    timeline.mark(outer)
    first = x.sin()
    timeline.mark(inner)
    second = first.cos()
    timeline.mark(outer)
    third = second.tan()
    assert timeline.find_call(node_of(before)) is None
    assert [timeline.find_call(node_of(each)).module for each in (first, second, third)] == ["outer", "inner", "outer"]
    assert timeline.find_call(autograd.sequence_of(first.grad_fn.next_functions[0][0])) is None  # a leaf


def test_a_call_that_makes_no_node_leaves_no_mark():
    timeline, x = Timeline(), torch.ones(2, requires_grad=True)
    outer, inner = module_call("outer"), module_call("inner")
    timeline.mark(inner)
    timeline.mark(outer)
    assert timeline.find_call(node_of(x.sin())) is outer


def test_an_operator_is_told_of_its_node_once():
    timeline, x = Timeline(), torch.ones(2, requires_grad=True)
    timeline.clear()
    assert timeline.take_new_node() is None
    y = x.sin()
    assert timeline.take_new_node() == node_of(y)
    assert timeline.take_new_node() is None


def test_lines_of_a_node_are_remembered_until_the_next_step():
    timeline = Timeline()
    timeline.note_forward_line(5, 17)
    timeline.note_forward_line(5, 18)
    timeline.note_forward_line(None, 19)
    assert timeline.forward_lines(5) == [17, 18]
    assert timeline.forward_lines(6) == []
    timeline.clear()
    assert timeline.forward_lines(5) == []


@pytest.fixture
def repeated(monkeypatch):
    """Return repeated, with ``node(number)`` to say which node of backward runs."""
    running = [-1]
    monkeypatch.setattr(autograd, "current_sequence", lambda: running[0])
    made = Recomputations(Timeline())
    made.node = lambda number: running.__setitem__(0, number)
    return made


def call(repeated, module, number):
    module_call = ModuleCall(module, "Block", number, in_scope=True, compiled=False)
    module_call.order = 100 + number
    repeated.note_without_graph(module_call)
    return module_call


def repeat(repeated, module):
    repeated.enter(module, "Block", [])
    return repeated.leave(module).module_call


def test_a_module_that_waits_for_nothing_is_no_rerun(repeated):
    repeated.enter("a", "Block", [])
    assert repeated.leave("a") is None


def test_parts_are_repeated_from_the_last_to_the_first(repeated):
    for number in range(3):
        call(repeated, "a", number)
    found = []
    for node in (30, 20, 10):
        repeated.node(node)
        found.append(repeat(repeated, "a"))
        repeated.resolve()
    assert [(module_call.number, module_call.order) for module_call in found] == [(2, 102), (1, 101), (0, 100)]


def test_within_a_part_the_order_is_that_of_the_forward(repeated):
    for number in range(4):
        call(repeated, "a", number)
    repeated.node(20)
    found = [repeat(repeated, "a"), repeat(repeated, "a")]
    repeated.node(10)
    found += [repeat(repeated, "a"), repeat(repeated, "a")]
    repeated.resolve()
    assert [module_call.number for module_call in found] == [2, 3, 0, 1]


def test_modules_inside_each_other_and_what_an_exception_left(repeated):
    call(repeated, "a", 0)
    call(repeated, "a.b", 0)
    repeated.node(10)
    repeated.enter("a", "Block", [])
    repeated.enter("a.b", "Block", [])
    assert repeated.leave("a").module_call.module == "a"
    assert repeated.leave("a.b") is None


def test_a_rerun_counts_operators_on_where_its_call_stopped(repeated):
    first = call(repeated, "a", 0)
    first.count_run("aten.mm forward")
    repeated.node(10)
    again = repeat(repeated, "a")
    repeated.resolve()
    assert again.count_run("aten.mm forward") == 1


def test_a_new_step_forgets(repeated):
    call(repeated, "a", 0)
    repeated.clear()
    repeated.node(10)
    repeated.enter("a", "Block", [])
    assert repeated.leave("a") is None
