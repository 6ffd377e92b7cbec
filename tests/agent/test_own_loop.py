"""Capture in a loop of one's own: the same bits with and without, a dump that compares, and nothing empty in silence."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch

import precflow
from precflow.dumps.formats import read_dump
from precflow.sides.pack import build


def model():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))


def batch(number):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(number))


def train(net, optimizer, steps=3, recorder=None):
    losses = []
    for number in range(steps):
        optimizer.zero_grad()
        loss = net(batch(number)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if recorder is not None:
            recorder.step()
    return losses


def captured(folder, *, change=lambda net: None, steps=3, **settings):
    net = model()
    change(net)
    optimizer = torch.optim.AdamW(net.parameters())
    with precflow.capture(net, folder, optimizer=optimizer, step=[0, 2], **settings) as recorder:
        losses = train(net, optimizer, steps, recorder)
    return losses, net, recorder


def test_a_training_loop_keeps_its_bits_and_leaves_a_sealed_dump(tmp_path):
    net = model()
    plain = train(net, torch.optim.AdamW(net.parameters()))
    losses, observed, recorder = captured(tmp_path / "dump")
    assert losses == plain
    assert all(torch.equal(one, other) for one, other in zip(net.parameters(), observed.parameters(), strict=True))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in observed.modules())
    assert recorder.done
    dump = read_dump(tmp_path / "dump")
    assert dump.sealed
    assert {call.step for call in dump.calls()} == {0, 2}
    assert {call.phase for call in dump.calls()} == {"forward", "backward", "gradient", "optimizer"}
    assert dump.header.loss_of_step == {0: losses[0], 2: losses[2]}
    assert dump.header.determinism["seed"] is None
    assert sorted(dump.header.inputs.entries) == ["step0.input", "step2.input"]
    assert len(dump.header.weights.entries) == 6


def test_two_captures_are_compared_and_a_fault_is_found(tmp_path):
    def fault(net):
        net[1].eps = 1e-2

    captured(tmp_path / "reference", side="reference")
    captured(tmp_path / "same")
    captured(tmp_path / "fault", change=fault)
    assert precflow.compare(tmp_path / "reference", tmp_path / "same")
    found = precflow.compare(tmp_path / "reference", str(tmp_path / "fault"))
    assert found.verdict == "misaligned"
    assert found.start == "1 / layer_norm"
    assert "MISALIGNED" in str(found)
    assert "exit" not in str(found)
    wide = precflow.compare(tmp_path / "reference", tmp_path / "fault", standard=None, max_abs_error=10)
    (reason,) = wide.reasons  # no record is over that limit; operators that err by more than rounding are named all the same
    assert reason.startswith("2 operator calls introduce an error that rounding does not explain")


def test_other_batches_or_weights_are_no_comparison(tmp_path):
    def other(net):
        torch.nn.init.ones_(net[0].weight)

    captured(tmp_path / "reference", side="reference")
    captured(tmp_path / "other", change=other)
    found = precflow.compare(tmp_path / "reference", tmp_path / "other")
    assert found.verdict == "inconclusive"
    assert "the weights differ in 1 of 6: 0.weight" in found.reasons
    assert precflow.compare(tmp_path / "reference", tmp_path / "other", same=()).verdict == "misaligned"


def test_several_calls_in_a_step_are_several_inputs(tmp_path):
    net = model()
    with precflow.capture(net, tmp_path / "dump", level="module"):
        net(batch(0))
        net(batch(1))
    dump = read_dump(tmp_path / "dump")
    assert sorted(dump.header.inputs.entries) == ["step0.call1.input", "step0.input"]
    assert {call.phase for call in dump.calls()} == {"forward"}
    assert dump.header.dtype == "float32"


@pytest.mark.parametrize("later_step", [False, True])
@pytest.mark.parametrize(("factor", "same"), [(1 + 1e-6, True), (-1, False)])
def test_what_the_loop_hands_back_to_its_model_differs_by_rounding_and_is_no_other_input(tmp_path, later_step, factor, same):
    def hand_back(folder, factor, begin=1.0):
        net = model()
        with precflow.capture(net, folder, level="module", step=(0, 1) if later_step else (0,)) as recording:
            made = net(batch(0) * begin)
            if later_step:
                recording.step()
            net(torch.nn.functional.pad(made.detach(), (0, 8 - made.shape[-1])) * factor)

    hand_back(tmp_path / "reference", 1)
    hand_back(tmp_path / "target", factor)
    found = precflow.compare(tmp_path / "reference", tmp_path / "target")
    assert any("are given other data from" in reason for reason in found.reasons) is not same
    assert (found.verdict == "aligned") is same
    hand_back(tmp_path / "begins", 1, 1 + 1e-6)
    found = precflow.compare(tmp_path / "reference", tmp_path / "begins")
    assert any("inputs differ" in reason for reason in found.reasons)  # what the first call is given has to be equal


def test_the_type_is_that_of_most_weights(tmp_path):
    net = model().to(torch.bfloat16)
    with precflow.capture(net, tmp_path / "dump"):
        net(batch(0).to(torch.bfloat16))
    assert read_dump(tmp_path / "dump").header.dtype == "bfloat16"


def test_an_exception_passes_and_the_dump_stays_unsealed(tmp_path):
    net = model()
    with pytest.raises(ZeroDivisionError), precflow.capture(net, tmp_path / "dump"):
        net(batch(0))
        _ = 1 / 0
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert not (tmp_path / "dump" / "dump.json").exists()
    assert "ZeroDivisionError" in json.loads((tmp_path / "dump" / "error.json").read_text())["message"]
    with precflow.capture(net, tmp_path / "dump"):  # what is not sealed may be written anew
        net(batch(0))
    assert read_dump(tmp_path / "dump").sealed


@pytest.mark.parametrize(
    ("run", "settings", "message"),
    [
        (lambda net, recorder: None, {}, "nothing was recorded: no call of Sequential was seen"),
        (lambda net, recorder: net(batch(0)), {"step": [0, 4]}, "step 4 should have been recorded, but the loop ended after 1"),
        (lambda net, recorder: net(batch(0)), {"step": [1, 4]}, "steps 1, 4 should have been recorded"),
        (lambda net, recorder: (net(batch(0)), recorder.step()), {"step": [0, 1]}, "step 1 should have been recorded"),
        (
            lambda net, recorder: (net(batch(0)), recorder.step(), recorder.step(), net(batch(0))),
            {"step": [0, 1]},
            "step 1 should have been recorded, and no call of Sequential was seen there",
        ),
    ],
)
def test_what_was_not_seen_is_no_dump(tmp_path, run, settings, message):
    net = model()
    with pytest.raises(precflow.AgentError, match=message), precflow.capture(net, tmp_path / "dump", **settings) as recorder:
        run(net, recorder)
    assert not (tmp_path / "dump" / "dump.json").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"level": "modul"}, r"capture\.level is \['modul'\], expected some of module, api, operator"),
        ({"scope": "encoder.*"}, r"capture\.scope=\['encoder\.\*'\] matches no module"),
        ({"step": []}, "expected numbers from 0"),
        ({"step": -1}, "expected numbers from 0"),
        ({"detail": "everything"}, r"capture\.detail is 'everything'"),
        ({"side": "npu"}, "expected reference, target or golden"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_written(tmp_path, settings, message):
    with pytest.raises(precflow.AgentError, match=message):
        precflow.capture(model(), tmp_path / "dump", **settings)
    assert not (tmp_path / "dump").exists()


def test_what_is_no_model_or_optimizer_is_named(tmp_path):
    net = model()
    for wrong, settings, message in (
        ("model", {}, "model is 'model'; expected the torch.nn.Module that the loop calls"),
        (net.forward, {}, "model is a method; expected the torch.nn.Module"),
        (net, {"optimizer": "adam"}, "optimizer is 'adam'; expected the torch.optim.Optimizer"),
    ):
        with pytest.raises(precflow.AgentError, match=message):
            precflow.capture(wrong, tmp_path / "dump", **settings)
    with pytest.raises(precflow.AgentError, match="folder is a Sequential; expected a path"):
        precflow.capture(net, net)
    assert not (tmp_path / "dump").exists()


def test_a_step_outside_of_the_block_is_refused(tmp_path):
    net = model()
    recording = precflow.capture(net, tmp_path / "dump")
    with pytest.raises(precflow.AgentError, match="which has not begun: nothing would be recorded"):
        recording.step()
    with recording:
        net(batch(0))
    with pytest.raises(precflow.AgentError, match="which is over: nothing would be recorded"):
        recording.step()
    with pytest.raises(precflow.AgentError, match="can be entered once"), recording:
        pass
    assert read_dump(tmp_path / "dump").sealed, "the dump is as it was sealed"


def test_training_without_a_backward_is_no_dump_of_training(tmp_path):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    missing = "phase backward, gradient and optimizer should have been recorded, and no backward ran"
    with pytest.raises(precflow.AgentError, match=missing), precflow.capture(net, tmp_path / "dump", optimizer=optimizer):
        net(batch(0))
    assert not (tmp_path / "dump" / "dump.json").exists()


def test_functions_alone_show_no_training_and_the_error_says_so(tmp_path):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    missing = "level api alone records the forward"
    with (
        pytest.raises(precflow.AgentError, match=missing),
        precflow.capture(net, tmp_path / "dump", optimizer=optimizer, level="api") as recording,
    ):
        net(batch(0)).square().mean().backward()
        optimizer.step()
        recording.step()


def called(folder, count, *, ask=False, step=(0, 1)):
    """Record a loop that calls the model so many times, and ends where the recording is done if it asks."""
    net = model()
    with torch.no_grad(), precflow.capture(net, folder, step=step, detail="digest") as recorder:
        for number in range(count):
            if ask and recorder.done:
                break
            net(batch(number))
            recorder.step()
    return read_dump(folder).header.ran


def test_two_loops_that_call_the_model_another_number_of_times_are_never_aligned(tmp_path):
    (three,) = called(tmp_path / "three", 3)
    assert (three.whole, three.steps, three.calls) == (True, 3, {"": 3})
    called(tmp_path / "four", 4)
    (ended,) = called(tmp_path / "ended", 9, ask=True)
    assert (ended.whole, ended.steps, ended.calls) == (False, 2, {"": 2})
    compared = precflow.compare(tmp_path / "three", tmp_path / "four")
    text = "the reference made 3 steps and the target 4"
    assert (compared.verdict, compared.reasons) == ("inconclusive", (text,))
    assert [finding.rule for finding in compared.findings] == ["PF115"]
    assert precflow.compare(tmp_path / "four", tmp_path / "ended"), "the loop was told that it may end"


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(precflow.AgentError, match=r"holds other files than a dump's, such as notes\.txt"):
        precflow.capture(model(), tmp_path).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_sealed_dump_is_replaced_only_where_that_is_said(tmp_path):
    net = model()
    with precflow.capture(net, tmp_path / "dump"):
        net(batch(0))
    with pytest.raises(precflow.AgentError, match="holds a sealed dump\n   name another folder, or say overwrite=True"):
        precflow.capture(net, tmp_path / "dump").__enter__()
    first = read_dump(tmp_path / "dump").header.content
    with precflow.capture(net, tmp_path / "dump", overwrite=True):
        net(batch(1))
    assert read_dump(tmp_path / "dump").header.content != first


def test_models_on_other_devices_are_refused(tmp_path):
    with pytest.raises(precflow.AgentError, match="the weights of Linear are on meta; expected one device of cpu, cuda, npu"):
        precflow.capture(torch.nn.Linear(2, 2, device="meta"), tmp_path / "dump")


@pytest.mark.slow
def test_the_packed_agent_alone_is_enough(tmp_path):
    """A container in which nothing may be installed has torch and one file."""
    build(tmp_path / "precflow-agent.pyz")
    script = """
        import sys, torch, precflow
        assert precflow.__file__.startswith(sys.argv[1]), precflow.__file__
        net = torch.nn.Linear(4, 4)
        with precflow.capture(net, sys.argv[2]):
            net(torch.ones(2, 4))
        assert "numpy" not in [name for name in sys.modules if name.startswith("precflow")]
        try:
            precflow.compare
        except ImportError as error:
            print(error)
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    pyz = str(tmp_path / "precflow-agent.pyz")
    environment = {**os.environ, "PYTHONPATH": pyz}
    words = [sys.executable, "train.py", pyz, "dump"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "precflow.library is not in the packed agent" in done.stdout
    assert read_dump(tmp_path / "dump").sealed


@pytest.mark.slow
def test_ranks_write_one_dump(tmp_path, warm_server):
    """Two processes as torchrun starts them, with gloo: rank 0 seals for both, and names what each began with and was fed."""
    script = """
        import os, sys, torch, precflow
        import torch.distributed as group
        from torch.nn.parallel import DistributedDataParallel
        # They meet in a file: a port that was free a moment ago may be another test's by now.
        group.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(os.environ["RANK"]), world_size=2)
        torch.manual_seed(1)
        net = DistributedDataParallel(torch.nn.Linear(4, 2))
        net.module.bias.data += group.get_rank()  # nobody sends it again
        with precflow.capture(net.module, sys.argv[1], phase=["forward", "gradient"]) as recorder:
            net(torch.full((2, 4), 1.0 + group.get_rank())).sum().backward()
            recorder.step()
        group.destroy_process_group()
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    words = ["train.py", "dump", tmp_path / "meeting"]
    with (tmp_path / "said").open("wb") as said:
        ranks = [
            warm_server.popen(
                words,
                cwd=tmp_path,
                env={**os.environ, **group, "RANK": rank, "LOCAL_RANK": rank},
                out=said.fileno(),
                err=said.fileno(),
                module="",
            )
            for rank in ("0", "1")
        ]
        assert [rank.wait(100) for rank in ranks] == [0, 0], (tmp_path / "said").read_text()
    dump = read_dump(tmp_path / "dump")
    assert dump.sealed
    assert {call.rank for call in dump.calls()} == {0, 1}
    assert sorted(dump.header.inputs.entries) == ["rank1.step0.input", "step0.input"]
    assert sorted(dump.header.weights.entries) == ["bias", "rank1.bias", "weight"]
