import json
import os

import pytest

from precflow.agent import request
from precflow.agent.failures import KINDS, AgentError
from precflow.agent.selection import DetailRule

SMALLEST = {"schema": 1, "action": "environment", "output": "/tmp"}


def refused(plain):
    with pytest.raises(AgentError) as caught:
        request.parse(plain)
    assert caught.value.kind == "bad_request"
    return caught.value


def test_defaults_fill_what_a_person_left_out():
    found = request.parse(SMALLEST)
    assert found.device == ("cpu",)
    assert found.determinism == request.DeterminismSection(
        1234, "warn", "cpu", "removed", repeat=True, observer="unchecked", data="script"
    )
    assert found.capture.level == ("module", "api")
    assert found.capture.step == (0,)
    assert found.parent is None


def test_all_problems_are_named_at_once():
    bad = {
        **SMALLEST,
        "dtype": 16,
        "device": "npu",
        "determinism": {"algorithms": "off", "seed": True},
        "capture": {"level": ["modul"]},
    }
    message = refused(bad).message
    for part in (
        "dtype is 16",
        "device is 'npu', expected a list",
        "determinism.algorithms is 'off'",
        "determinism.seed is True",
        "['modul']",
    ):
        assert part in message


def test_further_constants_of_masks_are_finite_numbers():
    assert request.parse({**SMALLEST, "capture": {"fills": [-12345, 5e9]}}).capture.fills == (-12345.0, 5e9)
    for wrong in ([0], ["-1e4"], [True], [float("inf")], -1e4, [10**400]):
        assert "capture.fills is" in refused({**SMALLEST, "capture": {"fills": wrong}}).message


def test_a_seed_may_be_left_to_the_script():
    assert request.parse({**SMALLEST, "determinism": {"seed": "script"}}).determinism.seed is None


def test_unknown_action_lists_the_known_ones():
    assert "one of environment, dump" in refused({**SMALLEST, "action": "train"}).message


def test_output_must_be_there():
    assert "output is None" in refused({"schema": 1, "action": "dump"}).message


def test_a_newer_schema_is_refused_with_the_way_out():
    error = refused({**SMALLEST, "schema": 2})
    assert "request schema 2; this agent reads schema 1" in error.message
    assert "precflow agent" in error.next_step


@pytest.mark.parametrize("schema", [None, "1", 0, 1.5])
def test_no_schema_is_refused(schema):
    assert "this agent reads schema 1" in refused({**SMALLEST, "schema": schema}).message


def test_numbers_that_nothing_can_count_to_are_refused_and_shown_short():
    message = refused({**SMALLEST, "parent": 10**300, "capture": {"step": [10**300], "rank": [True]}}).message
    assert "parent is 1000" in message
    assert "capture.step is" in message
    assert "capture.rank is" in message
    assert len(message) < 900


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"schema": 1e999}', "beyond what a float64 holds"),
        ('{"schema": ' + "1" * 5000 + "}", "has 5000 digits"),
        ('{"schema": 1, "schema": 1}', "appears twice"),
        ("\xff", "is not JSON"),
    ],
    ids=["nested", "infinite", "long", "twice", "no text"],
)
def test_a_file_out_of_bounds_is_refused_in_words(tmp_path, text, words):
    (tmp_path / "request.json").write_text(text, encoding="latin-1")
    with pytest.raises(AgentError, match=words):
        request.read(str(tmp_path / "request.json"))


def test_a_request_that_nobody_writes_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "request.json")
    with pytest.raises(AgentError, match="it is not a regular file but a named pipe"):
        request.read(str(tmp_path / "request.json"))


def test_reads_a_file(tmp_path):
    path = tmp_path / "request.json"
    path.write_text(json.dumps(SMALLEST))
    assert request.read(str(path)).action == "environment"


@pytest.mark.parametrize(("text", "expected"), [("{", "is not JSON"), ("[]", "expected an object"), ("\xff", "is not JSON")])
def test_what_is_no_request_is_refused(tmp_path, text, expected):
    path = tmp_path / "request.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(AgentError, match=expected):
        request.read(str(path))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(AgentError, match=r"absent\.json: No such file"):
        request.read(str(tmp_path / "absent.json"))


def test_kinds_of_failures_are_distinct():
    assert len(set(KINDS)) == len(KINDS)


def captured(**capture):
    return request.parse({**SMALLEST, "capture": capture}).capture


def test_rules_are_read_with_what_matches_everything_left_out():
    (rule,) = captured(rules=[{"match": ["a.*"], "class": ["B"], "detail": "digest", "sample": 0.5, "slices": "[0]"}]).rules
    assert rule == DetailRule(match=("a.*",), class_name=("B",), detail="digest", sample=0.5, slices="[0]")


def test_everything_wrong_in_rules_is_named_with_its_number():
    rules = [{"detail": "all"}, {"match": "a", "sample": 0}, {"slices": "[a]", "step": ["0"], "level": ["modul"]}]
    message = refused({**SMALLEST, "capture": {"rules": rules}}).message
    for part in (
        "capture.rules[0].detail is 'all', expected one of",
        "capture.rules[1].match is 'a', expected a list",
        "capture.rules[1].sample is 0, expected a share",
        "capture.rules[2].slices is '[a]', expected an index such as",
        "capture.rules[2].step is ['0'], expected a list of int",
        "['modul']",
    ):
        assert part in message


def test_the_section_answers_for_calls():
    rules = [{"match": ["head"], "detail": "none"}, {"match": ["encoder"], "detail": "tensors"}]
    capture = captured(level=["module"], step=[1], rules=rules, detail="sketch")
    details = [capture.selection().detail_of("module", name, "C", "", "forward", 1, 0) for name in ("head", "encoder", "other")]
    assert details == ["none", "tensors", "sketch"]
    assert capture.selection().detail_of("api", "encoder", "C", "add", "forward", 1, 0) == "none"
    assert capture.selection().detail_of("module", "encoder", "C", "", "forward", 0, 0) == "none"


def test_a_repeat_records_the_same_calls_by_what_tells_their_bits():
    rules = [
        {"match": ["head"], "detail": "none"},
        {"match": ["encoder"], "detail": "tensors", "sample": 0.1},
        {"match": ["decoder"], "detail": "statistics"},
    ]
    assert details_of_a_repeat(captured(rules=rules, detail="digest")) == ["none", "digest", "statistics", "digest"]
    assert details_of_a_repeat(captured(rules=rules[:2], detail="sketch")) == ["none", "digest", "digest", "digest"]


def test_beside_statistics_a_repeat_has_sketches_for_the_first_run_took_statistics_from_them():
    capture = captured(rules=[{"match": ["decoder"], "detail": "statistics"}], detail="sketch")
    assert details_of_a_repeat(capture) == ["sketch", "sketch", "statistics", "sketch"]


def details_of_a_repeat(capture):
    selection = capture.selection(repeat=True)
    names = ("head", "encoder", "decoder", "other")
    return [selection.detail_of("api", name, "C", "add", "forward", 0, 0) for name in names]


def test_a_header_says_capture_as_json():
    capture = captured(rules=[{"match": ["a"], "detail": "digest"}])
    plain = json.loads(json.dumps(capture.to_plain()))
    assert plain["rules"] == [{"match": ["a"], "detail": "digest"}]
    assert plain["detail"] == "tensors"


@pytest.mark.parametrize(
    ("workload", "trusted", "said"),
    [
        ({"script": "train.py"}, [], ["this request runs the script train.py"]),
        (
            {"script": "-m ours.train", "arguments": {"lr": 1e-4, "api_key": "s3cr3t-s3cr3t"}},
            ["ours"],
            [
                (
                    'this request runs the script -m ours.train with arguments {"lr": 0.0001, "api_key": "(redacted)"}; '
                    "it trusts ours, and every function in it"
                )
            ],
        ),
        (
            {"model": {"_target_": "ours.build"}, "inputs": {"_target_": "theirs.feed"}},
            ["ours", "theirs"],
            ["this request calls ours.build, theirs.feed; it trusts ours, theirs, and every function in it"],
        ),
        ({"model": {"_target_": "precflow.workloads.stable_diffusion.text_encoder"}}, ["ours"], []),
        ({}, [], []),
    ],
)
def test_a_request_says_what_code_it_runs(workload, trusted, said):
    asked = request.parse({"schema": 1, "action": "dump", "output": "x", "workload": workload, "trusted": trusted})
    assert request.describe_code(asked) == said
