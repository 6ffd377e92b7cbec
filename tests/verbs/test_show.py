import json

import pytest

from precflow.errors import ConfigError
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
