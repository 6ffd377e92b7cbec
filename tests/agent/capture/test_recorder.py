import contextlib
import gc
import json
import os
import textwrap
import threading
import weakref

import pytest
import torch
from torch import nn

from precflow.agent import emulated
from precflow.agent.capture.recorder import Recorder
from precflow.agent.dump.writer import WriteError, Writer
from precflow.agent.measure.batching import SMALL_BYTES
from precflow.agent.measure.content_id import content_id
from precflow.agent.request import CaptureSection


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x, *, scale=1.0):
        y = self.norm(x + self.linear(x).relu_() * scale)
        y[..., 0] = 0
        return {"hidden": y, "pooled": y.mean(-1)}


def model():
    torch.manual_seed(0)
    return nn.ModuleDict({"block": Residual()})["block"].eval()


X = torch.linspace(-1, 1, 8).reshape(2, 4)


def recorded(folder, watched, *steps, **options):
    writer = Writer(str(folder))
    recorder = Recorder(writer, CaptureSection(**options))
    with recorder.watch(watched):
        for number in steps or (0,):
            recorder.begin_step(number)
            watched(X)
    writer.seal({"sites": recorder.sites})
    return recorder


def lines(folder, step=0):
    text = (folder / f"rank0/step{step}/records-0.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_the_model_computes_the_same_bits(tmp_path):
    watched = model()
    before = watched(X)
    with Recorder(Writer(str(tmp_path))).watch(watched):
        during = watched(X)
    for key in before:
        assert torch.equal(before[key], during[key])
        assert torch.equal(before[key], watched(X)[key])


def test_gradients_are_the_same_bits():
    gradients = []
    for watch in (False, True):
        watched, recorder = model(), Recorder(None)
        if watch:
            with recorder.watch(watched):
                watched(X)["pooled"].sum().backward()
        else:
            watched(X)["pooled"].sum().backward()
        gradients.append([parameter.grad for parameter in watched.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients))  # noqa: B905  Python 3.8 has no strict


def traces(watched):
    """Return everything that watching could leave behind."""
    hooks = [
        (name, key, len(value))
        for name, module in watched.named_modules()
        for key, value in module.__dict__.items()
        if "hooks" in key
    ]
    names = {name: id(value) for place in (torch, torch.nn.functional, torch.Tensor) for name, value in vars(place).items()}
    keys = [sorted(module.__dict__) for module in watched.modules()]
    return hooks, names, keys, torch.overrides._get_current_function_mode_stack()


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left_behind(fails):
    watched = model()
    before = traces(watched)
    try:
        with Recorder(None).watch(watched):
            watched(X)
            if fails:
                raise KeyboardInterrupt  # noqa: TRY301  not an Exception: hooks that are always called are not called
    except KeyboardInterrupt:
        assert fails
    assert traces(watched) == before


class Held:
    """Something that the caller of a model holds."""


@pytest.mark.parametrize("problem", [None, ValueError, KeyboardInterrupt])
def test_no_caller_is_held_once_the_model_is_left(problem):
    class Leaves(nn.Module):
        def forward(self, x):
            if problem:
                raise problem
            return x * 2

    def call(watched):
        held = Held()
        with contextlib.suppress(problem or ()):
            watched(X)
        return weakref.ref(held)

    watched = nn.Sequential(nn.Linear(4, 4), Leaves())
    recorder = Recorder(None)
    with recorder.watch(watched):
        held = call(watched)
        if problem is not KeyboardInterrupt:  # of which hooks hear nothing
            gc.collect()
            assert held() is None
    gc.collect()
    assert held() is None
    assert recorder.records


def test_exceptions_of_the_model_pass_unchanged(tmp_path):
    class Broken(nn.Module):
        def forward(self, x):
            raise ZeroDivisionError("of the user")

    watched = nn.Sequential(nn.Linear(4, 4), Broken())
    writer = Writer(str(tmp_path))
    recorder = Recorder(writer)
    with pytest.raises(ZeroDivisionError, match="of the user"), recorder.watch(watched):
        watched(X)
    assert writer.abandon({"message": "of the user"}) is True
    assert [line["module"] for line in lines(tmp_path)] == ["0", "0"]
    assert not (tmp_path / "dump.json").exists()


def test_an_exception_that_the_model_handles_leaves_the_stack_right():
    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError("handled")

    class Careful(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(Broken())
            self.other = nn.Tanh()

        def forward(self, x):
            try:
                return self.inner(x)
            except ValueError:
                return self.other(x) + 1

    recorder, careful = Recorder(None), Careful()
    with recorder.watch(careful):
        careful(X)
    assert sorted(recorder.contents) == [
        "(model)/add.0/forward.output.0",
        "(model)/forward.output.0",
        "other/forward.output.0",
        "other/tanh.0/forward.output.0",
    ]


def test_a_repeat_by_digests_has_the_same_contents(tmp_path):
    first = recorded(tmp_path, model())
    second = Recorder(None, CaptureSection(detail="digest"))
    watched = model()
    with second.watch(watched):
        watched(X)
    assert second.contents == first.contents
    assert second.records == first.records > 20
    assert all(len(content) == 32 for content in first.contents.values())


def test_beginning_a_step_under_the_mode_records_nothing(tmp_path):
    writer, watched = Writer(str(tmp_path)), model()
    with Recorder(writer).watch(watched) as recorder:
        recorder.begin_step(0)
        recorder.begin_step(1)
    assert recorder.records == 0
    assert writer.counts == {"calls": 0, "records": 0, "tensors": 0, "bytes": 0}


def test_steps_count_for_themselves(tmp_path):
    recorder = recorded(tmp_path, model(), 0, 3)
    first, second = lines(tmp_path, 0), lines(tmp_path, 3)
    assert [line["order"] for line in first] == [line["order"] for line in second] == list(range(len(first)))
    assert {line["call"] for line in second} == {0}
    assert {line["step"] for line in second} == {3}
    assert all(identity.endswith("@3.0") for identity in recorder.contents)


def test_modules_complete_after_what_runs_inside(tmp_path):
    recorded(tmp_path, model())
    order = [(line["module"], line["operator"]) for line in lines(tmp_path)]
    assert order.index(("linear", "linear")) < order.index(("linear", "")) < order.index(("", "relu_"))
    assert order[-1] == ("", "")


@pytest.mark.parametrize(
    ("levels", "found"), [(["module"], {"module"}), (["api"], {"api"}), (["module", "api"], {"module", "api"})]
)
def test_levels_choose_lines(tmp_path, levels, found):
    recorded(tmp_path, model(), level=levels)
    assert {line["level"] for line in lines(tmp_path)} == found
    assert {line["module"] for line in lines(tmp_path)} == {"", "linear", "norm"}


def test_scope_chooses_modules(tmp_path):
    recorded(tmp_path, model(), scope=["lin*"])
    assert {line["module"] for line in lines(tmp_path)} == {"linear"}


def test_an_empty_scope_records_nothing(tmp_path):
    assert recorded(tmp_path, model(), scope=[]).records == 0


def test_detail_digest_writes_lines_and_no_tensors(tmp_path):
    recorded(tmp_path, model(), detail="digest")
    assert not any(record["stored"] for line in lines(tmp_path) for record in line["inputs"] + line["outputs"])
    assert not list(tmp_path.rglob("*.safetensors"))


def test_every_stored_record_is_in_a_shard(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    recorded(tmp_path, model(), 0, 1)
    shards = {}
    for path in tmp_path.rglob("*.safetensors"):
        shards.update(safetensors.load_file(str(path)))
    for line in lines(tmp_path, 0) + lines(tmp_path, 1):
        for found in line["inputs"] + line["outputs"]:
            if found["stored"]:
                assert list(shards[found["content"]].shape) == found["shape"]
            else:
                assert found["weight"] or line["movement"]


def test_sources_name_earlier_outputs_with_the_same_content(tmp_path):
    recorded(tmp_path, model())
    found = lines(tmp_path)
    edges = 0
    for line in found:
        for record in line["inputs"]:
            if record["source"]:
                order, index = record["source"]
                produced = {output["index"]: output["content"] for output in found[order]["outputs"]}
                assert produced[index] == record["content"]
                edges += 1
    assert edges == 7


def test_sites_are_those_of_the_model(tmp_path):
    recorder = recorded(tmp_path, model())
    (norm,) = [line for line in lines(tmp_path) if line["module"] == "norm" and not line["operator"]]
    assert "test_recorder.py:" in recorder.sites[norm["site"]].split(" <- ")[0]
    assert " in forward" in recorder.sites[norm["site"]].split(" <- ")[0]


def test_other_threads_are_not_recorded():
    watched, recorder = model(), Recorder(None)
    with recorder.watch(watched):
        thread = threading.Thread(target=watched, args=(X,))
        thread.start()
        thread.join()
    assert recorder.contents == {}


def test_a_failure_to_write_comes_out_even_if_the_model_swallows_it(tmp_path):
    class Stubborn(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            try:
                return self.inner(x)
            except Exception:  # noqa: BLE001  what stubborn models do
                return x * 2

    watched, writer = Stubborn(), Writer(str(tmp_path), budget_bytes=2000)
    with pytest.raises(WriteError, match="budget"), Recorder(writer).watch(watched):
        for _ in range(10):
            result = watched(X)
    assert result.shape == X.shape


def test_a_failure_to_write_wins_over_what_the_model_makes_of_it(tmp_path):
    class Wrapping(nn.Module):
        def forward(self, x):
            try:
                return x + 1
            except Exception as error:
                raise RuntimeError("layer failed") from error

    wrapping, writer, large = Wrapping(), Writer(str(tmp_path), budget_bytes=10), torch.ones(SMALL_BYTES)
    with pytest.raises(WriteError, match="budget") as caught, Recorder(writer, CaptureSection(level=["api"])).watch(wrapping):
        wrapping(large)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_failure_to_write_what_waited_is_raised_at_the_end(tmp_path):
    writer, watched = Writer(str(tmp_path), budget_bytes=10), model()
    finished = False
    with pytest.raises(WriteError, match="budget"), Recorder(writer).watch(watched):
        watched(X)
        finished = True
    assert finished


def test_unknown_words_are_refused():
    with pytest.raises(ValueError, match="operators"):
        Recorder(None, CaptureSection(level=["operators"]))
    with pytest.raises(ValueError, match="evaluation"):
        Recorder(None, CaptureSection(phase=["evaluation"]))
    with pytest.raises(ValueError, match="everything"):
        Recorder(None, CaptureSection(detail="everything"))


class Returning(nn.Module):
    """Returns what a function makes of its linear layer's output."""

    def __init__(self, change):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.change = change

    def forward(self, x):
        return self.change(self, self.linear(x))


def end_of(folder, change):
    """Return what the line of the model itself says of its output, and the output."""
    watched, seen = Returning(change), []
    watched.register_forward_hook(lambda module, given, result: seen.append(result))
    with torch.no_grad():
        recorded(folder, watched)
    return lines(folder)[-1]["outputs"][0], seen[0]


def test_what_numpy_wrote_unseen_is_in_the_record_of_the_model(tmp_path):
    def doubled(module, hidden):
        hidden.numpy()[...] *= 2
        return hidden

    record, result = end_of(tmp_path, doubled)
    assert record["content"] == content_id(result)


def test_a_weight_that_is_returned_can_be_compared(tmp_path):
    record, result = end_of(tmp_path, lambda module, hidden: module.linear.bias)
    assert (record["weight"], record["stored"], record["content"]) == ("linear.bias", True, content_id(result))


@pytest.mark.skipif(not hasattr(torch, "jagged"), reason="this torch has no tensors with rows of different lengths")
def test_rows_of_different_lengths_stop_no_dump(tmp_path):
    record, _ = end_of(tmp_path, lambda module, hidden: torch.nested.nested_tensor([hidden[:1], hidden], layout=torch.jagged))
    assert (record["content"], record["shape"], record["dtype"]) == ("", [], "float32")


ON_THE_EMULATED_DEVICE = """
    import sys, torch
    from precflow.agent import emulated
    from precflow.agent.capture.recorder import Recorder
    from precflow.agent.dump.writer import Writer

    emulated.install()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(inplace=True), torch.nn.LayerNorm(3))
    x = torch.arange(6.0).reshape(3, 2)
    found = []
    for device in ("cpu", "npu"):
        writer = Writer(sys.argv[1]) if device == "npu" else None
        recorder = Recorder(writer)
        with recorder.watch(model.to(device)), torch.no_grad():
            recorder.begin_step(0)
            model(x.to(device).t())
        found.append(recorder.contents)
    writer.seal({})
    print(len(found[0]), found[0] == found[1], writer.counts["tensors"])
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(emulated.describe_problem()), reason="this torch cannot emulate a device")
def test_equal_bits_on_another_device_are_equal_contents(tmp_path, warm_server):
    (tmp_path / "script.py").write_text(textwrap.dedent(ON_THE_EMULATED_DEVICE))
    words = [tmp_path / "script.py", tmp_path]
    _, said, wrong = warm_server.run(words, cwd=tmp_path, env=dict(os.environ), timeout=100, module="")
    assert said.split() == ["8", "True", "8"], wrong  # four tensors, and two weights and two biases
    assert (tmp_path / "rank0/step0/tensors-0.safetensors").stat().st_size > 4 * 24


def test_modules_with_a_fused_path_take_the_other_one_under_capture():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.linspace(-1, 1, 48).reshape(2, 3, 8)
    recorder = Recorder(None)
    with torch.no_grad():
        expected = layer(x)
        with recorder.watch(layer):
            result = layer(x)
    torch.testing.assert_close(result, expected)
    assert "self_attn/multi_head_attention_forward.0/forward.output.0" in recorder.contents
