import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    "value", ["0.5", "abc", "[a,b]", "{a:1}", "a,b", "choice(a,b)", "1%", "8ulp", "", "a b", "${site.name}", "'x y'"]
)
def test_what_hydra_takes_stays_as_it_is(value):
    assert overrides.quote(value) == value


@pytest.mark.parametrize(
    "value", ["2^-10", "s3://桶/模型", "~/x", "/data/a=b", "/data/x(1)", "一只猫", "<script>alert(1)</script>", 'a"b=c', "a=\\"]
)
def test_what_hydra_refuses_means_the_same_in_quotes(value):
    assert overrides.parse_override(f"key={value}") is None
    assert overrides.parse_override(f"key={overrides.quote(value)}").value() == value


def test_only_the_refused_item_of_a_list_is_quoted():
    text = overrides.quote("[torchrun,--config=a.yaml,1]")
    assert text == '[torchrun,"--config=a.yaml",1]'
    assert overrides.parse_override(f"key={text}").value() == ["torchrun", "--config=a.yaml", 1]


def test_only_the_refused_value_of_a_map_is_quoted():
    assert overrides.parse_override(f"key={overrides.quote('{a:2^-10,b:1}')}").value() == {"a": "2^-10", "b": 1}


def test_the_values_of_a_sweep_are_quoted_one_by_one():
    override = overrides.parse_override(f"key={overrides.quote('2^-10,2^-11', many=True)}")
    assert list(override.sweep_string_iterator()) == ['"2^-10"', '"2^-11"']


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("+recipe=a", ("+", "recipe", "a")),
        ("++a.b=c=d", ("++", "a.b", "c=d")),
        ("~a.b", ("~", "a.b", None)),
        ("validate", ("", "validate", None)),
        ("a=x\ny", ("", "a", "x\ny")),
    ],
)
def test_a_word_has_three_parts(word, parts):
    assert overrides.split_word(word) == parts


def test_commas_inside_brackets_and_quotes_do_not_separate():
    assert list(overrides.split_at_commas("a,[b,c],{d:1,e:2},'f,g',h(1,2)")) == ["a", "[b,c]", "{d:1,e:2}", "'f,g'", "h(1,2)"]


PRINTABLE = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=30)


@given(PRINTABLE)
def test_any_text_in_quotes_is_read_back(text):
    if "${" not in text:
        assert overrides.parse_override(f"key={overrides.put_in_quotes(text)}").value() == text


@given(PRINTABLE)
def test_any_word_is_taken_after_quoting(text):
    if "${" not in text:
        assert overrides.parse_override(f"key={overrides.quote(text)}") is not None


def test_a_number_that_python_does_not_read_is_text():
    assert overrides.quote("9" * 5000) == '"' + "9" * 5000 + '"'
