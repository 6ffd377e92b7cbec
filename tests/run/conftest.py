"""Two small dumps and the recipe that compares them: runs without an agent."""

import importlib.util
from pathlib import Path

import pytest

from precflow.config.composition import compose
from precflow.run.runner import run

_SPEC = importlib.util.spec_from_file_location("stage_fixtures", Path(__file__).parents[1] / "stages" / "conftest.py")
stage_fixtures = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(stage_fixtures)


@pytest.fixture(name="stage_fixtures")
def _stage_fixtures():
    """Return what the tests of the stages write dumps with."""
    return stage_fixtures


@pytest.fixture(scope="session")
def two_runs(tmp_path_factory):
    """Make two runs, once for all tests: the first has a fault in fc2, the second is without it and has another limit."""
    folder = tmp_path_factory.mktemp("two_runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, factor, words in (("faulty", 1.01, []), ("whole", 1.0, ["tolerance.cosine_similarity=0.9"])):
            pair = stage_fixtures.write_pair(folder / name, factor=factor)
            given = [f"{side}.dump={pair / side}" for side in ("reference", "target")]
            run(compose(["+recipe=compare_dumps", *given, *words]), command=f"precflow {name}")
    return folder


@pytest.fixture
def composed(tmp_path, monkeypatch):
    """Return a function that composes ``compare_dumps`` over two dumps whose second operator differs by ``factor``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)

    def make(*words, factor=1.0, name="dumps", **options):
        folder = tmp_path / name
        if not folder.exists():
            stage_fixtures.write_pair(folder, factor=factor, **options)
        given = [f"{side}.dump={folder / side}" for side in ("reference", "target")]
        return compose(["+recipe=compare_dumps", *given, *words])

    return make
