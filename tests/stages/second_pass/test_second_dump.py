"""The second pass of a side: when it runs again, and what its agent is asked for."""

from dataclasses import replace

import pytest

from precflow.config.schema import Capture, RunConfig
from precflow.diagnosis.second_pass import SecondPass
from precflow.stages import dump, registry
from precflow.stages.artifacts import write_value
from precflow.stages.job import StageResult
from precflow.stages.second_pass import region, second_dump

RULES = ({"match": ["fc2"], "operator": ["linear"], "step": [0]},)


@pytest.fixture
def asked(pair, job_of, tmp_path, monkeypatch):
    """Return a function that runs the stage over a region; key and rules that it records with."""
    job = job_of(pair())

    def record(side, job, folder, key, *, region, reference):
        del job, folder
        assert reference is None
        return StageResult(note=f"{side} {key}", seal=repr(region))

    monkeypatch.setattr(dump, "record", record)

    def run(scope, side="target"):
        folder = tmp_path / "region"
        folder.mkdir(exist_ok=True)
        write_value(folder / region.SCOPE_FILE, scope)
        return second_dump.STAGE.make(side, job, tmp_path, {"region": folder})

    return run


def test_a_second_pass_belongs_to_its_side_and_is_told_by_the_region():
    config = replace(RunConfig(), capture=Capture(detail="escalating"))
    stage = next(each for each in registry.instances(config) if each.name == "dump.target@2")
    assert (stage.name, stage.side, stage.kind, stage.label) == ("dump.target@2", "target", "dump", "dump@2")
    assert stage.needs == ("environment.target", "region")
    assert stage.scope_needs == ("region",)
    assert stage.resumes


def test_it_records_the_rules_of_the_region_and_nothing_else(asked):
    assert asked(SecondPass(rules=RULES)).seal == repr(RULES)


def test_another_region_is_another_dump(asked):
    one, same, other = (asked(SecondPass(rules=RULES, dumps={"target": name})).note for name in ("c1", "c1", "c2"))
    assert one == same != other
    assert asked(SecondPass(rules=(), dumps={"target": "c1"})).note != one


def test_how_many_calls_were_found_does_not_matter(asked):
    one, other = (asked(SecondPass(rules=RULES, calls=number, failing=number)).note for number in (1, 2))
    assert one == other


def test_a_dump_of_the_second_pass_is_not_taken_for_one_of_the_first(asked, pair, job_of):
    from precflow import keys

    first = keys.digest(dump.declare("target", job_of(pair("else"))))
    assert asked(SecondPass(rules=RULES)).note != f"target {first}"


def test_sides_have_dumps_of_their_own(asked):
    scope = SecondPass(rules=RULES)
    assert asked(scope, "reference").note.split()[0] == "reference"
    assert asked(scope, "reference").note.split()[1] != asked(scope, "target").note.split()[1]
