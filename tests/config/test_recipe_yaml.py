import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from precflow.config.documents import Mark
from precflow.config.recipe_yaml import describe_place, fill_defaults, format_lines, format_yaml, keep_portable

TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=12)
DATA = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, DATA, max_size=4))
def test_the_text_is_read_back_as_the_same_data(data):
    assert yaml.safe_load(format_yaml(data)) == (data or None)


@pytest.mark.parametrize(
    "value", ["on", "3.10", "12:30", "~", "*.norm", "a: b", "[x", "2027-03-31", "null", "", " x ", "一只猫", "a\nb", "#"]
)
def test_words_that_yaml_bends_stay_texts(value):
    assert yaml.safe_load(format_yaml({"a": value, "b": [value]})) == {"a": value, "b": [value]}


def test_each_line_has_its_path():
    found = list(format_lines({"a": {"b": [1, 2]}, "rules": [{"match": "x", "because": "y"}]}))
    assert found == [
        (("a",), "a:"),
        (("a", "b"), "  b: [1, 2]"),
        (("rules",), "rules:"),
        (("rules", "0", "match"), "  - match: x"),
        (("rules", "0", "because"), "    because: y"),
    ]


def test_defaults_are_filled_in_the_order_of_the_schema():
    data = fill_defaults({"target": {"dtype": "float16"}, "about": {"title": "t"}})
    assert list(data)[:2] == ["about", "environment"]
    assert list(data["target"])[:1] == ["device"]
    assert data["target"]["dtype"] == "float16"
    assert data["capture"]["timeout"] == "1h"
    assert "budget" not in data["capture"]


def test_what_a_site_said_is_not_in_the_locked_recipe():
    def mark(path):
        return Mark("x", None, "site" if path[:2] == ("target", "variables") else "recipe")

    data = {"site": {"name": "x"}, "store": "/d", "target": {"variables": {"A": "1"}, "interpreter": "/py", "dtype": "float16"}}
    recipe = keep_portable(data, mark)
    assert "site" not in recipe
    assert "store" not in recipe
    assert not {"variables", "interpreter"} & set(recipe["target"])
    assert recipe["target"]["dtype"] == "float16"


def test_a_margin_is_the_place_of_the_line():
    provenance = {"a.b[0]": "x:1", "a.b[1]": "x:1", "c.d": "x:2", "c.e": "y:3"}
    assert describe_place(("a", "b"), provenance) == "x:1"
    assert describe_place(("c", "d"), provenance) == "x:2"
    assert describe_place(("c",), provenance) == ""
    assert describe_place(("z",), provenance) == "default"
