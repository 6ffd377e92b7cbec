"""The key ``whatif``: words that exist, and runs that can try them."""

import pytest

from precflow.config.composition import compose
from precflow.config.sections.whatifs import known_words
from precflow.diagnosis.advice.rule_files import load_rules
from precflow.errors import ConfigError
from precflow.resources import directory

RUN = ["+recipe=sd_text_encoder"]


def test_words_are_names_of_files_rules_that_one_confirms_and_four_of_precflow():
    assert {"top", "cheapest", "reference_choice", "suspects_alone", "written_out", "PF214"} <= set(known_words())
    assert "PF105" not in known_words()


def test_every_rule_that_names_what_confirms_it_is_a_word_and_what_it_names_exists():
    words = known_words()
    named = [rule for rule in load_rules([directory("conf") / "rule"]) if rule.confirm.startswith("whatif=")]
    assert named
    assert {rule.id for rule in named} <= set(words)
    assert {rule.confirm.removeprefix("whatif=") for rule in named} <= set(words)


@pytest.mark.parametrize("word", ["PF214", "[top,suspects_on_cpu]", "cheapest"])
def test_known_words_are_taken_and_one_needs_no_list(word):
    assert compose([*RUN, f"whatif={word}"]).config.whatif == tuple(word.strip("[]").split(","))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["whatif=written_ou"], "unknown what-if or rule `written_ou`. Did you mean  written_out ?"),
        (["whatif=PF105"], "unknown what-if or rule `PF105`"),
        (["whatif=[top,top]"], "names a what-if twice"),
        (["whatif=top", "target.dump=/tmp"], "runs the target again, and target.dump is given"),
        (["whatif=top", "reference.log=/tmp"], "with reference.log curves alone are compared"),
        (["whatif=suspects_alone", "stages=[dump,compare,judge,whatif]"], "stages leaves it out"),
        (["whatif=reference_choice", "determinism.observer=checked"], "gives choices to calls that are recorded"),
        (["whatif=reference_choice", "target.ranks=2"], "is for sides of one process, and one has several ranks"),
    ],
)
def test_what_cannot_be_tried_is_refused_before_anything_runs(words, problem):
    with pytest.raises(ConfigError) as raised:
        compose([*RUN, *words], complete=False)
    assert problem in "\n".join(each.message for each in raised.value.problems)


def test_a_team_s_what_if_is_known_and_may_not_hide_a_shipped_one(tmp_path):
    folder = tmp_path / "whatif"
    folder.mkdir()
    (folder / "our_router.yaml").write_text("title: t\nchange: {dtype: float32}\nwhy: w\nconfirms: [OUR001]\n")
    for word in ("our_router", "OUR001"):
        assert compose([*RUN, f"whatif={word}"], config_dirs=[tmp_path]).config.whatif == (word,)
    (folder / "written_out.yaml").write_text("title: t\nchange: {dtype: float32}\nwhy: w\n")
    with pytest.raises(ConfigError) as raised:
        compose([*RUN, "whatif=written_out"], config_dirs=[tmp_path])
    assert "is the name of precflow's own whatif" in raised.value.problems[0].message


def test_a_table_to_compare_with_has_to_be_there_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError) as raised:
        compose([*RUN, f"operators.against={tmp_path / 'gone.json'}"])
    assert "does not exist; expected a copy of a run's public/operators.json" in raised.value.problems[0].message
