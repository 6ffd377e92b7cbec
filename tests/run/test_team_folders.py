"""A team's recipes, standards, rules and emulated faults lie in one folder, and count like the shipped ones."""

import json
import textwrap

import pytest

from precflow.config.composition import compose
from precflow.errors import ConfigError
from precflow.run.plan import build_plan
from precflow.run.runner import run
from precflow.verbs import cp, ls, show, validate

STANDARD = "title: Ours\nsource: our own runs\nlimits:\n  float32: {relative_l2: 1e-9}\n"
RULE = """\
# A linear layer is off.
id: OUR001
title: "{{ operator }} of ours is off by {{ scale_slope | shown }}"
when: operator == 'linear'
why: w
fix: f
"""
FAULT = "name: ours\ntitle: Ours\nrules:\n  - {operator: exp, rule: scale, factor: 1.5}\n"


@pytest.fixture
def team(clean, tmp_path, monkeypatch):
    """Return a function that writes a file of the team's folder, named by ``PRECFLOW_RECIPES``."""
    root = tmp_path / "team"
    (root / "recipes").mkdir(parents=True)
    monkeypatch.setenv("PRECFLOW_RECIPES", str(root))

    def write(name, text):
        file = root / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        return file

    return write


def results(tmp_path):
    return json.loads((tmp_path / "runs" / "compare_dumps" / "public" / "result.json").read_text(encoding="utf-8"))


def state(composed, name):
    return next(step for step in build_plan(composed).steps if step.stage.name == name).state


def test_a_standard_of_a_team_judges(team, composed, tmp_path):
    team("standard/ours", STANDARD)
    assert run(composed(factor=1.000001), command="").exit_code == 0
    assert run(composed("tolerance.standards=[default,ours]"), command="").exit_code == 1


def test_another_content_of_a_standard_judges_again(team, composed):
    team("standard/ours", STANDARD)
    words = "tolerance.standards=[ours]"
    run(composed(words, factor=1.000001), command="")
    assert state(composed(words), "judge") == "kept"
    team("standard/other", STANDARD)  # is not asked for
    assert state(composed(words), "judge") == "kept"
    team("standard/ours", STANDARD.replace("1e-9", "1e-3"))
    assert state(composed(words), "judge") == "run"
    assert run(composed(words), command="").exit_code == 0


def test_a_rule_of_a_team_explains(team, composed, tmp_path):
    run(composed(factor=1.01), command="")
    team("rule/OUR001_linear", RULE)
    assert state(composed(), "advise") == "run"
    run(composed(), command="")
    findings = {finding["rule"]: finding for finding in results(tmp_path)["findings"]}
    assert findings["OUR001"]["title"].startswith("linear of ours is off by 1.0")


def test_a_fault_of_a_team_is_composed(team):
    team("emulate/ours", FAULT)
    assert compose(["+recipe=sd_text_encoder", "+emulate=ours"], complete=False).config.emulate.title == "Ours"


@pytest.mark.parametrize(
    ("file", "text", "place", "said"),
    [
        (
            "standard/ours",
            STANDARD.replace("relative_l2", "relativ_l2"),
            "team/standard/ours.yaml:4",
            "Did you mean  relative_l2",
        ),
        ("rule/OUR001_x", RULE.replace("operator ==", "operater =="), "team/rule/OUR001_x.yaml:4", "Did you mean  operator ?"),
        ("rule/PF901_x", RULE.replace("OUR001", "PF901"), "team/rule/PF901_x.yaml:2", "a prefix of your own"),
        ("rule/OUR001_x", RULE.replace("fix: f", 'fix: "{% for a in evidence %}{% endfor %}"'), "OUR001_x.yaml:6", "has for"),
        ("rule/OUR001_x", "a: [", "OUR001_x.yaml:2", "not YAML"),
    ],
)
def test_what_is_wrong_with_a_file_of_a_team_is_told_before_any_work(team, composed, tmp_path, file, text, place, said):
    team(file, text)
    word = "tolerance.standards=[ours]" if file == "standard/ours" else "capture.fine=true"
    with pytest.raises(ConfigError) as refused:
        run(composed(word), command="")
    assert place in str(refused.value)
    assert said in str(refused.value)
    assert not (tmp_path / "runs").exists()


def test_a_fault_that_says_nothing_is_told_with_its_line(team):
    team("emulate/ours", FAULT.replace("factor", "facter"))
    with pytest.raises(ConfigError) as refused:
        compose(["+recipe=sd_text_encoder", "+emulate=ours"], complete=False)
    assert "Did you mean  factor ?" in str(refused.value)
    assert "team/emulate/ours.yaml:4" in str(refused.value)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("standard/calibrated", STANDARD, ["+recipe=sd_text_encoder"]),
        ("emulate/reorder", FAULT, ["+recipe=sd_text_encoder", "+emulate=reorder"]),
    ],
)
def test_the_name_of_a_shipped_file_is_refused(team, file, text, words):
    team(file, text)
    with pytest.raises(ConfigError, match="give the file another name"):
        compose(words, complete=False)


def test_the_id_of_another_rule_is_refused_with_both_files(team, composed):
    team("rule/OUR001_a", RULE)
    team("rule/OUR001_b", RULE)
    with pytest.raises(ConfigError) as refused:
        run(composed(), command="")
    assert "OUR001_a.yaml:2, team/rule/OUR001_b.yaml:2" in str(refused.value)


def test_verbs_know_them(team, capsys, tmp_path):
    team("standard/ours", STANDARD)
    team("rule/OUR001_linear", RULE)
    team("emulate/ours", FAULT)
    for group, name in (("standard", "ours"), ("rule", "OUR001_linear"), ("emulate", "ours")):
        assert ls.main([group, "--json"]) == 0
        entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["entries"]}
        assert entries[name]["origin"].startswith("PRECFLOW_RECIPES")
        assert {entry["origin"] for entry in entries.values()} == {entries[name]["origin"], "precflow"}
        assert show.main([f"{group}/{name}"]) == 0
        assert f"team/{group}/{name}.yaml" in capsys.readouterr().out
        assert cp.main([f"{group}/{name}", str(tmp_path / "copies" / group / "mine.yaml")]) == 0
        assert f"--config-dir {tmp_path / 'copies'} +recipe=NAME" in capsys.readouterr().err
        assert validate.main([f"{group}/{name}"]) == 0
        assert f"{group}/{name}" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="Did you mean  ours"):
        show.main(["standard/our"])


def test_validate_looks_at_all_of_them(team, capsys):
    team("standard/ours", STANDARD.replace("1e-9", "one"))
    team("emulate/reorder", FAULT.replace("scale", "scael"))
    assert validate.main([]) == 2
    said = capsys.readouterr().err
    for text in ("standard/ours", "expected a share", "emulate/reorder", "give the file another name", "Did you mean  scale ?"):
        assert text in said


def test_shipped_files_are_shown_too(clean, capsys):
    assert show.main(["rule/PF214_normalisation_epsilon"]) == 0
    assert "epsilon_share > 0.8" in capsys.readouterr().out
    assert show.main(["standard/default", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["limits"]["float32"] == {"relative_l2": "2^-16"}
