import pytest

from precflow.comparison.measure import Measure
from precflow.curves.outcome import CurveOutcome
from precflow.diagnosis.training.phases import PhaseState
from precflow.diagnosis.training.procedure import OptimizerFacts, follow_procedure
from precflow.diagnosis.training.replay import ReplayedStep
from precflow.dumps.header import ContentEntries, Header
from precflow.judgement.verdicts import Judged

PARTS = ("data", "forward", "loss", "backward", "optimizer")
OPTIMIZER = "optimizer, computed again from its own gradients"


def header(*, losses=(2.0, 1.0, 0.5), weights="same", dtype="float32"):
    return Header(dtype=dtype, losses=losses, weights=ContentEntries(weights, {}), capture={"step": (0, 1)})


def follow(reference=None, target=None, *, states=(), differences=None, rows=(), curves=(), **optimizer):
    given = {**dict.fromkeys(PARTS, "aligned"), **dict(states)}
    checks = follow_procedure(
        reference or header(),
        target or header(),
        phases=[PhaseState(name, state, f"{name} is {state}") for name, state in given.items()],
        differences=differences or {},
        optimizer=OptimizerFacts(**optimizer),
        rows=rows,
        curves=curves,
    )
    return {one.name: one for one in checks}


def state_of(checks):
    return {name: check.state for name, check in checks.items()}


def differing(checks):
    return [name for name, check in checks.items() if check.state == "differs"]


def test_an_aligned_run_agrees_in_every_check_and_in_order():
    checks = follow()
    assert set(state_of(checks).values()) == {"agrees"}
    assert list(checks)[:6] == ["environment", "weights", "data", "hyperparameters", "forward", "loss of step 0"]
    assert list(checks)[-2:] == ["loss of step 1", "losses of steps 2 to 2"]


def test_without_training_there_is_no_procedure():
    assert follow_procedure(header(), header(), phases=(), differences={}, optimizer=OptimizerFacts()) == ()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"target": header(weights="other")}, "weights"),
        ({"states": {"data": "starts"}}, "data"),
        ({"settings": ["lr: 0.1 / 0.2 (all 3 parameters)"]}, "hyperparameters"),
        ({"states": {"loss": "starts", "backward": "inherits"}}, "loss of step 0"),
        ({"states": {"forward": "starts", "backward": "inherits"}}, "forward"),
        ({"states": {"backward": "starts", "optimizer": "inherits"}}, "gradients, from the loss backwards"),
        ({"states": {"optimizer": "starts"}}, OPTIMIZER),
        ({"target": header(losses=(2.0, 1.1, 0.5))}, "loss of step 1"),
        ({"target": header(losses=(2.0, 1.0, float("nan")))}, "losses of steps 2 to 2"),
    ],
)
def test_the_first_check_that_differs_is_named(options, name):
    assert differing(follow(**options)) == [name]


def test_what_differs_later_inherits():
    checks = follow(target=header(losses=(2.0, 1.1, 0.7)), states={"backward": "starts", "optimizer": "inherits"})
    assert differing(checks) == ["gradients, from the loss backwards"]
    assert checks["loss of step 1"].state == "inherits"


def test_an_optimizer_that_follows_from_wrong_gradients_inherits_their_error():
    steps = [ReplayedStep("x", "head.weight", "AdamW", 0.1, 0.1)]
    checks = follow(states={"backward": "starts", "optimizer": "inherits"}, steps=steps)
    assert checks[OPTIMIZER].state == "inherits"
    assert checks[OPTIMIZER].why == "all 1 steps of parameters follow from their own gradient, state and settings"


def test_an_optimizer_that_does_not_follow_differs_whatever_its_limits_say():
    steps = [ReplayedStep("x", "head.weight", "AdamW", 0.1, 90.0), ReplayedStep("y", "head.bias", "AdamW", 0.1, 0.1)]
    checks = follow(steps=steps)
    assert differing(checks) == [OPTIMIZER]
    assert "1 of 2" in checks[OPTIMIZER].why


@pytest.mark.parametrize(
    "options",
    [
        {"settings": ["lr: 0.1 / 0.2"], "states": {"forward": "starts", "backward": "inherits", "optimizer": "inherits"}},
        {"target": header(weights="other"), "states": {"backward": "starts", "optimizer": "misaligned"}},
        {"states": {"loss": "starts", "backward": "misaligned", "optimizer": "inherits"}},
        {"states": {"data": "starts", "loss": "inherits"}, "target": header(losses=(3.0, 2.0, 1.0))},
        {"settings": ["lr: 0.1 / 0.2"], "states": {"optimizer": "starts"}},
        {"still": ["a.weight"], "states": {"optimizer": "misaligned", "forward": "starts"}},
        {"states": {"communication": "starts", "optimizer": "inherits"}},
    ],
)
def test_the_table_names_the_guilty_part_and_no_other(options):
    """The line of phases and the table never say another thing of a part."""
    checks = follow(**options)
    guilty = next(name for name, state in options["states"].items() if state == "starts")
    assert [check.phase for check in checks.values() if check.state == "differs"] == [guilty]
    of_phase = {
        "starts": ["differs", "inherits"],
        "misaligned": ["differs_too"],
        "inherits": ["inherits"],
        "aligned": ["agrees"],
    }
    told = {**dict.fromkeys(PARTS, "aligned"), **options["states"]}
    last = {check.phase: check for check in checks.values()}
    assert all(last[name].state in of_phase[state] for name, state in told.items())


def test_what_was_not_recorded_is_not_told():
    unknown = {"loss": "not_told", "optimizer": "not_told"}
    checks = follow(header(losses=(), weights=""), header(losses=(), weights=""), states=unknown)
    told = state_of(checks)
    assert [name for name, state in told.items() if state == "not_told"] == [
        "weights",
        "loss of step 0",
        OPTIMIZER,
        "loss of step 1",
    ]


def test_an_environment_that_differs_proves_nothing():
    checks = follow(differences={"torch.version": ("2.6.0", "2.5.1"), "python.version": ("3.11", "3.10")})
    assert checks["environment"].state == "noted"
    assert checks["environment"].why == "torch.version: 2.6.0 / 2.5.1, and 1 more"
    assert differing(checks) == []


@pytest.mark.parametrize("broken", [("nan", "nan"), ("inf", "inf"), ("inf", "-inf"), ("nan", "inf")])
def test_losses_that_are_finite_on_neither_side_say_nothing(broken):
    left, right = map(float, broken)
    later = follow(header(losses=(2.0, 1.0, left)), header(losses=(2.0, 1.0, right)))
    assert later["losses of steps 2 to 2"].state == "not_told"
    second = follow(header(losses=(2.0, left, 0.5)), header(losses=(2.0, right, 0.5)))
    assert second["loss of step 1"].state == "not_told"


def test_losses_in_16_bits_may_be_further_apart():
    low = header(losses=(2.0, 1.0, 0.5), dtype="bfloat16")
    assert differing(follow(header(), header(losses=(2.0, 1.02, 0.5)))) == ["loss of step 1"]
    assert differing(follow(low, header(losses=(2.0, 1.02, 0.5), dtype="bfloat16"))) == []


def test_curves_come_last():
    curves = [
        CurveOutcome("loss", "aligned", standard="loss_1_percent"),
        CurveOutcome("grad_norm", "misaligned", failed=("grad_norm differs by 3",)),
        CurveOutcome("scale", "inconclusive", missing=("it is empty",)),
    ]
    checks = follow(curves=curves)
    assert list(checks)[-3:] == ["curve loss", "curve grad_norm", "curve scale"]
    assert [check.state for check in list(checks.values())[-3:]] == ["agrees", "differs", "not_told"]
    assert differing(follow(states={"backward": "starts"}, curves=curves)) == ["gradients, from the loss backwards"]


def test_without_updates_all_steps_are_held_to_the_line_of_the_first():
    apart = header(losses=(2.0, 1.0005, 0.5))
    assert differing(follow(target=apart)) == []
    assert differing(follow(target=apart, without_updates=True)) == ["loss of step 1"]
    later = header(losses=(2.0, 1.0, 0.5005))
    checks = follow(target=later)
    assert (checks["losses of steps 2 to 2"].state, differing(checks)) == ("noted", [])
    assert differing(follow(target=later, without_updates=True)) == ["losses of steps 2 to 2, without updates"]
    near = follow(target=header(losses=(2.0, 1.0, 0.50001)), without_updates=True)
    assert near["losses of steps 2 to 2, without updates"].state == "agrees"


def test_losses_may_be_as_far_apart_as_the_forward_explains():
    """Under autocast a run in float32 has the errors of 16 bits; of a step whose forward fails they explain nothing."""
    apart = header(losses=(2.0, 1.02, 0.5))
    assert differing(follow(target=apart)) == ["loss of step 1"]
    identities = ("a/forward.output.0", "a/forward.output.0@1.0")
    measures = [
        Measure(text, text, "a", "", "module", "forward", order=0, join="paired", metrics={"relative_l2": 4e-3})
        for text in identities
    ]
    for status, expected in (("pass", []), ("fail", ["loss of step 1"])):
        assert differing(follow(target=apart, rows=[(one, Judged(one.record, status)) for one in measures])) == expected


def test_losses_are_those_of_the_recorded_steps():
    """Steps 10 and 11 of a script are recorded: the second loss is that of step 11."""
    weights = ContentEntries("same", {})
    run = Header(dtype="float32", losses=(2.0, 1.0), loss_steps=(10, 11), weights=weights, capture={"step": (10, 11)})
    checks = follow(run, run)
    assert "loss of step 10" in checks
    assert checks["loss of step 11"].why.startswith("1 and 1")
