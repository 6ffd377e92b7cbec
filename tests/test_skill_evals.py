"""The tasks of ``skills/precflow/evals.yaml``, done by a reader who knows nothing but the skill and does what it says."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from torch.utils._python_dispatch import TorchDispatchMode

import precflow
from precflow import cli

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "skills" / "precflow"
SKILL = (FOLDER / "SKILL.md").read_text(encoding="utf-8")
TASKS = yaml.safe_load((FOLDER / "evals.yaml").read_text(encoding="utf-8"))
pytestmark = pytest.mark.xdist_group("skill evals")


class Kernels(TorchDispatchMode):
    """Kernels of the target: what torch calls is the same, what they compute is not."""

    def __init__(self, fault):
        super().__init__()
        self.fault, self.products = fault, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name == "native_layer_norm" and self.fault == "a norm that ignores its epsilon":
            args = (*args[:4], 1e-3)
        made = function(*args, **(kwargs or {}))
        self.products += name == "addmm"
        if name != "addmm" or self.products != 2:
            return made
        if self.fault == "a product that is one percent too large":
            return made * 1.01
        if self.fault == "a NaN in a product":
            return made.masked_fill(torch.arange(made.numel()).reshape(made.shape) == 5, torch.nan)
        if self.fault == "a product that no rule explains":
            return made + 0.02 * made.abs().mean() * torch.arange(made.numel()).reshape(made.shape).mul(0.7).sin()
        return made


def set_up(given):
    """Put what a task is about into the working folder, as A and B."""
    if given == "losses that part after some steps":
        for name, apart in (("A", 0.0), ("B", 0.02)):
            losses = [3.0 / (1 + 0.05 * step) + apart * max(0, step - 20) for step in range(60)]
            lines = "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in enumerate(losses))
            Path(name).write_text(lines, encoding="utf-8")
        return
    record("A", "nothing")
    record("B", given)


def record(folder, fault):
    """Record a small network on a device with this fault."""
    torch.manual_seed(1 if fault == "other weights" else 0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 8))
    x = torch.linspace(-3, 3, 128).sin().reshape(8, 16).mul(0.05)
    with torch.no_grad(), Kernels(fault), precflow.capture(model, folder, detail="tensors"):
        model(x)


def first_command(have):
    """Return what the skill says to type first."""
    rows = dict(re.findall(r"^\| ([^|]+?) \| `(precflow [^`]+)`", SKILL.partition("## Where to begin")[2], re.MULTILINE))
    return rows[have]


def read_result(recipe):
    """Do what section 3 of the skill says, for the folder of this run: verdict and start, then the findings."""
    lines = re.findall(r"^python3 -c (.+)$", SKILL.partition("## 3. Read")[2].partition("## 4.")[0], re.MULTILINE)
    programs = [shlex.split(line)[0].replace("runs/sd_text_encoder", f"runs/{recipe}") for line in lines]
    said = [run_python(program) for program in programs]
    verdict, _, start = said[0].partition(" ")
    return verdict, start, [tuple(each) for each in json.loads(said[1].translate(str.maketrans("()'", '[]"')))]


def run_python(program):
    return subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True).stdout.strip("\n")


def decide(findings):
    """Choose by certainty, as the skill's list says; which finding comes first decides among equals."""
    for certainty, act, sentence in (
        ("certain", "fix", "Fix it."),
        ("unknown", "report", "Do not invent a cause"),
        ("likely", "confirm", "Confirm it before you change the model."),
        ("possible", "confirm", "Confirm it before you change the model."),
    ):
        assert sentence in SKILL
        for rule, given, _ in findings:
            if given == certainty:
                return act, rule
    return "nothing", None


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task["given"].replace(" ", "_"))
def test_task_is_solved_by_what_the_skill_says(task, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    set_up(task["given"])
    answer = task["answer"]

    typed = shlex.split(first_command(task["have"]))
    recipe = typed[1].removeprefix("+recipe=")
    code = cli.main(typed[1:])
    verdict, start, findings = read_result(recipe)
    act, rule = decide(findings)
    found = {"exit": code, "verdict": verdict, "start": start, "act": act, "rule": rule}
    assert found == {key: answer.get(key) for key in found}
    assert verdict in re.search(rf"\b{code} (\w+)", SKILL.partition("exit code is the verdict")[2])[1]
    if rule is None:
        return

    capfd.readouterr()
    assert cli.main(["show", rule, f"runs/{recipe}", "--json"]) == 0
    finding = json.loads(capfd.readouterr().out)["findings"][0]
    assert answer["says"] in finding["fix"] + finding["claim"], finding
    assert "Type the command of `try_it`." in SKILL
    following = shlex.split(finding["try_it"])[1:]
    if "workload.script=TRAIN.py" in following:  # a file of the user's, whose training would take a while
        assert "stands for a file of yours" in " ".join(SKILL.split())
        Path("TRAIN.py").touch()
        following.insert(0, "validate")
    assert cli.main(following) in {0, 1, 3}, finding["try_it"]
    if act == "fix":
        assert "After a fix, type the original command again; only exit code 0 means that it worked." in " ".join(SKILL.split())
        (tmp_path / "B").rename(tmp_path / "before")
        record("B", "nothing")
        assert cli.main(typed[1:]) == 0
