"""What a plan says about the size of dumps."""

from precflow.run.sizes import about_sizes
from precflow.run.steps import Step
from precflow.stages import again, dump

FIRST = [Step(dump.stage(side), "run", "k") for side in ("reference", "target")]


def test_sizes_that_nobody_knows_are_named_with_what_bounds_them():
    (said,) = about_sizes(FIRST, {}, 2 * 10**9)
    assert said.startswith("what the dump of the reference and the target takes on disk is known after its first run")
    assert "it stops at 2000 MB (capture.budget)" in said
    (said,) = about_sizes(FIRST, {"dump.target": 5}, 0)
    assert "the dump of the reference takes" in said
    assert "capture.budget would bound it" in said


def test_a_size_beyond_the_budget_is_named():
    sizes = {"dump.reference": 3 * 10**9, "dump.target": 10**6}
    (said,) = about_sizes(FIRST, sizes, 2 * 10**9)
    assert said == "the dump of the reference would take about 3000 MB, and stop at 2000 MB (capture.budget)"


def test_kept_dumps_and_second_passes_are_no_news():
    kept = [Step(dump.stage("target"), "kept", "k"), Step(again.stage("target"), "run", "k")]
    assert list(about_sizes(kept, {}, 1)) == []
