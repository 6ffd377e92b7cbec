"""A script of two ranks, over gloo: its disturbed runs and its run without hooks are those of both ranks."""

import json

from precflow.agent.contract import parse_identity
from precflow.comparison.compare import compare

SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.modules import module
dist.init_process_group("gloo")
torch.manual_seed(0)
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(2):
    watched = bool(module._global_forward_pre_hooks)
    batch = torch.randn(8, 8, generator=torch.Generator().manual_seed(step))[rank::2]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(batch).float().square().mean()
    optimizer.zero_grad()
    loss.backward()
    CHANGE
    optimizer.step()
dist.destroy_process_group()
"""


def test_a_disturbed_run_disturbs_each_rank(script, watch):
    path = script(SCRIPT.replace("CHANGE", "pass"))
    plain = watch(path, ranks=2, folder="plain")
    disturbed = watch(path, ranks=2, action="noise", noise="jitter", workload={"stop_early": True})
    assert (plain.code, disturbed.code) == (0, 0), (plain.log, disturbed.log)
    assert json.loads((disturbed.folder / "noise.json").read_text())["problem"] == ""
    measures = compare(plain.dump, disturbed.dump)
    assert {one.join for one in measures} == {"paired"}
    moved = {parse_identity(one.record)[-2:] for one in measures if not one.equal}
    assert moved == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_one_rank_that_does_not_run_so_leaves_the_reason_and_nobody_waits(script, watch):
    change = "if step and rank: raise ValueError('too far off')"
    seen = watch(script(SCRIPT.replace("CHANGE", change)), ranks=2, action="noise", noise="jitter")
    assert seen.code == 0, seen.log
    assert "ValueError: too far off" in json.loads((seen.folder / "noise.json").read_text())["problem"]


def test_each_rank_is_compared_with_its_run_without_hooks(script, watch):
    change = "if watched and rank: model.module[0].bias.data[0] = 1e3"
    path = script(SCRIPT.replace("CHANGE", change))
    checked = {"determinism": {"observer": "checked"}, "capture": {"step": [0], "level": ["module"]}, "ranks": 2}
    plain = watch(path, action="plain", folder="plain", **checked)
    assert plain.code == 0, plain.log
    seen = watch(path, plain_run=plain, **checked)
    assert seen.code == 0, seen.log
    assert seen.dump.header.observer.checked
    assert seen.dump.header.observer.different == ("weight Sequential.0.bias on rank 1",)
