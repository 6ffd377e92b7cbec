import os

import pytest

from precflow.config.documents import display_path, dotted, explain_yaml_trap, read, walk_scalars


def written(tmp_path, text):
    file = tmp_path / "x.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(file, "recipe", "x")


def test_every_value_keeps_its_line_and_its_text(tmp_path):
    document = written(tmp_path, "# @package _global_\na:\n  b: 3.10\n  c: [1, 'x']\n")
    assert document.package == "_global_"
    assert document.data == {"a": {"b": 3.1, "c": [1, "x"]}}
    assert document.marks[("a", "b")].place == "x.yaml:3"
    assert document.marks[("a", "b")].raw == "3.10"
    assert document.marks[("a", "c", "1")].raw is None


def test_numbers_and_dates_are_read_as_hydra_reads_them(tmp_path):
    document = written(tmp_path, "a: 1e-3\nb: 2027-03-31\nc: 1_000\n")
    assert document.data == {"a": 0.001, "b": "2027-03-31", "c": 1000}


def test_defaults_are_apart(tmp_path):
    document = written(tmp_path, "defaults: [a, _self_]\nb: 1\n")
    assert (document.defaults, document.data) == (("a", "_self_"), {"b": 1})


@pytest.mark.parametrize("text", ["# only a comment\n", "", "{}\n"])
def test_an_empty_recipe_is_named(tmp_path, text):
    (problem,) = written(tmp_path, text).problems
    assert (problem.place, "is empty" in problem.message) == ("x.yaml:1", True)
    (tmp_path / "site.yaml").write_text(text)
    assert read(tmp_path / "site.yaml", "site", "site").problems == ()


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.yaml")
    assert "is not a regular file" in read(tmp_path / "x.yaml", "recipe", "x").problems[0].message


def test_own_keys_win_over_merged_ones_and_earlier_over_later(tmp_path):
    text = "a: &a {x: 1, y: 1}\nb: &b {x: 2, z: 2}\nc: {x: 3, <<: *a}\nd: {<<: [*a, *b]}\n"
    document = written(tmp_path, text)
    assert document.problems == ()
    assert (document.data["c"], document.data["d"]) == ({"x": 3, "y": 1}, {"x": 1, "y": 1, "z": 2})
    assert document.marks[("c", "x")].place == "x.yaml:3"


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        ("a: 1\na: 2\n", "twice", 2),
        ("a:\n\tb: 1\n", "a tab before the text. YAML is indented with spaces", 2),
        ("a:\n  b: 1\n \t c: 1\n", "a tab before the text", 3),
        ("- a\n", "key: value", 1),
        ("a: [1\nb: 2\n", "not YAML", 2),
        ("match: *.norm\n", "in quotes", 1),
        ("a:\n\t- b\n", "not YAML", 2),
        ("on: 1\n", "reads the key `on` as True", 1),
        ("a: !!python/object/apply:os.system [ls]\n", "not YAML", 1),
        ("a: !!binary aGk=\n", "bytes", 1),
        ("a: {b: 1\n", "not YAML", 2),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, text, said, line):
    (problem,) = written(tmp_path, text).problems
    assert said in problem.message
    assert problem.place == f"x.yaml:{line}"


def test_bytes_that_are_no_text_are_named(tmp_path):
    (problem,) = written(tmp_path, b"a: \xff\xfe\n").problems
    assert "UTF-8" in problem.message


def test_a_folder_is_no_file(tmp_path):
    (problem,) = read(tmp_path, "recipe", "x").problems
    assert "cannot be read" in problem.message


def test_aliases_that_multiply_end(tmp_path):
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    (problem,) = written(tmp_path, "\n".join(lines)).problems
    assert "aliases" in problem.message


def test_an_alias_of_itself_ends(tmp_path):
    (problem,) = written(tmp_path, "a: &a [*a]\n").problems
    assert "not YAML" in problem.message


def test_anchors_and_merge_keys_work(tmp_path):
    assert written(tmp_path, "a: &a {x: 1}\nb:\n  <<: *a\n  y: 2\n").data["b"] == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("value", "raw", "said"),
    [
        (False, "off", "write false"),
        (True, "Yes", "write true"),
        (750, "12:30", "quotes"),
        (8, "010", "quotes"),
        (90.5, "1:30.5", "quotes"),
        (True, "true", ""),
        (12, "12", ""),
        (255, "0xff", ""),
        (1000, "1_000", ""),
        (750, None, ""),
    ],
)
def test_traps_are_named(value, raw, said):
    assert (said in explain_yaml_trap(value, raw)) if said else explain_yaml_trap(value, raw) == ""


def test_paths_are_shown_from_here(tmp_path):
    assert display_path(tmp_path / "a" / "b.yaml") == "a/b.yaml"
    assert display_path(tmp_path.parent / "b.yaml") == str(tmp_path.parent / "b.yaml")


def test_dotted_and_scalars():
    assert dotted(("tolerance", "rules", "0", "match")) == "tolerance.rules[0].match"
    assert list(walk_scalars({"a": [1, {"b": 2}]})) == [(("a", "0"), 1), (("a", "1", "b"), 2)]
