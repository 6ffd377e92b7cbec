"""Runs the real program as its users do: a process of its own, in a working directory shared by the session.

The process is a fork of one that has imported everything, see ``support/warm.py``; ``cold=True`` starts an interpreter.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

FIXED_LIMITS = "tolerance.standards=[default]"


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def result(self) -> dict:
        """The run's result.json."""
        return json.loads((self.folder / "public" / "result.json").read_text(encoding="utf-8"))

    @property
    def said(self) -> str:
        """What is on stderr, without line ends and runs of spaces."""
        return " ".join(self.err.split())

    def problems(self, code, *texts) -> list:
        """Return what is wrong with an explanation: another exit code, words that are missing, a traceback, a clean verdict."""
        bad = ["Traceback", "precflow itself failed", *(["✓ ALIGNED", "verdict=aligned"] if code else [])]
        found = [f"exit code {self.code}, expected {code}"] if self.code != code else []
        found += [f"not said: {text}" for text in texts if text not in self.said]
        found += [f"said: {text}" for text in bad if text in self.err]
        return [*found, self.err] if found else []


@pytest.fixture(scope="session")
def precflow(workplace, warm_server):
    """Return a function that runs ``precflow`` with the given words.

    Runs have fixed limits unless a test says otherwise: measuring the noise floor is three more runs of the model.
    """

    def run(*words, recipe="sd_text_encoder", cwd=workplace, timeout=300, cold=False, **variables):
        if any(word.startswith("+recipe=") for word in words) and not any("tolerance.standards=" in word for word in words):
            words = (*words, FIXED_LIMITS)
        environment = {name: value for name, value in os.environ.items() if name != "CI"}
        environment.update(variables)
        folder = Path(cwd) / "runs" / recipe
        if not cold and warm_server.serves(environment):
            return Ended(*warm_server.run(words, cwd=cwd, env=environment, timeout=timeout), folder)
        command = [sys.executable, "-m", "precflow", *words]
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout)
        return Ended(done.returncode, done.stdout, done.stderr, folder)

    return run


@pytest.fixture(scope="session")
def hostile(precflow, tmp_path_factory):
    """Return a function that runs recipe ``minilm`` over ``workloads/hostile.py``, on the CPU on both sides."""
    cwd = tmp_path_factory.mktemp("hostile")
    shutil.copy(Path(__file__).parent / "workloads" / "hostile.py", cwd)
    workload = ("workload.model._target_=hostile.build", "workload.inputs._target_=hostile.inputs")
    devices = ("reference.device=cpu", "target.device=cpu")

    def run(*words, **options):
        return precflow("+recipe=minilm", *workload, *devices, *words, **{**run.options, **options})

    run.options = {"cwd": cwd, "recipe": "minilm", "timeout": 600, "PRECFLOW_TRUST": "hostile", "OMP_NUM_THREADS": "1"}
    run.cwd = cwd
    return run


@pytest.fixture(scope="session")
def dumps(hostile):
    """Return sealed dumps of the model's variants: name -> folder. Each took an agent; tests copy what they change."""
    variants = "plain lacks shape double all_nan half infinity zero weights names names_wrong"
    ended = hostile("-m", "sides=[reference]", f"workload.model.how={','.join(variants.split())}")
    assert ended.code == 0, ended.err
    requests = [
        (path.parent, json.loads(path.read_text())) for path in ended.folder.glob("store/dump.reference-*/request.json")
    ]
    return {request["workload"]["model"]["how"]: folder for folder, request in requests if (folder / "dump.json").exists()}
