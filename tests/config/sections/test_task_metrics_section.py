import pytest

from precflow.config.schema import RunConfig, TaskMetric
from precflow.config.sections.task_metrics_section import find_problems

PICTURE = {"range": (0.0, 1.0)}


def said(name="psnr", **keys):
    return {".".join(path[2:]): message for path, message in find_problems(RunConfig(task_metrics={name: TaskMetric(**keys)}))}


@pytest.mark.parametrize(
    ("name", "keys", "key", "message"),
    [
        ("psrn", {}, "", "is no metric; give kind (one of psnr, ssim"),
        ("psnr", {"limit": 30.0}, "range", "is needed: the smallest and the largest value"),
        ("psnr", {"range": (1.0, 0.0)}, "range", "is [1.0, 0.0]; expected the smallest"),
        ("ssim", {**PICTURE, "layout": "NCHH"}, "layout", "is NCHH; expected H and W"),
        ("ssim", {**PICTURE, "limit": 1.0}, "limit", "No number of samples shows that all others agree too"),
        ("ssim", {**PICTURE, "limit": 95.0}, "limit", "is 95; expected a share above 0 and below 1"),
        ("psnr", {**PICTURE, "limit": 0.0}, "limit", "is 0; expected a number above 0"),
        ("mean_abs_error", PICTURE, "range", "is of pictures (psnr, ssim, clip_score), and this is mean_abs_error"),
        ("accuracy", {"limit": 0.01}, "labels", "is needed: accuracy holds outputs to what is true"),
        ("accuracy", {"labels": "y", "classes": (1,)}, "classes", "and labels exclude each other"),
        ("perplexity", {"classes": (1,)}, "classes", "has no words"),
        ("mine", {"function": {"_target_": "a.b"}}, "direction", "is needed: `at_least` if a large value"),
        ("mine", {"function": {"within": 1}, "direction": "at_most"}, "function", "has no `_target_`"),
        (
            "psnr",
            {**PICTURE, "kind": "psnr", "function": {"_target_": "a.b"}, "direction": "at_most"},
            "kind",
            "exclude each other",
        ),
        ("psnr", {**PICTURE, "direction": "at_most"}, "direction", "is of a function of your own"),
        ("psnr", {**PICTURE, "prompts": ("a cat",)}, "prompts", "is of clip_score, and this is psnr"),
        ("clip_score", {**PICTURE, "weights": "/models/clip"}, "prompts", "is needed: clip_score reads it"),
        ("chrf", {}, "tokenizer", "is needed: chrf reads it"),
        ("bleu", {"limit": 100.0}, "limit", "expected a number above 0 and below 100"),
    ],
)
def test_what_could_not_be_computed_or_judged_is_refused_before_anything_runs(name, keys, key, message):
    assert message in said(name, **keys)[key]


def test_what_is_complete_is_accepted():
    assert said(**PICTURE, limit=30.0) == said("near", kind="ssim", **PICTURE, limit=0.95, layout="HW") == {}
    assert said("mine", function={"_target_": "a.b"}, direction="at_most", limit=3.0) == {}
