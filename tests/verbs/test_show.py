import json

import pytest

from precflow.errors import ConfigError, StoreError
from precflow.verbs import show


def test_each_line_has_its_file_and_line(capsys, team):
    team("r", "about:\n  title: t\n")
    assert show.main(["r", "target.dtype=float16"]) == 0
    lines = [line.lstrip() for line in capsys.readouterr().out.splitlines()]
    assert "recipes/r.yaml:2    title: t" in lines
    assert "command line    dtype: float16" in lines
    assert any(line.split() == ["default", "seed:", "1234"] for line in lines)
    assert "\033" not in "".join(lines)


def test_one_section_alone(capsys):
    assert show.main(["+recipe=sd_text_encoder", "target"]) == 0
    shown = capsys.readouterr().out
    assert "float16" in shown
    assert "about" not in shown


def test_a_key_alone(capsys):
    assert show.main(["sd_text_encoder", "target.dtype"]) == 0
    assert capsys.readouterr().out.split()[-2:] == ["dtype:", "float16"]


def test_json_has_values_and_places(capsys):
    assert show.main(["sd_text_encoder", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["config"]["target"]["dtype"] == "float16"
    assert shown["provenance"]["target.dtype"].rpartition("/")[2].startswith("sd_text_encoder.yaml:")


@pytest.mark.parametrize(
    ("words", "said"), [(["sd_text_encoder", "tolerence"], "tolerance"), (["sd_text_encoder", "a", "b"], "one section")]
)
def test_what_is_not_there_is_said(words, said):
    with pytest.raises(ConfigError, match=said):
        show.main(words)


@pytest.mark.parametrize(
    ("words", "overrides", "section"),
    [
        (["r"], ["+recipe=r"], ""),
        (["r", "a=1", "about"], ["+recipe=r", "a=1"], "about"),
        (["+recipe=r", "about"], ["+recipe=r"], "about"),
        (["recipe=r"], ["recipe=r"], ""),
    ],
)
def test_words_are_a_recipe_overrides_and_a_section(words, overrides, section):
    assert show.as_overrides(words) == (overrides, section)


def test_the_page_of_a_rule(capsys):
    assert show.main(["PF214"]) == 0
    shown = capsys.readouterr().out
    assert "A normalisation adds a different epsilon to the variance." in shown
    assert "applies (possible) when" in shown
    assert show.main(["PF102", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["rule"] == "PF102"
    assert shown["against"]
    assert shown["findings"] == []


FINDING = {
    "rule": "PF214",
    "title": "eps differs",
    "claim": "a / layer_norm: eps differs",
    "certainty": "likely",
    "site": "model.py:3",
    "evidence": [{"what": "error", "value": "0.1"}],
    "against": [{"rule": "PF211 a factor", "because": "it varies"}],
    "why": "w",
    "fix": "f",
    "try_it": "precflow again",
}


def test_a_finding_of_a_run(capsys, tmp_path):
    (tmp_path / "public").mkdir()
    (tmp_path / "public" / "result.json").write_text(json.dumps({"findings": [FINDING]}), encoding="utf-8")
    assert show.main(["PF214", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == [FINDING]
    assert show.main(["PF214", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for text in (
        "a / layer_norm: eps differs  (likely)",
        "error: 0.1",
        "ruled out: PF211 a factor: it varies",
        "next: precflow again",
    ):
        assert text in shown
    with pytest.raises(ConfigError, match="PF211 is no finding"):
        show.main(["PF211", str(tmp_path)])


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"findings": ' + "9" * 5000 + "}", '{"findings": [{"rule": "PF214"}]}', "[1]", '{"findings": 1e400}'],
)
def test_a_file_that_is_no_result_is_said(tmp_path, text):
    (tmp_path / "result.json").write_text(text, encoding="utf-8")
    with pytest.raises(StoreError, match=r"result\.json is no result of a run"):
        show.main(["PF214", str(tmp_path / "result.json")])


def test_a_rule_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="there is no rule PF999"):
        show.main(["PF999"])
    with pytest.raises(StoreError, match="no result"):
        show.main(["PF214", str(tmp_path)])
    with pytest.raises(ConfigError, match="--markdown is for all rules"):
        show.main(["PF214", "--markdown"])


def test_all_rules_as_a_page(capsys):
    assert show.main(["rule", "--markdown"]) == 0
    assert "| [PF102](#pf102) |" in capsys.readouterr().out
