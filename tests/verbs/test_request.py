import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from precflow.agent.request import parse
from precflow.errors import ConfigError, StoreError
from precflow.verbs import agent, request

WORKLOAD = """
import torch


def build():
    return torch.nn.Linear(4, 4)


def inputs():
    return {"input": torch.ones(2, 4)}
"""


@pytest.fixture
def words(tmp_path, team, monkeypatch):
    """Return a command line over a workload of the test's own."""
    (tmp_path / "asked_for.py").write_text(WORKLOAD, encoding="utf-8")
    team("asked", "workload: {model: {_target_: asked_for.build}, inputs: {_target_: asked_for.inputs}}")
    monkeypatch.setenv("PRECFLOW_TRUST", "asked_for")
    return ["+recipe=asked"]


def test_it_is_what_an_agent_reads_and_names_no_place_of_this_machine(capsys, words, tmp_path):
    assert request.main([*words, "sides=[target]", "target.dtype=float16"]) == 0
    said = capsys.readouterr()
    asked = parse(json.loads(said.out))
    assert (asked.action, asked.side, asked.dtype, asked.output, asked.parent) == (
        "dump",
        "target",
        "float16",
        "dump.target",
        None,
    )
    assert (asked.import_paths, asked.trusted) == ((".",), ("asked_for",))
    assert str(tmp_path) not in said.out
    assert "python precflow-agent.pyz request.json" in said.err
    assert "precflow +recipe=asked target.dtype=float16 target.dump=dump.target" in said.err


def test_what_the_job_has_to_do_is_told(capsys, words, sites):
    sites(
        "there",
        """
        target:
          interpreter: /opt/python
          setup: [/opt/set env.sh]
          launcher: [srun, "{command}", --end]
          variables: {HCCL_ALGO: "ring x"}
        """,
    )
    options = ["+site=there", "sides=[target]", "--out", "/data/new dump", "--import-path", "/code", "--to", "asked.json"]
    assert request.main([*words, *options]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    for line in (
        "   . '/opt/set env.sh'",
        "   export PYTHONHASHSEED=1234",
        "   export HCCL_ALGO='ring x'",
        "   mkdir -p '/data/new dump'",
        "   srun /opt/python precflow-agent.pyz asked.json --end",
    ):
        assert line in said.err.splitlines()
    asked = parse(json.loads(Path("asked.json").read_text(encoding="utf-8")))
    assert (asked.output, asked.import_paths) == ("/data/new dump", ("/code",))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "one side"),
        (["sides=[]"], "one side"),
        (["sides=[target]", "capture=escalating"], "one request cannot ask"),
        (["sides=[target]", "whatif=reference_choice"], "out of its dump, which one request does not carry"),
        (["sides=[target]", "~workload.model"], "nothing to run"),
        (["sides=[target]", "target.devise=npu"], "Did you mean  target.device"),
    ],
)
def test_what_no_request_can_be_made_of(words, more, said):
    with pytest.raises(ConfigError) as refused:
        request.main([*words, *more])
    assert said in str(refused.value)


def test_a_file_that_cannot_be_written(words, tmp_path):
    with pytest.raises(StoreError, match="cannot be written"):
        request.main([*words, "sides=[target]", "--to", str(tmp_path / "no" / "file")])


@pytest.mark.slow
def test_what_comes_back_is_judged(words, tmp_path, capsys, warm_server):
    """Request, then the packed agent in a folder of its own with nothing but the user's module, then the verdict."""
    agent.main(["--json"])
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for side in ("reference", "target"):
        job = tmp_path / f"cluster-{side}"
        (job / f"dump.{side}").mkdir(parents=True)
        (job / "asked_for.py").write_text(WORKLOAD, encoding="utf-8")
        assert request.main([*words, f"sides=[{side}]", "--to", str(job / "request.json")]) == 0
        if side == "target":
            command = [sys.executable, str(tmp_path / "precflow-agent.pyz"), "request.json"]
            done = subprocess.run(command, cwd=job, env=environment, capture_output=True, text=True, timeout=120)
            code, said = done.returncode, done.stderr
        else:  # one real interpreter is enough
            code, _, said = warm_server.run(["request.json"], cwd=job, env=environment, timeout=120, module="precflow.agent")
        assert code == 0, said
        assert (job / f"dump.{side}" / "dump.json").is_file()
    given = [f"{side}.dump={tmp_path / f'cluster-{side}' / f'dump.{side}'}" for side in ("reference", "target")]
    code, _, said = warm_server.run([*words, *given], cwd=tmp_path, env=dict(os.environ), timeout=120)
    assert code == 0, said
    assert "ALIGNED" in said


def test_a_secret_is_in_no_file_and_the_job_is_told_how_to_give_it(words, tmp_path, capsys):
    secrets = ("workload.model.api_key=C4n4ryB1rd", "target.variables.HCCL_PWD=C4n4ryB1rd")
    assert request.main([*words, *secrets, "sides=[target]", "--to", str(tmp_path / "request.json")]) == 0
    told = capsys.readouterr().err
    assert "export HCCL_PWD='(redacted)'" in told
    assert """export PRECFLOW_SECRETS='{"workload.model.api_key": "(redacted)"}'""" in told
    assert "C4n4ryB1rd" not in told + (tmp_path / "request.json").read_text()
