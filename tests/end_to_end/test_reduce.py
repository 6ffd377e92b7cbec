"""A run made small: the finding stays, the recipe that is written has it, and the script shows it with torch alone."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.npu, pytest.mark.xdist_group("training")]
NORMED = (
    "+recipe=minilm",
    "workload.model._target_=normed.build",
    "workload.inputs._target_=normed.inputs",
    "workload.model.layers=5",
    "workload.inputs.samples=4",
    "reference.device=cpu",
    "target.device=emulated",
)


def reduce(precflow, cwd, *words, code=0):
    """Run the verb and return what it prints as JSON."""
    ended = precflow("reduce", *words, "--json", cwd=cwd, PRECFLOW_TRUST="normed", OMP_NUM_THREADS="1", timeout=600)
    assert ended.code == code, ended.err
    return json.loads(ended.out)


@pytest.fixture(scope="module")
def cwd(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reduce")
    shutil.copy(Path(__file__).parent / "workloads" / "normed.py", folder)
    return folder


def test_a_run_becomes_small_and_goes_on_where_a_bound_ended_it(precflow, cwd):
    words = (*NORMED, "+emulate=layernorm_eps", "tolerance.standards=[default]")
    halted = reduce(precflow, cwd, *words, "--most-runs", "0")
    assert (halted["complete"], halted["recipe"], halted["runs"]) == (False, "", [])
    assert "nothing became smaller so far" in halted["text"]
    told = reduce(precflow, cwd, "minilm", "--finding", "pf214")
    assert told["finding"]["place"] == "*.norm / layer_norm"
    assert {knob["name"]: (knob["before"], knob["after"]) for knob in told["knobs"]} == {
        "layers": ("5", "1"),
        "samples": ("4", "1"),
    }
    assert [run["outcome"] for run in told["runs"]] == ["the same finding"]
    assert told["complete"]
    again = reduce(precflow, cwd, "minilm", "--most-runs", "0")  # all of it is known
    assert (again["text"], again["runs"]) == (told["text"], told["runs"])
    folder = cwd / "runs" / "minilm" / "reduced"
    assert "Layers 5 -&gt; 1" in (folder / "reduced.md").read_text(encoding="utf-8")
    kept = {path.name.partition("-")[0] for path in (folder / "store" / "minilm").iterdir()}
    assert {name for name in kept if not name.startswith(".")} == {"environment.reference", "environment.target"}
    assert told["command"] == f"PRECFLOW_TRUST=normed precflow +recipe={folder / 'reduced.yaml'}"
    assert told["repro_runs"] == "one call in plain torch"
    shown = subprocess.run([sys.executable, folder / "repro.py"], capture_output=True, text=True, timeout=100)
    assert shown.stdout.startswith("layer_norm   (0.norm / layer_norm)"), shown.stderr
    *_, here, recorded = (float(line.rpartition(" ")[2]) for line in shown.stdout.splitlines()[-2:])
    assert recorded > 1000 * here


def test_without_the_finding_there_is_nothing_to_reduce(precflow, cwd):
    ended = precflow("reduce", *NORMED, "tolerance.standards=[default]", cwd=cwd, PRECFLOW_TRUST="normed", OMP_NUM_THREADS="1")
    assert ended.code == 2
    assert "the run is aligned and has no finding to keep" in ended.said
    given = precflow("reduce", "minilm@1", "--finding", "PF999", cwd=cwd, PRECFLOW_TRUST="normed")
    assert not given.problems(2, "the run has no finding PF999; it has PF214"), given.err
