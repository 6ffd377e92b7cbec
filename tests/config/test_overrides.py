import pytest

from precflow.config import overrides
from precflow.config.overrides import expand_sweep, read
from precflow.errors import ConfigError


def one(word):
    words, problems = read([word])
    assert problems == []
    return words[0]


@pytest.mark.parametrize("word", ["target.dtype=float16", "+target.dtype=float16", "++target.dtype=float16"])
def test_a_plus_makes_no_difference(word):
    assert (one(word).key, one(word).value, one(word).text) == ("target.dtype", "float16", "++target.dtype=float16")


@pytest.mark.parametrize("word", ["recipe=a/b", "+recipe=a/b", "+/recipe=a/b"])
def test_a_group_is_chosen_with_or_without_plus(word):
    assert (one(word).group, one(word).value, one(word).text) == ("recipe", "a/b", "recipe=a/b")


def test_the_quoted_form_is_kept():
    word = one("tolerance.max_rel_error=2^-10")
    assert (word.typed, word.text, word.raw) == ("tolerance.max_rel_error=2^-10", '++tolerance.max_rel_error="2^-10"', "2^-10")


def test_what_was_typed_is_kept_for_texts():
    assert (one("environment.require.python=3.10").value, one("environment.require.python=3.10").raw) == (3.1, "3.10")


def test_open_maps_take_new_keys():
    assert one("target.variables.CLOSE_MATMUL_K_SHIFT=1").path == ("target", "variables", "CLOSE_MATMUL_K_SHIFT")


def test_entries_of_lists_are_counted_in_brackets():
    assert one("tolerance.rules[0].because=x").path == ("tolerance", "rules", "0", "because")


def test_a_key_is_taken_away():
    assert one("~target.variables.X").removes


@pytest.mark.parametrize(
    ("word", "key", "said"),
    [
        (
            "+tolerance.cosin_similarity=0.9",
            "+tolerance.cosin_similarity",
            "Did you mean  tolerance.cosine_similarity ?   (no + needed)",
        ),
        ("target.devise=npu", "target.devise", "Did you mean  target.device ?"),
        ("determinsm.seed=1", "determinsm.seed", "Did you mean  determinism.seed ?"),
        ("cosine_similarity=0.9", "cosine_similarity", "Did you mean  tolerance.cosine_similarity ?"),
        ("standard=default", "standard", "tolerance.standards"),
        ("target.dtype.x=1", "target.dtype.x", "one value"),
        ("tolerance.rules.x=1", "tolerance.rules.x", "is a list"),
        ("hydra.run.dir=x", "hydra.run.dir", "Hydra's own settings"),
        ("sd_text_encodr", "sd_text_encodr", "+recipe=sd_text_encoder"),
        ("sd_text_encoder", "sd_text_encoder", "is a recipe"),
        ("~recipe", "~recipe", "cannot be taken away"),
        ("+recipe={a:1}", "+recipe={a:1}", "name of a recipe"),
        ("+recipe=[]", "+recipe=[]", "name of a recipe"),
        ("a b=1", "a b=1", "key=value"),
        ("=1", "=1", "key=value"),
    ],
)
def test_what_is_not_an_override_is_refused(word, key, said):
    words, problems = read([word])
    assert words == []
    assert [problem.key.strip() for problem in problems] == [key]
    assert said in problems[0].message


def test_all_problems_come_at_once_and_their_column_is_straight():
    _, problems = read(["+a=1", "b=2", "target.dtype=float16"])
    assert [problem.key for problem in problems] == ["+a", " b"]


def test_several_values_want_a_sweep():
    words, _ = read(["target.dtype=float16,float32"])
    assert "add -m" in overrides.find_sweeps(words)[0].message


def test_a_sweep_is_every_combination():
    jobs = expand_sweep(["+recipe=sd_text_encoder", "target.dtype=float16,float32", "determinism.seed=range(1,3)"])
    assert jobs == [
        ("+recipe=sd_text_encoder", f"target.dtype={dtype}", f"determinism.seed={seed}")
        for dtype in ("float16", "float32")
        for seed in (1, 2)
    ]


def test_a_sweep_over_quoted_values():
    assert expand_sweep(["tolerance.relative_l2=2^-10,1%"]) == [
        ('tolerance.relative_l2="2^-10"',),
        ("tolerance.relative_l2=1%",),
    ]


def test_a_sweep_over_recipes_by_pattern():
    assert ("+recipe=sd_text_encoder",) in expand_sweep(["+recipe=glob(sd_*)"])


def test_a_sweep_over_nothing_is_refused():
    with pytest.raises(ConfigError, match="matches nothing"):
        expand_sweep(["+recipe=glob(nothing_*)"])


def test_no_sweep_is_one_job():
    assert expand_sweep(["+recipe=a"]) == [("+recipe=a",)]


def test_a_bad_word_stops_the_sweep():
    with pytest.raises(ConfigError, match="no such key"):
        expand_sweep(["target.devise=a,b"])


def test_the_last_choice_of_a_group_counts():
    words, _ = read(["+recipe=a", "+recipe=[b,c]"])
    assert overrides.list_chosen(words, "recipe") == ["b", "c"]
