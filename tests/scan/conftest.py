import subprocess

import pytest

from precflow.scan.rules import load_rules


@pytest.fixture(scope="session")
def rules():
    return load_rules()


@pytest.fixture
def write(tmp_path):
    """Write files, given as path -> text or bytes, into a folder and return it."""

    def write_files(files, name="tree"):
        for path, content in files.items():
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return tmp_path / name

    return write_files


@pytest.fixture
def git_apply(tmp_path):
    """Apply a patch in a folder with git, and return what git says."""

    def apply(patch, tree):
        file = tmp_path / "scan.patch"
        file.write_bytes(patch)
        done = subprocess.run(["git", "apply", str(file)], cwd=tree, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stderr

    return apply
