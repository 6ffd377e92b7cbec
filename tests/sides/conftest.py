"""Sides for the launcher: real agents with a toy workload, and impostors that crash, hang or lie."""

import stat
import sys

import pytest

from precflow.config.schema import Side

TOY = """
import os, signal, sys, time
import torch


class Toy(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        kind, _, rank = kind.partition("@")  # `killed@1` kills rank 1 alone
        self.kind = kind if not rank or os.environ.get("RANK") == rank else ""

    def forward(self, features):
        print("a line of the user's own", flush=True)
        if self.kind == "abort":
            os.abort()
        if self.kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "raises":
            raise ValueError("upset")
        if self.kind == "hangs":
            time.sleep(1000)
        if self.kind == "leaves":
            sys.exit(0)
        if self.kind == "interrupts":
            raise KeyboardInterrupt
        return self.linear(features)


def build(kind=""):
    return Toy(kind)


def inputs(rows=2):
    return {"features": torch.ones(rows, 4)}
"""


@pytest.fixture
def output(tmp_path):
    """Return an empty folder for one agent."""
    folder = tmp_path / "output"
    folder.mkdir()
    return folder


@pytest.fixture
def asked(tmp_path, output):
    """Return a function that makes the request of a dump of the toy."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "toy_launched.py").write_text(TOY)

    def make(kind="", **changes):
        request = {
            "schema": 1,
            "action": "dump",
            "side": "target",
            "recipe": "toy",
            "declared": "",
            "output": str(output),
            "device": ["cpu"],
            "ci": False,
            "dtype": "float32",
            "determinism": {"seed": 11, "algorithms": "native", "repeat": False},
            "workload": {
                "model": {"_target_": "toy_launched.build", "kind": kind},
                "inputs": {"_target_": "toy_launched.inputs"},
            },
            "trusted": ["toy_launched"],
            "import_paths": [str(code)],
        }
        return {**request, **changes}

    return make


@pytest.fixture
def impostor(tmp_path):
    """Return a function that makes a side whose interpreter is this script."""

    def make(body, **settings):
        path = tmp_path / "impostor"
        path.write_text(f"#!{sys.executable}\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return Side(interpreter=str(path), **settings)

    return make
