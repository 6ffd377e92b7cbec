import pytest

from precflow.agent.capture import autograd
from precflow.agent.capture.call_stack import ModuleCall
from precflow.agent.capture.graph import Recomputations, Timeline


@pytest.fixture
def reruns(monkeypatch):
    """Return reruns, with ``node(number)`` to say which node of backward runs."""
    running = [-1]
    monkeypatch.setattr(autograd, "current_sequence", lambda: running[0])
    made = Recomputations(Timeline())
    made.node = lambda number: running.__setitem__(0, number)
    return made


def call(reruns, module, number):
    frame = ModuleCall(module, "Block", number, in_scope=True, compiled=False)
    frame.order = 100 + number
    reruns.without_graph(frame)
    return frame


def rerun(reruns, module):
    reruns.entered(module, "Block", [])
    return reruns.left(module).frame


def test_a_module_that_waits_for_nothing_is_no_rerun(reruns):
    reruns.entered("a", "Block", [])
    assert reruns.left("a") is None


def test_parts_are_repeated_from_the_last_to_the_first(reruns):
    for number in range(3):
        call(reruns, "a", number)
    found = []
    for node in (30, 20, 10):
        reruns.node(node)
        found.append(rerun(reruns, "a"))
        reruns.resolve()
    assert [(frame.call, frame.order) for frame in found] == [(2, 102), (1, 101), (0, 100)]


def test_within_a_part_the_order_is_that_of_the_forward(reruns):
    for number in range(4):
        call(reruns, "a", number)
    reruns.node(20)
    found = [rerun(reruns, "a"), rerun(reruns, "a")]
    reruns.node(10)
    found += [rerun(reruns, "a"), rerun(reruns, "a")]
    reruns.resolve()
    assert [frame.call for frame in found] == [2, 3, 0, 1]


def test_modules_inside_each_other_and_what_an_exception_left(reruns):
    call(reruns, "a", 0)
    call(reruns, "a.b", 0)
    reruns.node(10)
    reruns.entered("a", "Block", [])
    reruns.entered("a.b", "Block", [])
    assert reruns.left("a").frame.module == "a"
    assert reruns.left("a.b") is None


def test_a_rerun_counts_operators_on_where_its_call_stopped(reruns):
    first = call(reruns, "a", 0)
    first.ordinal("aten.mm forward")
    reruns.node(10)
    again = rerun(reruns, "a")
    reruns.resolve()
    assert again.ordinal("aten.mm forward") == 1


def test_a_new_step_forgets(reruns):
    call(reruns, "a", 0)
    reruns.forget()
    reruns.node(10)
    reruns.entered("a", "Block", [])
    assert reruns.left("a") is None
