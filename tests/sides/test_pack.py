import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import precflow
from precflow.errors import StoreError
from precflow.sides import pack


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Return the packed agent."""
    return pack.build(tmp_path_factory.mktemp("packed"))


def alone(packed, *words, cwd):
    """Run the agent where precflow cannot be imported: isolated, elsewhere, without site packages of ours on the path."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [sys.executable, "-I", str(packed), *map(str, words)], cwd=cwd, env=clean, capture_output=True, text=True
    )


def test_the_same_sources_give_the_same_bytes(packed, tmp_path):
    other = pack.build(tmp_path / "deeper" / "agent.pyz")
    assert other.read_bytes() == packed.read_bytes()
    assert packed.name == "precflow-agent.pyz"


def test_it_holds_the_agent_and_nothing_else(packed):
    names = zipfile.ZipFile(packed).namelist()
    assert {"__main__.py", "precflow/__init__.py", "precflow/agent/worker.py", "precflow/agent/emulated/__init__.py"} <= set(
        names
    )
    assert all(
        name in ("__main__.py", "precflow/__init__.py", "precflow/version.py") or name.startswith("precflow/agent/")
        for name in names
    )
    assert all(name.endswith(".py") for name in names)
    assert packed.stat().st_size < 550_000
    assert os.access(packed, os.X_OK)


def test_it_explains_itself_and_tells_its_version(packed, tmp_path):
    done = alone(packed, cwd=tmp_path)
    assert done.returncode == 2
    assert "precflow-agent" in done.stderr
    assert alone(packed, "--version", cwd=tmp_path).stdout == f"precflow-agent {precflow.__version__}\n"


def test_it_is_its_own_precflow(packed, tmp_path):
    script = f"import sys; sys.path.insert(0, {str(packed)!r}); import precflow, precflow.agent.worker as w; print(w.__file__)"
    done = subprocess.run([sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(packed))


def test_an_interpreter_without_precflow_makes_a_dump(packed, tmp_path, asked, output):
    """A virtual environment that sees torch and nothing of ours."""
    import torch

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    site = next((tmp_path / "bare" / "lib").glob("python*/site-packages"))
    for library in Path(torch.__file__).parents[1].iterdir():
        if "precflow" not in library.name:
            (site / library.name).symlink_to(library)
    python = tmp_path / "bare" / "bin" / "python"
    probe = subprocess.run([python, "-I", "-c", "import precflow"], cwd=tmp_path, capture_output=True, text=True)
    assert "No module named 'precflow'" in probe.stderr
    path = tmp_path / "request.json"
    path.write_text(json.dumps(asked()))
    done = subprocess.run([python, "-I", packed, path], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((output / "dump.json").read_text())["agent"] == precflow.__version__


def test_an_old_python_is_refused_before_it_reads_newer_syntax(packed):
    import ast

    door = zipfile.ZipFile(packed).read("__main__.py").decode()
    assert ast.parse(door, feature_version=(3, 5))
    script = f"import sys; sys.version_info = (3, 7, 9, 'final', 0); exec(compile({door!r}, 'door', 'exec'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    event = json.loads(done.stdout)
    assert done.returncode == 2
    assert (event["event"], event["kind"]) == ("error", "unsupported")
    assert "needs Python 3.8 or newer" in event["message"]
    assert "Python 3.7" in event["message"]


def test_the_cache_is_used_again_and_follows_the_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(pack.platformdirs, "user_cache_path", lambda _: tmp_path / "cache")
    first = pack.find_or_build()
    stamp = first.stat().st_mtime_ns
    assert pack.find_or_build() == first
    assert first.stat().st_mtime_ns == stamp
    monkeypatch.setattr(pack, "_ENTRY_SCRIPT", "# other\n")
    assert pack.find_or_build() != first


def test_without_a_cache_a_temporary_folder_does(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(pack.platformdirs, "user_cache_path", lambda _: tmp_path / "file")
    monkeypatch.setattr(pack.tempfile, "mkdtemp", lambda prefix: str(tmp_path))
    assert pack.find_or_build().parent == tmp_path


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        pack.build(tmp_path / "file" / "agent.pyz")
