"""Every stage comes after what it needs."""

from dataclasses import replace

import pytest

from precflow.config.composition import compose
from precflow.config.schema import Capture, RunConfig
from precflow.config.vocabulary import WORDS
from precflow.stages import registry


def test_stages_come_after_their_needs(pair, job_of):
    seen = set()
    for stage in registry.instances(job_of(pair()).config):
        assert set(stage.needs) <= seen
        seen.add(stage.name)


def test_a_given_dump_runs_no_environment(pair, job_of):
    names = [stage.name for stage in registry.instances(job_of(pair()).config)]
    assert names == [
        "dump.reference",
        "dump.target",
        *(stage.name for stage in registry.FIRST),
        "introduced.evaluation",
        "introduced",
        "advise",
        "report",
    ]


def test_a_target_that_is_given_the_reference_s_choices_comes_after_it_and_is_no_run_more():
    config = replace(RunConfig(), capture=Capture(detail="escalating"), whatif=("reference_choice", "top"))
    stages = {stage.name: stage for stage in registry.instances(config)}
    givers = {"dump.target", "dump.target@2"}
    assert {name for name, stage in stages.items() if "dump.reference" in stage.needs and stage.kind == "dump"} == givers
    assert [name for name in stages if name.startswith("whatif.")] == ["whatif.top"]


def test_suspects_run_alone_before_the_advice_that_reads_of_it():
    stages = {stage.name: stage for stage in registry.instances(replace(RunConfig(), whatif=("suspects_alone", "top")))}
    names = list(stages)
    assert names.index("introduced") < names.index("whatif.suspects_alone") < names.index("advise") < names.index("whatif.top")
    assert "whatif.suspects_alone" in stages["advise"].needs
    assert "whatif.suspects_alone" in stages["report"].needs


def test_kinds_are_the_names_that_people_type(pair, job_of):
    assert {stage.kind for stage in registry.instances(job_of(pair()).config)} <= set(registry.NAMES)


def test_a_recipe_may_choose_every_stage():
    assert WORDS["RunConfig.stages"] == registry.NAMES


@pytest.mark.parametrize(("words", "needed"), [([], False), (["determinism.data=recorded"], True)])
def test_a_target_on_the_batches_of_the_reference_waits_for_it(tmp_path, monkeypatch, words, needed):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    config = compose(["+recipe=script", "workload.script=train.py", *words], complete=False).config
    (target,) = [stage for stage in registry.instances(config) if stage.name == "dump.target"]
    assert ("dump.reference" in target.needs) is needed
