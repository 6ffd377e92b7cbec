import ml_dtypes
import numpy as np
import pytest

from precflow.agent.contract import Identity
from precflow.diagnosis.evidence import training
from precflow.diagnosis.evidence.names import EVIDENCE, OF_SUSPECT
from precflow.diagnosis.training.gradients import GradientRow, Gradients, measure_gradients
from precflow.diagnosis.training.replay import ReplayedStep
from precflow.dumps.header import Header
from precflow.dumps.records import Call, Record, Statistics

NAMES = ("a", "b", "c")


class Run:
    """A dump of gradients: what backward leaves, what the optimizer sees, its settings, and what the model was given."""

    def __init__(
        self,
        *,
        seen=lambda value: value,
        factor=1.0,
        settings=None,
        rates=(),
        batches=(),
        kept=True,
        steps=1,
        dtype=np.float32,
    ):
        self.header = Header(dtype="float32")
        self.held, self.made = {}, []
        for step in range(steps):
            for order, name in enumerate(NAMES):
                value = (np.random.default_rng(10 * step + order).standard_normal(32) * (order + 1) * factor).astype(dtype)
                self.call(name, "gradient", step, outputs=[value], kept=kept)
                said = {"lr": repr(rates[step] if rates else 0.1), **((settings or {}).get(name, {}))}
                self.call(
                    name, "optimizer", step, inputs=[np.asarray(seen(value), dtype)], outputs=[value], said=said, kept=kept
                )
        for step, batch in enumerate(batches):
            self.call("", "forward", step, inputs=[np.asarray(batch)])

    def call(self, module, phase, step, *, inputs=(), outputs=(), said=None, kept=True):
        records = {
            role: tuple(self.record(module, phase, role, step, value, kept=kept) for value in values)
            for role, values in (("input", inputs), ("output", outputs))
        }
        about = {"level": "module", "class_name": "", "call": 0, "operator": "", "ordinal": 0, "site": "", "movement": False}
        facts = {"module": module, "phase": phase, "step": step, "rank": 0, "order": len(self.made), "compiled": False}
        made = Call(inputs=records["input"], outputs=records["output"], arguments=said or {}, **about, **facts)
        self.made.append(made)

    def record(self, module, phase, role, step, value, *, kept):
        identity = Identity(module, 0, "", 0, phase, role, "weight", step, 0)
        flat = value.reshape(-1).astype(np.float64)
        numbers = (flat.min(), flat.max(), flat.sum(), float(flat @ flat))
        statistics = None if kept else Statistics(*numbers, 0, 0, 0, 0, 0, 0)
        held = {"stored": kept, "source": None, "weight": "", "statistics": statistics}
        made = Record.of(identity, len(self.made), str(value.dtype), value.shape, value.tobytes().hex(), **held)
        self.held[made.text] = value
        return made

    def calls(self):
        return self.made

    def tensor(self, record):
        return self.held[record.text]


def gather(reference, target, steps=()):
    return training.gather(reference, target, steps=steps, gradients=measure_gradients(reference, target))


def clip_norm(value):
    return value * np.float32(0.125)


def clip_value(value):
    return np.clip(value, -0.5, 0.5)


def narrow(value):
    return value.astype(ml_dtypes.bfloat16).astype(np.float32)


def test_a_gradient_that_is_only_rounding_speaks_against_no_factor():
    """The bias of an attention's keys: its exact gradient is zero."""
    rows = [GradientRow(f"{name}.weight", 0, 0, 1.0, 8.0, 1.0) for name in NAMES]

    def share(*norms):
        gradients = Gradients((*rows, GradientRow("a.bias", 0, 0, *norms, -0.1)))
        return training.gather(Run(), Run(), steps=(), gradients=gradients).get("gradient_factor_share", 0.0)

    assert share(1e-3, 9e-3) == 1.0
    assert share(1e-3, 0.3) < 1.0
    assert share(0.1, 0.8) < 1.0


# Norm and direction


def test_norm_and_direction_of_each_parameter_in_each_step():
    found = measure_gradients(Run(steps=2), Run(steps=2, factor=-2.0))
    assert [(row.parameter, row.step) for row in found.rows] == [(f"{name}.weight", step) for step in (0, 1) for name in NAMES]
    for row in found.rows:
        assert row.target == pytest.approx(2 * row.reference)
        assert row.cosine == pytest.approx(-1.0)
        assert row.factor is None


def test_without_tensors_norms_come_from_statistics():
    found = measure_gradients(Run(kept=False), Run(kept=False))
    whole = measure_gradients(Run(), Run())
    assert [row.reference for row in found.rows] == pytest.approx([row.reference for row in whole.rows])
    assert {row.cosine for row in found.rows} == {1.0}
    assert {change.kind for change in found.changes} == {"none"}


class Sketched(Run):
    """A run of which statistics and sketches are kept."""

    def __init__(self, **options):
        super().__init__(kept=False, **options)

    def sketch(self, record):
        return self.held[record.text].reshape(1, -1)


def test_one_factor_of_all_gradients_shows_in_sketches_too():
    found = measure_gradients(Sketched(), Sketched(factor=0.5))
    assert [row.factor for row in found.rows] == pytest.approx([0.5] * len(found.rows))
    assert {row.factor for row in measure_gradients(Sketched(), Sketched(factor=-0.5)).rows} == {None}
    with_statistics_alone = measure_gradients(Run(kept=False), Run(kept=False, factor=0.5)).rows
    assert [row.multiple for row in with_statistics_alone] == pytest.approx([0.5] * len(with_statistics_alone))


def test_a_gradient_of_zero_has_no_direction():
    found = measure_gradients(Run(factor=0.0), Run())
    assert {row.cosine for row in found.rows} == {None}


# Gradients that were not cleared


class Accumulating(Run):
    """A run whose loop never clears gradients; without tensors it keeps sketches."""

    def __init__(self, *, clears=False, kept=True, seen=lambda value: value, steps=(0, 1, 2), cleared=()):
        super().__init__(steps=0)
        self.kept = kept
        left = dict.fromkeys(NAMES, np.float32(0))
        for step in steps:
            for order, name in enumerate(NAMES):
                own = np.random.default_rng(10 * step + order).standard_normal(32).astype(np.float32)
                value = own if clears or name in cleared else own + left[name]
                left[name] = seen(value)
                self.call(name, "gradient", step, outputs=[value], kept=kept)
                self.call(name, "optimizer", step, inputs=[left[name]], outputs=[value], kept=kept)

    def sketch(self, record):
        return None if self.kept else self.held[record.text].reshape(1, -1)  # linear, as a sketch is


@pytest.mark.parametrize("kept", [True, False])
def test_gradients_that_still_hold_the_last_steps_are_told(kept):
    clean, dirty = Accumulating(clears=True, kept=kept), Accumulating(kept=kept)
    found = gather(clean, dirty)
    assert [found[f"gradients_left_{what}"] for what in ("side", "step", "share")] == ["target", 1, 1.0]
    assert gather(dirty, clean)["gradients_left_side"] == "reference"
    assert "gradients_left_side" not in gather(dirty, dirty)


def test_two_models_that_are_trained_in_turn_have_gradients_in_every_other_step():
    found = gather(Accumulating(clears=True, steps=(1, 3)), Accumulating(steps=(1, 3)))
    assert [found[f"gradients_left_{what}"] for what in ("side", "step", "share")] == ["target", 3, 1.0]


def test_gradients_of_another_optimizer_may_be_cleared():
    found = gather(Accumulating(clears=True), Accumulating(cleared=NAMES[:1]))
    assert found["gradients_left_side"] == "target"
    assert found["gradients_left_share"] == pytest.approx(1 - 1 / len(NAMES))


def test_what_clipping_has_left_of_the_last_gradient_is_what_is_added():
    assert gather(Accumulating(clears=True, seen=clip_norm), Accumulating(seen=clip_norm))["gradients_left_step"] == 1


def test_other_gradients_are_no_sum_with_the_last_ones():
    assert "gradients_left_side" not in gather(Run(steps=2), Run(steps=2, factor=2.0))


def test_gradients_of_which_most_fit_into_16_bits_on_the_reference_too_are_none_of_16_bits():
    def mostly_narrow(value):  # as under autocast: all but those that are summed up in float32
        return value if value.std() > 2.5 else narrow(value)

    assert gather(Run(), Run(seen=narrow))["gradients_narrow"] == "bfloat16"
    assert "gradients_narrow" not in gather(Run(seen=mostly_narrow), Run(seen=narrow))


# Evidence


def test_evidence_has_names_of_the_run():
    found = gather(Run(), Run(factor=2.0, seen=clip_value), [ReplayedStep("x", "a", "SGD", 0.1, 0.1)])
    assert found.keys() <= EVIDENCE.keys() - OF_SUSPECT


def test_equal_runs_have_no_evidence_against_them():
    found = gather(Run(seen=clip_norm), Run(seen=clip_norm))
    assert not any(found[name] for name in ("optimizer_settings", "rate_shift", "batches_shuffled"))
    assert found["gradient_factor"] == pytest.approx(1.0)
    assert "gradients_target" not in found
    assert "gradients_narrow" not in found


@pytest.mark.parametrize(
    ("here", "there", "found"),
    [
        ({"betas": "(0.9, 0.999)"}, {"betas": "(0.9, 0.99)"}, ["betas: (0.9, 0.999) / (0.9, 0.99)"]),
        ({"lr": "0.001"}, {"lr": "0.0010000000474974513"}, []),
        ({"maximize": "False"}, {"maximize": "True"}, ["maximize: False / True"]),
        ({"fused": "None", "optimizer": "'AdamW'"}, {"fused": "True", "optimizer": "'NpuFusedAdamW(AdamW)'"}, []),
        ({}, {"decoupled_weight_decay": "True"}, []),
        ({"weight_decay": "None"}, {"weight_decay": "0.1"}, ["weight_decay: None / 0.1"]),
    ],
)
def test_settings_that_both_sides_have_with_other_values_are_told_from_another_implementation(here, there, found):
    sides = [Run(settings={"b": settings}) for settings in (here, there)]
    assert list(training.find_other_numbers(*sides)) == found


@pytest.mark.parametrize("factor", [4.0, 0.25, 1.02])
def test_one_factor_for_all_gradients_is_found(factor):
    found = gather(Run(), Run(factor=factor))
    assert found["gradient_factor"] == pytest.approx(factor, rel=1e-6)
    assert found["gradient_factor_share"] == 1.0


@pytest.mark.parametrize(
    ("reference", "target", "words"),
    [
        (clip_norm, clip_value, ("all multiplied by 0.125, to a norm of 2.52", "cut off at 0.5")),
        (None, clip_norm, ("unchanged", "all multiplied by 0.125, to a norm of 2.52")),
        (
            clip_norm,
            lambda value: value * np.float32(0.25),
            ("all multiplied by 0.125, to a norm of 2.52", "all multiplied by 0.25, to a norm of 5.04"),
        ),
        (None, narrow, ("unchanged", "rounded to bfloat16")),
        (None, lambda value: value / np.abs(value).max(), ("unchanged", "multiplied by 0.137 to 0.43")),
        (None, lambda value: value[::-1].copy(), ("unchanged", "changed in another way")),
    ],
)
def test_what_happens_before_the_optimizer_is_told(reference, target, words):
    found = gather(Run(seen=reference or (lambda value: value)), Run(seen=target))
    assert (found["gradients_reference"], found["gradients_target"]) == pytest.approx(words)
    assert found["gradients_step"] == 0


@pytest.mark.parametrize("kind", [lambda **options: Run(kept=False, **options), Sketched], ids=["statistics", "sketches"])
@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (clip_norm, "all multiplied by 0.125, to a norm of 2.52"),
        (clip_value, "cut off at 0.5"),
        (lambda value: value / np.abs(value).max(), "multiplied by 0.137 to 0.43"),
        (lambda value: value + np.float32(0.1), "changed in another way"),
        (narrow, "changed in another way"),  # which no sum proves
    ],
)
def test_what_happens_to_gradients_that_were_not_kept_whole_is_told(seen, words, kind):
    found = gather(kind(), kind(seen=seen))
    assert (found["gradients_reference"], found["gradients_target"]) == ("unchanged", words)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_products_are_rounded_to_the_type_of_the_gradients(dtype):
    found = gather(Run(dtype=dtype), Run(dtype=dtype, seen=lambda value: (value.astype(np.float32) * 0.3).astype(dtype)))
    assert found["gradients_target"].startswith("all multiplied by 0.3, ")


def test_gradients_that_are_not_finite_are_not_described():
    broken = Run(seen=lambda value: np.where(value > 0, np.float32("inf"), value))
    assert "gradients_target" not in gather(Run(), broken)


@pytest.mark.parametrize("scale", [(4.0, 2.0), (1.0, 65536.0), (1024.0, 1.0)])
def test_a_loss_scale_that_is_taken_off_again_is_no_difference(scale):
    sides = [Run(factor=each, seen=lambda value, each=each: value / each) for each in scale]
    assert "gradients_target" not in gather(*sides)


def test_one_limit_that_only_longer_gradients_reach_is_no_difference():
    def clip(norm):
        return lambda value: value * np.float32(min(1.0, 30.0 / norm))

    def cut(value):
        return np.clip(value, -7.0, 7.0)

    assert "gradients_target" not in gather(Run(seen=clip(20.2)), Run(factor=2.0, seen=clip(40.4)))
    assert "gradients_target" in gather(Run(seen=clip(20.2)), Run(factor=2.0, seen=clip(90.0)))
    assert "gradients_target" not in gather(Run(seen=cut), Run(factor=2.0, seen=cut))


def test_one_limit_behind_a_loss_scale_is_no_difference_either():
    def unscale_and_clip(norm):  # by 128; the limit is 20
        return lambda value: value * np.float32(min(1.0, 20.0 / norm) / 128.0)

    assert "gradients_target" not in gather(Run(seen=unscale_and_clip(20.2)), Run(factor=0.25, seen=unscale_and_clip(5.05)))
    assert "gradients_target" in gather(Run(seen=unscale_and_clip(20.2)), Run(seen=unscale_and_clip(5.05 * 8)))


def test_gradients_in_16_bits_are_told_on_the_target_only():
    assert gather(Run(), Run(seen=narrow))["gradients_narrow"] == "bfloat16"
    assert "gradients_narrow" not in gather(Run(seen=narrow), Run(seen=narrow))


def test_settings_that_differ_are_counted_by_parameters():
    here = {name: {"weight_decay": "0.1", "foreach": "None"} for name in NAMES}
    there = {**here, "b": {"weight_decay": "0.0", "foreach": "True"}}
    assert gather(Run(settings=here), Run(settings=there))["optimizer_settings"] == [
        "weight_decay: 0.1 / 0.0 (1 of 3 parameters)"
    ]


@pytest.mark.parametrize(
    ("reference", "target", "shift"),
    [
        ((3, 2, 1), (2, 1, 0), 1),
        ((2, 1, 0), (3, 2, 1), -1),
        ((3, 2, 1), (3, 2, 1), 0),
        ((3, 2, 1), (9, 9, 9), 0),
        ((1, 1, 1), (2, 2, 2), 0),
    ],
)
def test_a_schedule_that_is_off_by_a_step(reference, target, shift):
    found = gather(Run(steps=3, rates=reference), Run(steps=3, rates=target))
    assert found["rate_shift"] == shift
    assert found.get("rate_shift_steps") == (2 if shift else None)


def test_of_a_schedule_that_runs_faster_one_step_may_meet_by_chance():
    found = gather(Run(steps=2, rates=(4, 5)), Run(steps=2, rates=(5, 7)))
    assert (found["rate_shift"], found["rate_shift_steps"]) == (1, 1)


@pytest.mark.parametrize(
    ("batches", "shuffled"), [(([1, 2], [3, 4]), False), (([3, 4], [1, 2]), True), (([3, 4], [5, 6]), False), ((), False)]
)
def test_the_same_batches_in_another_order(batches, shuffled):
    assert gather(Run(batches=([1, 2], [3, 4])), Run(batches=batches))["batches_shuffled"] is shuffled


def test_steps_that_do_not_follow_are_counted():
    steps = [
        ReplayedStep("x", "a", "SGD", 0.1, 9.0, ("lr is 2",)),
        ReplayedStep("y", "b", "SGD", 0.1, 0.2),
        ReplayedStep("z", "c", "SGD", 9.0, 9.0),
    ]
    found = gather(Run(), Run(), steps)
    assert (found["optimizer_steps"], found["optimizer_faults"], found["optimizer_cause"]) == (2, 1, "lr is 2")
    assert "optimizer_steps" not in gather(Run(), Run(), steps[2:])


def test_nothing_recorded_is_no_evidence():
    empty = training.gather(Run(steps=0), Run(steps=0), steps=(), gradients=Gradients())
    assert not any(empty.values())
