"""Which image broke it: sides behind ``docker run IMAGE``, whose interpreter is in the image; docker is a script here."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from amounts import ALL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("training"),
    # Ten interpreters start. That another image is another side is held by tests/sides/test_interpreter.py each time.
    pytest.mark.skipif(not ALL, reason="it takes twenty seconds: set PRECFLOW_ALL_EXAMPLES"),
]
DOCKER = """#!/bin/sh
# docker run --rm IMAGE PYTHON ARGUMENTS
export FAKE_IMAGE="$3"
echo "$3" >> {log}
shift 4
exec {python} "$@"
"""


def test_the_first_image_that_computes_something_else_is_found(precflow, tmp_path):
    shutil.copy(Path(__file__).parent / "workloads" / "shipped_in_an_image.py", tmp_path)
    docker, log = tmp_path / "docker", tmp_path / "started"
    docker.write_text(DOCKER.format(python=sys.executable, log=log), encoding="utf-8")
    docker.chmod(0o755)
    images = ",".join(f"[{docker},run,--rm,app:{number}]" for number in (1, 2))
    words = (
        "bisect", "+recipe=[minilm,upgrade_check]", "workload.model._target_=shipped_in_an_image.build",
        "workload.inputs._target_=shipped_in_an_image.inputs", "reference.device=cpu", "determinism.repeat=false",
        "reference.interpreter=/in/the/image/python", "target.interpreter=/in/the/image/python",
        f"reference.launcher=[{docker},run,--rm,app:0]", f"target.launcher={images}", "tolerance.standards=[default]", "--json",
    )  # fmt: skip
    ended = precflow(*words, cwd=tmp_path, PRECFLOW_TRUST="shipped_in_an_image", OMP_NUM_THREADS="1", timeout=600)
    assert ended.code == 1, ended.err
    told = json.loads(ended.out)
    assert [each["verdict"] for each in told["versions"]] == ["aligned", "misaligned"]
    started = log.read_text(encoding="utf-8").split()
    assert started.count("app:0") == 2  # what the old image is and computes is asked for once
    assert {"app:1", "app:2"} <= set(started)
