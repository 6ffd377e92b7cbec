"""What is read from the source of the effects is what the agent has."""

import pytest

effects = pytest.importorskip("precflow.agent.emulated.effects")

from precflow.config import emulation  # noqa: E402


def test_effects_are_those_of_the_agent():
    assert set(emulation.effects()) | {"redraw"} == set(effects.KNOWN)
