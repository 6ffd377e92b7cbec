"""The target's model is given the reference's batches; where its loss is computed by the script, that is an error."""

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
OF_SCRIPT = (
    'loss = torch.nn.functional.cross_entropy(model(tokens, scale)["scores"].flatten(0, 1), tokens.flatten())',
    'output = model(tokens, scale, labels=tokens); loss = output["loss"] + output["scores"].square().mean()',
)
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


@pytest.mark.parametrize("loss", OF_SCRIPT)
def test_a_loss_that_the_script_computes_is_refused(script, watch, loss):
    seen = watch(script(SCRIPT.replace("LOSS", loss)), "a", side="reference", determinism=RECORDED)
    assert seen.code == 2
    assert "the script computes its loss outside of its model" in seen.error["message"]
    assert "leave determinism.data" in seen.error["next_step"]


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
