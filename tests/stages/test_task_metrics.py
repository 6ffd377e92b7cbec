"""Stage ``task_metrics`` in a whole comparison of two dumps: its numbers, the verdict, and what is refused."""

import pytest

from precflow.errors import ConfigError
from precflow.stages import task_metrics
from precflow.stages.introduced import read_conclusion
from precflow.stages.report import read_model
from precflow.stages.task_metrics import read_task_metrics

READS = "task_metrics.mean_rel_error.output='fc2 / linear'"
LIMIT = "task_metrics.mean_rel_error.limit"
ALONE = "stages=[determinism,compare,judge,localize,task_metrics,advise,report]"  # nothing is computed again in float64


def test_a_metric_beyond_its_limit_makes_a_run_misaligned_whose_tensors_pass(made, pair):
    folders = made(pair(factor=1.01), READS, f"{LIMIT}=0.001", ALONE, "tolerance.standards=[]", "tolerance.relative_l2=50%")
    (one,) = read_task_metrics(folders)
    assert (one.state, one.samples) == ("beyond", 4)
    _, verdict, _ = read_conclusion(folders)
    assert verdict.verdict == "misaligned"
    assert verdict.reasons[0].startswith("mean_rel_error is beyond its limit")
    model = read_model(folders["report"])
    assert model.verdict.verdict == "misaligned"
    assert [one.name for one in model.task_metrics] == ["mean_rel_error"]
    assert (folders["report"] / "task_metrics.csv").is_file()


def test_tensors_that_fail_stay_misaligned(made, pair):
    folders = made(pair(factor=1.01), READS, f"{LIMIT}=0.5", ALONE, "tolerance.standards=[default]", until="task_metrics")
    assert read_task_metrics(folders)[0].state == "not told"  # four samples are too few
    assert read_conclusion(folders)[1].verdict == "misaligned"


def test_a_function_that_does_not_exist_stops_the_run(made, pair, monkeypatch):
    monkeypatch.setenv("PRECFLOW_TRUST", "math")
    with pytest.raises(ConfigError, match=r"there is no math\.no_such"):
        made(
            pair(),
            ALONE,
            "task_metrics.mine.function._target_=math.no_such",
            "task_metrics.mine.direction=at_most",
            until="task_metrics",
        )


def test_a_function_that_is_not_trusted_is_refused_before_anything_runs(made, pair):
    with pytest.raises(ConfigError, match="PRECFLOW_TRUST=our_scores"):
        made(pair(), "task_metrics.mine.function._target_=our_scores.f", "task_metrics.mine.direction=at_most")


def test_what_a_library_reads_is_part_of_the_key(job_of, pair, tmp_path):
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    words = ("task_metrics.bleu.output='fc2 / linear'", f"task_metrics.bleu.tokenizer={tokenizer}")
    job = job_of(pair(), *words)
    before = task_metrics.declare(job)
    assert task_metrics.declare(job) == before
    tokenizer.write_text('{"model": 1}')
    assert task_metrics.declare(job) != before
