"""Runs the real program as its users do: a process of its own, in a working directory shared by the session."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


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


@pytest.fixture
def precflow(workplace):
    """Return a function that runs ``precflow`` with the given words."""

    def run(*words, recipe="sd_text_encoder", cwd=workplace, timeout=300, **variables):
        environment = {name: value for name, value in os.environ.items() if name != "CI"}
        environment.update(variables)
        command = [sys.executable, "-m", "precflow", *words]
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout)
        return Ended(done.returncode, done.stdout, done.stderr, Path(cwd) / "runs" / recipe)

    return run
