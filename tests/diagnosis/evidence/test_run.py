"""Evidence about the run, from headers and statuses."""

import pytest

from precflow.diagnosis.evidence import run
from precflow.diagnosis.evidence.names import EVIDENCE, OF_SUSPECT
from precflow.dumps.header import ContentEntries, ContentEntry, RecordedDevice, RepeatCheck
from precflow.judgement.verdicts import Judged


@pytest.fixture
def about(make_header):
    def of(reference=None, target=None, *, measures=(), judged=(), same=("weights",), incomplete=()):
        return run.gather(
            make_header(**(reference or {})),
            make_header(**(target or {})),
            same=same,
            measures=measures,
            judged=judged,
            incomplete=incomplete,
        )

    return of


def test_names_are_registered_and_belong_to_the_run(about):
    assert set(about()) <= set(EVIDENCE) - OF_SUSPECT


def test_equal_sides_have_nothing_to_tell(about):
    found = about()
    lists = [value for value in found.values() if isinstance(value, list)]
    assert not any(lists)
    assert "seed_reference" not in found
    assert (found["low_precision"], found["failing"]) == (False, 0)


def test_weights_that_differ_are_named_up_to_five(about):
    sides = [
        {"weights": ContentEntries(side, {f"w{n}": ContentEntry(f"{side}{n}", "float32", ()) for n in range(7)})}
        for side in "ab"
    ]
    found = about(*sides)
    assert found["weights_different"] == ["w0", "w1", "w2", "w3", "w4"]
    assert (found["weights_different_count"], found["weights_on_one_side_count"]) == (7, 0)


def test_weights_without_a_partner_are_counted_by_themselves(about):
    sides = [{"weights": ContentEntries(side, {f"{side}.w": ContentEntry("c", "float32", ())})} for side in "ab"]
    found = about(*sides)
    assert (found["weights_different_count"], found["weights_on_one_side_count"]) == (2, 2)


def test_a_weight_of_one_rank_is_compared_with_what_all_ranks_have_on_the_other_side(about):
    names = (["w"], ["w", "rank1.w"])
    sides = [{"weights": ContentEntries(str(each), {n: ContentEntry(n, "float32", ()) for n in each})} for each in names]
    found = about(*sides)
    assert found["weights_different"] == ["rank1.w"]
    assert (found["weights_different_count"], found["weights_on_one_side_count"]) == (1, 0)


def test_of_a_dump_without_header_no_weights_are_known_to_differ(about):
    whole = {"weights": ContentEntries("d", {"w": ContentEntry("c", "float32", ())})}
    found = about(whole, {"weights": ContentEntries()}, incomplete=["the target dump t/ was never sealed"])
    assert "weights_different" not in found
    assert found["damage"] == ["the target dump t/ was never sealed"]


def test_why_records_cannot_be_read_is_told_once(about):
    judged = [
        Judged("a", "unreadable", reason="tensors-0 is cut short"),
        Judged("b", "unreadable", reason="tensors-0 is cut short"),
    ]
    assert about(judged=judged)["damage"] == ["tensors-0 is cut short"]


@pytest.mark.parametrize(("dtype", "low"), [("float16", True), ("bfloat16", True), ("float64", False)])
def test_low_precision_of_either_side(about, dtype, low):
    assert about(target={"dtype": dtype})["low_precision"] is low
    assert about(reference={"dtype": dtype})["low_precision"] is low


def test_seeds_draws_and_emulation(about):
    target = {
        "determinism": {"seed": 7},
        "draws": ({"operator": "randn", "moved": False}, {"operator": "rand", "moved": True}),
        "device": RecordedDevice("npu", "emulated", "Ascend910B-emulated", emulated=True),
    }
    found = about(reference={"determinism": {"seed": 1234}}, target=target)
    assert (found["seed_reference"], found["seed_target"]) == (1234, 7)
    assert found["device_draws"] == ["randn"]
    assert found["emulated"]


def test_environment_of_both_sides(about):
    target = {
        "facts": {
            "packages": {"transformers": "4.40.0", "rich": "1"},
            "switches": {"matmul.allow_hf32": "True", "conv.allow_hf32": "True"},
            "variables": {"HCCL_DETERMINISITIC": "true"},
        }
    }
    reference = {"facts": {"packages": {"transformers": "5.23.0", "rich": "2"}, "switches": {"conv.allow_hf32": "True"}}}
    found = about(reference, target)
    assert found["package_differences"] == ["packages.transformers: 5.23.0 / 4.40.0"]
    assert found["matmul_switches"] == ["target: matmul.allow_hf32=True"]
    assert found["convolution_switches"] == []
    assert found["misspelt_variables"] == ["HCCL_DETERMINISITIC is set, but nothing reads it: did you mean HCCL_DETERMINISTIC?"]


def test_statuses_are_counted_and_calls_without_a_partner_named(about, hand_made, judge_calls):
    dump = hand_made()
    dump.operator("a", "linear")
    dump.operator("b", "rope")
    dump.operator("c", "add")
    measures, judged = judge_calls(dump, {"a / linear": "fail", "b / rope": "unpaired_reference", "c / add": "nonfinite"})
    found = about(measures=measures, judged=judged)
    assert found["failing"] == 2
    assert found["unpaired_count"] == 1
    assert found["unpaired_reference"] == ["b / rope"]
    assert found["unpaired_target"] == []


def test_a_repeat_of_the_headers_is_not_counted_here(about):
    assert "unrepeatable_target" not in about(target={"repeat": RepeatCheck(checked=True, different=("a/forward.output.0",))})
