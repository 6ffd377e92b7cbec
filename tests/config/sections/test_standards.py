import pytest

from precflow.config.sections import standards


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


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("operators: {float32: {mere: 1e-3, mear: 1}}", "operators.float32.mear", "no such key. Did you mean  mere"),
        ("operators: {float32: {share: 99%}}", "operators.float32", "neither `atol` nor `rtol`"),
        ("operators: {float32: {atol: 1e-3}}", "operators.float32", "nothing that could fail"),
        ("operators: {float32: {mere: -1}}", "operators.float32.mere", "expected a share"),
        ("operators: [a]", "operators", "expected `name: value` lines"),
        ("benchmark: {ratios: {L1: {rmse: 2}}}", "benchmark.ratios", "has no level L0"),
        ("benchmark: {ratios: {L0: {rmse: 2}}, levels: {L9: [mm]}}", "benchmark.levels.L9", "has no ratios"),
        (
            "benchmark: {ratios: {L0: {rmse: 2}}, small: {float32: {below: 1}}}",
            "benchmark.small.float32.error",
            "is missing",
        ),
        ("benchmark: 3", "benchmark", "is a section with keys (ratios, levels"),
        ("benchmark: {ratios: {L0: {rsme: 2}}}", "benchmark.ratios.L0.rsme", "no such key. Did you mean  rmse"),
        ("losses: {fewest_steps: 3}", "losses", "nothing that could fail"),
        ("losses: {mean: {relative: 1%}, fewest_steps: some}", "losses.fewest_steps", "expected a whole number, got `some`"),
        ("losses: {mean: {relative: 1%}, fewest_steps: 0}", "losses.fewest_steps", "expected a number of steps, 1 or more"),
        ("losses: {mean: {relative: 1%}}\nunchecked: {a: 3}", "unchecked", "expected a list"),
        ("losses: {mean: {relative: 1%}}\nlimits: {float32: {rmse: 1}}", "losses", "a standard has one of limits, operators"),
    ],
)
def test_a_section_that_is_wrong_is_reported_with_its_key(tmp_path, text, key, message):
    (tmp_path / "ours.yaml").write_text(f"title: t\nsource: s\n{text}\n")
    _, problems = standards.read_standard(tmp_path / "ours.yaml")
    assert key in [problem.key for problem in problems]
    assert any(message in problem.message for problem in problems)
    assert all(problem.place.startswith(str(tmp_path)) or "ours.yaml" in problem.place for problem in problems)


def test_a_team_has_operator_standards_of_its_own(tmp_path):
    (tmp_path / "ours.yaml").write_text("title: t\nsource: s\noperators: {float16: {mere: 1%}}\n")
    file, problems = standards.read_standard(tmp_path / "ours.yaml")
    assert (problems, file.operators["float16"].mere, file.date) == ([], 0.01, "")


def test_everything_that_is_wrong_with_a_file_is_told_at_once(tmp_path):
    (tmp_path / "ours.yaml").write_text("limits: {float32: {relative_l2: 1 percent, rmse: 0.5}, float16: 3}\n")
    file, problems = standards.read_standard(tmp_path / "ours.yaml")
    assert file is None
    assert [problem.key for problem in problems] == ["title", "source", "limits.float32.relative_l2", "limits.float16"]
