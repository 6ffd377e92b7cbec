"""Rules are data: those that ship are usable, a team adds its own, and a file that is wrong is refused with file and line."""

import pytest

from precflow.errors import ConfigError
from precflow.scan.index import Index
from precflow.scan.python import scan_source
from precflow.scan.rules import check_file, load_rules

GOOD = """\
title: ours
rules:
  kernel:
    names: [our.fast_norm]
    why: It is a kernel of ours for CUDA.
    do: use {found}_npu
"""


@pytest.fixture
def team(tmp_path):
    def write(text, name="ours"):
        folder = tmp_path / "scan"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        return folder

    return write


def test_a_team_adds_a_rule_with_one_entry(team):
    rules = load_rules([team(GOOD)])
    (finding,) = scan_source("import our\nour.fast_norm(x)\n", Index(rules)).findings
    assert (finding.rule, finding.do, rules.titles["ours"]) == ("ours.kernel", "use our.fast_norm_npu", "ours")


def test_the_rule_of_a_team_counts_before_ours(team):
    text = 'title: ours\nrules:\n  word:\n    strings: "cuda"\n    why: a word\n    do: nothing\n    weight: look\n'
    (finding,) = scan_source('x = "cuda"\n', Index(load_rules([team(text)]))).findings
    assert (finding.rule, finding.patched) == ("ours.word", False)


def test_a_list_of_element_types_finds_calls_that_ask_for_another_and_functions_that_lack_one(team):
    folder = team(GOOD + "types:\n  - {takes: [float32, int64], names: [our.norm]}\n")
    source = "import our\nour.norm(x, dtype=torch.bfloat16)\nour.norm(x, dtype=torch.float32)\nour.norm(x)\n"
    findings = scan_source(source, Index(load_rules([folder]))).findings
    assert [(finding.rule, finding.line) for finding in findings] == [("ours.bfloat16", 2)]
    findings = scan_source(source, Index(load_rules([folder], "float16"))).findings
    assert [finding.line for finding in findings if finding.rule == "ours.computes_float16"] == [2, 3, 4]
    assert [finding.rule for finding in scan_source(source, Index(load_rules([folder], "int64"))).findings] == ["ours.bfloat16"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (GOOD.replace("names:", "nmaes:"), 4, "Did you mean  names"),
        (GOOD.replace("    names: [our.fast_norm]\n", ""), 3, "looks for nothing"),
        (GOOD.replace("    why: It is a kernel of ours for CUDA.\n", ""), 3, "is missing"),
        (GOOD + "    weight: bad\n", 7, "is not one of stops, look, numbers"),
        (GOOD + "    strings: '('\n", 7, "is no regular expression"),
        (GOOD + "    strings: 'a*'\n", 7, "fits an empty text"),
        (GOOD + "    text: 'a'\n", 7, "name them under `files`"),
        (GOOD + "    given: {x: '['}\n", 7, "is no regular expression"),
        (GOOD + "    replace_value: '1'\n", 7, "name it under `given`"),
        (GOOD + "    kind: x\n", 7, "no such key"),
        (GOOD.replace("kernel:", "Ker nel:"), 3, "small letters"),
        (GOOD + "types: [{takes: [half], names: [our.fast_norm]}]\n", 7, "is no element type"),
        ("rules: {}\n", 0, "is missing"),
        ("title: [\n", 2, "is not YAML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_line(team, text, line, message):
    folder = team(text)
    with pytest.raises(ConfigError) as caught:
        load_rules([folder])
    assert any(message in problem.message for problem in caught.value.problems), caught.value
    places = [problem.place for problem in caught.value.problems if message in problem.message]
    assert not line or any(place.endswith(f"ours.yaml:{line}") for place in places), places
    assert check_file(folder / "ours.yaml")[1] is None


def test_a_file_named_like_one_of_ours_is_refused(team):
    with pytest.raises(ConfigError, match="name of another file"):
        load_rules([team(GOOD, name="device")])


def test_every_rule_says_why_and_what_to_do_in_sentences(rules):
    for rule in rules.rules:
        assert rule.why.endswith("."), rule.id
        assert not rule.do.endswith("."), rule.id
        assert "\n" not in rule.why.strip() + rule.do.strip(), rule.id
