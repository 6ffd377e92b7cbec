"""Rule files are checked all at once, and nothing in them can reach out of the sandbox."""

import re

import pytest

from precflow import resources
from precflow.diagnosis.advice.rule_files import check_file, find_same_id, load_rules
from precflow.diagnosis.advice.rule_templates import find_failure
from precflow.errors import ConfigError

GOOD = "id: PF901\ntitle: t\nwhen: failing > 0\nwhy: w\nfix: f\nabout: run\nwhere: here\n"


@pytest.fixture
def folder(tmp_path):
    def write(**files):
        for name, text in files.items():
            (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
        return tmp_path

    return write


def problems(folder):
    with pytest.raises(ConfigError) as caught:
        load_rules([folder])
    return [(problem.key, problem.message) for problem in caught.value.problems]


def test_a_good_file_is_a_rule_with_defaults(folder):
    (rule,) = load_rules([folder(PF901_good=GOOD)])
    assert (rule.id, rule.certainty, rule.rank, rule.evidence, rule.explains) == ("PF901", "possible", "normal", (), True)


def test_a_changed_file_is_read_again(folder):
    first = load_rules([folder(PF901_good=GOOD)])
    assert load_rules([folder(PF901_good=GOOD)]) == first
    (changed,) = load_rules([folder(PF901_good=GOOD.replace("failing > 0", "failing > 1"))])
    assert changed.when == "failing > 1"


def test_rules_come_sorted_by_id_over_all_folders(folder, tmp_path):
    second = tmp_path / "second"
    second.mkdir()
    (second / "PF100_first.yaml").write_text(GOOD.replace("PF901", "PF100"), encoding="utf-8")
    assert [rule.id for rule in load_rules([folder(PF901_good=GOOD), second])] == ["PF100", "PF901"]


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (GOOD + "wen: x\n", "wen", "no such key. Did you mean  when ?"),
        (GOOD.replace("why: w\n", ""), "why", "is missing"),
        (GOOD.replace("PF901", "X1"), "id", "expected PFnnn"),
        (GOOD + "certainty: certian\n", "certainty", "Did you mean  certain ?"),
        (GOOD + "certainty: sure\n", "certainty", "`sure` is not one of certain, likely, possible, unknown"),
        (GOOD + "explains: 1.0e0\n", "explains", "expected true or false"),
        (GOOD.replace("failing > 0", "failing >"), "when", "cannot be read"),
        (GOOD.replace("failing > 0", "faling > 0"), "when", "no evidence is named 'faling'. Did you mean  failing ?"),
        (GOOD.replace("title: t", "title: '{{ nothing_here_at_all }}'"), "title", "no evidence is named"),
        (GOOD.replace("title: t", "title: 3.10"), "title", "YAML reads `3.10` as the number 3.1. Put it in quotes"),
        (GOOD + "evidence: [scale_slop]\n", "evidence", "Did you mean  scale_slope ?"),
        (GOOD + "sources: {one: two}\n", "sources", "expected a list"),
        (GOOD.replace("failing > 0", "scale_slope > 0"), "when", "known only of a suspect"),
        (GOOD + "against: failing > 0\n", "against", "expected a list of entries with when, because"),
        (GOOD + "against: [{when: failing > 0}]\n", "against[0].because", "is missing"),
        (GOOD + "against:\n- {when: faling > 0, because: b}\n", "against[0].when", "Did you mean  failing ?"),
        (GOOD + "against:\n- {when: failing >, because: b}\n", "against[0].when", "cannot be read"),
        (GOOD + "against:\n- {when: failing > 0, because: yes}\n", "against[0].because", "YAML reads `yes` as true"),
    ],
)
def test_what_is_wrong_is_said(folder, text, key, words):
    found = dict(problems(folder(PF901_bad=text)))
    assert words in found[key]


def test_problems_of_all_files_come_at_once(folder):
    found = problems(folder(PF901_a=GOOD + "x: 1\n", PF902_b="- a list\n", PF903_c="a: [\n", PF904_d=GOOD))
    assert [key for key, _ in found] == ["x", "PF902_b", "PF903_c", "id"]


def test_an_id_stands_in_one_file_only(folder):
    assert problems(folder(PF901_a=GOOD, PF901_b="# another\n" + GOOD)) == [("PF901", "stands in more than one file")]
    with pytest.raises(ConfigError) as caught:
        load_rules([folder()])
    first, second = caught.value.problems[0].place.split(", ")
    assert first.endswith("PF901_a.yaml:1")
    assert second.endswith("PF901_b.yaml:2")


def test_another_file_with_the_same_id_is_named_with_its_line(folder):
    place = folder(PF901_a=GOOD, PF901_b="# another\n" + GOOD, PF902_c=GOOD.replace("PF901", "PF902"))
    (problem,) = find_same_id(place / "PF901_a.yaml", [place])
    assert problem.place.endswith("PF901_a.yaml:1")
    assert "PF901_b.yaml:2 too" in problem.message
    assert find_same_id(place / "PF902_c.yaml", [place]) == []


def test_a_problem_has_its_line(folder):
    with pytest.raises(ConfigError) as caught:
        load_rules([folder(PF901_bad=GOOD.replace("failing > 0", "failing >") + "against:\n- because: b\n  when: faling\n")])
    assert [problem.place.rsplit(":", 1)[1] for problem in caught.value.problems] == ["3", "10"]


@pytest.mark.parametrize(
    "hostile",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 9 ** 999999999 }}",
        "{{ range(99999) | list }}",
        "{{ 'a'.ljust(9999999999) }}",
        "{{ '%9999999999d' | format(1) }}",
        "{% include 'x' %}",
        "{{ x }}" * 1000,
        "{{ " + "(" * 900 + "1" + ")" * 900 + " }}",
    ],
)
def test_what_could_take_any_time_or_room_is_no_rule(folder, hostile):
    assert problems(folder(PF901_bad=GOOD.replace("why: w", f'why: "{hostile}"')))


@pytest.mark.parametrize(
    ("key", "text", "why"),
    [
        ("title", "{{ 1 / 0 }}", "division by zero"),
        ("title", "{{ 'a' * failing }}", "* is for numbers"),
        ("title", "{{ failing | int + 'x' }}", "unsupported operand"),
        ("title", "{{ '%d %%' % failing }}", "% is for numbers"),
        ("try_it", "{{ failing.a.b | round + 'x' }}", ""),
    ],
)
def test_a_text_of_a_team_that_would_end_a_run_is_found_with_its_line(folder, key, text, why):
    good = GOOD.replace("PF901", "OUR901").replace("title: t", "" if key == "title" else "title: t")
    (file,) = folder(OUR901_bad=f'{good}{key}: "{text}"\n').glob("OUR901*")
    ((problem,), rule) = check_file(file, of_team=True)
    assert problem.message.startswith(f"cannot be filled in: {why}")
    assert problem.key == key
    assert re.search(r"OUR901_bad\.yaml:\d+$", problem.place)
    assert rule is None


def test_every_rule_that_ships_is_right():
    """A run does not look into their templates."""
    files = sorted((resources.directory("conf") / "rule").glob("*.yaml"))
    assert len(files) > 100
    assert [problem for file in files for problem in check_file(file, of_team=False)[0]] == []


def test_every_text_that_ships_can_be_filled_in():
    for rule in load_rules([resources.directory("conf") / "rule"]):
        for name in ("title", "where", "why", "fix", "try_it", "confirm"):
            text = getattr(rule, name)
            assert find_failure(text) == (), (rule.id, name)
