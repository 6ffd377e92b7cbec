"""Runs scripts in processes forked from this one: plainly, as `python script.py` does, and under the agent.

What each of them would import is imported here: the agent, and what torch imports at an optimizer's first step.
"""

import contextlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch._dynamo  # noqa: F401

from precflow.agent import ranks as agent_ranks
from precflow.agent import request, worker
from precflow.agent.__main__ import _run_rank as run_rank
from precflow.agent.devices import choose, cpu  # noqa: F401  of each process
from precflow.agent.events import Events
from precflow.agent.failures import AgentError
from precflow.agent.script import dump  # noqa: F401  of each process, and a second's work there
from precflow.agent.session import environment
from precflow.dumps.formats import read_dump

SCRIPTS = Path(__file__).parent / "scripts"
PHASES = ["forward", "backward", "gradient", "optimizer"]


def forked(work, log):
    """Do some work in a forked process, with its output in a file; return its exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for number in (1, 2):
                os.dup2(file, number)
            # pytest has put its own streams in place of these.
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            code = work()
        except SystemExit as left:
            code = left.code or 0
        except BaseException:  # noqa: BLE001  the child must end here
            traceback.print_exc()
        finally:
            with contextlib.suppress(ValueError):  # the script may have closed them
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture(scope="session", autouse=True)
def packages_listed(own_interpreter_answers_once):
    """List what is installed once, and not in each process."""
    environment.list_packages()


@pytest.fixture
def plain(tmp_path):
    """Return a function that runs a script without precflow and returns what it wrote."""

    def run(name, *words, compiles=False):
        result = tmp_path / "plain.json"

        def work():
            if not compiles:
                os.environ["TORCHDYNAMO_DISABLE"] = "1"
            sys.argv[:] = [name, str(result), *words]
            if name.startswith("-m "):
                os.chdir(tmp_path)
                sys.path.insert(0, str(tmp_path))
                runpy._run_module_as_main(name[3:])  # which is what the interpreter calls
                return 0
            sys.path.insert(0, str(SCRIPTS))
            runpy.run_path(str(SCRIPTS / name), run_name="__main__")
            return 0

        assert forked(work, tmp_path / "plain.log") == 0, (tmp_path / "plain.log").read_text()
        return json.loads(result.read_text())

    return run


@pytest.fixture
def watch(tmp_path):
    """Return a function that runs a script under the agent and returns its dump, its error and what it wrote."""
    return watch_in(tmp_path)


@pytest.fixture(scope="module")
def watched_once(tmp_path_factory):
    """Return such a function for what several tests of a module read: a script that is watched in the same way runs once."""
    made = {}

    def run(*words, **options):
        asked = repr((words, options))
        if asked not in made:
            made[asked] = watch_in(tmp_path_factory.mktemp("once"))(*words, **options)
        return made[asked]

    return run


@pytest.fixture(scope="module")
def shared_script(tmp_path_factory):
    """Return a function that writes a script for all tests of a module and returns its path."""

    def write(text):
        path = tmp_path_factory.mktemp("script") / "train.py"
        path.write_text(text)
        return str(path)

    return write


def watch_in(place):
    """Return a function that runs scripts under the agent in one folder."""

    def run(
        script,
        *words,
        workload=None,
        capture=None,
        determinism=None,
        device="cpu",
        side="target",
        folder="dump",
        first=None,
        emulate=None,
        action="dump",
        plain_run=None,
        batches=None,
        noise="",
        ranks=1,
    ):
        output, result = place / folder, place / f"{folder}.json"
        output.mkdir()
        path = script if script.startswith("-m ") else str(SCRIPTS / script)  # an absolute one stays
        plain = {
            "schema": 1,
            "action": action,
            "noise": noise,
            "side": side,
            "ranks": ranks,
            "output": str(output),
            "device": [device],
            "emulate": {"name": "planted", "rules": emulate or []},
            "workload": {"script": path, "arguments": {"_": [str(result), *words]}, **(workload or {})},
            "determinism": {
                "seed": "script",
                "algorithms": "native",
                "random_numbers": "device",
                "dropout": "kept",
                "repeat": False,
                **(determinism or {}),
            },
            "first_run": "" if first is None else str(first.folder),
            "batches": "" if batches is None else str(batches.folder),
            "plain_run": "" if plain_run is None else str(plain_run.folder),
            "capture": {"phase": PHASES, "step": [0, 1], "detail": "digest", **(capture or {})},
        }

        def work():
            os.chdir(place)
            # As the agent's own process: nothing that pytest has imported from the scripts' names is in the way.
            with (place / f"{folder}.events").open("w") as stream:
                try:
                    checked, events = request.parse(plain), Events(stream)
                    if ranks > 1:
                        return agent_ranks.start(
                            checked, events, lambda rank: run_rank(checked, events.of_rank(rank)), lambda _: None
                        )
                    worker.run(checked, events)
                except AgentError as error:
                    stream.write(json.dumps({"kind": error.kind, "message": error.message, "next_step": error.next_step}))
                    return 2
            return 0

        log = place / f"{folder}.log"
        code = forked(work, log)
        lines = (place / f"{folder}.events").read_text().splitlines()
        return SimpleNamespace(
            code=code,
            log=log.read_text(),
            error=json.loads(lines[-1]) if code == 2 else None,
            folder=output,
            dump=read_dump(output, allow_unsealed=True) if any(output.glob("rank*/step*")) else None,
            printed=(output / "output.log").read_text() if (output / "output.log").exists() else "",
            wrote=json.loads(result.read_text()) if result.exists() else None,
        )

    return run


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a script of its own and returns its path."""

    def write(text, name="train.py"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write
