"""Whole scripts: each keeps every bit that it has without precflow, and its steps are recorded as those of any training."""

import collections

import pytest

from precflow.environment.amounts import find_other_amounts
from precflow.stages.two_dumps import compare_dumps

PHASES = {"forward", "backward", "gradient", "optimizer"}
NET = ["", "blocks.0", "first", "last"]  # some modules of the net

COMPILER = "functorch.compile torch._dynamo.backends.inductor torch._inductor.lowering torch._inductor.pattern_matcher"


def case(name, *words, steps, micro=((0, 1),), modules=NET, needs="", **more):
    """One script, and what is seen of it."""
    return pytest.param(name, words, steps, micro, modules, needs, more, id="-".join((name[:-3], *words)))


CASES = [
    case("plain.py", steps=4, evaluations=4, calls={"": 6}),
    case("accumulate.py", steps=4, micro=((0, 2),)),
    case("scaled.py", steps=5, skipped=[1]),
    case("scaled.py", "fine", steps=5),
    case("checkpointed.py", "kept", steps=4),
    case("checkpointed.py", "reentrant", steps=4),
    case(
        "adversarial.py",
        steps=4,
        micro=((0, 2), (1, 1), (2, 2), (3, 1)),
        modules=["critic", "critic.0", "generator"],
        calls={"generator": 2, "teacher": 2, "critic": 6},
    ),
    case("two_optimizers.py", steps=4),
    case("closures.py", steps=2, micro=((0, 3),)),
    case("compiled.py", "model", steps=4, needs=COMPILER),
    case("compiled.py", "in_place", steps=4, needs=COMPILER),
    case("compiled.py", "blocks", steps=4, needs=COMPILER),
    case("compiled.py", "function", steps=4, needs=COMPILER),
    case("distributed.py", steps=4),
    case(
        "trainer.py",
        steps=3,
        micro=((0, 2),),
        modules=["", "model.layers.0.mlp"],
        needs="accelerate transformers.trainer",
        evaluations=4,
    ),
    case("accelerated.py", steps=2, micro=((0, 2),), needs="accelerate"),
    case("lit.py", "automatic", steps=4, modules=["net", "net.first"], needs="lightning", evaluations=4),
    case("lit.py", "manual", steps=4, modules=["net", "net.first"], needs="lightning", evaluations=4),
]


def import_here(names):
    """Import what a script needs, so that not each process has to."""
    for name in names.split():
        pytest.importorskip(name)


@pytest.mark.parametrize(("name", "words", "steps", "micro", "modules", "needs", "more"), CASES)
def test_a_script_keeps_its_bits_and_its_steps_are_recorded(
    plain, watched_once, name, words, steps, micro, modules, needs, more
):
    import_here(needs)
    seen = watched_once(name, *words)
    assert seen.code == 0, seen.log + seen.printed
    assert seen.wrote == plain(name, *words)
    header = seen.dump.header
    assert seen.dump.sealed
    assert header.script["steps"] == steps
    assert [tuple(run) for run in header.script["micro_batches"]] == list(micro)
    assert header.script["skipped"] == more.get("skipped", [])
    assert header.script["evaluations"] == more.get("evaluations", 0)
    (ran,) = header.ran
    assert (ran.whole, ran.steps, ran.micro_batches) == (True, steps, sum(micro_batches(micro, steps)))
    assert ran.calls == more.get("calls", ran.calls)
    calls = seen.dump.calls()
    assert {call.step for call in calls} == {0, 1}
    assert {call.phase for call in calls} == PHASES
    assert set(modules) <= {call.module for call in calls}
    assert not any("_orig_mod" in call.module for call in calls)
    stepped, given = (
        {(call.step, call.module) for call in calls if call.phase == phase} for phase in ("optimizer", "gradient")
    )
    assert stepped <= given, "the generator of a GAN may have run in the step before"
    assert len(header.losses) == 2
    identities = collections.Counter(
        (call.step, call.level, call.module, call.call, call.operator, call.ordinal, call.phase, record.index)
        for call in calls
        for record in call.outputs
    )
    assert not [identity for identity, count in identities.items() if count > 1]


def micro_batches(runs, steps):
    return [max(run for run in runs if run[0] <= step)[1] for step in range(steps)]


def test_a_step_that_a_scaler_skips_on_one_side_is_told_as_that(watched_once):
    reference, target = watched_once("scaled.py", "fine").dump, watched_once("scaled.py").dump
    assert all(0.5 < loss < 5 for loss in reference.header.losses), "the loss scale of 1024 is taken off"
    model = compare_dumps(reference, target, command="")
    assert model.verdict.verdict != "aligned"
    assert not any("different" in reason for reason in model.verdict.reasons)
    first = model.findings[0]
    assert (first.rule, first.certainty) == ("PF507", "certain")
    assert first.title.startswith("The target skips the optimizer's step 1")
    assert "PF402" not in {finding.rule for finding in model.findings}


def test_a_model_that_is_left_in_evaluation_mode_is_told_whatever_was_recorded(watched_once):
    reference, target = watched_once("plain.py").dump, watched_once("plain.py", "forgets").dump
    assert reference.header.script["in_evaluation"] == [[0, 0]]
    model = compare_dumps(reference, target, command="")
    assert model.verdict.verdict == "inconclusive", "the recorded steps agree"
    assert "the target trains in evaluation mode from step 2 on: 1 call of its model more" in model.verdict.reasons
    assert ("PF817", "certain") in [(finding.rule, finding.certainty) for finding in model.findings]


@pytest.mark.parametrize("name", ["plain.py", "accumulate.py", "adversarial.py", "closures.py"])
def test_a_script_that_is_stopped_has_the_same_records(watch, watched_once, name):
    whole, stopped = watched_once(name), watch(name, workload={"stop_early": True})
    assert (whole.code, stopped.code) == (0, 0), stopped.log
    assert stopped.wrote is None or name == "closures.py"  # its last step is its last line
    assert stopped.dump.header.script["end"] == "stopped after its last recorded step" or name == "closures.py"
    assert stopped.dump.header.ran[0].whole == (name == "closures.py")
    assert find_other_amounts(whole.dump.header, stopped.dump.header) == [], "it was ended on purpose"
    assert stopped.dump.header.files.keys() == whole.dump.header.files.keys()
    assert contents(stopped) == contents(whole)


def contents(seen):
    return [
        (call.step, call.module, call.operator, call.phase, record.index, record.content)
        for call in seen.dump.calls()
        for record in call.outputs
    ]


def test_a_bare_except_cannot_keep_a_script_from_being_stopped(watch):
    seen = watch("closures.py", "--careless", workload={"stop_early": True}, capture={"step": [0]})
    assert seen.code == 0, seen.log
    assert seen.dump.sealed


def test_workers_that_are_spawned_are_none_of_ours(plain, watch):
    seen = watch("closures.py", "--workers", "1")
    assert seen.code == 0, seen.printed
    assert seen.wrote == plain("closures.py")  # its rows are the same, whoever loads them


@pytest.mark.parametrize(("way", "boundaries"), [("model", {""}), ("blocks", {"blocks.0", "blocks.1"})])
def test_what_stays_compiled_is_recorded_at_its_boundary(watch, way, boundaries):
    import_here(COMPILER)
    seen = watch("compiled.py", way, workload={"compile": "kept"})
    assert seen.code == 0, seen.log + seen.printed
    calls = [call for call in seen.dump.calls() if call.level == "module" and call.phase == "forward"]
    assert {call.module for call in calls if call.compiled} == boundaries
    assert not any(call.module.startswith("blocks.0.") for call in calls)
    assert {call.phase for call in seen.dump.calls()} == PHASES


@pytest.mark.parametrize("way", ["in_place", "function"])
def test_compiled_code_that_hides_the_model_is_an_error(watch, way):
    import_here(COMPILER)
    seen = watch("compiled.py", way, workload={"compile": "kept"})
    assert seen.code == 2
    assert "no call of its model was seen" in seen.error["message"]
    assert "Net.first.weight" in seen.error["message"]
    assert "workload.compile=eager" in seen.error["next_step"]


def test_a_script_that_only_evaluates_is_recorded_if_that_is_asked(plain, watch):
    refused = watch("inference.py", folder="refused")
    assert refused.code == 2
    assert "called model (Net) 2 times, without gradients" in refused.error["message"]
    assert "workload.evaluation=true" in refused.error["next_step"]
    seen = watch("inference.py", workload={"evaluation": True})
    assert seen.code == 0, seen.log
    assert seen.wrote == plain("inference.py")
    assert {(call.step, call.phase) for call in seen.dump.calls()} == {(0, "forward"), (1, "forward")}
