"""Steps that a loss scaler skips: against hand-made calls, and against torch's own scaler."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from precflow import resources
from precflow.agent.capture.recorder import Recorder
from precflow.agent.dump.writer import Writer
from precflow.agent.request import CaptureSection
from precflow.comparison.compare import compare
from precflow.config.schema import SAME_AT_START, RunConfig
from precflow.diagnosis.advice.rule_files import load_rules
from precflow.diagnosis.advice.rules import advise
from precflow.diagnosis.comparison import Comparison
from precflow.diagnosis.evidence.collect import collect
from precflow.diagnosis.evidence.overflows.skipped_steps import NOTHING, SkippedSteps, find_skipped_steps
from precflow.diagnosis.localize import localize
from precflow.dumps.formats import read_dump
from precflow.stages.determinism import reproduce
from precflow.stages.judge import judge_pair
from precflow.stages.two_dumps import make_job

RULES = load_rules([resources.directory("conf") / "rule"])
PHASES = ("forward", "backward", "gradient", "optimizer")


class Side:
    """Calls by phase; a phase in capitals has an output that is not finite, one with an exclamation mark an input."""

    def __init__(self, **steps):
        self.calls = [
            SimpleNamespace(rank=int(name[1]), step=int(name[3]), **self._call(phase))
            for name, phases in steps.items()
            for phase in phases.split()
        ]

    def _call(self, phase):
        return {"phase": phase.strip("!").lower(), "inputs": (phase.endswith("!"),), "outputs": (phase.isupper(),)}

    def is_nonfinite(self, record):
        return record


FINE, LEFT, INSIDE, BROKEN = "forward gradient optimizer", "forward GRADIENT", "GRADIENT optimizer", "GRADIENT OPTIMIZER"


@pytest.mark.parametrize(
    ("reference", "target", "found"),
    [
        (FINE, FINE, NOTHING),
        (FINE, LEFT, SkippedSteps(target=frozenset({(0, 1)}))),
        (FINE, INSIDE, SkippedSteps(target=frozenset({(0, 1)}))),
        (LEFT, FINE, SkippedSteps(reference=frozenset({(0, 1)}))),
        (LEFT, INSIDE, SkippedSteps(both=frozenset({(0, 1)}))),
        (FINE, "backward optimizer!", SkippedSteps(target=frozenset({(0, 1)}))),
        (FINE, "BACKWARD", SkippedSteps(target=frozenset({(0, 1)}))),
        (FINE, "BACKWARD gradient optimizer", NOTHING),  # the step was made: no parameter's gradient overflows
        (FINE, "BACKWARD optimizer", NOTHING),
        (FINE, "BACKWARD gradient", NOTHING),
        (FINE, BROKEN, NOTHING),  # it made the step, with infinities
        (LEFT, BROKEN, SkippedSteps(reference=frozenset({(0, 1)}))),
        (FINE, "forward gradient", NOTHING),  # nothing overflows: not the work of a scaler
        ("forward gradient", LEFT, NOTHING),  # no step is due on the other side either
    ],
)
def test_what_is_left_out_on_which_side(reference, target, found):
    assert find_skipped_steps(Side(r0s0=FINE, r0s1=reference), Side(r0s0=FINE, r0s1=target)) == found


def test_nothing_is_left_out_where_no_optimizer_was_recorded():
    assert find_skipped_steps(Side(r0s0=LEFT), Side(r0s0=LEFT)) == NOTHING


def test_ranks_are_told_apart():
    found = find_skipped_steps(Side(r0s0=FINE, r1s0=FINE, r1s2=LEFT), Side(r0s0=FINE, r1s0=LEFT, r1s2=LEFT))
    assert found.evidence == {
        "left_out_reference": [],
        "left_out_target": ["step 0 of rank 1"],
        "left_out_both": ["step 2 of rank 1"],
    }
    assert SkippedSteps(target=frozenset({(0, 3), (0, 1)})).evidence["left_out_target"] == ["step 1", "step 3"]


def test_records_of_the_step_are_explained_and_no_others():
    found = SkippedSteps(reference=frozenset({(1, 3)}), both=frozenset({(0, 3)}))
    assert found.explains("fc/optimizer.output.weight@3.1")
    assert not found.explains("fc/optimizer.output.weight@3.0")
    assert not found.explains("fc/optimizer.output.weight@2.1")
    assert not found.explains("fc/gradient.output.weight@3.1")


@pytest.fixture
def trained(tmp_path_factory, plain_header):
    """Return a function that records three steps with a loss scaler, one of which may overflow."""
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("this torch has no scaler for the CPU")

    def record(side, overflowing=None):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        inputs = torch.from_numpy(np.random.default_rng(1).standard_normal((4, 8), np.float32))
        folder = tmp_path_factory.mktemp(side)
        writer = Writer(str(folder))
        recorder = Recorder(writer, CaptureSection(level=("module",), phase=PHASES, detail="sketch"))
        for step in range(3):
            recorder.begin_step(step)
            with recorder.watch(model, optimizer):
                optimizer.zero_grad()
                loss = model(inputs).square().mean()
                scaler.scale(loss * 1e38 * 1e38 if step == overflowing else loss).backward()
                scaler.step(optimizer)
                scaler.update()
        writer.seal({**plain_header, "side": side, "sites": recorder.sites})
        return read_dump(folder)

    return record


def advised(reference, target):
    """Return evidence and the findings by rule, as ``precflow compare`` makes them."""
    reproduction = reproduce(reference, target, SAME_AT_START)
    measures = compare(reference, target)
    judged, verdict = judge_pair(make_job(reference, target), {}, reference, target, measures, reproduction)
    region = localize(reference, target, measures, judged)
    evidence = collect(Comparison(reference, target, RunConfig(), region=region, measures=measures, judged=judged))
    return evidence, {finding.rule: finding for finding in advise(evidence, RULES)}, verdict


def test_a_step_that_only_the_target_leaves_out_is_told_as_that(trained):
    evidence, findings, verdict = advised(trained("reference"), trained("target", overflowing=1))
    assert evidence["left_out_target"] == ["step 1"]
    assert (evidence["unpaired_count"], evidence["unpaired_reference"]) == (0, [])
    assert verdict.verdict == "misaligned"
    assert findings["PF507"].title == "The target skips the optimizer's step 1: its gradients are not finite"
    assert "PF204" not in findings


def test_a_step_that_both_leave_out_is_no_fault(trained):
    evidence, findings, verdict = advised(trained("reference", overflowing=0), trained("target", overflowing=0))
    assert evidence["left_out_both"] == ["step 0"]
    assert (evidence["failing"], evidence["unpaired_count"]) == (0, 0)
    assert verdict.verdict != "misaligned"
    assert set(findings) == {"PF508"}
