"""Were both sides of a script given the same batches, the same seeds, the same steps? Rounding is no other batch."""

import pytest

from precflow.dumps.views.same_start import see_same_start
from precflow.stages.determinism import reproduce

SCRIPT = """
import sys, torch
what = sys.argv[2]
torch.manual_seed(1 if what == "seeded" else 0)
model = torch.nn.Sequential(torch.nn.Embedding(32, 8), torch.nn.Linear(8, 4))
for weight in model.parameters():
    torch.nn.init.ones_(weight)
head = torch.nn.Linear(4, 4, bias=False)
torch.nn.init.eye_(head.weight)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
source = torch.Generator().manual_seed(0)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
for step in range(3):
    tokens = torch.randint(0, 32, (4,), generator=source)
    features = torch.randn(512, 4, generator=source)
    if step and what == "tokens":
        tokens = tokens.flip(0)
    if step and what == "features":
        features = torch.randn(512, 4)
    if step and what == "reordered":
        features = features.flip(0)
    if what == "rounded":
        features = features * (1 + 1e-3 * torch.randn(512, 4, generator=torch.Generator().manual_seed(step)))
    if step and what == "cast":
        features = features.bfloat16().float()
    for _ in range(2 if step and what == "accumulated" else 1):
        loss = model(tokens).square().mean() + head(features).square().mean()
        if step == 1 and what == "overflow":
            loss = loss * float("inf")
        optimizer.zero_grad()
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.fixture(scope="module")
def path(shared_script):
    return shared_script(SCRIPT)


@pytest.mark.parametrize(
    ("what", "detail", "blocker"),
    [
        ("same", "digest", ""),
        ("rounded", "tensors", ""),
        ("rounded", "statistics", ""),
        ("tokens", "tensors", "the sides' models are given other data from step1.model.input on: ["),
        (
            "cast",
            "tensors",
            "given other data from step1.call1.head.input on: relative_l2 0.00166, equal after rounding to bfloat16",
        ),
        ("features", "tensors", "the sides' models are given other data from step1.call1.head.input on: relative_l2 1.4"),
        ("features", "sketch", "the sides' models are given other data from step1.call1.head.input on"),
        ("reordered", "sketch", "the sides' models are given other data from step1.call1.head.input on"),
        ("rounded", "sketch", ""),
        ("seeded", "digest", "the script sets different seeds: 0 on the reference, 1 on the target"),
        ("overflow", "digest", ""),  # a step that a scaler skips is a step, and a finding of its own
        ("accumulated", "digest", "in none on the reference, in step 1, 2 on the target"),
    ],
)
def test_what_differed_before_the_first_operator_is_said(path, watch, watched_once, what, detail, blocker):
    capture = {"detail": detail, "level": ["module"]}
    sides = watched_once(path, "same", capture=capture, side="reference"), watch(path, what, capture=capture)
    assert [side.code for side in sides] == [0, 0], (sides[1].error, sides[1].log)
    reference, target = (side.dump for side in sides)
    same = ["weights", "inputs"]
    found = reproduce(*see_same_start(reference, target, same), same)
    gaps = (*found.blockers, *found.parted)
    if blocker:
        assert blocker in gaps[0]
    else:
        assert gaps == ()
