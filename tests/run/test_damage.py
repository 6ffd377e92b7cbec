"""A dump that was damaged and is whole again has the key it had: what was read of it while it was damaged is made anew."""

from dataclasses import replace

import pytest

from precflow.run.plan import build_plan, render_plan
from precflow.run.runner import run
from precflow.stages import compare, determinism


@pytest.fixture
def recipe(composed):
    return composed()


def states(recipe):
    return {step.stage.name: step.state for step in build_plan(recipe).steps}


def unreadable(found):
    return lambda *dumps, **how: [replace(one, join="unreadable", reason="damaged") for one in found(*dumps, **how)]


def test_a_comparison_that_could_not_read_everything_is_made_again(recipe, monkeypatch):
    with monkeypatch.context() as damaged:
        damaged.setattr(compare, "compare", unreadable(compare.compare))
        assert run(recipe, command="").verdict == "inconclusive"
        assert states(recipe)["compare"] == "run"
        assert "what it read was damaged" in render_plan(build_plan(recipe))
    assert run(recipe, command="").verdict == "aligned"
    assert set(states(recipe).values()) == {"kept"}


def test_what_was_said_of_a_damaged_dump_is_said_anew(recipe, monkeypatch):
    with monkeypatch.context() as damaged:
        damaged.setattr(determinism, "_incomplete", lambda side, dump: [f"{side}: {dump.path.name} is damaged"])
        assert run(recipe, command="").verdict == "inconclusive"
    assert run(recipe, command="").verdict == "aligned"


def test_the_same_damage_makes_nothing_else_again(recipe, monkeypatch):
    monkeypatch.setattr(compare, "compare", unreadable(compare.compare))
    run(recipe, command="")
    run(recipe, command="")
    kept = [name for name, state in states(recipe).items() if state == "kept"]
    assert "determinism" in kept
    assert "compare" not in kept
