"""Task metrics of two dumps: values, states, and everything that must never pass."""

import math

import dump_builder as builder
import ml_dtypes
import numpy as np
import pytest
from scipy import special

from precflow.config.schema import TaskMetric
from precflow.dumps.formats import read_dump
from precflow.task import own_function
from precflow.task.outcome import examine, is_in_doubt, summarize
from precflow.task.scores import MOST_TOKENS

RANDOM = np.random.default_rng(3)
PICTURES = RANDOM.random((8, 3, 12, 12)).astype(np.float32)
PSNR = TaskMetric(range=(0.0, 1.0), limit=30.0)
LOGITS = RANDOM.standard_normal((40, 5)).astype(np.float32)


@pytest.fixture
def dumps(tmp_path):
    """Return a function that writes two dumps whose model returns these values, call by call."""

    def write(reference, target, *, module="", operator="", model=None, index="0", inputs=()):
        sides = []
        written = tmp_path / str(len(list(tmp_path.iterdir())))
        for side, calls in (("reference", reference), ("target", target)):
            made = builder.DumpBuilder(written / side, side=side)
            for number, values in enumerate(calls if isinstance(calls, list) else [calls]):
                named = values if isinstance(values, dict) else {index: values}
                made.call(module, operator, named, call=0 if operator else number)
            if model is not None:
                made.call("", "", model[0] if side == "reference" else model[-1], inputs)
            sides.append(read_dump(made.write()))
        return sides

    return write


def noisy(values, size, seed=1):
    return (values + size * np.random.default_rng(seed).standard_normal(values.shape)).astype(values.dtype)


def test_psnr_is_that_of_the_mean_error_of_all_pictures(dumps):
    target = noisy(PICTURES, 1e-3)
    one = examine("psnr", PSNR, *dumps(PICTURES, target))
    assert one.value == pytest.approx(-10 * math.log10(np.mean(np.square(target.astype(float) - PICTURES))))
    assert (one.state, one.samples, one.unit) == ("within", 8, "dB")
    each = [
        -10 * math.log10(np.mean(np.square(there.astype(float) - here))) for here, there in zip(PICTURES, target, strict=True)
    ]
    assert [value for (value,) in one.each] == pytest.approx(each)
    assert (one.worst, one.worst_sample) == (pytest.approx(min(each)), int(np.argmin(each)))
    assert len(one.shown) == 3
    assert one.worst_sample in [picture.sample for picture in one.shown]


def test_one_broken_picture_of_many_is_not_hidden_by_equal_ones(dumps):
    target = PICTURES.copy()
    target[5] = 1 - target[5]
    one = examine("psnr", PSNR, *dumps(PICTURES, target))
    assert (one.state, one.worst_sample) == ("beyond", 5)
    assert one.value < 30


@pytest.mark.parametrize(("count", "state"), [(1, "not told"), (4, "not told"), (5, "within")])
def test_too_few_pictures_cannot_tell(dumps, count, state):
    one = examine("psnr", PSNR, *dumps(PICTURES[:count], noisy(PICTURES[:count], 1e-3)))
    assert one.state == state
    assert one.effect_text.startswith(f"{count} picture")
    assert (one.effect is None) == (count < 5)


def test_equal_pictures_have_an_infinite_psnr_and_say_what_they_could_have_shown(dumps):
    one = examine("psnr", PSNR, *dumps(PICTURES, PICTURES))
    assert math.isinf(one.value)
    assert one.equal
    assert (one.state, one.effect) == ("within", pytest.approx(1 - 0.2 ** (1 / 8)))
    assert "could have shown a change in at least 18 % of all pictures (power 80 %)" in one.effect_text
    assert summarize(one) == "infinity dB, at least 30 dB: within (8 pictures: 18 % of them would show)"


def test_differences_that_are_all_alike_have_no_scatter(dumps):
    base = np.full((6, 1, 8, 8), 0.25, np.float32)
    base[:, 0, 0, 0] = 0.75
    one = examine("psnr", PSNR, *dumps(base, base + np.float32(0.0078125)))
    assert one.state == "within"
    assert "in at least" in one.effect_text


def test_a_picture_beyond_the_limit_is_beyond_however_few_there_are(dumps):
    one = examine("psnr", PSNR, *dumps(PICTURES[:1], 1 - PICTURES[:1]))
    assert one.state == "beyond"


def test_without_a_limit_it_is_shown_and_not_judged(dumps):
    one = examine("psnr", TaskMetric(range=(0.0, 1.0)), *dumps(PICTURES, PICTURES))
    assert (one.state, one.limit) == ("no limit", None)


def test_uint8_and_bfloat16_pictures_are_read_as_they_are(dumps):
    bytes_ = (PICTURES * 255).astype(np.uint8)
    one = examine("psnr", TaskMetric(range=(0.0, 255.0), limit=30.0), *dumps(bytes_, bytes_ ^ 1))
    assert one.value == pytest.approx(20 * math.log10(255))  # each pixel is off by 1
    narrow = PICTURES.astype(ml_dtypes.bfloat16)
    two = examine("psnr", PSNR, *dumps(PICTURES, narrow))
    assert two.value == pytest.approx(-10 * math.log10(np.mean(np.square(narrow.astype(float) - PICTURES))))


def test_the_axis_of_pictures_may_be_any(dumps):
    turned = PICTURES.transpose(1, 2, 3, 0)
    metric = TaskMetric(range=(0.0, 1.0), limit=30.0, layout="CHWN")
    there = noisy(PICTURES, 1e-3)
    one = examine("ssim", metric, *dumps(turned, there.transpose(1, 2, 3, 0)))
    two = examine("ssim", PSNR, *dumps(PICTURES, there))
    assert one.each == two.each
    single = examine("psnr", TaskMetric(range=(0.0, 1.0), layout="CHW"), *dumps(PICTURES[0], PICTURES[0]))
    assert single.samples == 1


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ((0.0, 0.5), "values from 0.0001744 to 1, outside of the range [0, 0.5] that the recipe states"),
        ((0.0, 255.0), "only, 0.4% of the range [0, 255] that the recipe states: is it another one?"),
    ],
)
def test_a_range_that_is_not_that_of_the_pictures_is_refused(dumps, bounds, said):
    one = examine("psnr", TaskMetric(range=bounds, limit=30.0), *dumps(PICTURES, PICTURES))
    assert one.state == "not computed"
    assert said in one.why


def broken(values, value):
    copied = values.copy()
    copied[2, 0, 0, 0] = value
    return copied


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("side", ["reference", "target"])
def test_nan_and_infinity_are_named_and_never_pass(dumps, value, side):
    pair = (broken(PICTURES, value), PICTURES) if side == "reference" else (PICTURES, broken(PICTURES, value))
    one = examine("psnr", PSNR, *dumps(*pair))
    assert (one.state, one.why) == ("not computed", f"sample 2 of the {side} has 1 of 432 values that are NaN or infinite")


def test_a_misspelt_output_is_answered_with_what_was_probably_meant(dumps):
    sides = dumps(PICTURES, PICTURES, module="vae_decoder")
    one = examine("psnr", TaskMetric(range=(0.0, 1.0), output="vae_decodr"), *sides)
    assert one.why == "the reference has recorded no call of vae_decodr. Did you mean  vae_decoder ?"


@pytest.mark.parametrize(
    ("pair", "metric", "said"),
    [
        ((PICTURES, PICTURES[:4]), PSNR, "(model) has shape [8, 3, 12, 12] on the reference and [4, 3, 12, 12] on the target"),
        (([PICTURES, PICTURES], [PICTURES]), PSNR, "called 2 times on the reference and 1 on the target"),
        ((PICTURES[0], PICTURES[0]), PSNR, "layout NCHW names 4 axes"),
        ((PICTURES, PICTURES), TaskMetric(range=(0.0, 1.0), output="vae"), "the reference has recorded no call of vae"),
        ((PICTURES, PICTURES), TaskMetric(range=(0.0, 1.0), index="image"), "has no output image on the reference"),
        (({"a": PICTURES, "b": PICTURES},) * 2, PSNR, "(model) has 2 outputs on the reference; choose one by index: a, b"),
        ((PICTURES[:0], PICTURES[:0]), PSNR, "no sample"),
    ],
)
def test_what_cannot_be_computed_says_why(dumps, pair, metric, said):
    one = examine("psnr", metric, *dumps(*pair))
    assert one.state == "not computed"
    assert said in one.why


def test_a_tensor_that_was_not_kept_says_how_to_keep_it(tmp_path):
    sides = []
    for side in ("reference", "target"):
        made = builder.DumpBuilder(tmp_path / side, side=side).call("", "", [PICTURES], store=False)
        sides.append(read_dump(made.write()))
    one = examine("psnr", PSNR, *sides)
    assert one.state == "not computed"
    assert "capture=tensors" in one.why


def test_errors_of_any_output_are_means_over_samples(dumps):
    target = noisy(LOGITS, 1e-3)
    one, two = (examine(kind, TaskMetric(limit=0.01), *dumps(LOGITS, target)) for kind in ("mean_abs_error", "mean_rel_error"))
    apart = np.abs(target.astype(float) - LOGITS)
    assert one.value == pytest.approx(apart.mean())
    assert two.value == pytest.approx(np.mean(apart.mean(1) / np.abs(LOGITS.astype(float)).mean(1)))
    assert (one.state, two.state) == ("within", "within")
    zero = examine("mean_rel_error", TaskMetric(limit=0.01), *dumps(np.zeros_like(LOGITS), target))
    assert "0 everywhere" in zero.why


def test_classes_agree_where_the_largest_logit_is_the_same(dumps):
    target = LOGITS.copy()
    target[7] = -target[7]
    one = examine("nearest", TaskMetric(kind="class_agreement", limit=0.9), *dumps(LOGITS, target))
    assert one.value == pytest.approx(39 / 40)
    assert (one.test, one.unit, one.worst_sample) == ("binomial", "share", 7)
    assert one.state == "not told"  # 1 of 40: up to 11 % may differ
    assert examine("nearest", TaskMetric(kind="class_agreement", limit=0.8), *dumps(LOGITS, target)).state == "within"


def classify(count, wrong):
    """Logits of ``count`` samples whose class is 1, of which the first ``wrong`` choose 0."""
    logits = np.zeros((count, 3), np.float32)
    logits[:, 1] = 1
    logits[:wrong] = [1, 0, 0]
    return logits


@pytest.mark.parametrize(
    ("wrong", "limit", "state"),
    [(0, 0.05, "within"), (0, 0.01, "not told"), (3, 0.02, "not told"), (8, 0.02, "beyond")],
)
def test_accuracy_is_beyond_only_if_chance_does_not_explain_it(dumps, wrong, limit, state):
    labels = {"labels": np.ones(100, np.int64)}
    sides = dumps(classify(100, 0), classify(100, wrong), module="head", model=[labels])
    one = examine("accuracy", TaskMetric(output="head", limit=limit, labels="labels"), *sides)
    assert (one.reference, one.target, one.state) == (1.0, pytest.approx(1 - wrong / 100), state)
    assert is_in_doubt(one) == (wrong == 3)
    assert "could have shown a loss of at least 7 % of all samples" in one.effect_text


def test_classes_may_stand_in_the_recipe_and_have_to_be_as_many(dumps):
    sides = dumps(classify(3, 0), classify(3, 1))
    one = examine("accuracy", TaskMetric(classes=(1, 1, 0)), *sides)
    assert (one.reference, one.target) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    for classes, said in (((1, 1), "there are 2 labels"), ((1, 1, 1, 1), "4 labels")):
        assert said in examine("accuracy", TaskMetric(classes=classes), *sides).why


def test_labels_that_differ_between_the_sides_are_refused(dumps):
    sides = dumps(classify(3, 0), classify(3, 0), module="head", model=[{"labels": np.arange(3)}, {"labels": np.arange(1, 4)}])
    one = examine("accuracy", TaskMetric(output="head", labels="labels", limit=0.1), *sides)
    assert one.state == "not computed"
    assert "labels is not the same on both sides" in one.why
    missing = examine("accuracy", TaskMetric(output="head", labels="truth", limit=0.1), *sides)
    assert "has no input or output truth of the model; it has: labels" in missing.why


def test_tokens_are_counted_one_by_one_where_both_sides_read_the_same(dumps):
    reference = [np.array([[number], [number + 50]]) for number in range(20)]
    target = [each.copy() for each in reference]
    target[17][1, 0] = 9
    metric = TaskMetric(output="(model) / argmax", limit=0.8)
    sides = dumps(reference, target, operator="argmax")
    forced, free = (examine("token_agreement", metric, *sides, forced=forced) for forced in (True, False))
    assert (forced.value, forced.samples, forced.sample, forced.state) == (pytest.approx(39 / 40), 40, "token", "within")
    assert (free.samples, free.sample, free.state) == (2, "text", "not told")
    first = forced.texts[0]
    assert (first.sample, first.first, first.reference[first.first - first.start], first.target[17 - first.start]) == (
        1,
        17,
        67,
        9,
    )
    assert forced.texts[1].first is None
    assert len(first.reference) <= MOST_TOKENS


def test_logits_are_no_tokens(dumps):
    assert "tokens are integers" in examine("token_agreement", TaskMetric(), *dumps(LOGITS, LOGITS)).why


def test_perplexity_is_that_of_scipys_softmax(dumps):
    words = RANDOM.integers(0, 11, (2, 6))
    logits = RANDOM.standard_normal((2, 6, 11)).astype(np.float32)
    target = noisy(logits, 0.01)
    sides = dumps(logits, target, module="lm", model=[{"input_ids": words}])
    one = examine("perplexity", TaskMetric(output="lm", labels="input_ids", limit=0.05), *sides)
    logs = [special.log_softmax(side[:, :-1].astype(float), axis=-1) for side in (logits, target)]
    expected = [math.exp(-np.take_along_axis(each, words[:, 1:, None], -1).mean()) for each in logs]
    assert [one.reference, one.target] == pytest.approx(expected)
    assert one.worse == pytest.approx(expected[1] / expected[0] - 1)
    assert (one.samples, one.state) == (10, "within")


def test_perplexity_leaves_out_what_the_attention_mask_hides(dumps):
    words = RANDOM.integers(0, 11, (2, 6))
    logits = RANDOM.standard_normal((2, 6, 11)).astype(np.float32)
    mask = np.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])  # padded on the left, and on the right
    asked = {"input_ids": words, "attention_mask": mask}
    sides = dumps(logits, logits, module="lm", model=[{"loss": np.zeros(1)}], inputs=asked)
    one = examine("perplexity", TaskMetric(output="lm", labels="input_ids"), *sides)
    logs = np.take_along_axis(special.log_softmax(logits[:, :-1].astype(float), axis=-1), words[:, 1:, None], -1)[..., 0]
    counted = np.array([[False, False, True, True, True], [True, True, True, True, False]])
    assert one.reference == pytest.approx(math.exp(-logs[counted].mean()))
    assert (one.samples, one.notes) == (7, ("3 tokens of padding left out, by the attention mask",))
    written = dumps(logits[:, :1], logits[:, :1], module="lm", model=[{"tokens": words[:, :1]}], inputs=asked)
    assert examine("perplexity", TaskMetric(output="lm", labels="tokens"), *written).samples == 2


def test_perplexity_of_a_text_that_was_written_reads_the_last_logits_of_each_call(dumps):
    words = RANDOM.integers(0, 11, (2, 3))
    calls = [RANDOM.standard_normal((2, length, 11)).astype(np.float32) for length in (5, 1, 1)]
    sides = dumps(calls, calls, module="lm", model=[{"tokens": words}])
    one = examine("perplexity", TaskMetric(output="lm", labels="tokens"), *sides)
    wide = np.stack([each[:, -1].astype(float) for each in calls], 1)
    chances = np.take_along_axis(np.exp(wide) / np.exp(wide).sum(-1, keepdims=True), words[..., None], -1)
    assert one.reference == pytest.approx(math.exp(-np.log(chances).mean()))


def load(name="function", **arguments):
    return {"_target_": f"own_metrics.{name}", **arguments}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's, and a function that examines a metric of it."""
    (tmp_path / "own_metrics.py").write_text(
        "import numpy as np\n"
        "def share_near(reference, target, within=0.1):\n"
        "    return float(np.mean(np.abs(reference - target) <= within))\n"
        "def largest(reference, target):\n    return reference.max(), target.max()\n"
        "def raises(reference, target):\n    raise ValueError('no such thing')\n"
        "def nothing(reference, target):\n    return None\n"
        "def truth(reference, target):\n    return True\n"
        "def not_a_number(reference, target):\n    return float('nan')\n"
        "def changes(reference, target):\n    target[:] = reference\n    return 1.0\n"
        "number = 3\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(sides, name, direction="at_least", limit=0.9, **arguments):
        metric = TaskMetric(function=load(name, **arguments), direction=direction, limit=limit)
        return examine("mine", metric, *sides, function=own_function.load("mine", metric.function, ["own_metrics"], []))

    return run


def test_a_function_of_the_users_is_given_one_sample_of_both_sides(dumps, own):
    sides = dumps(LOGITS, noisy(LOGITS, 0.03))
    one = own(sides, "share_near", within=0.2)
    assert (one.value, one.samples, one.state, one.direction) == (1.0, 40, "within", "at_least")
    assert own(sides, "share_near", within=0.0001).state == "beyond"


def test_a_function_may_give_each_side_a_value(dumps, own):
    one = own(dumps(LOGITS, LOGITS - np.float32(0.5)), "largest", limit=0.1)
    assert one.value is None
    assert one.worse == pytest.approx(0.5)
    assert (one.test, one.state) == ("sign flips", "beyond")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "the function raised ValueError: no such thing at sample 0"),
        ("nothing", "the function returned None at sample 0; expected a number, or two"),
        ("truth", "the function returned True at sample 0; expected a number"),
        ("not_a_number", "the function returned nan at sample 0, which is not finite"),
        ("changes", "read-only"),
    ],
)
def test_a_function_that_fails_is_not_computed_and_says_why(dumps, own, name, said):
    one = own(dumps(LOGITS, LOGITS), name)
    assert one.state == "not computed"
    assert said in one.why
