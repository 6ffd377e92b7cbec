"""What is compiled once is loaded by the next process, and only by the source that it was compiled from."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")  # extra `fast`

from precflow import compiling

pytestmark = pytest.mark.xdist_group("compiled")  # the kernel is compiled once
SMALL = """
import json
from precflow import compiling

def double(value):
    return 2 * value

form = compiling.compile_cached(double)
doubled = form(5.0)
print(json.dumps([sum(form.stats.cache_hits.values()), sum(form.stats.cache_misses.values()), doubled]))
"""
SCRIPT = """
import json
import numpy as np
from precflow.comparison.compiled.engine import find_compiled_pass
form = find_compiled_pass("float32", "float32")
if form:
    ones = np.ones(10, np.float32)
    summary = form(ones, ones * 2, 0, 10)
    stats = form.kernel.stats
    print(json.dumps([sum(stats.cache_hits.values()), sum(stats.cache_misses.values()), float(summary.difference_sum)]))
else:
    print("NumPy")
"""


def run(script, **variables):
    """Run a script by an interpreter of its own."""
    words, given = [sys.executable, "-c", script], {**os.environ, **variables}
    return subprocess.run(words, env=given, capture_output=True, text=True, check=True, timeout=120)


@pytest.fixture
def forked(tmp_path, warm_server):
    """Return a function that runs a script in a process of its own, which need not import numba: it is a fork."""

    def run_forked(script, **variables):
        (tmp_path / "script.py").write_text(script)
        given = {**os.environ, **variables}
        code, said, wrong = warm_server.run(["script.py"], cwd=tmp_path, env=given, timeout=120, module="")
        assert code == 0, wrong
        return said.strip()

    return run_forked


def test_the_second_process_loads_the_kernel_that_an_earlier_one_compiled(forked):
    forked(SCRIPT)
    assert forked(SCRIPT) == "[1, 0, 10.0]"


def test_what_is_compiled_is_kept_in_the_folder_that_is_named(tmp_path, forked):
    cache = tmp_path / "cache"
    assert forked(SMALL, NUMBA_CACHE_DIR=str(cache)) == "[0, 1, 10.0]"
    assert forked(SMALL, NUMBA_CACHE_DIR=str(cache)) == "[1, 0, 10.0]"
    assert [path.name for path in cache.iterdir()] == [f"kernel-{compiling.fingerprint()}"]


def test_every_module_that_compiled_code_imports_is_in_its_fingerprint():
    root = Path(compiling.__file__).parent
    waiting = {*root.glob("comparison/compiled/*.py"), *root.glob("dumps/compiled/*.py")}
    needed: set[Path] = set()
    while waiting:
        needed.add(path := waiting.pop())
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("precflow"):
                places = [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
                files = [root.parent / f"{place.replace('.', '/')}.py" for place in places]
                waiting |= {file for file in files if file.is_file()} - needed
    assert root / "dumps" / "digest.py" in needed
    assert needed <= {*compiling.list_sources()}
    assert root / "dumps" / "records.py" not in compiling.list_sources()  # or each change of a reader compiles everything


def test_where_nothing_can_be_kept_it_is_compiled_each_time(tmp_path, forked):
    (tmp_path / "file").write_text("")
    nowhere = str(tmp_path / "file" / "folder")
    assert [forked(SMALL, NUMBA_CACHE_DIR=nowhere) for _ in range(2)] == ["[0, 1, 10.0]"] * 2


def test_without_a_compiler_numpy_does_it():
    done = run(SCRIPT, NUMBA_DISABLE_JIT="1")
    assert done.stdout == "NumPy\n"
    assert "comparing float32 with float32 by NumPy" in done.stderr


def test_the_folder_is_the_chosen_one_or_the_users_own(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert compiling.folder().parent == tmp_path
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    if sys.platform == "linux":
        assert compiling.folder().parent == tmp_path / "mine" / "precflow"


@pytest.mark.parametrize(
    "changed", ["comparison/compiled/bits.py", "comparison/fused/value_classes.py", "dumps/digest.py", "agent/contract.py"]
)
def test_any_change_of_the_source_is_another_folder(monkeypatch, tmp_path, changed):
    root = Path(compiling.__file__).parent
    for package in ("comparison", "dumps", "agent"):
        shutil.copytree(root / package, tmp_path / package)
    shutil.copy(root / "compiling.py", tmp_path)
    before = compiling.fingerprint()
    monkeypatch.setattr(compiling, "__file__", str(tmp_path / "compiling.py"))
    assert compiling.fingerprint() == before
    with (tmp_path / changed).open("a", encoding="utf-8") as file:
        file.write("\n")
    assert compiling.fingerprint() != before


def test_other_users_of_numba_keep_their_folder():
    numba = pytest.importorskip("numba")
    before = numba.config.CACHE_DIR
    assert compiling.compile_cached(lambda value: value + 1)(1) == 2
    assert before == numba.config.CACHE_DIR


def test_scipys_linear_algebra_is_not_loaded_and_is_there_for_who_compiles_with_it():
    pytest.importorskip("scipy")
    script = f"""
import sys
{SCRIPT}
assert "scipy.linalg" not in sys.modules
import numba
dot = numba.njit(lambda left, right: np.dot(left, right))
inverse = numba.njit(lambda matrix: np.linalg.inv(matrix))
print(dot(np.ones((2, 2)), np.ones((2, 2)))[0, 0], inverse(2 * np.eye(2))[0, 0])
import numba.np.arraymath as arrays
assert arrays._HAVE_BLAS
"""
    done = run(script)
    assert done.stdout.splitlines()[-1] == "2.0 0.5"
