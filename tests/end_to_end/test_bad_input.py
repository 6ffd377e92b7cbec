"""Recipes, workloads and places that are wrong: explained, with a next step, never aligned, and nothing finished is lost."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.npu, pytest.mark.xdist_group("bad input")]
ALONE = "sides=[reference]"  # one agent is enough to see a workload fail
BLOCKER = """
import sys


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "transformers":
            raise ModuleNotFoundError("No module named 'transformers'", name="transformers")


sys.meta_path.insert(0, Blocker())
"""

LINES = {
    "near name": (("+recipe=sd_text_encodr",), "Did you mean sd_text_encoder,", "Searched:", "recipes"),
    "no near name": (("+recipe=zzz",), "See `precflow ls`.", "Searched:"),
    "no file": (("+recipe=./zzz.yaml",), "there is no such file", "precflow ls"),
    "no verb": (("compar_dumps",), "no such verb: compar_dumps", "precflow +recipe=compare_dumps"),
    "untrusted": (
        ("+recipe=sd_text_encoder", "workload.model._target_=os.system"),
        "os.system is not trusted",
        "PRECFLOW_TRUST=os",
    ),
    "several": (
        (
            "+recipe=sd_text_encoder",
            "+captre.scope=x",
            "tolerance.max_abs_error=1parsec",
            "capture.step=abc",
            "target.dtype=fp17",
        ),
        "4 problems",
        "Did you mean capture.scope ?",
        "1parsec",
        "capture.step",
        "fp17",
        "precflow validate",
    ),
    "empty scope": (("+recipe=sd_text_encoder", "capture.scope=[]"), "capture.scope is an empty list"),
    "no dumps": (("+recipe=compare_dumps",), "2 problems", "reference.dump=gpu_dump", "target.dump=npu_dump"),
    "absent dump": (("+recipe=compare_dumps", "reference.dump=/not/there", "target.dump=x"), "/not/there does not exist"),
    "absent files": (
        ("+recipe=sd_text_encoder", "target.setup=[gone.sh]", "workload.model.weights=gone"),
        "2 problems",
        "target.setup[0]",
        "gone.sh does not exist; expected a shell file",
        "workload.model.weights",
    ),
    "one dump": (("+recipe=compare_dumps", "reference.dump=x", "target.dump=./x"), "always agrees with itself"),
    "unknown store": (("+recipe=sd_text_encoder", "store=nonsense://bucket/x"), "no kind of store", "or a folder"),
    "no interpreter": (
        ("+recipe=sd_text_encoder", "reference.interpreter=/bin/true"),
        "does not answer like a Python",
        "name the",
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_command_that_cannot_be_done_is_explained(precflow, name, tmp_path):
    words, *texts = LINES[name]
    ended = precflow(*words, cwd=tmp_path)
    assert not ended.problems(2, *texts)
    assert ended.out == ""


def test_debugging_shows_the_traceback(precflow, tmp_path):
    ended = precflow("+recipe=zzz", cwd=tmp_path, PRECFLOW_DEBUG="1")
    assert ended.code == 2
    assert "Traceback" in ended.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hydra: {callbacks: {x: {_target_: os.system}}}", "may not configure Hydra"),
        ("workload: {model: {_target_: os.system, command: touch owned}}", "os.system is not trusted"),
        ("about: {title: '${oc.env:HOME}'}", "would call a resolver"),
        ("defaults: [{override /hydra/launcher: x}]", "defaults"),
        ("target: {interpreter: ./mine}", "belongs to a machine"),
        (
            "target: '${workload.inputs.x}'\nworkload: {inputs: {x: {launcher: [touch, owned]}}}",
            "The value comes by a reference",
        ),
    ],
)
def test_a_recipe_is_data(precflow, tmp_path, text, said):
    (tmp_path / "evil.yaml").write_text(f"# @package _global_\n{text}\n")
    assert not precflow("+recipe=evil.yaml", cwd=tmp_path).problems(2, said, "evil.yaml:")
    assert {path.name for path in tmp_path.iterdir()} == {"evil.yaml"}


def test_a_missing_npu_is_said_with_the_word_that_works(hostile):
    assert not hostile("target.device=npu").problems(2, "no device for target.device=npu", "target.device=emulated")


def test_a_missing_library_names_the_extra(precflow, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    ended = precflow("+recipe=sd_text_encoder", ALONE, f"reference.variables.PYTHONPATH={tmp_path}", cwd=tmp_path)
    assert not ended.problems(2, "transformers is not installed in this side's interpreter", "pip install 'precflow[models]'")


def test_an_interpreter_without_torch_is_told_what_to_install(hostile, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    ended = hostile(ALONE, f"reference.interpreter={tmp_path / 'bare/bin/python'}")
    assert not ended.problems(2, "cannot import torch", "pip install 'torch>=2.1' there")


@pytest.mark.parametrize("kind", ["truncated", "another shape"])
def test_weights_that_do_not_fit_are_named(precflow, workplace, tmp_path, kind):
    torch, safetensors = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    path, name = tmp_path / "weights.safetensors", "text_model.final_layer_norm.weight"
    safetensors.save_file({name: torch.ones(64)}, path)
    says = [str(path), "final_layer_norm.weight has shape [64], expected [768]", "is it a checkpoint of this model?"]
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:-20])
        says = [str(path), "cannot be read", "is the file complete?"]
    ended = precflow("+recipe=sd_text_encoder", ALONE, "reference.device=cpu", f"workload.model.weights={path}")
    assert not ended.problems(2, *says)


WORKLOADS = {
    "raise": ("the workload raised ValueError: the user's own words (hostile.py:", "the traceback is in agent.log"),
    "abort": ("was killed by SIGABRT", "in do_abort", "a library below Python crashed"),
    "leave": ("ended without a result", "os._exit"),
    "number": ("workload.model: hostile.build returned a int; expected a torch.nn.Module",),
}


@pytest.mark.parametrize("how", WORKLOADS)
def test_a_model_that_breaks_is_explained(hostile, how):
    ended = hostile(ALONE, f"workload.model.how={how}")
    assert not ended.problems(2, *WORKLOADS[how], "in stage dump.reference of minilm")
    log = re.search(r"log: (\S+)", ended.err)
    assert (hostile.cwd / log[1]).is_file()


def test_a_model_that_hangs_is_stopped(hostile):
    hostile(ALONE, "stages=[environment]")  # so that the time is the model's own
    for seconds in (2, 8):  # a busy machine may not have come to the model in the first
        ended = hostile(ALONE, "workload.model.how=hang", f"capture.timeout={seconds}s")
        if "hostile.py" in ended.said:
            break
    texts = (f"did not finish within {seconds} s", "capture.timeout=2h", "| Stack (most recent call first)", "hostile.py")
    assert not ended.problems(2, *texts)


INPUTS = {
    "number": ("returned a int", "return a dict of keyword arguments"),
    "misnamed": ("got an unexpected keyword argument 'y'",),
    "too many": ("the tuple does not fit the model's forward: too many positional arguments",),
}


@pytest.mark.parametrize("how", INPUTS)
def test_inputs_of_the_wrong_kind_are_explained(hostile, how):
    assert not hostile(ALONE, f"workload.inputs.how={how}").problems(2, *INPUTS[how])


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (("workload.model.hwo=x",), ("build has no argument `hwo`", "Did you mean how ?")),
        (("capture.scope=[nothing.*]",), ("matches no module", "modules are named like this: (model), first")),
    ],
)
def test_a_workload_that_was_named_wrongly_is_explained(hostile, words, texts):
    assert not hostile(ALONE, *words).problems(2, *texts)


def test_an_eccentric_model_does_no_harm(hostile):
    ended = hostile("-m", ALONE, "workload.model.how=print,bare")
    assert ended.code == 0, ended.err
    assert "forged" not in ended.err
    logs = [path.read_text() for path in ended.folder.glob("store/dump.reference-*/agent.log")]
    assert any("a line of the user's own" in log and "forged" in log for log in logs)


def test_nothing_to_compare_is_not_aligned(hostile):
    assert not hostile("workload.model.how=text").problems(3, "holds no tensor that precflow can find")


def test_after_all_that_a_correct_command_works_and_keeps_what_was_finished(hostile):
    hostile(ALONE, "workload.model.how=raise")
    ended = hostile()
    assert ended.code == 0, ended.err
    states = json.loads((ended.folder / "run.json").read_text())["runs"][-1]["states"]
    assert states["environment.reference"] == "kept"
    assert ended.result["verdict"]["verdict"] == "aligned"


def test_a_store_that_is_none(hostile, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for key in ("store", "runs"):
        assert not hostile(f"{key}={tmp_path / 'file'}").problems(
            2, "is a file; expected a folder, or a place where one can be made"
        )
    assert not hostile("store=/proc/precflow").problems(2, "cannot write in", "choose another folder: runs=DIR or store=DIR")
    assert (tmp_path / "file").read_text() == "not a folder"


@contextmanager
def small_disk(place, size):
    """Mount a file system of a size; the test is skipped where that is not allowed."""
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mounting a small file system is not allowed here: {mounted.stderr.decode().strip()}")
    try:
        yield lambda options: subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="needs a way to mount a small file system")
def test_a_full_and_a_read_only_disk_lose_nothing(hostile, tmp_path):
    place = tmp_path / "disk"
    words = (ALONE, f"runs={place}", "environment.require.free_disk=0GB")
    with small_disk(place, "32k") as remount:
        assert not hostile(*words).problems(2, "no space left", " needed, ", "free space there")
        assert list(place.glob("minilm/store/environment.reference-*/sealed.json"))
        remount("size=2m,ro")
        assert not hostile(*words).problems(2, "cannot write in", "Read-only file system", "runs=DIR or store=DIR")
        remount("rw")
        ended = hostile(*words)
        assert ended.code == 0, ended.err
        assert "stage=environment side=reference state=kept" in ended.err
        remount("ro")
        assert not hostile(*words).problems(2, "cannot write in", "Read-only file system")


def test_the_second_of_two_equal_runs_is_refused_and_the_first_can_be_interrupted(hostile, tmp_path):
    words = (ALONE, "workload.model.how=hang", "capture.timeout=100s", f"runs={tmp_path}")
    with ThreadPoolExecutor(1) as other:
        first = other.submit(hostile, *words)
        owner = json.loads(wait_for(tmp_path, "minilm/store/.making/dump.reference-*.owner").read_text())
        try:
            assert not hostile(*words).problems(2, f"pid {owner['pid']} on {socket.gethostname()}", "wait for it, or stop it")
        finally:
            os.kill(owner["pid"], signal.SIGINT)
    assert not first.result().problems(2, "interrupted; finished stages are kept")


def wait_for(folder: Path, pattern: str) -> Path:
    deadline = time.monotonic() + 120
    while not (found := list(folder.glob(pattern))):
        assert time.monotonic() < deadline, pattern
        time.sleep(0.1)
    return found[0]
