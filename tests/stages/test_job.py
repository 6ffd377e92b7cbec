"""A job gives its sides; a stage knows its kind."""

from precflow.stages import job as job_module
from precflow.stages.job import Instance, StageResult, ask_agent


def test_sides_by_name(pair, job_of):
    job = job_of(pair())
    assert job.side("target").dump.endswith("target")


def test_kind_is_the_name_without_its_side():
    stage = Instance(name="dump.target", needs=(), declare=lambda _: {}, make=lambda *_: StageResult())
    assert stage.kind == "dump"


def test_the_side_and_the_timeout_are_the_recipes(pair, job_of, monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr(job_module, "run_agent", lambda request, **options: seen.update(options, request=request))
    job = job_of(pair(), "target.variables.OMP_NUM_THREADS=1", "capture.timeout=5m")
    ask_agent(job, "target", {"side": "target"}, tmp_path)
    assert seen["request"] == {"side": "target"}
    assert seen["variables"] == {"OMP_NUM_THREADS": "1"}
    assert (seen["timeout"], seen["folder"]) == (300.0, tmp_path)
    assert seen["side"] is job.side("target")
    assert seen["agents"] is job.agents


def test_debugging_makes_devices_wait_and_variables_of_the_side_win(pair, job_of, monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(job_module, "run_agent", lambda request, **options: given.append(options["variables"]))
    job = job_of(pair(), "capture.debug=blocking", "target.variables.CUDA_LAUNCH_BLOCKING=0")
    for side in ("reference", "target"):
        ask_agent(job, side, {}, tmp_path)
    assert given == [
        {"CUDA_LAUNCH_BLOCKING": "1", "ASCEND_LAUNCH_BLOCKING": "1"},
        {"CUDA_LAUNCH_BLOCKING": "0", "ASCEND_LAUNCH_BLOCKING": "1"},
    ]
