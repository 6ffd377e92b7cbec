import torch

from precflow.agent.capture import autograd
from precflow.agent.capture.call_stack import ModuleCall
from precflow.agent.capture.graph import Timeline


def frame(name):
    return ModuleCall(name, "Block", 0, in_scope=True, compiled=False)


def made(x):
    return autograd.sequence_of(x.grad_fn)


def test_nodes_belong_to_the_call_that_ran_when_they_were_made():
    timeline, x = Timeline(), torch.ones(2, requires_grad=True)
    before = x.sin()
    outer, inner = frame("outer"), frame("inner")
    timeline.forget()
    timeline.mark(outer)
    first = x.sin()
    timeline.mark(inner)
    second = first.cos()
    timeline.mark(outer)
    third = second.tan()
    assert timeline.frame(made(before)) is None
    assert [timeline.frame(made(each)).module for each in (first, second, third)] == ["outer", "inner", "outer"]
    assert timeline.frame(autograd.sequence_of(first.grad_fn.next_functions[0][0])) is None  # a leaf


def test_a_call_that_makes_no_node_leaves_no_mark():
    timeline, x = Timeline(), torch.ones(2, requires_grad=True)
    outer, inner = frame("outer"), frame("inner")
    timeline.mark(inner)
    timeline.mark(outer)
    assert timeline.frame(made(x.sin())) is outer


def test_an_operator_is_told_of_its_node_once():
    timeline, x = Timeline(), torch.ones(2, requires_grad=True)
    timeline.forget()
    assert timeline.made() is None
    y = x.sin()
    assert timeline.made() == made(y)
    assert timeline.made() is None


def test_lines_of_a_node_are_remembered_until_the_next_step():
    timeline = Timeline()
    timeline.tie(5, 17)
    timeline.tie(5, 18)
    timeline.tie(None, 19)
    assert timeline.lines(5) == [17, 18]
    assert timeline.lines(6) == []
    timeline.forget()
    assert timeline.lines(5) == []
