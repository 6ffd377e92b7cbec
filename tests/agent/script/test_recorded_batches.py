"""The target's model is given the reference's batches, and the script the labels that it computes its loss with."""

import pytest
import torch

from precflow.agent.failures import AgentError
from precflow.agent.script.batches import read_tensors

SCRIPT = """
import sys, torch


class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(16, 4)
        self.head = torch.nn.Linear(4, 16)

    def forward(self, tokens, scale, labels=None):
        scores = self.head(self.words(tokens)) * scale
        loss = None if labels is None else torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        return {"loss": loss, "scores": scores}


class Hidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, labels):
        return scores.mean() + labels.float().mean()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


torch.manual_seed(0)
model = Own()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
source = torch.Generator().manual_seed(len(sys.argv[2]))
losses = []
for step in range(3):
    optimizer.zero_grad()
    for _ in range(2):
        tokens = torch.randint(0, 16, (2, 3 + len(sys.argv[2])), generator=source)
        scale = torch.rand(1, generator=source)
        LOSS
        losses.append(loss.item())
        (loss / 2).backward()
    optimizer.step()
import json
json.dump(losses, open(sys.argv[1], "w"))
"""
OF_MODEL = 'loss = model(tokens, scale, labels=tokens)["loss"]'
LOGITS = 'model(tokens, scale)["scores"].flatten(0, 1)'
OF_SCRIPT = {  # how a script computes its loss -> tensors that are not those of the reference
    f"loss = torch.nn.functional.cross_entropy({LOGITS}, tokens.flatten())": 6,
    f"loss = torch.nn.CrossEntropyLoss()({LOGITS}, target=tokens.flatten())": 6,
    'output = model(tokens, scale, labels=tokens); loss = output["loss"] + output["scores"].square().mean()': 0,
    f"loss = torch.zeros(()); mask = tokens.flatten() > 3; loss += ({LOGITS}.sum(1) * mask).sum() / (1 + mask.sum())": 12,
    f"each = {LOGITS}.square().mean(1); loss = (each / each.detach().max() * torch.rand(1, generator=source)).mean()": 6,
    f"scaler = torch.amp.GradScaler('cpu', init_scale=2.0); loss = scaler.scale({LOGITS}.square().mean()) * scale": 6,
}
REFUSED = {  # what is not seen, or nobody knows
    f"loss = {LOGITS}.square().mean() + (scale * model.head.weight).sum()": "comes from no call of a model",
    f"loss = Hidden.apply({LOGITS}, tokens)": "computes its loss by Hidden",
}
RECORDED = {"data": "recorded"}


def test_the_target_computes_on_the_batches_of_the_reference(script, watch):
    path = script(SCRIPT.replace("LOSS", OF_MODEL))
    capture = {"step": [0, 2], "level": ["module"]}
    reference = watch(path, "a", side="reference", folder="reference", determinism=RECORDED, capture=capture)
    assert reference.code == 0, (reference.error, reference.log)
    assert reference.dump.header.script["batches"] == {"kind": "kept", "calls": 6, "different": 0}
    alone = watch(path, "other", folder="alone", capture=capture)
    fed = watch(path, "other", folder="fed", determinism=RECORDED, capture=capture, batches=reference)
    assert fed.code == 0, (fed.error, fed.log)
    assert fed.dump.header.script["batches"] == {"kind": "fed", "calls": 6, "different": 6}
    assert alone.wrote != reference.wrote
    assert fed.wrote == reference.wrote
    assert fed.dump.header.inputs == reference.dump.header.inputs


@pytest.mark.parametrize(("loss", "other"), OF_SCRIPT.items())
def test_a_loss_that_the_script_computes_is_that_of_the_reference(script, watch, loss, other):
    path, capture = script(SCRIPT.replace("LOSS", loss)), {"step": [0, 2], "level": ["module"]}
    reference = watch(path, "a", side="reference", folder="reference", determinism=RECORDED, capture=capture)
    assert reference.code == 0, (reference.error, reference.log)
    fed = watch(path, "other", folder="fed", determinism=RECORDED, capture=capture, batches=reference)
    assert fed.code == 0, (fed.error, fed.log)
    assert fed.wrote == reference.wrote
    assert fed.dump.header.script["batches"].get("other_data", 0) == other


@pytest.mark.parametrize(("loss", "why"), REFUSED.items())
def test_a_loss_with_data_that_are_not_seen_is_refused(script, watch, loss, why):
    seen = watch(script(SCRIPT.replace("LOSS", loss)), "a", side="reference", determinism=RECORDED)
    assert seen.code == 2
    assert why in seen.error["message"]
    assert "leave determinism.data" in seen.error["next_step"]


def test_another_number_in_the_loss_is_refused_and_so_is_another_way_to_compute_it(script, watch):
    number = f"loss = {LOGITS}.square().mean() * scale.item()"
    path = script(SCRIPT.replace("LOSS", number))
    reference = watch(path, "a", side="reference", folder="reference", determinism=RECORDED, capture={"step": [0]})
    assert reference.code == 0, (reference.error, reference.log)
    seen = watch(path, "bb", folder="fed", determinism=RECORDED, capture={"step": [0]}, batches=reference)
    assert "mul, number" in seen.error["message"]
    assert "is given other numbers than on the reference" in seen.error["message"]
    other = script(SCRIPT.replace("LOSS", f"loss = ({LOGITS} - scale).square().mean()"), "other.py")
    seen = watch(other, "bb", folder="other", determinism=RECORDED, capture={"step": [0]}, batches=reference)
    assert "is not given what it was given on the reference" in seen.error["message"]


def test_a_step_that_the_reference_has_not_made_is_named(script, watch):
    path = script(SCRIPT.replace("LOSS", OF_MODEL))
    reference = watch(path, "a", side="reference", folder="reference", determinism=RECORDED, capture={"step": [0]})
    seen = watch(path, "a", determinism=RECORDED, capture={"step": [0, 1]}, batches=reference)
    assert "the reference's script has made no call 0 of step 1" in seen.error["message"]


def test_without_batches_nothing_is_trained(script, watch):
    seen = watch(script(SCRIPT.replace("LOSS", OF_MODEL)), "a", determinism=RECORDED)
    assert "there are no batches of the reference" in seen.error["message"]


def test_a_batch_that_was_changed_is_refused(script, watch):
    path = script(SCRIPT.replace("LOSS", OF_MODEL))
    reference = watch(path, "a", side="reference", determinism=RECORDED, capture={"step": [0], "level": ["module"]})
    file = reference.folder / "batches" / "rank0" / "step0.call1.safetensors"
    assert {name: value.dtype for name, value in read_tensors(str(file)).items()} == {
        "0": torch.int64,
        "1": torch.float32,
        "labels": torch.int64,
    }
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(AgentError, match="not those that were written"):
        read_tensors(str(file))
