"""Whole layers on the device give the bits of the CPU, forward and backward, on both devices."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, tensor):
        return self.inner(tensor, tensor, tensor)[0]


class First(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, tensor):
        return self.inner(tensor)[0]


LAYERS = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)), (5, 6)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)), (2, 3, 8, 8)),
    "grouped convolution": (lambda: nn.Conv1d(4, 4, 3, groups=2, bias=False), (2, 4, 9)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), (1, 3, 5, 5)),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU()), (2, 4, 6)),
    "lstm": (lambda: First(nn.LSTM(4, 5, num_layers=2, bidirectional=True)), (3, 2, 4)),
    "gru": (lambda: First(nn.GRU(4, 5)), (3, 2, 4)),
    "softmax": (lambda: nn.Sequential(nn.Softmax(-1), nn.LogSoftmax(0)), (4, 5)),
}


def outcome(module, values):
    values = values.detach().requires_grad_()
    output = module(values)
    output.pow(2).sum().backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    return [tensor.cpu() for tensor in (output.detach(), values.grad, *gradients)]


@pytest.mark.parametrize("device", ["npu:0", "npu:1"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_give_the_bits_of_the_cpu(npu, name, device):
    build, shape = LAYERS[name]
    torch.manual_seed(0)
    module, values = build(), torch.randn(shape)
    expected = outcome(copy.deepcopy(module), values)
    actual = outcome(module.to(device), values.to(device))
    if name in {"lstm", "gru"}:  # the CPU has a fused kernel; the device goes step by step
        torch.testing.assert_close(actual, expected)
    else:
        assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_attention_layers_agree_with_the_cpu(npu, mode):
    torch.manual_seed(0)
    values = torch.randn(2, 5, 8)
    for module in (Attention(), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)):
        getattr(module, mode)()
        expected = module(values).detach()
        torch.testing.assert_close(module.npu()(values.npu()).detach().cpu(), expected)


def test_fused_attention_agrees_with_the_cpu_closely(npu):
    query, key, value = torch.randn(3, 1, 2, 6, 8).unbind()
    for causal in (False, True):
        expected = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        actual = functional.scaled_dot_product_attention(query.npu(), key.npu(), value.npu(), is_causal=causal)
        torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_softmax_of_half_in_float32_is_that_of_the_cpu(npu, dtype):
    scores = torch.randn(3, 9).to(dtype)
    for function in (torch.softmax, torch.log_softmax):
        expected = function(scores, dim=-1, dtype=torch.float32)
        actual = function(scores.npu(), dim=-1, dtype=torch.float32)
        assert torch.equal(actual.cpu(), expected)


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}], ids=str)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_three_optimizer_steps_agree_with_the_cpu(npu, optimizer, options):
    torch.manual_seed(0)
    host, values = nn.Linear(4, 2), torch.randn(5, 4)
    device = copy.deepcopy(host).npu()
    for module, batch in ((host, values), (device, values.npu())):
        steps = getattr(torch.optim, optimizer)(module.parameters(), lr=0.01, **options)
        for _ in range(3):
            steps.zero_grad()
            module(batch).pow(2).mean().backward()
            steps.step()
    torch.testing.assert_close(device.weight.detach().cpu(), host.weight.detach(), rtol=1e-6, atol=1e-7)


def test_sums_sorts_and_searches(npu):
    values = torch.tensor([3, 1, 2, 1])
    device = values.npu()
    assert torch.equal(device.unique().cpu(), values.unique())
    assert torch.equal(device.sort()[1].cpu(), values.sort()[1])
    assert torch.equal(device.topk(2)[0].cpu(), values.topk(2)[0])
    assert torch.equal((device > 1).nonzero().cpu(), (values > 1).nonzero())
    assert torch.equal(device.bincount().cpu(), values.bincount())
    experts = torch.histc(device.int(), bins=4, min=0, max=3)  # of whole numbers, as the CPU cannot
    assert experts.dtype == torch.int32
    assert torch.equal(experts.cpu().float(), torch.histc(values.float(), bins=4, min=0, max=3))
    assert torch.equal(torch.histc(device.float(), bins=4).cpu(), torch.histc(values.float(), bins=4))


def test_complex_fourier_and_linear_algebra(npu):
    values = torch.randn(4, 4, generator=torch.default_generator)
    assert torch.equal(torch.fft.fft(values.npu()).conj().abs().cpu(), torch.fft.fft(values).conj().abs())
    assert torch.equal(torch.linalg.svd(values.npu()).S.cpu(), torch.linalg.svd(values).S)
    assert torch.equal(torch.einsum("ij,kj->ik", values.npu(), values.npu()).cpu(), torch.einsum("ij,kj->ik", values, values))


def test_layouts_are_kept(npu):
    image = torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last)
    assert image.npu().is_contiguous(memory_format=torch.channels_last)
    assert image.npu().cpu().stride() == image.stride()


def test_higher_gradients_and_own_functions(npu):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(context, tensor):
            context.save_for_backward(tensor)
            return tensor**3

        @staticmethod
        def backward(context, gradient):
            return 3 * context.saved_tensors[0] ** 2 * gradient

    tensor = torch.tensor([2.0], device="npu:1", requires_grad=True)
    (first,) = torch.autograd.grad(Cube.apply(tensor).sum(), tensor)
    (slope,) = torch.autograd.grad((tensor**3).sum(), tensor, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), tensor)
    assert (first.item(), slope.item(), second.item()) == (12.0, 12.0, 12.0)


def test_recomputation_and_function_transforms(npu):
    from torch.utils.checkpoint import checkpoint

    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).npu()
    checkpoint(module, torch.ones(1, 2, device="npu", requires_grad=True), use_reentrant=False).sum().backward()
    assert module[0].weight.grad is not None
    assert torch.func.grad(lambda x: (x**2).sum())(torch.ones(2, device="npu")).cpu().tolist() == [2.0, 2.0]
    assert torch.vmap(lambda x: x * 2)(torch.ones(2, 2, device="npu")).sum().item() == 8.0


def test_deterministic_algorithms_are_obeyed(npu):
    torch.use_deterministic_algorithms(mode=True)
    try:
        target = torch.zeros(3, device="npu")
        target.index_put_((torch.tensor([0, 0], device="npu"),), torch.ones(2, device="npu"), accumulate=True)
        assert target.cpu().tolist() == [2.0, 0.0, 0.0]
    finally:
        torch.use_deterministic_algorithms(mode=False)


class Seen(TorchDispatchMode):
    """Lists the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


LITERALS = {
    "tensor": lambda device: torch.tensor([1.0, 2.0], device=device),
    "nothing": lambda device: torch.tensor([], device=device),
    "number": lambda device: torch.tensor(3, device=device, dtype=torch.float16),
    "as_tensor": lambda device: torch.as_tensor([1.0, 2.0], device=device),
    "asarray": lambda device: torch.asarray([1.0, 2.0], device=device),
    "new_tensor": lambda device: torch.ones(2, device=device).new_tensor([3, 4]),
    "of a tensor": lambda device: torch.tensor(torch.ones(2), device=device),
}


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("name", LITERALS)
def test_tensors_of_numbers_are_made_under_a_dispatch_mode_as_on_the_cpu(npu, name):
    made, seen = {}, {}
    for device in ("cpu", "npu:1"):
        with Seen() as mode:
            made[device] = LITERALS[name](device)
        seen[device] = mode.names
    assert made["npu:1"].device == torch.device("npu:1")
    assert torch.equal(made["npu:1"].cpu(), made["cpu"])
    assert seen["npu:1"] == seen["cpu"]


def test_tensors_of_numbers_obey_the_device_of_a_context(npu):
    with torch.device("meta"):  # transformers asks for the device of a context so, and initializes no buffer if it gets another
        assert torch.tensor([]).device.type == "meta"
    with torch.device("npu"):
        assert torch.tensor([1.0]).device.type == "npu"
