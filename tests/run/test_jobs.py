"""Who is trusted, and whether this is continuous integration."""

import pytest

from precflow.run.jobs import in_ci, make_job


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("1", True), ("", False), ("false", False)])
def test_ci_is_a_true_word(composed, monkeypatch, value, expected):
    config = composed().config
    monkeypatch.setenv("CI", value)
    assert in_ci(config) is expected


def test_output_ci_is_ci(composed):
    assert in_ci(composed("output=ci").config)


def test_trust_comes_from_the_environment_and_modules_from_here(composed, monkeypatch, tmp_path):
    monkeypatch.setenv("PRECFLOW_TRUST", "my_model")
    monkeypatch.setenv("PYTHONPATH", "/one")
    job = make_job(composed(), command="")
    assert "my_model" in job.trusted
    assert job.import_paths == (str(tmp_path), "/one")
