"""Every stage comes after what it needs, and a new one is a file."""

import json
import sys
from dataclasses import replace

import pytest

from precflow import cli, stages
from precflow.config.composition import compose
from precflow.config.schema import Capture, RunConfig
from precflow.config.vocabulary import allowed_words, list_stages
from precflow.errors import ConfigError
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
        "determinism",
        "compare",
        "judge",
        "localize",
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


def test_after_a_second_pass_dumps_of_both_passes_are_read_and_of_all_else_what_it_made_anew():
    stages = {stage.name: stage for stage in registry.instances(replace(RunConfig(), capture=Capture(detail="escalating")))}
    both = {"dump.reference", "dump.target", "dump.reference@2", "dump.target@2"}
    assert set(stages["introduced.evaluation"].needs) == {*both, "determinism@2", "compare@2"}
    assert {"judge@2", "localize@2"} <= set(stages["advise"].needs)
    assert not {"judge", "localize"} & set(stages["advise"].needs)
    assert set(stages["region"].needs) == {"dump.reference", "dump.target", "judge", "localize"}


COUNT = '''
"""Stage ``count``: how many records the reference has."""

from precflow.stages.artifacts import read_plain, write_value
from precflow.stages.compare import read_measures
from precflow.stages.job import Stage, StageResult


def _make(job, folder, needs):
    del job
    write_value(folder / "count.json", {"pairs": len(read_measures(needs["compare"]))})
    return StageResult(note="counted")


STAGE = Stage(
    name="count",
    place=75,
    reads=("compare",),
    declare=lambda _: {},
    make=_make,
)
'''


@pytest.fixture
def added(tmp_path):
    """Add a stage to the package ``precflow.stages``: one file in one more folder of it."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "count.py").write_text(COUNT)
    stages.__path__.append(str(tmp_path / "more"))
    _forget()
    yield
    stages.__path__.pop()
    sys.modules.pop("precflow.stages.count", None)
    _forget()


def _forget():
    registry.list_stages.cache_clear()
    list_stages.cache_clear()


@pytest.mark.usefixtures("added")
def test_a_new_stage_is_one_file_which_no_other_has_to_name(pair, job_of, tmp_path, capsys):
    words = [f"{side}.dump={pair() / side}" for side in ("reference", "target")]
    job_of(pair())
    assert cli.main(["+recipe=compare_dumps", *words, "stages=[dump,determinism,compare,count]", "sides=[]"]) in {0, 3}
    assert "stage=count state=done" in capsys.readouterr().err
    (made,) = tmp_path.glob("runs/*/store/count-*/count.json")
    assert json.loads(made.read_text()) == {"pairs": 2}
    with pytest.raises(ConfigError, match="Did you mean  count"):
        compose(["+recipe=compare_dumps", *words, "stages=[coun]"])


def test_kinds_are_the_names_that_people_type(pair, job_of):
    assert {stage.kind for stage in registry.instances(job_of(pair()).config)} <= set(registry.list_names())


def test_a_recipe_may_choose_every_stage():
    assert allowed_words("RunConfig.stages") == registry.list_names()


@pytest.mark.parametrize(("words", "needed"), [([], False), (["determinism.data=recorded"], True)])
def test_a_target_on_the_batches_of_the_reference_waits_for_it(tmp_path, monkeypatch, words, needed):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    config = compose(["+recipe=script", "workload.script=train.py", *words], complete=False).config
    (target,) = [stage for stage in registry.instances(config) if stage.name == "dump.target"]
    assert ("dump.reference" in target.needs) is needed
