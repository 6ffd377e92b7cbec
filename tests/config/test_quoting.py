import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.config import quoting


@pytest.mark.parametrize(
    "value", ["0.5", "abc", "[a,b]", "{a:1}", "a,b", "choice(a,b)", "1%", "8ulp", "", "a b", "${site.name}", "'x y'"]
)
def test_what_hydra_takes_stays_as_it_is(value):
    assert quoting.quote(value) == value


@pytest.mark.parametrize(
    "value", ["2^-10", "s3://桶/模型", "~/x", "/data/a=b", "/data/x(1)", "一只猫", "<script>alert(1)</script>", 'a"b=c', "a=\\"]
)
def test_what_hydra_refuses_means_the_same_in_quotes(value):
    assert quoting.parse_override(f"key={value}") is None
    assert quoting.parse_override(f"key={quoting.quote(value)}").value() == value


def test_only_the_refused_item_of_a_list_is_quoted():
    text = quoting.quote("[torchrun,--config=a.yaml,1]")
    assert text == '[torchrun,"--config=a.yaml",1]'
    assert quoting.parse_override(f"key={text}").value() == ["torchrun", "--config=a.yaml", 1]


def test_only_the_refused_value_of_a_map_is_quoted():
    assert quoting.parse_override(f"key={quoting.quote('{a:2^-10,b:1}')}").value() == {"a": "2^-10", "b": 1}


def test_the_values_of_a_sweep_are_quoted_one_by_one():
    override = quoting.parse_override(f"key={quoting.quote('2^-10,2^-11', many=True)}")
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
    assert quoting.split_word(word) == parts


def test_commas_inside_brackets_and_quotes_do_not_separate():
    assert list(quoting.split_at_commas("a,[b,c],{d:1,e:2},'f,g',h(1,2)")) == ["a", "[b,c]", "{d:1,e:2}", "'f,g'", "h(1,2)"]


PRINTABLE = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=30)


@given(PRINTABLE)
def test_any_text_in_quotes_is_read_back(text):
    if "${" not in text:
        assert quoting.parse_override(f"key={quoting.put_in_quotes(text)}").value() == text


@given(PRINTABLE)
def test_any_word_is_taken_after_quoting(text):
    if "${" not in text:
        assert quoting.parse_override(f"key={quoting.quote(text)}") is not None


def test_a_number_that_python_does_not_read_is_text():
    assert quoting.quote("9" * 5000) == '"' + "9" * 5000 + '"'
