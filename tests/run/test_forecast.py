"""How long a run will take: from what its stages took before, and nothing where that is unknown."""

from types import SimpleNamespace

import pytest

from precflow.run import forecast
from precflow.stages.job import Instance


def make(name, *needs):
    return Instance(name, needs, declare=lambda _: {}, make=None)


DUMPS = ("dump.reference", "dump.target")
STAGES = [*map(make, DUMPS), make("compare", *DUMPS), make("judge", "compare")]


@pytest.fixture
def look_ahead(monkeypatch):
    """Return a function that looks ahead from a stage; it is given what stages took before, and which of them are kept."""

    def look(running, *, before, kept=(), now=(), remote=None):
        store = SimpleNamespace(list_sealed=lambda name: [SimpleNamespace(seconds=before[name])] if name in before else [])
        monkeypatch.setattr(
            forecast, "resolve", lambda stage, *_: SimpleNamespace(sealed=object() if stage.name in kept else None)
        )
        known = forecast.Forecast(None, SimpleNamespace(store=store, remote=remote))
        for stage, seconds in now:
            known.learn(stage, seconds)
        return known.look_ahead(STAGES[running], STAGES[running + 1 :], {})

    return look


def test_a_stage_takes_what_the_last_one_of_its_name_took(look_ahead):
    before = {"dump.reference": 8.0, "dump.target": 9.0, "compare": 3.0, "judge": 0.5}
    assert look_ahead(0, before=before) == [8.0, 9.0, 3.0, 0.5]
    assert look_ahead(0, before=before, kept=["dump.target"]) == [8.0, 0.0, 3.0, 0.5]
    # What reads something that is made now is made again, whatever lies in the store.
    assert look_ahead(0, before=before, kept=["dump.target", "compare", "judge"]) == [8.0, 0.0, 3.0, 0.5]
    assert look_ahead(0, before=before, kept=["dump.target"], remote=object()) == [8.0, 9.0, 3.0, 0.5]


def test_what_was_never_made_takes_nobody_knows_how_long(look_ahead):
    assert look_ahead(0, before={"judge": 0.5}) == [None, None, None, 0.5]
    assert look_ahead(1, before={}, now=[(STAGES[0], 7.0)]) == [7.0, None, None]  # the other side took 7 s in this run
