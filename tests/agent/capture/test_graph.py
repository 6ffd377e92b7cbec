import pytest
import torch

from precflow.agent.capture import autograd
from precflow.agent.capture.call_stack import CallStack
from precflow.agent.capture.graph import Graph
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
        self.headings.append((heading.frame.module, len(inputs), len(outputs)))
        return super().emit(heading, inputs, outputs)


@pytest.fixture
def lines():
    return Emitted()


@pytest.fixture
def frames():
    return CallStack(Selection(("*",), detail="digest"))


def graph(lines, frames, *, modules=True):
    made = Graph(lines, Guard(), frames, modules=modules)
    made.begin(frames.outside)
    return made


def run(graph, frames, x, operate=torch.sin):
    """Let a module call operate on a tensor."""
    frame = frames.enter("block", "Block", compiled=False)
    graph.entered(frame, [("0", x)])
    result = operate(x)
    frames.leave("block")
    graph.left(frame, [("0", result)], frames.innermost)
    return frame, result


def test_gradients_of_a_call_are_one_line(lines, frames):
    x = torch.ones(3, requires_grad=True)
    watched = graph(lines, frames)
    _, result = run(watched, frames, x)
    result.sum().backward()
    assert lines.headings == [("block", 1, 1)]
    watched.end()
    assert lines.headings == [("block", 1, 1)]


def test_nodes_made_in_a_call_belong_to_it_and_the_rest_to_what_is_around(lines, frames):
    x = torch.ones(3, requires_grad=True)
    watched = graph(lines, frames)
    frame, result = run(watched, frames, x)
    behind = result.cos()
    assert watched.timeline.frame(autograd.sequence_of(result.grad_fn)) is frame
    assert watched.timeline.frame(autograd.sequence_of(behind.grad_fn)) is frames.outside


def test_where_modules_are_no_records_only_the_timeline_is_kept(lines, frames):
    x = torch.ones(3, requires_grad=True)
    watched = graph(lines, frames, modules=False)
    frame, result = run(watched, frames, x)
    result.sum().backward()
    assert (lines.headings, frame.edges) == ([], None)
    assert watched.timeline.frame(autograd.sequence_of(result.grad_fn)) is frame


def test_after_the_end_nothing_listens(lines, frames):
    x = torch.ones(3, requires_grad=True)
    watched = graph(lines, frames)
    _, result = run(watched, frames, x)
    watched.end()
    result.sum().backward()
    assert lines.headings == []


def test_the_end_takes_hooks_off_also_where_a_line_cannot_be_written(lines, frames, monkeypatch):
    x = torch.ones(3, requires_grad=True)
    watched = graph(lines, frames)
    _, result = run(watched, frames, x)
    monkeypatch.setattr(watched._backward, "flush", lambda: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        watched.end()
    result.sum().backward()
    assert lines.headings == []


def test_a_second_step_knows_nothing_of_the_first(lines, frames):
    x = torch.ones(3, requires_grad=True)
    watched = graph(lines, frames)
    _, result = run(watched, frames, x)
    frames.begin(1)
    watched.begin(frames.outside)
    assert watched.timeline.frame(autograd.sequence_of(result.grad_fn)) is None
    result.sum().backward()
    assert lines.headings == []


def test_what_runs_again_inside_backward_is_the_call_that_ran_without_a_graph(lines, frames):
    """As checkpoints do: the first run builds no graph, the second one does, while backward runs."""
    x = torch.ones(3, requires_grad=True)
    watched = graph(lines, frames)
    with torch.no_grad():
        run(watched, frames, x)

    def again(_):
        with torch.enable_grad():
            watched.entered_again("block", "Block", [("0", x)])
            repeated = x.sin()
            watched.left_again("block", [("0", repeated)])
            repeated.sum().backward()

    other = torch.ones(3, requires_grad=True)
    other.register_hook(again)
    other.sum().backward()
    watched.flush()
    assert lines.headings == [("block", 1, 1)]
