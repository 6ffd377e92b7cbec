"""Wrappers and compiled code: what is seen at the boundary, what is not, and that none of our hooks becomes part of a graph."""

import pytest
import torch
import torch._dynamo
from torch import nn

import precflow
from precflow.agent.capture.wrappers import find_boundary, is_compiled, unwrap
from precflow.dumps.formats import read_dump
from precflow.report import ci, html, junit, markdown, result_json
from precflow.stages.two_dumps import compare_dumps


class DistributedDataParallel(nn.Module):
    """Stands in for torch's, which wants a group of processes: known by its name, with the same forward."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs, **kwargs):
        return self.module(*inputs, **kwargs)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        self.head = nn.Linear(4, 2)
        self.scale = scale

    def forward(self, x, mask):
        return self.head(self.scale(self.block(x)) * mask)


def scale(x):
    return torch.tanh(x) * 2


def compiled_in(way):
    """Return a model that is compiled in one way, and what a loop calls."""
    torch._dynamo.reset()
    net = Net()
    if way == "whole":
        net = torch.compile(net, backend="eager")
    elif way == "in place":
        net.compile(backend="eager")
    elif way == "block":
        net.block = torch.compile(net.block, backend="eager")
    elif way == "forward":
        net.forward = torch.compile(net.forward, backend="eager")
    elif way == "function":
        net.scale = torch.compile(scale, backend="eager")
    elif way == "parallel":
        net = torch.compile(DistributedDataParallel(net), backend="eager")
    elif way == "script":
        net.block = torch.jit.trace(net.block, torch.ones(3, 4))
    return net


def train(net, folder=None, **settings):
    """Train two steps and return all bits; record the second one if a folder is given."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    outputs = []

    def step(number):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(number))
        outputs.append(net(x, mask=torch.ones(3, 4)))
        optimizer.zero_grad()
        outputs[-1].square().mean().backward()
        optimizer.step()

    if folder is None:
        step(0)
        step(1)
    else:
        with precflow.capture(net, folder, optimizer=optimizer, step=1, **settings) as recorder:
            for number in (0, 1):
                step(number)
                recorder.step()
    return [each.detach().clone() for each in (*outputs, *net.parameters())]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("way", "unseen", "modules"),
    [
        ("whole", {"": 4}, {""}),
        ("in place", {"": 4}, {""}),
        ("block", {"block": 2}, {"", "block", "head"}),
        ("forward", {"": 4}, {""}),
        ("parallel", {"": 5}, {""}),
        ("script", {"block": 2}, {"", "block", "head"}),
    ],
)
def test_compiled_code_computes_the_same_bits_and_is_recorded_at_its_boundary(tmp_path, way, unseen, modules):
    plain = train(compiled_in(way))
    before = dict(torch._dynamo.utils.counters["graph_break"])
    recorded = train(compiled_in(way), tmp_path / "dump", level=["module", "api", "operator"])
    assert all(map(torch.equal, plain, recorded))
    assert dict(torch._dynamo.utils.counters["graph_break"]) == before, "nothing of ours was traced"
    dump = read_dump(tmp_path / "dump")
    forward = [call for call in dump.calls() if call.phase == "forward" and call.module != "(outside)"]
    assert {call.module for call in forward if not call.operator} == modules
    assert {call.module for call in forward if call.compiled} == unseen.keys()
    assert dump.header.compiled.unseen == unseen
    assert set(dump.header.inputs.entries) == {"step1.x", "step1.mask"}
    assert set(dump.header.weights.entries) == {name for name, _ in Net().named_parameters()}
    gradients = {call.module for call in dump.calls() if call.phase == "gradient"}
    assert gradients == {"block.0", "block.1", "head"}
    assert len(dump.header.losses) == 1


def test_functions_that_are_compiled_are_named_and_have_none_of_our_code_inside(tmp_path):
    plain = train(compiled_in("function"))
    before = dict(torch._dynamo.utils.counters["graph_break"])
    recorded = train(compiled_in("function"), tmp_path / "dump", level=["module", "api", "operator"])
    assert dict(torch._dynamo.utils.counters["graph_break"]) == before, "nothing of ours was traced"
    assert all(map(torch.equal, plain, recorded))
    assert read_dump(tmp_path / "dump").header.compiled.unseen == {"function scale": 0}


@pytest.mark.parametrize("way", ["whole", "in place", "block", "parallel"])
def test_compiled_code_that_runs_as_it_was_written_has_the_records_of_a_plain_model(tmp_path, way):
    train(Net(), tmp_path / "plain")
    net = compiled_in(way)
    train(net, tmp_path / "eager", compiled="eager")
    plain, eager = (read_dump(tmp_path / name) for name in ("plain", "eager"))
    assert names(eager) == names(plain)
    assert eager.header.compiled.unseen == {}
    assert eager.header.compiled.eager == (("block",) if way == "block" else ("",))
    assert precflow.compare(tmp_path / "plain", tmp_path / "eager")
    assert torch._dynamo.eval_frame._stance.stance == "default", "it compiles again behind the block"


def names(dump):
    return [record.text for call in dump.calls() for record in (*call.inputs, *call.outputs)]


def test_what_was_not_seen_stands_beside_the_verdict(tmp_path):
    for name in ("one", "other"):
        train(compiled_in("block"), tmp_path / name)
    text = "compiled code on both sides: 2 modules inside 1 compiled module could not be seen (block)"
    model = compare_dumps(*(read_dump(tmp_path / name) for name in ("one", "other")), command="")
    assert model.verdict.verdict == "aligned"
    assert text in " ".join(precflow.compare(tmp_path / "one", tmp_path / "other").summary.split())
    assert "unseen=compiled" in ci.format_outcome(model, report_path="")
    for render in (junit.render, markdown.render, html.render, result_json.render):
        assert text in render(model), render.__module__


def test_a_side_that_was_seen_beside_one_that_was_not_is_told_how_to_see_both(tmp_path):
    train(Net(), tmp_path / "plain")
    train(compiled_in("whole"), tmp_path / "compiled")
    compared = precflow.compare(tmp_path / "plain", tmp_path / "compiled")
    assert (compared.verdict, compared.findings[0].rule) == ("inconclusive", "PF116")
    assert "4 modules inside 1 compiled module" in compared.findings[0].title


def test_a_loop_whose_model_is_called_by_compiled_code_only_says_so(tmp_path):
    torch._dynamo.reset()
    net = Net()

    @torch.compile(backend="eager")
    def around(x, mask):
        return net(x, mask)

    with (
        pytest.raises(precflow.AgentError, match="no call of Net was seen inside the block") as error,
        torch.no_grad(),
        precflow.capture(net, tmp_path / "dump"),
    ):
        around(torch.ones(3, 4), torch.ones(3, 4))
    assert "compiled='eager'" in error.value.next_step


def test_wrappers_are_seen_through():
    net = Net()
    assert unwrap(torch.compile(DistributedDataParallel(net))) is net
    assert find_boundary(DistributedDataParallel(net)) is net
    compiled = torch.compile(net)
    assert find_boundary(DistributedDataParallel(compiled)) is compiled
    assert is_compiled(compiled)
    assert not is_compiled(net)
