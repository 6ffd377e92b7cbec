import pytest

from precflow.config import standards


def test_names_are_the_files():
    assert {"allclose", "default"} <= set(standards.names())


def test_limits_are_read_with_their_units():
    assert standards.limits("default", "float32") == {"relative_l2": 2.0**-16}
    assert standards.limits("nothing_of_this_name", "float32") == {}
    assert standards.limits("default", "int8") == {}


@pytest.mark.parametrize(("dtypes", "dtype"), [(("float32", "float16"), "float16"), (("bfloat16", "float16"), "bfloat16")])
def test_the_coarsest_type_decides(dtypes, dtype):
    assert standards.coarsest(*dtypes) == dtype


def test_a_limit_in_percent_of_a_team_is_read_too(tmp_path):
    (tmp_path / "ours.yaml").write_text("title: t\nsource: s\nlimits: {float32: {relative_l2: 1%}}\n")
    with standards.searching([tmp_path]):
        assert standards.names()[-1] == "ours"
        assert standards.limits("ours", "float32") == {"relative_l2": 0.01}


def test_a_broken_file_has_the_limits_that_can_be_read(tmp_path):
    (tmp_path / "ours.yaml").write_text("limits: {float32: {relative_l2: 1 percent, rmse: 0.5}, float16: 3}\n")
    file = standards.StandardFile(tmp_path / "ours.yaml")
    assert file.limits == {"float32": {"rmse": 0.5}, "float16": {}}
    assert [problem.key for problem in file.problems] == ["title", "source", "limits.float32.relative_l2", "limits.float16"]
