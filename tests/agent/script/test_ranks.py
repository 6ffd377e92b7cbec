"""A script of two ranks, over gloo: its disturbed runs and its run without hooks are those of both ranks."""

import json

import pytest

from precflow.agent import ranks
from precflow.agent.contract import parse_identity
from precflow.comparison.compare import compare
from precflow.stages.two_dumps import compare_dumps

pytestmark = pytest.mark.slow  # starts the ranks of a script, many times
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


SUMS = """
import datetime, sys, threading, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, way = dist.get_rank(), sys.argv[2]
store = dist.distributed_c10d._get_default_store()

class Sums(torch.nn.Linear):
    def forward(self, features):
        part = super().forward(features)
        if rank and way != "right":
            store.wait(["wrong"], datetime.timedelta(seconds=60))  # nothing is sent before both ranks are there
        work = dist.all_reduce(part, async_op=True)
        if way == "overwritten" and not rank:
            thread = threading.Thread(target=part.data.normal_)  # as a kernel on another stream does
            thread.start()
            thread.join()
            store.set("wrong", "done")
        if way != "early":
            work.wait()
        used = torch.tanh(part)
        if way == "early" and not rank:
            store.set("wrong", "done")
        return used

torch.manual_seed(0)
model = Sums(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 8, generator=torch.Generator().manual_seed(rank))).square().mean().backward()
optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


def test_communication_that_is_wrong_is_named_by_its_cause(script, watch):
    """The ranks give the sum the same on both sides; it is read too early, or overwritten before it was sent."""
    path, capture = script(SUMS), {"step": [0], "detail": "tensors", "phase": ["forward"]}
    seen = {way: watch(path, way, ranks=2, folder=way, capture=capture) for way in ("right", "early", "overwritten")}
    again = watch(path, "right", ranks=2, folder="again", capture=capture)
    assert {one.code for one in (again, *seen.values())} == {0}, [one.log for one in (again, *seen.values())]
    titles = {}
    for way, one in seen.items():
        model = compare_dumps(again.dump, one.dump, command="", evaluates=False)
        # Whether one rank alone errs (PF905) depends on how fast the other is.
        titles[way] = {finding.rule: finding.title for finding in model.findings if "PF901" <= finding.rule <= "PF904"}
    assert titles == {
        "right": {},
        "early": {"PF904": "The target uses the result of (model) / all_reduce before it has arrived"},
        "overwritten": {"PF903": "all_reduce gives other results, although every rank gives it the same bits on both sides"},
    }


FEWER = """
import os, torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2 - int(os.environ["RANK"])):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
"""


def test_a_rank_that_makes_fewer_steps_is_named_and_nothing_is_sealed(script, watch, monkeypatch):
    monkeypatch.setattr(ranks, "_GRACE", 0.1)
    seen = watch(script(FEWER), ranks=2, capture={"level": ["module"]})
    assert seen.code == 2
    said = [json.loads(line) for line in (seen.folder.parent / "dump.events").read_text().splitlines()]
    (error,) = [event for event in said if event["event"] == "error"]
    assert error["rank"] == "1"
    assert "step 1 should have been recorded, and train.py made only step 0" in error["message"]
    assert not (seen.folder / "dump.json").exists()


LACKING = """
import sys, torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank, way = dist.get_rank(), sys.argv[2]

class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part):
        total = part.clone()
        if way != "unsummed":
            dist.all_reduce(total)
        if way == "lost" and rank:
            total[2:] = 0
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient

class Part(nn.Linear):
    def forward(self, features):
        return Sum.apply(super().forward(features))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = Part(8, 16), nn.LayerNorm(16), Part(16, 16)
        self.head = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))

    def forward(self, features):
        return self.head(torch.tanh(self.second(self.norm(self.first(features))))[rank::2])

torch.manual_seed(0)
net = Net()
if way == "moved":  # the hooks of the wrapper are on the parameters that it had
    for name, parameter in list(net.head.module.named_parameters()):
        setattr(net.head.module, name, nn.Parameter(parameter.detach().clone()))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(2):
    features = torch.randn(4, 16, generator=torch.Generator().manual_seed(step)).chunk(2, 1)[rank]
    net(features).square().mean().backward()
    for name, parameter in net.named_parameters():
        if "head" not in name and not (way == "forgets" and name == "norm.weight"):
            dist.all_reduce(parameter.grad)
    if not (way == "clips" and rank):
        nn.utils.clip_grad_norm_(net.parameters(), 0.01)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_a_collective_that_is_missing_or_lost_is_named_by_what_it_carries(script, watch):
    """Only modules are recorded, and reductions after the one that is missing are paired with their own."""
    path, capture = script(LACKING), {"step": [0], "detail": "tensors", "level": ["module"]}
    models = {}
    ways = ("right", "forgets", "moved", "unsummed", "lost")
    seen = {way: watch(path, way, ranks=2, folder=way, capture=capture) for way in ways}
    assert {one.code for one in seen.values()} == {0}, [one.log for one in seen.values()]
    again = watch(path, "right", ranks=2, folder="again", capture=capture)
    for way in ways:
        models[way] = compare_dumps(again.dump, seen[way].dump, command="", evaluates=False)
    assert models["right"].verdict.verdict == "aligned"
    first = {way: (one.rule, one.certainty, one.title) for way in ways[1:] for one in models[way].findings[:1]}
    lacks = "the target does not call all_reduce"
    assert first == {
        "forgets": ("PF906", "certain", f"{lacks} of the gradients of norm.weight"),
        "moved": ("PF906", "certain", f"{lacks} of the gradients of head.module.bias and head.module.weight"),
        "unsummed": ("PF906", "likely", f"{lacks} in first"),
        "lost": ("PF908", "certain", "half of what first / all_reduce (rank 1) returns is zeros where it is used"),
    }
    starts = {way: next(phase.name for phase in models[way].phases if phase.state == "starts") for way in ways[1:]}
    assert starts == {"forgets": "communication", "moved": "communication", "unsummed": "forward", "lost": "forward"}
    # The reductions after the missing one are those of other parameters, and are compared with their own.
    shapes = [row for row in models["forgets"].rows if row.judged.status == "shape"]
    assert shapes == []


SAMPLED = """
import sys, torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(32, 8))
rank = 0 if sys.argv[2] == "shared" else dist.get_rank()
seed = 2 if sys.argv[2] == "seeded" else 1
sampler = DistributedSampler(data, 2, rank, seed=seed)
for (features,) in DataLoader(data, batch_size=8, sampler=sampler):
    model(features).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_ranks_that_are_given_the_same_samples_are_named(script, watch):
    path, capture = script(SAMPLED), {"step": [0], "detail": "tensors", "level": ["module"]}
    seen = {way: watch(path, way, ranks=2, folder=way, capture=capture) for way in ("right", "shared", "seeded")}
    assert {one.code for one in seen.values()} == {0}, [one.log for one in seen.values()]
    found = {way: compare_dumps(seen["right"].dump, seen[way].dump, command="").findings[0] for way in ("shared", "seeded")}
    assert (found["shared"].rule, found["shared"].certainty) == ("PF422", "certain")
    assert found["shared"].title == "The target gives several ranks the same samples: ranks 0 and 1 in step 0"
    assert found["seeded"].rule == "PF119"


BUCKETS = """
import sys, torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank, megabytes = dist.get_rank(), float(sys.argv[2])
torch.manual_seed(0)
net = nn.Sequential(*[nn.Linear(32, 32) for _ in range(4)])
model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=megabytes)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(2):
    features = torch.randn(8, 32, generator=torch.Generator().manual_seed(step))[rank::2]
    model(features).square().mean().backward()
    if len(sys.argv) > 3 and step:
        net[0].weight.grad *= 1.1
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_buckets_of_other_sizes_are_no_fault(script, watch):
    """Gradients are divided into buckets behind the first step, and the ranks agree on that by numbers of their own."""
    path, capture = script(BUCKETS), {"step": [0, 1], "detail": "tensors", "level": ["module", "api"]}
    ways = {"large": ["25"], "small": ["0.004"], "wrong": ["0.004", "wrong"]}
    seen = {way: watch(path, *arguments, ranks=2, folder=way, capture=capture) for way, arguments in ways.items()}
    assert {one.code for one in seen.values()} == {0}, [one.log for one in seen.values()]
    small, wrong = (compare_dumps(seen["large"].dump, seen[way].dump, command="") for way in ("small", "wrong"))
    assert (small.verdict.verdict, tuple(small.verdict.reasons), tuple(small.findings)) == ("aligned", (), ())
    covered = [row.judged.reason for row in small.rows if row.judged.status == "covered"]
    assert covered
    assert all("both sides send these gradients in other groups" in reason for reason in covered)
    assert wrong.verdict.verdict == "misaligned"


MICRO_BATCHES = """
import contextlib, sys, torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)  # its steps show nothing of a gradient
for step in range(2):
    for micro in range(2):
        features = torch.randn(8, 8, generator=torch.Generator().manual_seed(2 * step + micro))[rank::2]
        waits = micro == 0 and sys.argv[2] != "always"
        with model.no_sync() if waits else contextlib.nullcontext():
            model(features).square().mean().backward()
    if len(sys.argv) > 3:
        net[0].weight.grad *= 1.1
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_gradients_may_be_reduced_at_every_micro_batch(script, watch):
    """What the optimizer is given is the same: the mean of a mean and of what each rank adds."""
    path, capture = script(MICRO_BATCHES), {"step": [0, 1], "detail": "tensors", "level": ["module", "api"]}
    ways = {"last": ["last"], "always": ["always"], "wrong": ["always", "wrong"]}
    seen = {way: watch(path, *arguments, ranks=2, folder=way, capture=capture) for way, arguments in ways.items()}
    assert {one.code for one in seen.values()} == {0}, [one.log for one in seen.values()]
    for one, other in (("last", "always"), ("always", "last")):
        right = compare_dumps(seen[one].dump, seen[other].dump, command="")
        assert (right.verdict.verdict, tuple(right.verdict.reasons), tuple(right.findings)) == ("aligned", (), ())
        covered = [row for row in right.rows if "reduces these gradients more often" in row.judged.reason]
        assert {row.judged.status for row in covered} == {"covered"}
    wrong = compare_dumps(seen["last"].dump, seen["wrong"].dump, command="")
    assert wrong.verdict.verdict == "misaligned"


@pytest.mark.parametrize("level", [["module"], ["module", "api"]])
def test_a_rank_that_clips_alone_starts_at_the_optimizer_of_the_first_step(script, watch, level):
    path, capture = script(LACKING), {"step": [0, 1], "detail": "tensors", "level": level}
    right, clips = (watch(path, way, ranks=2, folder=way, capture=capture).dump for way in ("right", "clips"))
    model = compare_dumps(right, clips, command="")
    assert next(phase.name for phase in model.phases if phase.state == "starts") == "optimizer"
    first = parse_identity(model.region.suspects[0].record)
    assert (first.step, first.rank) == (0, 1)
    assert model.findings[0].title.startswith("The error starts on rank 1 alone")


SHARED = """
import os, sys, torch
import torch.distributed as dist
from torch import nn
world, rank, way = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0)), sys.argv[2]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, *inputs):
        return self.body(*inputs)

torch.manual_seed(0)
net = model = Net()
if world > 1:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
ways = {"blocks": slice(6 * rank, 6 * rank + 6), "dealt": slice(rank, None, 2), "uneven": slice(9 * rank, 9 + 3 * rank)}
for step in range(2):
    generator = torch.Generator().manual_seed(step)
    features, labels = torch.randn(12, 8, generator=generator), torch.randint(0, 4, (12,), generator=generator)
    if world > 1:
        own = ways.get(way, ways["blocks"])
        features, labels = features[own], labels[own]
    if way == "other" and rank:
        features = features.flip(0)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(features), labels)
    loss.backward()
    optimizer.step()
if world > 1:
    dist.destroy_process_group()
"""


def test_parts_of_a_batch_are_joined_before_they_are_compared_with_those_of_one_process(script, watch):
    path, capture = script(SHARED), {"step": [0, 1], "detail": "tensors", "level": ["module"]}
    one = watch(path, "one", folder="one", capture=capture)
    seen = {way: watch(path, way, ranks=2, folder=way, capture=capture) for way in ("blocks", "dealt", "uneven", "other")}
    assert {each.code for each in (one, *seen.values())} == {0}, [each.log for each in seen.values()]
    models = {way: compare_dumps(one.dump, each.dump, command="") for way, each in seen.items()}
    assert {way: model.verdict.verdict for way, model in models.items()} == {
        "blocks": "aligned",
        "dealt": "aligned",
        "uneven": "misaligned",
        "other": "inconclusive",
    }
    assert {way: model.phases[0].state for way, model in models.items() if way != "other"} == {
        "blocks": "aligned",
        "dealt": "aligned",
        "uneven": "aligned",
    }
    (uneven, *_), (other, *_) = models["uneven"].findings, models["other"].findings
    assert (uneven.rule, uneven.certainty) == ("PF909", "certain")
    assert "uneven parts of the batch (9 and 3 samples)" in uneven.title
    assert [phase.name for phase in models["uneven"].phases if phase.state == "starts"] == ["loss"]
    assert (other.rule, other.title) == ("PF402", "2 inputs differ, first step0.inputs.0")
    assert compare_dumps(seen["dealt"].dump, one.dump, command="").verdict.verdict == "aligned"
