import json
from pathlib import Path

import pytest

from precflow import verbs
from precflow.errors import ConfigError, PrecflowError, Problem

FOLDER = Path(verbs.__file__).parent


def test_every_verb_has_its_file_and_every_file_its_verb():
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert files <= set(verbs.VERBS)
    assert set(verbs.VERBS) - files <= {"doctor"}


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
