"""A script is run twice and compared with itself; deterministic algorithms only where the two runs differ."""

import pytest

from precflow.config.composition import compose
from precflow.dumps.formats import read_dump
from precflow.errors import ConfigError
from precflow.run.jobs import make_job
from precflow.stages import dump as stage

SCRIPT = """
import os, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = (model(torch.randn(8, 4)) * NOISE).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
NOISE = "(1 + int.from_bytes(os.urandom(2), 'little'))"


@pytest.mark.parametrize(("noise", "differ"), [("1", False), (NOISE, True)])
def test_two_runs_are_compared_bit_by_bit(script, watch, noise, differ):
    path = script(SCRIPT.replace("NOISE", noise))
    first = watch(path, folder="first")
    repeat = watch(path, folder="second", capture={"detail": "tensors"}, first=first).dump.header.repeat
    assert repeat.checked
    assert repeat.by == ("bits",)
    assert repeat.records > 20
    assert bool(repeat.different) == differ
    assert "(model)/forward.output.0" not in repeat.different  # the model of the first step comes before the noise


@pytest.mark.parametrize(
    ("words", "ways"),
    [
        (["determinism.repeat=false"], ["native"]),
        (["determinism.observer=checked"], ["native", "native"]),
        (["determinism.repeat=true"], ["native", "native"]),
        (["determinism.repeat=true", "determinism.algorithms=when_needed"], ["native", "native", "warn", "warn"]),
    ],
)
def test_each_run_is_asked_for_by_itself(script, watch, tmp_path, monkeypatch, words, ways):
    path = script(SCRIPT.replace("NOISE", NOISE))
    asked, runs = [], []

    def ask(job, side, request, folder):
        asked.append(request)
        assert (folder / "first").exists() == bool(request.get("first_run"))
        earlier = {name: runs[-1] for name, given in (("first", "first_run"), ("plain_run", "plain_run")) if request.get(given)}
        runs.append(watch(path, action=request["action"], folder=f"run{len(runs)}", **earlier))
        for file in [file for file in runs[-1].folder.rglob("*") if file.is_file()]:
            copy = folder / file.relative_to(runs[-1].folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())

    monkeypatch.setattr(stage, "ask_agent", ask)
    monkeypatch.chdir(tmp_path)
    composed = compose(["+recipe=script", f"workload.script={path}", "reference.device=cpu", "target.device=cpu", *words])
    folder = tmp_path / "made"
    folder.mkdir()
    stage.record("target", make_job(composed, command=""), folder, "key")
    assert [request["determinism"]["algorithms"] for request in asked] == ways
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["rank0"]
    if "determinism.observer=checked" in words:
        assert [request["action"] for request in asked] == ["plain", "dump"]
        assert read_dump(folder).header.observer.checked
    else:
        assert [request["capture"]["detail"] for request in asked] == (["digest"] * (len(ways) > 1) + ["sketch"]) * max(
            len(ways) // 2, 1
        )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["+recipe=script", "workload.script=train.py"], "needs two runs of a side"),
        (["+recipe=minilm"], "is for a script"),
    ],
)
def test_when_needed_needs_two_runs_of_a_script(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        compose([*words, "determinism.algorithms=when_needed"], complete=False)
    assert any(message in problem.message for problem in refused.value.problems)
