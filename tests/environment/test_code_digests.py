"""Whatever code a factory runs is part of a key, not only the file that it stands in."""

import pytest

from precflow.environment import code_digests
from precflow.environment.code_digests import digest_packages


@pytest.fixture
def project(tmp_path):
    """Return a folder with a module, a helper beside it, a package, and one without ``__init__.py``."""
    (tmp_path / "my_model.py").write_text("import json\nfrom my_layers import Block\n")
    (tmp_path / "my_layers.py").write_text("def f():\n    import my_constants\n")
    (tmp_path / "my_constants.py").write_text("SCALE = 1\n")
    (tmp_path / "unrelated.py").write_text("x = 1\n")
    (tmp_path / "plain" / "deep").mkdir(parents=True)
    (tmp_path / "plain" / "deep" / "net.py").write_text("from . import other\n")
    return tmp_path


def found(project, name="my_model", **origins):
    return digest_packages([name], [str(project)], origins)


def test_what_is_imported_beside_it_counts(project):
    assert list(found(project)) == ["my_constants", "my_layers", "my_model"]


@pytest.mark.parametrize(("file", "changes"), [("my_constants.py", True), ("my_layers.py", True), ("unrelated.py", False)])
def test_a_helper_that_changes_changes_it(project, file, changes):
    before = found(project)
    (project / file).write_text("SCALE = 2\n")
    assert (found(project) != before) is changes


def test_a_package_needs_no_init(project):
    before = found(project, "plain")
    assert before["plain"]
    (project / "plain" / "deep" / "net.py").write_text("x = 2\n")
    assert found(project, "plain") != before


def test_settings_and_built_extensions_of_a_package_count(project):
    before = found(project, "plain")
    (project / "plain" / "settings.yaml").write_text("scale: 2\n")
    after = found(project, "plain")
    (project / "plain" / "kernel.so").write_bytes(b"\x7fELF")
    assert len({before["plain"], after["plain"], found(project, "plain")["plain"]}) == 3


def test_what_the_interpreter_finds_comes_first(project, tmp_path):
    elsewhere = tmp_path / "src" / "my_model"
    elsewhere.mkdir(parents=True)
    (elsewhere / "__init__.py").write_text("x = 1\n")
    before = found(project, my_model=[str(elsewhere)])
    assert before != found(project)
    (elsewhere / "__init__.py").write_text("x = 2\n")
    assert found(project, my_model=[str(elsewhere)]) != before


def test_what_is_nowhere_or_no_python_is_no_failure(project):
    assert digest_packages(["absent"], [str(project)], {}) == {"absent": ""}
    (project / "my_model.py").write_text("def broken(:\n")
    assert list(found(project)) == ["my_model"]


def write(path, text="{}"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    "names",
    [
        ["runs/x/run.json", "runs/x/public/result.json"],  # as runs=plain/runs
        ["elsewhere/x/run.json", "elsewhere/x/run.lock", "elsewhere/x/public/result.json"],
        ["shared/x/.making/judge-1-7/judged.json"],
        ["shared/x/.making/a", "shared/x/judge-1/verdict.json", "shared/x/judge-1.failed/verdict.json"],
        ["judge-1/sealed.json", "judge-1/verdict.json"],
        ["out/dump.json", "out/rank0/step0/step.json"],
        [".git/x.json", ".venv/lib/a.py", "__pycache__/a.json"],
        ["logs/gpulog.json"],
    ],
)
def test_what_runs_write_below_a_package_is_no_code(project, monkeypatch, names):
    monkeypatch.chdir(project)
    written = ["plain/runs", "plain/logs/*.json"]
    before = digest_packages(["plain"], [str(project)], {}, written=written)
    for name in names:
        write(project / "plain" / name)
    assert digest_packages(["plain"], [str(project)], {}, written=written) == before
    write(project / "plain" / "configs" / "base.json")
    assert digest_packages(["plain"], [str(project)], {}, written=written) != before


def test_a_package_inside_a_run_folder_has_code(project, monkeypatch):
    monkeypatch.chdir(project)
    assert digest_packages(["plain"], [str(project)], {}, written=["."]) == digest_packages(["plain"], [str(project)], {})


def test_a_file_that_goes_while_it_is_looked_for_is_none(project, monkeypatch):
    before = found(project, "plain")
    write(project / "plain" / "half.json")
    plain = code_digests.keys.file_digest

    def late(file):
        if file.name == "half.json":
            file.unlink()
        return plain(file)

    monkeypatch.setattr(code_digests.keys, "file_digest", late)
    assert found(project, "plain") == before
