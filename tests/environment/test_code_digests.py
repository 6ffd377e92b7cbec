"""Whatever code a factory runs is part of a key, not only the file that it stands in."""

import pytest

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
