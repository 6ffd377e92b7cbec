"""Stage ``operators``: only where it is asked for, with a table that another run can take."""

import json
from dataclasses import replace

import pytest

from precflow.config.composition import compose
from precflow.config.schema import Operators
from precflow.diagnosis.training.gradients import Gradients
from precflow.errors import ConfigError
from precflow.stages import operators, registry, report
from precflow.stages.artifacts import write_lines, write_value

STAGES = "stages=[dump,determinism,compare,judge,localize,advise,report]"  # `introduced` would start an agent
UNARY = {
    "operator": "exp",
    "dtype": "float16",
    "why": "",
    "largest": 0.5,
    "at": 1.0,
    "rounded": 60000,
    "wrong": 0,
    "misplaced": 0,
}


@pytest.fixture
def tabulated(pair, made, job_of, tmp_path, monkeypatch):
    """Return a function that makes the table over two dumps, the agent being played, and the folders it needs."""
    folders = made(pair(factor=1.01), STAGES, until="advise")
    folders["introduced"] = tmp_path / "introduced"
    folders["introduced"].mkdir()
    for name in ("introduced.jsonl", "optimizer_steps.jsonl", "explained.jsonl"):
        write_lines(folders["introduced"] / name, [])
    write_value(folders["introduced"] / "gradients.json", Gradients())
    for name, stage in (("judged.jsonl", "judge"), ("verdict.json", "judge"), ("region.json", "localize")):
        (folders["introduced"] / name).write_bytes((folders[stage] / name).read_bytes())
    asked = []

    def agent(job, side, request, folder):
        asked.append((side, request["action"]))
        (folder / "replayed.jsonl").write_text("")
        (folder / "unary.json").write_text(json.dumps({"functions": [UNARY]}))

    monkeypatch.setattr(operators, "ask_agent", agent)

    def run(against=""):
        job = job_of(pair(f"again{len(asked)}"))
        job = replace(job, config=replace(job.config, operators=Operators(against=str(against))))
        folder = tmp_path / f"table{len(asked)}"
        folder.mkdir()
        result = operators.STAGE.make(job, folder, folders)
        folders["operators"] = folder
        return result, folder, folders, job

    run.asked = asked
    return run


def test_the_target_runs_calls_alone_and_functions_of_all_numbers(tabulated):
    result, folder, _, _ = tabulated()
    assert tabulated.asked == [("target", "replay"), ("target", "unary")]
    (row,) = operators.read_table({"operators": folder})
    assert (row.operator, row.in_run) == ("exp", 0.5)
    assert [path.name for path in folder.iterdir()] == ["operators.json"]
    assert "none introduces more than rounding" in result.note


def test_the_published_table_is_the_one_that_another_run_takes(tabulated, tmp_path):
    _, _, folders, job = tabulated()
    folder = tmp_path / "shown"
    folder.mkdir()
    report.STAGE.make(job, folder, folders)
    assert "Operators" in (folder / "public" / "report.md").read_text()
    _, again, _, _ = tabulated(folder / "public" / "operators.json")
    (row,) = operators.read_table({"operators": again})
    assert row.before == 0.5


def test_a_file_that_is_no_table_is_refused(tabulated, tmp_path):
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match="is no table of operators"):
        tabulated(tmp_path / "other.json")


def test_it_is_made_only_where_the_recipe_is_laid_over_one_with_a_workload(pair, job_of):
    plain = compose(["+recipe=sd_text_encoder"], complete=False).config
    asked = compose(["+recipe=[sd_text_encoder,operator_check]"], complete=False).config
    names = [stage.name for stage in registry.instances(asked)]
    assert names.index("introduced") < names.index("operators") < names.index("report")
    assert asked.workload == plain.workload
    for config in (plain, replace(asked, sides=("reference",)), job_of(pair()).config):
        assert "operators" not in [stage.name for stage in registry.instances(config)]
