import dataclasses

import pytest

from precflow.agent.contract import parse_identity
from precflow.comparison.measure import Measure
from precflow.diagnosis.findings import Region, Suspect
from precflow.diagnosis.training.phases import describe_phases, find_guilty, find_part, tell_phases
from precflow.dumps.header import ContentEntries, ContentEntry, Header
from precflow.dumps.records import Call, Record
from precflow.judgement.verdicts import Judged, Verdict

STEP = (  # the records of one training step, in order
    "a/forward.output.0",
    "(model)/forward.output.0",
    "a/backward.output.0",
    "a/gradient.output.weight",
    "a/optimizer.output.weight",
)


class Run:
    """A dump with a header and the calls of the root module."""

    def __init__(self, *, batches=(), losses=(1.0, 0.5), inputs="", dtype="float32"):
        entries = {"x": ContentEntry(inputs, "float32", (2,))} if inputs else {}
        self.header = Header(losses=losses, dtype=dtype, inputs=ContentEntries(inputs, entries))
        self._calls = [root_call(step, *batch) for step, batch in enumerate(batches)]

    def calls(self):
        return self._calls


def root_call(step, content, dtype="int64"):
    identity = parse_identity(f"(model)/forward.input.ids@{step}.0")
    given = Record.of(identity, 0, dtype, (2,), content, stored=False, source=None, weight="")
    about = {"level": "module", "module": "", "class_name": "Net", "call": 0, "operator": "", "ordinal": 0, "phase": "forward"}
    facts = {"site": "", "movement": False, "compiled": False, "arguments": {}}
    return Call(order=0, step=step, rank=0, inputs=(given,), outputs=(), **about, **facts)


def at(record, step):
    return f"{record}@{step}.0" if step else record


def tell(
    statuses=None, *, steps=2, kept=STEP, suspects=(), roles=None, verdict=None, reference=None, target=None, error=0.0, **more
):
    """Tell the phases of a run; ``statuses`` names the records that do not pass, ``kept`` those that were recorded."""
    statuses = statuses or {}
    records = [at(record, step) for step in range(steps) for record in kept]
    measures, judged = [], []
    for order, text in enumerate(records):
        identity = parse_identity(text)
        about = (text, text, identity.module, identity.operator, "module", identity.phase)
        measures.append(Measure(*about, order=order, join="paired", metrics={"relative_l2": error}))
        judged.append(Judged(text, statuses.get(text, "pass")))
    failing = any(status == "fail" for status in statuses.values())
    region = Region(
        suspects=tuple(Suspect(record, record, "", "", 0, 2.0, "") for record in suspects),
        roles=roles or dict.fromkeys(suspects, "introduces"),
    )
    return tell_phases(
        reference or Run(inputs="same"),
        target or Run(inputs="same"),
        measures=measures,
        judged=judged,
        verdict=Verdict(verdict or ("misaligned" if failing else "aligned")),
        region=region,
        **more,
    )


def fail(*records):
    return dict.fromkeys(records, "fail")


def words(states):
    return {one.name: one.state for one in states}


def test_all_parts_of_an_aligned_run_are_aligned():
    assert describe_phases(tell()) == "data, forward, loss, backward, optimizer aligned"


def test_a_run_that_trains_nothing_has_no_parts():
    plain = Run(losses=(), inputs="same")
    assert tell(kept=STEP[:2], reference=plain, target=plain) == ()


@pytest.mark.parametrize(
    ("first", "guilty", "line"),
    [
        (0, "forward", "data aligned · forward misaligned, starts here · loss aligned · backward, optimizer inherits it"),
        (2, "backward", "data, forward, loss aligned · backward misaligned, starts here · optimizer inherits it"),
        (3, "backward", "data, forward, loss aligned · backward misaligned, starts here · optimizer inherits it"),
        (4, "optimizer", "data, forward, loss, backward aligned · optimizer misaligned, starts here"),
    ],
)
def test_the_part_of_the_first_suspect_is_guilty(first, guilty, line):
    states = tell(fail(*STEP[first:]), steps=1, suspects=[STEP[first]])
    assert find_guilty(states) == guilty
    assert describe_phases(states) == line


def test_without_suspects_the_first_record_that_fails_decides():
    states = tell(fail("a/optimizer.output.weight", "a/forward.output.0@1.0"))
    assert find_guilty(states) == "optimizer"


def test_a_later_forward_that_inherits_says_nothing_against_the_forward():
    states = tell(fail(STEP[3], STEP[4], "a/forward.output.0@1.0"), suspects=[STEP[3]])
    assert describe_phases(states) == "data, forward, loss aligned · backward misaligned, starts here · optimizer inherits it"


def test_a_part_with_an_error_of_its_own_does_not_only_inherit():
    both = ["a/forward.output.0", "a/gradient.output.weight"]
    states = tell(fail(*both), suspects=both)
    assert words(states)["forward"] == "starts"
    assert words(states)["backward"] == "misaligned"


def test_what_was_not_recorded_is_not_told():
    states = tell(kept=STEP[:2])
    aligned = dict.fromkeys(["data", "forward", "loss"], "aligned")
    assert words(states) == {**aligned, "backward": "not_told", "optimizer": "not_told"}
    assert states[-1].why == "nothing of it was recorded"


def test_a_part_that_is_mostly_blind_is_not_told():
    states = tell({"a/backward.output.0": "blind", "a/gradient.output.weight": "blind"}, steps=1)
    assert words(states)["backward"] == "not_told"
    assert "blind" in states[3].why


@pytest.mark.parametrize("status", ["unpaired_target", "unreadable", "undecided", "not_comparable", "sampled_out"])
def test_a_part_that_was_not_compared_in_full_is_not_told(status):
    states = tell({"a/optimizer.output.weight": status}, steps=1, verdict="inconclusive")
    assert words(states)["optimizer"] == "not_told"


def test_records_that_fail_prove_nothing_if_the_verdict_is_inconclusive():
    states = tell(fail("a/gradient.output.weight"), verdict="inconclusive")
    assert not find_guilty(states)
    assert words(states)["backward"] == "not_told"


def test_a_forward_that_fails_only_after_an_unrecorded_update_is_not_blamed():
    states = tell(fail("a/forward.output.0@1.0"), kept=STEP[:4], suspects=["a/forward.output.0@1.0"])
    assert not find_guilty(states)
    assert words(states)["optimizer"] == "not_told"
    assert "update before step 1" in states[-1].why


def test_a_forward_that_fails_after_a_recorded_update_that_agrees_is_blamed():
    assert find_guilty(tell(fail("a/forward.output.0@1.0"), suspects=["a/forward.output.0@1.0"])) == "forward"


# The loss


def test_a_loss_that_is_apart_though_the_forward_agrees_is_guilty():
    losses = {"reference": Run(losses=(1.0,), inputs="same"), "target": Run(losses=(0.25,), inputs="same")}
    states = tell(fail(*STEP[2:], "a/forward.output.0@1.0"), suspects=[STEP[2]], **losses)
    assert find_guilty(states) == "loss"
    assert states[2].why == "1 and 0.25, 0.75 apart, though the forward agrees"
    assert words(states)["forward"] == "aligned"
    assert words(states)["backward"] == "misaligned"


def test_a_loss_that_is_apart_where_no_forward_was_compared_blames_nobody():
    losses = {"reference": Run(losses=(1.0,), inputs="same"), "target": Run(losses=(0.25,), inputs="same")}
    states = tell(kept=(), verdict="misaligned", **losses)
    assert not find_guilty(states)
    assert (states[2].name, states[2].state) == ("loss", "not_told")
    assert states[2].why == "1 and 0.25, 0.75 apart, and the forward before it was not compared"


def test_a_loss_that_is_apart_comes_before_an_update_that_was_not_recorded():
    losses = {"reference": Run(losses=(1.0, 0.5), inputs="same"), "target": Run(losses=(0.25, 0.1), inputs="same")}
    states = tell(fail("a/forward.output.0@1.0"), kept=STEP[:4], suspects=["a/forward.output.0@1.0"], **losses)
    assert find_guilty(states) == "loss"


def test_a_loss_that_the_error_of_the_forward_explains_is_not_blamed():
    """Under autocast a run in float32 has errors of 16 bits: what is wrong is the backward alone."""
    losses = {"reference": Run(losses=(0.00296,), inputs="same"), "target": Run(losses=(0.00294,), inputs="same")}
    options = {"steps": 1, "suspects": [STEP[2]], **losses}
    assert find_guilty(tell(fail(*STEP[2:]), **options)) == "loss"
    assert find_guilty(tell(fail(*STEP[2:]), error=4e-3, **options)) == "backward"


@pytest.mark.parametrize(("left", "right"), [(1.0, 1.0001), (float("nan"), float("nan"))])
def test_a_loss_that_rounding_explains_blames_nobody(left, right):
    losses = {"reference": Run(losses=(left,), inputs="same"), "target": Run(losses=(right,), inputs="same")}
    assert find_guilty(tell(fail(*STEP[2:]), steps=1, suspects=[STEP[2]], **losses)) == "backward"


# Data


def test_other_inputs_are_the_data():
    states = tell(reference=Run(inputs="one"), target=Run(inputs="other"), verdict="inconclusive")
    assert find_guilty(states) == "data"
    assert states[0].why == "the inputs differ: x"


def test_the_first_step_with_another_batch_is_named():
    reference, target = Run(batches=[("a",), ("b",)]), Run(batches=[("a",), ("c",)])
    states = tell(fail("a/forward.output.0@1.0"), suspects=["a/forward.output.0@1.0"], reference=reference, target=target)
    assert states[0].state == "starts"
    assert states[0].why == "the sides were fed different batches from step 1: ids"
    assert words(states)["forward"] != "starts"


def test_equal_batches_are_aligned_data():
    run = Run(batches=[("a",), ("b",)])
    assert tell(reference=run, target=run)[0].why == "the inputs are the same in 2 steps"


def test_floating_inputs_that_differ_are_judged_by_limits():
    reference, target = Run(batches=[("a", "float32")]), Run(batches=[("b", "float32")])
    near = tell(reference=reference, target=target, judge_input=lambda *_: Judged("x", "pass"))
    far = tell(reference=reference, target=target, judge_input=lambda *_: Judged("x", "fail"))
    unknown = tell(reference=reference, target=target)
    assert [states[0].state for states in (near, far, unknown)] == ["aligned", "starts", "not_told"]


def test_a_batch_in_another_type_is_not_told():
    reference, target = Run(batches=[("a", "float32")]), Run(batches=[("b", "float16")], dtype="float16")
    assert tell(reference=reference, target=target, judge_input=lambda *_: Judged("x", "fail"))[0].state == "not_told"


def test_data_that_nobody_recorded_is_not_told():
    assert tell(reference=Run(), target=Run())[0].state == "not_told"


# Ranks


REDUCED = "(outside)/all_reduce.0/gradient.output.0"


def collective_call(step, record=REDUCED, **arguments):
    identity = parse_identity(at(record, step))
    returned = Record.of(identity, 0, "float32", (2,), "", stored=False, source=None, weight="")
    about = {"level": "api", "module": identity.module, "class_name": "", "call": 0, "operator": identity.operator}
    facts = {"ordinal": 0, "phase": identity.phase, "site": "", "movement": False, "compiled": False}
    return Call(order=0, step=step, rank=0, inputs=(), outputs=(returned,), arguments=arguments, **about, **facts)


def test_communication_is_a_part_where_collectives_were_recorded():
    run = Run()
    run._calls = [collective_call(0, group="[0, 1]")]
    kept = (*STEP[:4], REDUCED, *STEP[4:])
    states = tell(fail(REDUCED, STEP[4]), steps=1, kept=kept, suspects=[REDUCED], reference=run)
    assert find_guilty(states) == "communication"
    assert words(states)["backward"] == "aligned"


@pytest.mark.parametrize("operator", ["gather", "scatter", "reduce", "broadcast"])
def test_a_collective_is_told_from_an_operator_of_its_name_by_its_group(operator):
    record = f"x/{operator}.0/forward.output.0"
    told = []
    for arguments in ({"group": "[0, 1]"}, {"dim": "1"}):
        run = Run()
        run._calls = [collective_call(0, record, **arguments)]
        told.append("communication" in words(tell(steps=1, kept=(*STEP, record), reference=run)))
    assert told == [True, False]


def test_an_ordinary_operator_is_no_communication():
    assert find_part("x/add.0/forward.output.0") == "forward"
    assert dataclasses.is_dataclass(tell()[0])
