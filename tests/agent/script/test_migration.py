"""A script that says cuda runs on the emulated NPU, as transfer_to_npu lets it run on a real one."""

import pytest

SCRIPT = """
import json, sys, torch
IMPORT
assert torch.cuda.is_available() and torch.cuda.device_count() == torch.npu.device_count()
torch.manual_seed(0)
torch.cuda.manual_seed_all(0)
device = torch.device("cuda:0")
torch.cuda.set_device(device)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.cuda.amp.GradScaler(init_scale=16.0)
noise = torch.Generator(device="cuda").manual_seed(3)
weights = torch.ones(4, device="cuda")
for step in range(2):
    x = torch.randn(8, 4).to(device, non_blocking=True)
    y = torch.randn(8, 4, generator=noise, device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = ((model(x) - y) * weights).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.cuda.synchronize()
torch.save(model.state_dict(), "model.pt")
loaded = torch.load("model.pt", map_location={"cuda:0": "cuda:1", "npu:0": "cuda:1"})
with torch.random.fork_rng(device_type="cuda"):
    torch.cuda.current_stream().synchronize()
json.dump([str(loss.device), sorted({str(each.device) for each in loaded.values()})], open(sys.argv[1], "w"))
"""
MIGRATED = {"migration": "transfer_to_npu"}


@pytest.mark.npu
@pytest.mark.parametrize(("statement", "workload"), [("", MIGRATED), ("from torch_npu.contrib import transfer_to_npu", {})])
def test_a_script_for_cuda_trains_on_the_npu(script, watch, statement, workload):
    path = script(SCRIPT.replace("IMPORT", statement))
    seen = watch(path, device="emulated", workload=workload, capture={"level": ["module"]})
    assert seen.code == 0, (seen.error, seen.printed)
    assert seen.wrote == ["npu:0", ["npu:1"]]
    assert seen.dump.header.script["steps"] == 2
    assert {draw["operator"] for draw in seen.dump.header.draws} == {"randn"}
    assert "train.py:16" in seen.dump.header.sites[seen.dump.header.draws[0]["site"]]


@pytest.mark.npu
def test_without_it_cuda_is_not_there(script, watch):
    seen = watch(script(SCRIPT.replace("IMPORT", "")), device="emulated")
    assert "train.py raised AssertionError" in seen.error["message"]


@pytest.mark.npu
def test_collectives_of_a_device_are_refused(script, watch):
    path = script("import torch\ntorch.distributed.init_process_group('nccl')")
    seen = watch(path, device="emulated", workload=MIGRATED)
    assert "the emulated npu has no collectives" in seen.error["message"]
