"""Where an exception was raised is read from its traceback: module, phase, operator, shapes, what is missing, what is alive."""

import pytest
import torch

from precflow.agent.capture.recorder import Recorder
from precflow.agent.request import CaptureSection
from precflow.agent.session.failed_call import describe_failure


class Block(torch.nn.Module):
    def __init__(self, run):
        super().__init__()
        self.run = run

    def forward(self, x):
        return self.run(x)


class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError("Could not run 'aten::gelu_backward' with arguments from the 'NPU' backend.")


def refuse(message, error=RuntimeError):
    raise error(message)


def failing(run, work=lambda model, x: model(x)):
    """Return a model whose second module does `run`, and the exception that some work with it raises."""
    model = torch.nn.ModuleDict({"top": torch.nn.Sequential(torch.nn.Linear(4, 2), Block(run))})
    try:
        work(model["top"], torch.ones(3, 4))
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return model, error
    raise AssertionError("nothing was raised")


def test_module_and_arguments_are_known_without_any_recording():
    model, error = failing(lambda x: x @ torch.zeros(5, 5))
    found = describe_failure(error, tops=[("net", model)])
    assert (found["module"], found["class"], found["phase"]) == ("net.top.1", "Block", "forward")
    assert found["given"] == [{"index": "0", "dtype": "float32", "shape": [3, 2], "device": "cpu"}]
    assert found["source"].startswith("model, error = failing(lambda x: x @ ")
    assert describe_failure(error)["module"] == "1"  # of the outermost module, where no model is given


def test_what_was_raised_first_counts():
    def wrap(x):
        try:
            return x @ x
        except RuntimeError:
            cause = NotImplementedError("The operator 'aten::x' is not currently supported on the NPU")
            raise ValueError("it did not work") from cause

    _, error = failing(wrap)
    found = describe_failure(error)
    assert (found["error"], found["missing"], found["module"]) == ("NotImplementedError", "aten::x", "1")


@pytest.mark.parametrize(
    ("message", "missing", "place"),
    [
        ("Could not run 'aten::lgamma.out' with arguments from the 'NPU' backend. This", "aten::lgamma.out", "NPU"),
        ("The operator 'aten::x' is not currently implemented for the MPS device.", "aten::x", "MPS"),
        ("\"addmm_impl_cpu_\" not implemented for 'Half'", "addmm_impl_cpu_", "Half"),
        ("call aclnnFlashAttentionScore failed, detail:EZ1001", "aclnnFlashAttentionScore", ""),
        ("'_OpNamespace' 'npu' object has no attribute 'npu_rms_norm'", "npu_rms_norm", ""),
        ("module 'torch.cuda' has no attribute 'nvtx_x'", "nvtx_x", "torch.cuda"),
        ("No module named 'flash_attn'", "flash_attn", ""),
        ("CUDA error: no kernel image is available for execution", "no kernel image is available", ""),
        ("index out of range", "", ""),
    ],
)
def test_what_is_missing_is_read_from_the_message(message, missing, place):
    _, error = failing(lambda x: refuse(message))
    found = describe_failure(error)
    assert (found["missing"], found["missing_in"]) == (missing, place)


def recorded(run, work):
    recorder = Recorder(None, CaptureSection(level=["module", "api"], phase=["forward", "backward"], detail="digest"))

    class Notes:
        sites, failure = (), None

        def note_running(self, text):
            self.text = text

    recorder._lines._writer = Notes()
    recorder._lines._writer.open_step = recorder._lines._writer.append = lambda *_: None
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), Block(run))
    with pytest.raises((RuntimeError, NotImplementedError)) as raised, recorder.watch(model):
        work(model)
    return describe_failure(raised.value, recorder.trail, [("", model)])


def test_an_operator_and_a_shape_that_is_new():
    def work(model):
        model(torch.ones(3, 4))
        model(torch.ones(5, 4))

    found = recorded(lambda x: x.reshape(3, 2), work)
    assert (found["module"], found["operator"]) == ("1", "reshape")
    assert found["inputs"][0]["shape"] == [5, 2]
    assert found["seen"] == [[[3, 2]]]
    assert found["last"] == "0~1/forward.output.0"


def test_in_backward_the_module_is_that_whose_gradient_had_arrived():
    found = recorded(Refusing.apply, lambda model: model(torch.ones(3, 4, requires_grad=True)).sum().backward())
    assert (found["phase"], found["module"], found["operator"]) == ("backward", "1", "RefusingBackward")
    assert found["missing"] == "aten::gelu_backward"
    assert found["arrived"] == "0 float32 [3, 2]"


def test_what_a_checkpoint_computes_again_is_backward_and_has_its_module():
    state = []

    def fail_the_second_time(x):
        state.append(0)
        return x.sin() if len(state) == 1 else refuse("again")

    def work(model, x):
        torch.utils.checkpoint.checkpoint(model, x.requires_grad_(), use_reentrant=False).sum().backward()

    _, error = failing(fail_the_second_time, work)
    found = describe_failure(error)
    assert (found["phase"], found["class"]) == ("backward", "Block")


def test_an_optimizer():
    def step(model, x):
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        model(x).sum().backward()
        model[0].weight.data = torch.zeros(1)
        optimizer.step()

    _, error = failing(lambda x: x, step)
    assert describe_failure(error)["phase"] == "optimizer"


def test_a_full_memory_names_the_largest_tensors_that_were_alive():
    def fill(x):
        activations = torch.empty(7000, 20000)  # larger than what other tests have left, and no page of it is touched
        refuse("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2147483648 bytes.")
        return activations

    model, error = failing(fill)
    model["weights"] = torch.nn.utils.skip_init(torch.nn.Linear, 20000, 9000)
    memory = describe_failure(error, tops=[("", model)])["memory"]
    assert (memory["asked"], memory["device"]) == ("2147483648 bytes", "cpu")
    names = {each["name"]: each["bytes"] for each in memory["largest"]}
    assert names["weight weights.weight"] == 720_000_000
    assert names["activations in fill (test_failed_call.py)"] == 560_000_000
    assert memory["bytes"] >= 1_280_000_000
    assert describe_failure(MemoryError())["memory"]["asked"] == ""
