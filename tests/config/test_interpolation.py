import pytest

from precflow.config.interpolation import Interpolation


def resolved(data, site=""):
    interpolation = Interpolation(data, site=site)
    return interpolation.resolve(data), [message for _, message in interpolation.problems]


def test_other_keys_are_put_in():
    data = {
        "site": {"paths": {"models": "/m"}},
        "a": "${site.paths.models}/glm",
        "b": "${a}",
        "c": ["${b}!"],
        "d": "${site.paths}",
    }
    values, problems = resolved(data)
    assert problems == []
    assert (values["a"], values["b"], values["c"], values["d"]) == ("/m/glm", "/m/glm", ["/m/glm!"], {"models": "/m"})


def test_a_whole_value_keeps_its_type_and_lists_have_numbers():
    values, problems = resolved({"a": 3, "b": "${a}", "l": [7, 8], "c": "${l[1]}", "d": "${l.0}"})
    assert (values["b"], values["c"], values["d"], problems) == (3, 8, 7, [])


def test_defaults_of_the_schema_count():
    assert resolved({"a": "${target.dtype}"})[0]["a"] == "float32"


@pytest.mark.parametrize(
    ("text", "site", "said"),
    [
        ("${site.paths.models}", "", "no site file was chosen: +site=NAME"),
        ("${site.paths.models}", "sites/here.yaml", "the site file sites/here.yaml does not have it"),
        ("${nothing.here}", "", "nothing sets it"),
        ("${.x}", "", "only the name of another key"),
        ("${oc.env:HOME}", "", "only the name of another key"),
        ("${l[9]}", "", "nothing sets it"),
    ],
)
def test_what_leads_nowhere_is_said(text, site, said):
    values, (problem,) = resolved({"a": text, "l": [1]}, site)
    assert values["a"] == text
    assert said in problem


def test_a_circle_ends():
    _, problems = resolved({"a": "${b}", "b": "${a}"})
    assert all("refers to itself" in problem for problem in problems)
    assert problems
