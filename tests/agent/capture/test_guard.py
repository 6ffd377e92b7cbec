import threading
import time

import pytest
import torch
from torch.overrides import TorchFunctionMode

from precflow.agent.capture.guard import Guard


class Seen(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Mode:
    def __init__(self):
        self.log = []

    def step_aside(self):
        self.log.append("aside")
        return True

    def start(self):
        self.log.append("back")


def test_function_modes_see_nothing_while_it_is_held():
    guard = Guard()
    with Seen() as mode:
        with guard, guard:
            torch.ones(2).sin()
        torch.ones(2).cos()
    assert "sin" not in mode.names
    assert "cos" in mode.names


def test_own_modes_step_aside_once_and_come_back_last():
    guard, mode = Guard(), Mode()
    guard.modes.append(mode)
    with guard:
        with guard:
            assert guard.is_held
        assert mode.log == ["aside"]
    assert mode.log == ["aside", "back"]
    assert not guard.is_held


def test_of_several_modes_the_highest_steps_aside_first_and_comes_back_last():
    guard, order = Guard(), []

    class Ordered:
        def __init__(self, name):
            self.name = name

        def step_aside(self):
            order.append(f"{self.name} aside")
            return True

        def start(self):
            order.append(f"{self.name} back")

    guard.modes += [Ordered("low"), Ordered("high")]
    with guard:
        pass
    assert order == ["high aside", "low aside", "low back", "high back"]


def test_an_exception_gives_it_free():
    guard = Guard()
    with pytest.raises(ValueError, match="of ours"), guard:
        raise ValueError("of ours")
    assert not guard.is_held
    with Seen() as mode:
        torch.ones(2).sin()
    assert "sin" in mode.names


def test_other_threads_wait():
    guard, order = Guard(), []

    def other():
        with guard:
            order.append("other")

    thread = threading.Thread(target=other)
    with guard:
        thread.start()
        time.sleep(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]
