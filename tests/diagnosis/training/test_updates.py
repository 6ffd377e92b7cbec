from dataclasses import replace

import pytest

from precflow.diagnosis.findings import Region, Suspect
from precflow.diagnosis.training.updates import (
    FROZEN,
    LOST,
    NO_GRADIENT,
    NOT_HELD,
    ROUNDED,
    blame_still,
    describe_still,
    find_still_parameters,
    gather_still,
    keep_whatever_data,
)
from precflow.dumps.header import Header, ParameterUpdates, RanInAll

MOVES = ParameterUpdates(dtype="float32", given=((0, 2),), moved={0: 1e-3, 1: 1e-3}, moved_in_all=2e-3)


class Run:
    """A dump that knows of its parameters and has no call."""

    def __init__(self, **parameters):
        self.header = Header(updates={name.replace("_", "."): one for name, one in parameters.items()})

    def calls(self):
        return []


def test_a_rank_that_leaves_a_step_out_lacks_no_gradient():
    """Its second step holds the micro batches of the second and the third: a branch that only the second one uses has none."""
    reference, target = Run(a_weight=MOVES), Run(a_weight=still(given=()))
    assert find_still_parameters(reference, target, [])
    reference.header, target.header = (
        replace(run.header, ran=(RanInAll(steps=steps, micro_batches=8),)) for run, steps in ((reference, 4), (target, 3))
    )
    assert find_still_parameters(reference, target, []) == []
    assert find_still_parameters(target, reference, []) == []


def known(**changes):
    return ParameterUpdates(**{**{name: getattr(MOVES, name) for name in MOVES.__dataclass_fields__}, **changes})


def still(**changes):
    return known(**{"moved": {0: 0.0, 1: 0.0}, "moved_in_all": 0.0, **changes})


def find(reference, target):
    return find_still_parameters(Run(a_weight=reference), Run(a_weight=target), [])


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (still(trained=False, given=()), FROZEN),
        (still(held=False, given=()), NOT_HELD),
        (still(given=()), NO_GRADIENT),
        (still(), LOST),
        (still(dtype="bfloat16"), ROUNDED),
    ],
)
def test_a_weight_that_moves_on_one_side_only_is_found_with_the_reason(target, why):
    (found,) = find(MOVES, target)
    assert (found.parameter, found.step, found.side, found.why) == ("a.weight", 0, "target", why)
    assert found.record == "a/optimizer.output.weight"
    (other,) = find(target, MOVES)
    assert (other.side, other.why) == ("reference", why)


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        (MOVES, MOVES),
        (still(), still()),
        (known(moved={0: 1e-8, 1: 1e-8}, moved_in_all=2e-8), still()),  # less than a unit: rounding decides
        (known(dtype="bfloat16"), still(dtype="bfloat16")),  # the same
        (MOVES, known(moved={}, moved_in_all=0.0)),  # not known
    ],
)
def test_what_moves_on_both_sides_or_on_neither_is_no_difference(reference, target):
    assert find(reference, target) == []


def test_a_weight_in_16_bits_that_only_many_steps_move_never_moves_on_the_other_side():
    reference = known(dtype="bfloat16", moved={0: 0.0, 1: 3e-3}, moved_in_all=8e-3)
    (found,) = find(reference, still(dtype="bfloat16"))
    assert (found.step, found.why) == (1, LOST)


def test_a_step_that_was_not_recorded_is_missing_on_one_side():
    (found,) = find_still_parameters(
        Run(a_weight=MOVES, b_weight=MOVES), Run(a_weight=known(given=((0, 1),)), b_weight=MOVES), []
    )
    assert (found.parameter, found.step, found.why) == ("a.weight", 2, NO_GRADIENT)
    runs_longer = Run(a_weight=known(given=((0, 9),)), b_weight=known(given=((0, 9),)))
    assert find_still_parameters(runs_longer, Run(a_weight=MOVES, b_weight=MOVES), []) == []


def test_a_state_that_stands_still_though_its_weight_moves_is_found():
    moving, standing = (known(state={"exp_avg": (0, 1), "exp_avg_sq": steps}) for steps in ((0, 1), ()))
    (found,) = find(moving, standing)
    assert (found.name, found.why, found.step) == ("a.weight.exp_avg_sq", LOST, 0)
    assert find(moving, known(state={"exp_avg": (0, 1)})) == []  # another optimizer


def test_ranks_are_told_apart():
    reference, target = ({"b_weight": MOVES, "rank1_b_weight": one} for one in (MOVES, still()))
    (found,) = find_still_parameters(Run(**reference), Run(**target), [])
    assert (found.parameter, found.rank) == ("b.weight", 1)
    assert list(describe_still([found])) == [
        "b.weight on rank 1 moves on the reference only, from step 0 on: lost on the target: the update does not reach it"
    ]


def test_the_run_starts_at_the_update_and_later_suspects_follow():
    found = find(MOVES, still(held=False))
    later, sooner, wrong = (
        Suspect(record, record, "", "", 0, 2.0, "")
        for record in ("x/forward.output.0@1.0", "x/forward.output.0", "y/forward.output.0@1.0")
    )
    blamed = blame_still(Region("x", (later, wrong), roles={later.record: "introduces"}), found, [], kept={wrong.record})
    assert [suspect.name for suspect in blamed.suspects] == ["a.weight (optimizer)", wrong.name]
    assert blamed.start == "a.weight (optimizer)"
    assert blamed.roles == {later.record: "inherits"}
    assert "in no optimizer that steps on the target" in blamed.suspects[0].why
    assert gather_still(found, blamed)["still_starts"]
    before = blame_still(Region("x", (sooner,)), found, [])
    assert [suspect.name for suspect in before.suspects] == [sooner.name, "a.weight (optimizer)"]
    assert not gather_still(found, before)["still_starts"]


@pytest.mark.parametrize(("why", "place"), [({"trained": False, "given": ()}, 0), ({"held": False}, 1)])
def test_what_is_made_of_other_gradients_comes_behind_a_parameter_that_is_frozen(hand_made, why, place):
    """The norm that a script clips by is that of more gradients where one side trains more."""
    found = find(MOVES, still(**why))
    dump = hand_made()
    gradient = dump.module("b", {"content": "x"}, phase="gradient")
    norm = dump.operator("(outside)", "foreach_norm", gradient)
    suspect = Suspect.of(norm, norm.outputs[0].text, 9.0, "the target calls it differently")
    blamed = blame_still(Region(suspect.name, (suspect,)), found, dump.calls())
    names = [suspect.name, "a.weight (optimizer)"]
    assert sorted(one.name for one in blamed.suspects) == sorted(names)
    assert blamed.suspects[place].name == "a.weight (optimizer)"
    assert gather_still(found, blamed)["still_starts"] == (place == 0)


def test_where_nothing_can_be_compared_a_reason_that_needs_no_comparison_is_told():
    rounded, lost = find(MOVES, still(dtype="bfloat16")), find(MOVES, still())
    assert keep_whatever_data([*rounded, *lost]) == rounded
    assert gather_still(rounded, Region())["still_why"] == ROUNDED


def test_nothing_changes_where_every_parameter_is_updated():
    region = Region("x")
    assert blame_still(region, [], []) is region
    assert gather_still([], region) == {}
