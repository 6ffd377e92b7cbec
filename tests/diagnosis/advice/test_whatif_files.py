"""What-if files: the shipped ones are usable, and wrong ones are refused with file and line."""

import pytest

from precflow.diagnosis.advice.rule_files import load_rules
from precflow.diagnosis.advice.whatif_files import check_file, load_whatifs
from precflow.errors import ConfigError
from precflow.resources import directory

SHIPPED = directory("conf") / "whatif"
GOOD = "title: the suspects in float32\nchange: {dtype: float32}\nwhy: it is wider\n"


@pytest.fixture
def problems(tmp_path):
    """Return a function that writes a file and returns what is wrong with it, as ``line key message``."""

    def check(text, name="ours"):
        file = tmp_path / f"{name}.yaml"
        file.write_text(text)
        found, whatif = check_file(file)
        assert (whatif is None) == bool(found)
        return [f"{problem.place.rpartition(':')[2]} {problem.key} {problem.message}" for problem in found]

    return check


def test_every_shipped_what_if_is_usable_and_confirms_rules_that_exist():
    whatifs = load_whatifs([SHIPPED])
    rules = {rule.id for rule in load_rules([directory("conf") / "rule"])}
    assert len(whatifs) == len(list(SHIPPED.glob("*.yaml")))
    assert {rule for whatif in whatifs for rule in whatif.confirms} <= rules


def test_a_good_file_has_no_problem(problems):
    assert problems(GOOD + "when: low_precision and family == 'matmul'\nconfirms: [OUR001]\ncost: 2\n") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD + "wen: low_precision\n", "4 wen no such key. Did you mean  when ?"),
        ("title: a\nwhy: b\n", "change is missing"),
        (GOOD + "when: low_precison\n", "4 when no evidence is named 'low_precison'. Did you mean  low_precision ?"),
        (GOOD + "when: low_precision and\n", "4 when cannot be read"),
        (GOOD + "when: '[x for x in y]'\n", "4 when"),
        (GOOD + "cost: 0\n", "4 cost is 0; expected a number above 0"),
        (GOOD + "confirms: pf214\n", "4 confirms[0] is 'pf214'; expected the id of a rule, such as PF214"),
        (GOOD + "confirms: {PF214: 1}\n", "4 confirms expected a list"),
        (GOOD.replace("dtype", "dtyp"), "2 change.dtyp no such change. Did you mean  dtype ?"),
        (GOOD.replace("float32}", "float16}"), "2 change.dtype is 'float16'; expected one of float32, float64"),
        (GOOD.replace("dtype: float32", "padded_to: 1"), "2 change.padded_to is 1; expected a whole number"),
        (GOOD.replace("dtype: float32", "arguments: {eps: [1]}"), "change.arguments is {'eps': [1]}; expected `reference`"),
        (GOOD.replace("dtype: float32", "dtype: float32, switches: deterministic"), "2 change changes calls and the whole run"),
        (GOOD.replace("{dtype: float32}", "float32"), "2 change expected `name: value` lines, got `float32`"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(problems, text, expected):
    (problem,) = problems(text)
    assert expected in problem


@pytest.mark.parametrize("name", ["top", "cheapest", "PF214", "Our", "with-dash"])
def test_a_file_may_not_have_the_name_of_a_word_or_a_rule(problems, name):
    assert "is no name for a what-if" in problems(GOOD, name)[0]


def test_problems_of_all_files_are_told_at_once(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text("title: a\n")
    with pytest.raises(ConfigError, match="4 problems in what-if files"):
        load_whatifs([SHIPPED, tmp_path])
