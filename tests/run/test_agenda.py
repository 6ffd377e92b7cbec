"""What is left to do, once the region is known or a side is elsewhere."""

import pytest

from precflow.config.composition import compose
from precflow.diagnosis.second_pass import SecondPass
from precflow.run import steps
from precflow.run.agenda import Agenda
from precflow.run.jobs import make_job
from precflow.run.store import Sealed
from precflow.stages.artifacts import write_value

SOMETHING = SecondPass(rules=({"match": ["a"]},))


@pytest.fixture
def agenda(tmp_path, monkeypatch):
    """Return a function that starts an agenda, and one that makes the region's instance."""
    monkeypatch.chdir(tmp_path)

    def start(*words):
        job = make_job(compose(["+recipe=sd_text_encoder", *words]), command="")
        return Agenda(job, steps.place(job.config))

    def region(scope):
        write_value(tmp_path / "region.json", scope)
        return Sealed("region", "k", tmp_path, "s")

    return start, region


def names(agenda, region, *, missing=()):
    found = []
    for stage in agenda:
        if stage.name in missing:
            agenda.postpone(stage)
            continue
        found.append(stage.name)
        if stage.name == "region":
            agenda.learn(stage, region)
    return found


def test_one_pass_ends_with_its_report(agenda):
    start, region = agenda
    assert names(start("capture=tensors"), region(SOMETHING))[-2:] == ["advise", "report"]
    assert "region" not in names(start("capture=sketch"), region(SOMETHING))


def test_a_region_with_something_in_it_is_followed_by_the_second_pass(agenda):
    start, region = agenda
    found = names(start("capture=escalating"), region(SOMETHING))
    behind = found[found.index("region") + 1 :]
    assert behind[:2] == ["dump.reference@2", "dump.target@2"]
    assert behind[-3:] == ["localize@2", "advise", "report"]


def test_an_empty_region_is_followed_by_the_report(agenda):
    start, region = agenda
    assert names(start("capture=escalating"), region(SecondPass()))[-3:] == ["region", "advise", "report"]


def test_what_is_elsewhere_is_put_off_and_the_other_side_made_all_the_same(agenda):
    start, region = agenda
    here = start("capture=escalating")
    found = names(here, region(SOMETHING), missing=["dump.reference@2"])
    assert found[-4:] == ["region", "dump.target@2", "advise", "report"]
    assert [stage.side for stage in here.put_off] == ["reference"]


def test_a_first_pass_cannot_be_put_off(agenda):
    start, _ = agenda
    here = start("capture=escalating")
    stage = next(stage for stage in here if stage.name == "dump.reference")
    assert not here.postpone(stage)
    assert here.put_off == []
