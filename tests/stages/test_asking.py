"""A request goes to the side's own interpreter, with its variables and the recipe's patience."""

from precflow.stages import asking


def test_the_side_and_the_timeout_are_the_recipes(pair, job_of, monkeypatch, tmp_path):
    seen = {}
    monkeypatch.setattr(asking, "run_agent", lambda request, **options: seen.update(options, request=request))
    job = job_of(pair(), "target.variables.OMP_NUM_THREADS=1", "capture.timeout=5m")
    asking.ask(job, "target", {"side": "target"}, tmp_path)
    assert seen["request"] == {"side": "target"}
    assert seen["variables"] == {"OMP_NUM_THREADS": "1"}
    assert (seen["timeout"], seen["folder"]) == (300.0, tmp_path)
    assert seen["side"] is job.side("target")
    assert seen["agents"] is job.agents
