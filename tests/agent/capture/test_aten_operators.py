import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as attention
from toys import Calls

from precflow.agent.capture.recorder import Recorder
from precflow.agent.contract import parse_identity
from precflow.agent.measure.content_id import content_id
from precflow.agent.request import CaptureSection

X = torch.linspace(-1, 1, 12).reshape(3, 4)
BOTH = ("forward", "backward")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2))


def step(model):
    model(X).softmax(-1).pow(2).sum().backward()


def names(lines):
    return [(line["module"], line["operator"]) for line in lines]


def test_aten_operators_of_the_forward_belong_to_the_running_module(recorded):
    run = recorded(network(), step, level=("operator",), phase=("forward",))
    found = names(run.of("forward", "operator"))
    assert found == [
        ("0", "t"),
        ("0", "addmm"),
        ("1", "gelu"),
        ("2", "t"),
        ("2", "addmm"),
        ("(outside)", "softmax"),
        ("(outside)", "pow"),
        ("(outside)", "sum"),
        ("(outside)", "ones_like"),
    ]


def test_operators_in_backward_belong_to_the_module_whose_graph_they_run(recorded):
    run = recorded(network(), step, level=("operator",))
    found = names(run.of("backward", "operator"))
    assert ("2", "mm") in found
    assert found.count(("2", "mm")) == 2
    assert ("1", "gelu_backward") in found
    assert [operator for module, operator in found if module == "0"] == "t mm t sum view t".split()
    assert ("(outside)", "softmax_backward_data") in found


def test_operators_in_backward_name_the_forward_line_that_made_their_node(recorded):
    run = recorded(network(), step, level=("operator",))
    forward = {line["order"]: line for line in run.of("forward", "operator")}
    for line in run.of("backward", "operator"):
        if line["operator"] in ("mm", "gelu_backward"):
            (order,) = line["forward"]
            assert forward[order]["operator"] == {"mm": "addmm", "gelu_backward": "gelu"}[line["operator"]]
            assert forward[order]["module"] == line["module"]


def test_calls_of_one_module_are_told_apart_in_backward(recorded):
    shared = nn.Linear(4, 4)
    run = recorded(Calls(lambda self, x: self.shared(self.shared(x).tanh()), shared=shared), step, level=("operator",))
    found = [(line["call"], line["ordinal"]) for line in run.of("backward", "operator") if line["operator"] == "mm"]
    assert found == [(1, 0), (1, 1), (0, 0)]


def test_levels_do_not_share_identities(recorded):
    run = recorded(network(), step, level=("module", "api", "operator"))
    assert "1/gelu.0/forward.output.0" in run.recorder.contents
    assert "1/aten.gelu.0/forward.output.0" in run.recorder.contents
    contents = run.recorder.contents
    assert len(contents) == sum(len(line["outputs"]) for line in run.lines)
    assert {parse_identity(text).operator for text in contents} >= {"gelu", "aten.gelu", "aten.gelu_backward", ""}


def test_what_capture_runs_itself_is_no_operator(recorded):
    def count(**options):
        run = recorded(network(), step, level=("module", "api", "operator"), **options)
        return names(run.of("forward", "operator") + run.of("backward", "operator"))

    assert count(detail="tensors") == count(detail="digest")


def test_edges_run_through_aten_operators(recorded):
    run = recorded(network(), step, level=("operator",))
    lines = {line["order"]: line for line in run.lines}
    gelu = next(line for line in run.of("backward", "operator") if line["operator"] == "gelu_backward")
    source = lines[gelu["inputs"][0]["source"][0]]
    assert (source["module"], source["operator"], source["phase"]) == ("2", "mm", "backward")


def test_in_place_operators_and_out_arguments(recorded):
    def forward(_, x):
        y = x * 2
        y.mul_(3)
        y[0] = 0
        torch.add(y, 1, out=y)
        return y

    run = recorded(Calls(forward), lambda model: model(X), level=("operator",), phase=("forward",))
    lines = run.of("forward", "operator")
    assert [line["operator"] for line in lines] == ["mul", "mul_", "select", "fill_", "add"]
    contents = [line["outputs"][0]["content"] for line in lines if line["operator"] in ("mul_", "add")]
    assert len(set(contents)) == 2
    inputs = {line["operator"]: line["inputs"][0]["content"] for line in lines}
    outputs = {line["operator"]: line["outputs"][0]["content"] for line in lines}
    assert inputs["mul_"] == outputs["mul"]
    assert inputs["add"] != outputs["mul_"]  # written in between, through a view


def test_writes_by_an_optimizer_show_in_the_views_that_come_next(recorded):
    model, seen = nn.Linear(4, 2), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def work(model):
        for _ in range(2):
            seen.append(model.weight.detach().clone())
            model(X).sum().backward()
            optimizer.step()

    run = recorded(model, work, optimizer, level=("operator",))
    turned = [line["outputs"][0]["content"] for line in run.of("forward", "operator") if line["operator"] == "t"]
    assert turned == [content_id(weight.t()) for weight in seen]
    assert len(set(turned)) == 2


def test_writes_outside_of_the_scope_show_in_the_views_that_come_next(recorded):
    seen = []

    def forward(self, x):
        y = x * 2
        for _ in range(2):
            self.inner(y)
            y.add_(1)
        return y

    def inner(_, y):
        seen.append(y.tolist())
        return y.view(4, 3) * 1

    run = recorded(Calls(forward, inner=Calls(inner)), lambda model: model(X), level=("operator",), scope=["inner"])
    viewed = [line["outputs"][0]["content"] for line in run.lines if line["operator"] == "view"]
    assert viewed == [content_id(torch.tensor(values).view(4, 3)) for values in seen]
    assert len(set(viewed)) == 2


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("compiled", [torch.jit.script, lambda module: torch.compile(module, backend="eager")])
def test_writes_by_compiled_code_show_in_the_views_that_come_next(recorded, compiled):
    seen = []

    def forward(self, x):
        y = x * 2
        for _ in range(2):
            seen.append(y.tolist())
            y.view(4, 3)
            self.rectify(y)
        return y

    model = Calls(forward, rectify=compiled(nn.Sequential(nn.ReLU(inplace=True))))
    run = recorded(model, lambda model: model(X), level=("operator",))
    viewed = [line["outputs"][0]["content"] for line in run.lines if line["operator"] == "view"]
    assert viewed == [content_id(torch.tensor(values).view(4, 3)) for values in seen]
    assert len(set(viewed)) == 2


@pytest.mark.parametrize(
    ("operator", "model", "run", "computed"),
    [
        ("mkldnn_rnn_layer", nn.LSTM(4, 3), lambda model: model(X), ["0", "1", "2"]),
        ("ctc_loss", nn.CTCLoss(), lambda loss: loss(X.view(3, 1, 4), torch.ones(1, 2).long(), [3], [2]), ["0"]),
        ("scaled_dot_product_flash_attention", nn.Identity(), lambda _: attention(X[None], X[None], X[None]), ["0", "1"]),
    ],
)
def test_room_for_a_backward_is_no_record(recorded, operator, model, run, computed):
    found = [line for line in recorded(model, run, level=("operator",)).lines if line["operator"] == operator]
    if not found:
        pytest.skip("this torch computes it by another operator")
    assert {record["index"] for line in found for record in line["outputs"]} == set(computed)


def test_numbers_beside_tensors_are_taken(recorded):
    whole = torch.arange(6)
    run = recorded(
        Calls(lambda _, x: [x & 3, x % 4, x | 1, x << 2, 2 - x]),
        lambda model: model(whole),
        level=("operator",),
        phase=("forward",),
    )
    assert len(run.lines) >= 5


def test_the_model_computes_the_same_with_numbers():
    whole, model = torch.arange(6), Calls(lambda _, x: [x & 3, x % 4, x | 1, x << 2, 2 - x, x * 0.5])
    plain = model(whole)
    with Recorder(None, CaptureSection(level=("operator",))).watch(model):
        watched = model(whole)
    assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(plain, watched))  # noqa: B905  Python 3.8


def test_scope_holds_in_backward(recorded):
    run = recorded(network(), step, level=("operator",), scope=["0"])
    assert {line["module"] for line in run.lines} == {"0"}
    assert {line["phase"] for line in run.lines} == {"forward", "backward"}


def test_a_backward_that_builds_a_graph_is_recorded_at_modules_only(recorded):
    def work(model):
        x = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.pow(2).sum().backward()

    run = recorded(network(), work, level=("module", "operator"))
    assert {line["module"] for line in run.of("backward")} == {"", "0", "1", "2"}
    assert run.of("backward", "operator")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_modules_run_unseen(backend, recorded, gradients):
    if not hasattr(nn.Module, "compile"):
        pytest.skip("this torch has no Module.compile")
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    inner.compile(backend=backend)
    model = Calls(lambda self, x: self.last(self.block(x)), block=inner, last=nn.Linear(4, 4))
    step(model)
    before = gradients(model)
    run = recorded(model, step, level=("module", "operator"))
    assert all(torch.equal(before[name], found) for name, found in gradients(model).items())
    assert {line["module"] for line in run.of("backward", "operator")} <= {"last", "(outside)"}
    assert {line["module"] for line in run.of("backward")} == {"", "last", "block"}


def test_exceptions_of_operators_pass_unchanged(recorded):
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        recorded(nn.Linear(3, 3), lambda model: model(X), level=("operator",))
