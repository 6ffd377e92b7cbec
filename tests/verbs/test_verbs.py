import importlib
import json
import shutil
from pathlib import Path

import pytest

from precflow import verbs
from precflow.errors import ConfigError, PrecflowError, Problem

FOLDER = Path(verbs.__file__).parent


def test_every_file_is_a_verb_and_its_constant_is_what_the_module_has():
    listed = verbs.list_verbs()
    assert set(listed) == {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert all(verb == importlib.import_module(f"precflow.verbs.{name}").VERB for name, verb in listed.items())
    places = [verb.place for verb in listed.values()]
    assert places == sorted(set(places)), "two verbs have one place in the list"
    assert verbs.is_verb("ls")
    assert not any(map(verbs.is_verb, ("__init__", "../verbs/ls", "lsx", "")))


def test_a_file_alone_adds_a_verb(tmp_path):
    for path in FOLDER.glob("*.py"):
        shutil.copy(path, tmp_path)
    text = 'VERB = Verb(5, "which way to go", "whither NOW", other_words=("where", "go-there"), takes_recipe=True)\n'
    (tmp_path / "whither.py").write_text(f"from precflow.verbs import Verb\n{text}", encoding="utf-8")
    listed = verbs.list_verbs(tmp_path)
    assert next(iter(listed)) == "whither"
    assert listed["whither"].other_words == ("where", "go-there")
    assert listed["whither"].takes_recipe
    assert not listed["whither"].deletes


def test_a_module_without_its_constant_is_a_fault_of_ours(tmp_path):
    (tmp_path / "mute.py").write_text("def main(arguments):\n    return 0\n", encoding="utf-8")
    with pytest.raises(TypeError, match=r"mute\.py has no VERB"):
        verbs.list_verbs(tmp_path)


def test_tables_have_straight_columns_also_with_wide_letters():
    shown = verbs.format_table([("a", "x"), ("模型", "y")])
    assert shown == " a      x\n 模型   y"
    assert verbs.format_table([]) == ""


def test_errors_are_plain_data():
    error = ConfigError("bad", problems=[Problem("a:1", " k", "m")], next_step="do")
    assert verbs.error_as_json(error) == {
        "error": "bad",
        "problems": [{"place": "a:1", "key": "k", "message": "m"}],
        "next_step": "do",
    }
    assert verbs.error_as_json(PrecflowError("x"))["problems"] == []


def test_every_parser_knows_json_and_config_dir():
    chosen = verbs.make_parser("ls", "").parse_args(["--json", "--config-dir", "a", "-cd", "b"])
    assert (chosen.json, chosen.config_dir) == (True, [Path("a"), Path("b")])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--recipe=x"], "+recipe=x"),
        (["--target.device", "cpu"], "target.device=cpu"),
        (["--jsn"], "Did you mean  --json ?"),
    ],
)
def test_an_option_that_is_none_is_told_in_words(words, said):
    with pytest.raises(ConfigError) as refused:
        verbs.make_parser("plan", "").parse_args(words)
    assert said in str(refused.value)


def test_options_may_stand_between_words():
    options = verbs.make_parser("plan", "")
    options.add_argument("words", nargs="+")
    chosen = options.parse_args(["a", "--config-dir", "d", "b=1", "--json", "c=2"])
    assert (chosen.words, chosen.config_dir, chosen.json) == (["a", "b=1", "c=2"], [Path("d")], True)


def test_json_is_one_line(capsys):
    verbs.print_json({"名": 1})
    assert json.loads(capsys.readouterr().out) == {"名": 1}


@pytest.mark.parametrize("text", ["plain", "一只猫"])
def test_text_is_written(capsys, text):
    verbs.write(text)
    assert capsys.readouterr().out == f"{text}\n"
