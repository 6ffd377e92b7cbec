"""What agents count and sketch of tensors with mask fills and large values: no status by it is better than the tensors' own."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from amounts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from precflow.agent.contract import FILLS, LARGEST, Identity
from precflow.agent.measure import sketch as agent_sketch
from precflow.agent.measure import statistics as agent_statistics
from precflow.comparison.estimated import estimates
from precflow.comparison.formulas import measure_all
from precflow.comparison.fused.summarize import summarize
from precflow.comparison.measure import Measure
from precflow.comparison.reading import count_classes
from precflow.config.schema import Tolerance
from precflow.dumps.dtypes import NUMPY_DTYPES
from precflow.dumps.records import Record, Statistics
from precflow.judgement import standards
from precflow.judgement.accepted import AcceptedDifferences
from precflow.judgement.decision import Terms, decide

WHO = Identity("a", 0, "linear", 0, "forward", "output", "0", 0, 0)
SHAPE = (40, 60)
NOT_STORED = (False, None, "")
LIMITS = {"float64": 2**-45, "float32": 2**-16, "bfloat16": 2**-5, "float16": 2**-8}


class Recorded:
    """A dump of one tensor as an agent makes it, with a sketch or statistics alone."""

    fills = FILLS

    def __init__(self, name, values, content, *, sketched):
        flat = torch.from_numpy(values.astype(np.float64)).to(getattr(torch, name)).reshape(-1)
        counted = Statistics(*agent_statistics.measure_any(flat))
        clean = agent_statistics.choose_cleaning(flat.dtype, counted.minimum, counted.maximum)
        self._parts = agent_sketch.add_pieces(agent_sketch.sketch(flat, clean), clean).numpy() if sketched else None
        rows = agent_sketch.row_norms(flat, agent_sketch.row_length(list(SHAPE), flat.numel()), clean)
        self._rows = agent_sketch.undo_scaling(rows, clean).numpy()
        self.record = Record.of(WHO, 0, name, SHAPE, content, *NOT_STORED, statistics=counted)

    def sketch(self, record):
        del record
        return self._parts

    def rows(self, record):
        del record
        return self._rows


def judged(name, measure):
    terms = Terms(name, name, [standards.load("default")], Tolerance(standards=("default",)))
    return decide(measure, terms, AcceptedDifferences((), None)).judged


def both(name, reference, target, *, sketched=True):
    """Return the status by what agents keep, and that by the tensors."""
    plain = Measure("a", "a / linear", "a", "linear", "api", "forward", 0, "paired", reference_dtype=name, target_dtype=name)
    plain = replace(plain, reference_shape=SHAPE, target_shape=SHAPE)
    left, right = (Recorded(name, side, text, sketched=sketched) for side, text in ((reference, "1"), (target, "2")))
    measure = estimates.estimate_pair(plain, left.record, right.record, left, right)
    summary = summarize(reference, target)
    exact = replace(plain, metrics=measure_all(summary), counts=count_classes(summary))
    return judged(name, measure), judged(name, exact)


@st.composite
def pairs(draw):
    """Draw two tensors that agree but for rounding, and outliers that do or do not."""
    name, rng = draw(st.sampled_from(sorted(LIMITS))), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    noise = LIMITS[name] * draw(st.sampled_from([0.0, 0.01, 0.3, 3.0]))
    reference = rng.standard_normal(SHAPE) * 10.0 ** draw(st.sampled_from([0, 0, 2, 3]))
    target = reference * (1 + noise * rng.standard_normal(SHAPE))
    for _ in range(draw(st.integers(0, 2))):
        places = rng.random(SHAPE) < draw(st.sampled_from([0.001, 0.3]))
        constant = draw(st.sampled_from([*FILLS, -np.inf, 12000.0, LARGEST[name] / 1.5]))
        score = draw(st.sampled_from([0.0, 0.0, 5.0, 90.0])) * rng.standard_normal(places.sum())
        reference[places] = constant + score
        other = draw(st.sampled_from([constant, constant, constant * 1.02, draw(st.sampled_from(FILLS))]))
        moved = draw(st.sampled_from([0.0, 1e-6, 1.0])) * rng.standard_normal(places.sum())
        target[places] = other + score + moved
    with np.errstate(over="ignore"):
        return name, *(side.astype(NUMPY_DTYPES[name]) for side in (reference, target))


@settings(max_examples=examples(750))
@given(pairs(), st.booleans())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_agents_keep_passes_nothing_that_the_tensors_fail_and_fails_nothing_that_they_pass(pair, sketched):
    by_agents, by_tensors = both(*pair, sketched=sketched)
    assert (by_agents.status, by_tensors.status) not in {("pass", "fail"), ("pass", "nonfinite")}
    if by_agents.status in {"fail", "nonfinite"}:
        assert by_tensors.status in {"fail", "nonfinite"}


@pytest.mark.parametrize("constant", [LARGEST["float32"] * -1, -1e9, -1e30, -np.inf])
def test_sketches_of_clean_masked_scores_pass(constant):
    rng = np.random.default_rng(2)
    scores = rng.standard_normal(SHAPE)
    mask = np.triu(np.ones(SHAPE, bool), 1)
    reference, target = (
        np.where(mask, constant, side).astype(np.float32) for side in (scores, scores * (1 + 1e-6 * rng.standard_normal(SHAPE)))
    )
    assert [one.status for one in both("float32", reference, target)] == ["pass", "pass"]


def test_scores_added_to_a_constant_are_undecided_by_a_sketch():
    rng = np.random.default_rng(2)
    scores = rng.standard_normal(SHAPE)
    mask = np.triu(np.ones(SHAPE, bool), 1)
    reference, target = (
        (side + np.where(mask, -1e4, 0)).astype(np.float32)
        for side in (scores, scores * (1 + 1e-6 * rng.standard_normal(SHAPE)))
    )
    by_agents, by_tensors = both("float32", reference, target)
    assert (by_agents.status, by_tensors.status) == ("undecided", "pass")
