import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from toys import Calls

from precflow.agent.capture import autograd
from precflow.agent.capture.recorder import Recorder
from precflow.agent.measure.content_id import content_id
from precflow.agent.request import CaptureSection

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def step(model):
    torch.manual_seed(1)
    result = model(X.clone())
    (result if isinstance(result, torch.Tensor) else sum(each.sum() for each in result)).pow(2).sum().backward()


def residual():
    torch.manual_seed(0)

    def forward(self, x):
        hidden = self.first(x)
        return hidden + self.second(self.norm(hidden)) * self.third(hidden)

    return Calls(forward, first=nn.Linear(4, 4), norm=nn.LayerNorm(4), second=nn.Linear(4, 4), third=nn.Linear(4, 4))


def in_place():
    torch.manual_seed(0)

    def forward(self, x):
        hidden = self.norm(self.first(x))
        hidden.mul_(2)  # refused after a full backward hook: its views are not to be written to
        hidden[:, 0] = 0
        return self.act(hidden)

    return Calls(forward, first=nn.Linear(4, 4), norm=nn.LayerNorm(4), act=nn.ReLU(inplace=True))


def twice():
    torch.manual_seed(0)
    return Calls(lambda self, x: self.shared(self.shared(x).relu()) * self.shared(x), shared=nn.Linear(4, 4))


def several_outputs():
    torch.manual_seed(0)

    def projections(self, x):
        return {"query": self.query(x), "rest": (self.key(x), self.value(x).tanh()), "note": 1}

    parts = {name: nn.Linear(4, 4) for name in ("query", "key", "value")}

    def forward(self, x):
        found = self.inner(self.first(x))
        return (found["query"] @ found["rest"][0].T).softmax(-1) @ found["rest"][1]

    return Calls(forward, first=nn.Linear(4, 4), inner=Calls(projections, **parts))


def recomputed(reentrant):
    torch.manual_seed(0)

    def forward(self, x):
        hidden = self.first(x)
        for _ in range(2):
            hidden = checkpoint(self.block, hidden, use_reentrant=reentrant)
        return hidden

    return Calls(forward, first=nn.Linear(4, 4), block=nn.Sequential(nn.Linear(4, 4), nn.Tanh()))


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def function():
    torch.manual_seed(0)
    return Calls(lambda self, x: self.last(Scaled.apply(self.first(x))), first=nn.Linear(4, 4), last=nn.Linear(4, 4))


def frozen():
    model = residual()
    model.second.requires_grad_(requires_grad=False)
    return model


MODELS = {
    "residual": residual,
    "in_place": in_place,
    "twice": twice,
    "several_outputs": several_outputs,
    "checkpoint": lambda: recomputed(reentrant=False),
    "reentrant": lambda: recomputed(reentrant=True),
    "function": function,
    "frozen": frozen,
}
EVERYTHING = {
    "level": ("module", "api", "operator"),
    "phase": ("forward", "backward", "gradient", "optimizer"),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("levels", [("module",), ("operator",), ("module", "api", "operator")])
def test_loss_and_gradients_are_the_same_bits(name, levels, recorded, gradients):
    model = MODELS[name]()
    step(model)
    before = gradients(model)
    run = recorded(model, step, **{**EVERYTHING, "level": levels})
    during = gradients(model)
    step(model)
    after = gradients(model)
    assert list(before) == list(during) == list(after)
    assert all(torch.equal(before[key], during[key]) and torch.equal(before[key], after[key]) for key in before)
    assert any(line["phase"] == "backward" for line in run.lines)


def contributions(model, names):
    """Return what torch's own full backward hooks see: module -> gradients that leave, and that arrive."""
    left, arrived = {}, {}

    def hook(name):
        def see(_, leaving, arriving):
            left.setdefault(name, []).append([each for each in leaving if each is not None])
            arrived.setdefault(name, []).append([each for each in arriving if each is not None])

        return see

    handles = [model.get_submodule(name).register_full_backward_hook(hook(name)) for name in names]
    step(model)
    for handle in handles:
        handle.remove()
    return left, arrived


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("name", ["residual", "twice", "function", "frozen"])
def test_gradients_are_those_of_torchs_own_hooks(name, recorded):
    model = MODELS[name]()
    names = [name for name, _ in model.named_children()]
    left, arrived = contributions(model, names)
    run = recorded(model, step)
    for module in names:
        lines = [line for line in run.of("backward") if line["module"] == module]
        ours = sorted(record["content"] for line in lines for record in line["outputs"])
        assert ours == sorted(content_id(each) for found in left[module] for each in found)
        ours = sorted(record["content"] for line in lines for record in line["inputs"])
        assert ours == sorted(content_id(each) for found in arrived[module] for each in found)


def test_what_leaves_is_this_modules_part_and_not_the_whole_gradient(recorded):
    run = recorded(residual(), step)
    parts = {run.line("backward", name)["outputs"][0]["content"] for name in ("norm", "third")}
    whole = run.line("backward", "first")["inputs"][0]["content"]
    assert len(parts | {whole}) == 3


def test_the_model_itself_has_what_arrives_and_nothing_that_leaves(recorded):
    run = recorded(residual(), step)
    assert run.indices(run.line("backward", "")) == (["0"], [])


def test_inner_modules_come_before_those_around_them(recorded):
    order = [line["module"] for line in recorded(several_outputs(), step).of("backward")]
    assert order.index("inner.key") < order.index("inner")
    assert order.index("inner") < order.index("first")


def test_an_input_used_by_several_outputs_leaves_as_one_sum(recorded):
    model = several_outputs()
    run = recorded(model, step)
    line = run.line("backward", "inner")
    assert run.indices(line) == (["query", "rest.0", "rest.1"], ["0"])
    assert line["outputs"][0]["content"] == run.line("backward", "first")["inputs"][0]["content"]


def test_calls_of_one_module_are_told_apart(recorded):
    run = recorded(twice(), step)
    assert sorted(line["call"] for line in run.of("backward")) == [0, 0, 1, 2]
    orders = {line["call"]: line["order"] for line in run.of("forward") if line["module"] == "shared"}
    for line in run.of("backward"):
        if line["module"] == "shared":
            assert line["forward"] == [orders[line["call"]]]


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_is_not_recorded_and_its_gradients_are(reentrant, recorded):
    run = recorded(recomputed(reentrant), step)
    plain = recorded(recomputed(reentrant), step, phase=("forward",))
    assert len(run.of("forward")) == len(plain.lines) == 8
    expected = [("block", 0), ("block", 1), ("block.0", 0), ("block.0", 1), ("block.1", 0), ("block.1", 1)]
    assert sorted((line["module"], line["call"]) for line in run.of("backward") if "block" in line["module"]) == expected


def test_reruns_have_the_gradients_of_the_call_that_they_repeat(recorded):
    plain = recorded(recomputed(reentrant=False), step).recorder.contents
    rerun = recorded(recomputed(reentrant=True), step).recorder.contents
    assert rerun == plain


def test_a_chain_of_sources_runs_through_backward(recorded):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    run = recorded(model, step)
    by_order = {line["order"]: line["module"] for line in run.lines}
    sources = {line["module"]: line["inputs"][0]["source"] for line in run.of("backward")}
    assert by_order[sources["1"][0]] == "2"
    assert by_order[sources["0"][0]] == "1"


def test_unused_outputs_and_inputs_without_gradient_have_no_record(recorded):
    inner = Calls(lambda self, x, scale: (self.one(x) * scale, self.two(x)), one=nn.Linear(4, 4), two=nn.Linear(4, 4))
    model = Calls(lambda self, x: self.inner(self.first(x), torch.ones(()))[0], first=nn.Linear(4, 4), inner=inner)
    run = recorded(model, step)
    assert run.indices(run.line("backward", "inner")) == (["0"], ["0"])
    modules = [line["module"] for line in run.of("backward")]
    assert "inner.two" not in modules
    assert modules.index("inner") < modules.index("first")  # nobody has waited for what will not come


def test_a_graph_that_runs_again_has_a_mark(recorded):
    def both(model):
        result = model(X)
        result.sum().backward(retain_graph=True)
        result.pow(2).sum().backward()

    run = recorded(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), both)
    indices = [run.indices(line) for line in run.of("backward") if line["module"] == "1"]
    assert indices == [(["0"], ["0"]), (["0+1"], ["0+1"])]


def test_autograd_grad_is_seen_too(recorded):
    def work(model):
        x = X.clone().requires_grad_()
        torch.autograd.grad(model(x).sum(), x)

    run = recorded(nn.Linear(4, 4), work)
    assert run.indices(run.line("backward", "")) == (["0"], ["0"])


def test_without_gradients_there_is_no_backward(recorded):
    def work(model):
        with torch.no_grad():
            model(X)

    assert recorded(residual(), work).of("backward") == []


def test_scope_chooses_modules(recorded):
    run = recorded(residual(), step, scope=["second"])
    assert {line["module"] for line in run.lines} == {"second"}


def test_backward_alone_records_no_forward(recorded):
    run = recorded(residual(), step, phase=("backward",), level=("module", "api"))
    assert {line["phase"] for line in run.lines} == {"backward"}
    assert all(line["forward"] == [] for line in run.lines)


def test_exceptions_in_backward_pass_unchanged(recorded):
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + 1

        @staticmethod
        def backward(ctx, gradient):
            raise ZeroDivisionError("of the user")

    model = Calls(lambda self, x: self.last(Broken.apply(self.first(x))), first=nn.Linear(4, 4), last=nn.Linear(4, 4))
    with pytest.raises(ZeroDivisionError, match="of the user"):
        recorded(model, step)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_behind(name, fails):
    model, kept = MODELS[name](), []
    before = hooks(model)
    recorder = Recorder(None, CaptureSection(**EVERYTHING))
    try:
        with recorder.watch(model):
            kept.append(model(X))
            kept.append(kept[0].sum())
            kept[1].backward(retain_graph=True)
            if fails:
                raise KeyboardInterrupt  # noqa: TRY301  not an Exception
    except KeyboardInterrupt:
        assert fails
    assert hooks(model) == before
    assert all(each._backward_hooks is None for each in (*kept, *model.parameters()))
    count, contents = recorder.records, dict(recorder.contents)
    kept[1].backward()
    assert (recorder.records, recorder.contents) == (count, contents)


def hooks(model):
    """Return how many hooks a model's modules and parameters have."""
    modules = [
        (name, key, len(value))
        for name, each in model.named_modules()
        for key, value in each.__dict__.items()
        if "hooks" in key
    ]
    return modules, [len(getattr(each, "_post_accumulate_grad_hooks", None) or ()) for each in model.parameters()]


def test_a_graph_is_free_to_go_before_the_step_ends():
    model, recorder = residual(), Recorder(None, CaptureSection(phase=("forward", "backward")))
    with recorder.watch(model):
        result = model(X)
        inner = weakref.ref(result)
        result.sum().backward()
        del result
        gc.collect()
        assert inner() is None


def test_a_backward_after_watching_is_not_recorded():
    model, recorder = residual(), Recorder(None, CaptureSection(phase=("forward", "backward")))
    with recorder.watch(model):
        loss = model(X).sum()
    loss.backward()
    assert not any("/backward." in text for text in recorder.contents)


def test_torch_shows_what_backward_rests_on():
    assert autograd.shows_graph()
