"""Two small dumps written by hand, and a job over them: a stage that starts an agent has a fork of a warm one."""

import dump_builder as builder
import numpy as np
import pytest

from precflow.config.composition import compose
from precflow.run.jobs import make_job

HIDDEN = np.random.default_rng(5).standard_normal((4, 16)).astype(np.float32)


def write_pair(folder, *, factor=1.0, sealed=True, **target_header):
    """Write a reference and a target of two operators each; the second operator's output is scaled on the target."""
    for side, scale in (("reference", 1.0), ("target", factor)):
        dump = builder.DumpBuilder(folder / side, side=side)
        dump.call("fc1", "linear", [HIDDEN], [HIDDEN])
        dump.call("fc2", "linear", [HIDDEN * np.float32(scale) + 1], [HIDDEN])
        dump.header_changes = target_header if side == "target" else {}
        dump.write(sealed=sealed or side == "reference")
    return folder


@pytest.fixture
def pair(tmp_path):
    """Return a function that writes two dumps below a folder of their own."""
    return lambda name="dumps", **options: write_pair(tmp_path / name, **options)


@pytest.fixture
def job_of(tmp_path, monkeypatch):
    """Return a function that makes the job of ``compare_dumps`` over two dumps."""
    monkeypatch.chdir(tmp_path)

    def make(folder, *words):
        given = [f"{side}.dump={folder / side}" for side in ("reference", "target")]
        return make_job(compose(["+recipe=compare_dumps", *given, *words], complete=False), command="precflow ...")

    return make


@pytest.fixture
def made(tmp_path, job_of):
    """Return a function that runs stages one after the other and returns their folders by name."""
    from precflow.stages import registry

    def run(folder, *words, until="report"):
        job, folders = job_of(folder, *words), {}
        for stage in registry.instances(job.config):
            folders[stage.name] = tmp_path / "made" / stage.name
            folders[stage.name].mkdir(parents=True)
            stage.make(job, folders[stage.name], {name: folders[name] for name in stage.needs})
            if stage.name == until:
                break
        return folders

    return run
