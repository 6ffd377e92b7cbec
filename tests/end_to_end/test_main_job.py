"""The main job as users run it: verdicts, exit codes, resuming, two machines."""

import json
import re
import shlex
import shutil

import pytest

from precflow.judgement.verdicts import Judged
from precflow.report import wording

pytestmark = [pytest.mark.slow, pytest.mark.npu, pytest.mark.xdist_group("text encoder")]
EMULATED = ("target.device=emulated",)


@pytest.fixture(scope="module")
def small(small_encoder):
    """Return the recipe over a narrow encoder of two layers."""
    return ("+recipe=sd_text_encoder", *small_encoder(layers=2))


def states(ended):
    """Return stage instance -> state of the newest run."""
    return json.loads((ended.folder / "run.json").read_text())["runs"][-1]["states"]


def test_demo_is_aligned_and_says_that_it_is_emulated(precflow, small):
    """Continuous integration runs it in interpreters of its own, at its real size."""
    ended = precflow(*small)
    assert ended.code == 0, ended.err
    assert ended.result["verdict"]["verdict"] == "aligned"
    assert "EMULATED" in ended.err.upper()
    assert {"report.html", "report.md", "result.json", "junit.xml"} <= {
        path.name for path in (ended.folder / "public").iterdir()
    }


def test_a_changed_limit_judges_again_and_keeps_the_dumps(precflow, small):
    precflow(*small)
    ended = precflow(*small, "tolerance.cosine_similarity=0.99999999")
    assert ended.code == 1
    assert states(ended)["dump.target"] == states(ended)["compare"] == "kept"
    assert states(ended)["judge"] == "run"
    again = precflow(*small)
    assert again.code == 0
    assert set(states(again).values()) == {"kept"}


def test_the_next_command_of_a_finding_shows_the_record_as_the_run_has_judged_it(precflow, small):
    ended = precflow(*small, "target.dtype=float32", "+emulate=layernorm_eps")
    finding, suspect = ended.result["findings"][0], ended.result["region"]["suspects"][0]
    assert finding["try_it"].startswith("precflow compare sd_text_encoder:reference sd_text_encoder:target --record ")
    assert finding["where"] == suspect["name"]
    row = next(row for row in ended.result["rows"] if row["record"] == suspect["record"])
    assert row["ratio"] == suspect["ratio"]
    shown = precflow(*shlex.split(finding["try_it"])[1:])
    assert shown.code == 1
    use = wording.describe_use(
        Judged("", "fail", row["metric"], row["value"], row["limit"], row["ratio"], floor=row.get("floor"))
    )
    assert use in " ".join(shown.out.split())


def test_another_dtype_and_back_costs_nothing(precflow, small):
    precflow(*small)
    other = precflow(*small, "target.dtype=float32")
    assert other.code == 0, other.err
    assert states(other)["dump.reference"] == "kept"
    back = precflow(*small)
    assert set(states(back).values()) == {"kept"}


def test_every_job_of_a_sweep_runs_and_the_worst_verdict_is_the_exit_code(precflow, small):
    ended = precflow("-m", *small, "target.dtype=float16,bfloat16,float32")
    assert ended.code == 0, ended.err
    worse = precflow("-m", *small, "tolerance.cosine_similarity=0.99999999,0.5")
    assert worse.code == 1
    runs = json.loads((worse.folder / "run.json").read_text())["runs"]
    assert [run["verdict"] for run in runs[-2:]] == ["misaligned", "aligned"]


def test_two_machines_by_hand(precflow, small, tmp_path):
    here, there, store = tmp_path / "here", tmp_path / "there", tmp_path / "store"
    here.mkdir()
    there.mkdir()
    first = precflow(*small, "sides=[reference]", f"store={store}", cwd=here)
    assert first.code == 0, first.err
    assert "Half done" in first.err
    second = precflow(*small, "sides=[target]", f"store={store}", cwd=there)
    assert second.code == 0, second.err
    assert "environment.reference" not in states(second)
    assert second.result["verdict"]["verdict"] == "aligned"


def test_a_missing_reference_is_said_and_nothing_is_made_up(precflow, small, tmp_path):
    ended = precflow(*small, "sides=[target]", f"store={tmp_path / 'store'}", cwd=tmp_path)
    assert ended.code == 2
    assert "no sealed reference" in ended.err
    assert "sides=[reference]" in ended.err


def test_given_dumps_are_compared(precflow, small, tmp_path):
    made = precflow(*small)
    instances = json.loads((made.folder / "run.json").read_text())["runs"][-1]["instances"]
    dumps = {side: made.folder / "store" / f"dump.{side}-{instances[f'dump.{side}']}" for side in ("reference", "target")}
    words = [f"{side}.dump={folder}" for side, folder in dumps.items()]
    ended = precflow("+recipe=compare_dumps", *words, recipe="compare_dumps", cwd=tmp_path)
    assert ended.code == 0, ended.err
    unsealed = tmp_path / "unsealed"
    shutil.copytree(dumps["target"], unsealed)
    (unsealed / "dump.json").unlink()
    ended = precflow("+recipe=compare_dumps", words[0], f"target.dump={unsealed}", recipe="compare_dumps", cwd=tmp_path)
    assert ended.code == 3, ended.err
    assert "never sealed" in ended.err


def test_plan_says_what_would_run_and_why(precflow, small):
    precflow(*small)
    planned = precflow("plan", *small, "tolerance.cosine_similarity=0.9999")
    assert planned.code == 0
    text = planned.out + planned.err
    assert re.search(r"compare\s+-\s+kept", text)
    assert re.search(r"judge\s+-\s+run\s+tolerance\.cosine_similarity", text)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("target.device=npu",), "emulated"),
        (("+tolerance.cosin_similarity=0.9999",), "tolerance.cosine_similarity"),
        (("capture.scope=[nothing.*]",), "scope"),
        (("workload.model.weights=/not/there.safetensors",), "/not/there.safetensors"),
        (("reference.interpreter=/not/there/python",), "/not/there/python"),
        (("workload.model._target_=os.system",), "trust"),
    ],
)
def test_what_cannot_be_done_is_exit_2_without_traceback(precflow, small, words, says):
    ended = precflow(*small, *words)
    assert ended.code == 2, ended.err
    assert says in ended.err
    assert "Traceback" not in ended.err


def test_in_ci_an_emulator_must_be_asked_for_by_its_single_name(precflow, small):
    ended = precflow(*small, CI="true")
    assert ended.code == 2
    assert "emulated" in ended.err
    ended = precflow(*small, *EMULATED, CI="true")
    assert ended.code == 0, ended.err
    assert "verdict=aligned" in ended.err.splitlines()[-1]
