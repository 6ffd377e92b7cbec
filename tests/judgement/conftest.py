"""Measures by hand."""

import datetime
from dataclasses import fields, replace

import pytest

from precflow.comparison.measure import Measure
from precflow.config.schema import Limits, RunConfig, Tolerance
from precflow.judgement.carried import NOTHING_CARRIED
from precflow.judgement.judge import Circumstances, Floors, TrainingCourse, judge

FIXED = Tolerance(standards=("default",))
DAY = datetime.date(2026, 1, 31)


@pytest.fixture
def measure():
    """Return a function that makes one measured float32 record; keywords change it."""

    def make(module="encoder.layers.0.mlp", operator="linear", relative_l2=1e-7, **changes):
        name = f"{module} / {operator}" if operator else module
        plain = Measure(
            record=f"{module}/{operator}.0/forward.output.0",
            name=name,
            module=module,
            operator=operator,
            level="api",
            phase="forward",
            order=0,
            join="paired",
            reference_dtype="float32",
            target_dtype="float32",
            reference_shape=(2, 3),
            target_shape=(2, 3),
            metrics={
                "relative_l2": relative_l2,
                "cosine_similarity": 1 - relative_l2**2 / 2,
                "allclose_share_float32": 1.0,
                "max_abs_error": relative_l2,
            },
            counts={"elements": 6, "ordinary": 6, "small": 0, "sentinel": 0, "nonfinite": 0},
        )
        return replace(plain, **changes)

    return make


@pytest.fixture
def run():
    """Return a function that judges measures with the parts of a recipe that count; by fixed limits if none are given."""

    def judged(
        measures, *, tolerance=None, accepted=(), coverage=None, dtypes=("float32", "float32"), today=DAY, changes=None, **more
    ):
        config = replace(RunConfig(tolerance=tolerance or FIXED, accepted=tuple(accepted)), **(changes or {}))
        config = replace(config, coverage=coverage) if coverage else config
        # What tests say goes to where it belongs: the circumstances of the runs, the floors, the training, or `judge` itself.
        floors = Floors(more.pop("floors", {}), more.pop("without_floors", ""), more.pop("carried", NOTHING_CARRIED))
        training = TrainingCourse(**{name: more.pop(name) for name in ("losses", "curves") if name in more})
        known = {field.name: more.pop(field.name) for field in fields(Circumstances) if field.name in more}
        return judge(
            measures, config, dtypes=dtypes, known=Circumstances(today, **known), floors=floors, training=training, **more
        )

    return judged


@pytest.fixture
def limits():
    """Return the class of limits."""
    return Limits
