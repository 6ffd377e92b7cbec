"""Several ranks seen as one process: what is joined, averaged, left out and left alone. The agent writes the dumps."""

import numpy as np
import pytest
import torch

from precflow.agent.contract import FORWARD
from precflow.agent.dump.writer import Writer
from precflow.agent.measure.content_id import content_id, dtype_name
from precflow.comparison.compare import compare
from precflow.dumps.formats import read_dump
from precflow.dumps.views.joined_ranks import JoinedRanks, count_ranks, join_ranks
from precflow.environment.reproduction import find_blockers

WHOLE = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
HALVES = (WHOLE[:4], WHOLE[4:])


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a dump: for each rank a mapping of ``operator`` or ``operator@phase`` to its output."""

    def make(name, *ranks):
        folder = tmp_path / name
        folder.mkdir()
        writers = [Writer(str(folder), rank=rank) for rank in range(len(ranks))]
        for rank, (writer, calls) in enumerate(zip(writers, ranks, strict=True)):
            writer.open_step(0, rank)
            for order, (called, output) in enumerate(calls.items()):
                operator, _, phase = called.partition("@")
                writer.call(line(writer, rank, order, operator, phase or FORWARD, output))
            writer.close_step(0, rank)
        for writer in writers[1:]:
            writer.finish()
        writers[0].seal({"side": "target", "dtype": "float32"}, ranks=range(1, len(ranks)))
        return read_dump(folder)

    return make


def line(writer, rank, order, operator, phase, output):
    level = "module" if phase in {"gradient", "optimizer"} else "api"
    operator, index = ("", operator) if level == "module" else (operator, "0")
    key = content_id(output)
    about = {"level": level, "module": "fc", "class": "Linear", "call": 0, "operator": operator, "ordinal": 0, "phase": phase}
    record = {
        "index": index,
        "source": None,
        "weight": "",
        "dtype": dtype_name(output.dtype),
        "shape": list(output.shape),
        "content": key,
    }
    return {
        "order": order,
        **about,
        "step": 0,
        "rank": rank,
        "site": -1,
        "forward": [],
        "movement": False,
        "compiled": False,
        "arguments": {"group": "[0, 1]"} if operator == "all_reduce" else {},
        "inputs": [],
        "outputs": [{**record, "stored": writer.tensor(key, output)}],
    }


def outputs(dump):
    return {
        f"{call.operator or call.outputs[0].index}@{call.phase}@{call.rank}": np.asarray(dump.tensor(call.outputs[0]))
        for call in dump.calls()
    }


@pytest.fixture
def both(write):
    single = write("single", {"linear": WHOLE, "mask": WHOLE[0], "loss": WHOLE.mean(), "mul@backward": WHOLE})
    ranks = [
        {"linear": half, "mask": WHOLE[0], "loss": half.mean(), "mul@backward": half * 2, "all_reduce": half} for half in HALVES
    ]
    return join_ranks(single, write("ranks", *ranks))


def test_parts_of_the_batch_are_joined(both):
    assert (outputs(both[1])["linear@forward@0"] == WHOLE.numpy()).all()


def test_gradients_of_activations_are_those_of_the_mean_over_all_ranks(both):
    assert (outputs(both[1])["mul@backward@0"] == WHOLE.numpy()).all()


def test_the_loss_is_the_mean_of_the_ranks(both):
    expected = np.mean([np.float64(half.mean()) for half in HALVES])
    assert outputs(both[1])["loss@forward@0"] == np.float32(expected)


def test_samples_are_counted_on_over_the_ranks(write):
    single = write("single", {"arange": torch.arange(6), "argmax": torch.tensor([0, 2, 1, 0, 1, 2])})
    parts = [{"arange": torch.arange(3), "argmax": part} for part in (torch.tensor([0, 2, 1]), torch.tensor([0, 1, 2]))]
    joined = outputs(join_ranks(single, write("ranks", *parts))[1])
    assert joined["arange@forward@0"].tolist() == [0, 1, 2, 3, 4, 5]
    assert joined["argmax@forward@0"].tolist() == [0, 2, 1, 0, 1, 2]


def test_what_every_rank_has_is_taken_once_and_collectives_are_left_out(both):
    assert list(outputs(both[1])) == ["linear@forward@0", "mask@forward@0", "loss@forward@0", "mul@backward@0"]
    call = next(call for call in both[1].calls() if call.operator == "mask")
    assert call.outputs[0].content == content_id(WHOLE[0])


def test_the_joined_dump_is_compared_with_the_single_process(write):
    single = write("single", {"linear": WHOLE, "weight@gradient": WHOLE})
    parts = [{"linear": half, "weight@gradient": WHOLE * factor} for half, factor in zip(HALVES, (0.5, 1.5), strict=True)]
    measures = compare(*join_ranks(single, write("ranks", *parts)))
    assert [(measure.join, measure.metrics["max_abs_error"]) for measure in measures] == [("paired", 0.0)] * 2


def test_several_parameters_of_a_module_stay_apart(write):
    single = write("single", {"weight@gradient": WHOLE, "bias@gradient": WHOLE[0]})
    parts = [{"weight@gradient": WHOLE, "bias@gradient": WHOLE[0] * factor} for factor in (0.5, 1.5)]
    joined = join_ranks(single, write("ranks", *parts))[1]
    assert (outputs(joined)["bias@gradient@0"] == WHOLE[0].numpy()).all()
    assert len(joined.calls()) == 2


def test_weights_that_differ_between_ranks_after_a_step_are_not_passed_over(write):
    single = write("single", {"weight@optimizer": WHOLE})
    same = join_ranks(single, write("same", {"weight@optimizer": WHOLE}, {"weight@optimizer": WHOLE}))
    assert len(same[1].calls()) == 1
    other = join_ranks(single, write("other", {"weight@optimizer": WHOLE}, {"weight@optimizer": WHOLE + 1}))
    assert [measure.join for measure in compare(*other)] == ["paired", "unpaired_target"]


def test_a_rank_that_computes_something_else_in_the_size_of_the_single_process_is_not_passed_over(write):
    single = write("single", {"linear": WHOLE, "ids": torch.arange(6), "loss": WHOLE.mean()})
    first = {"linear": WHOLE, "ids": torch.arange(6), "loss": WHOLE.mean()}
    same = join_ranks(single, write("same", first, first))
    assert [measure.join for measure in compare(*same)] == ["paired"] * 3
    second = {**first, "linear": WHOLE + 1, "ids": torch.arange(6) + 1}
    measures = compare(*join_ranks(single, write("other", first, second)))
    assert [(measure.operator, measure.join) for measure in measures if measure.join != "paired"] == [
        ("linear", "unpaired_target"),
        ("ids", "unpaired_target"),
    ]


def test_sizes_that_do_not_add_up_stay_as_they_are(write):
    single = write("single", {"linear": torch.ones(9, 3)})
    joined = join_ranks(single, write("ranks", *[{"linear": half} for half in HALVES]))
    assert [measure.join for measure in compare(*joined)] == ["shape"]


def test_a_call_that_one_rank_lacks_stays_alone(write):
    single = write("single", {"linear": WHOLE})
    joined = join_ranks(single, write("ranks", {"linear": HALVES[0]}, {}))
    assert [measure.join for measure in compare(*joined)] == ["shape"]


def test_either_side_may_be_the_single_process(write):
    single, ranks = write("single", {"linear": WHOLE}), write("ranks", *[{"linear": half} for half in HALVES])
    assert isinstance(join_ranks(ranks, single)[0], JoinedRanks)
    assert join_ranks(ranks, ranks) == (ranks, ranks)
    assert (count_ranks(single), count_ranks(ranks)) == (1, 2)


def test_other_numbers_of_ranks_are_not_compared(write):
    dumps = [write(str(count), *[{"linear": WHOLE}] * count) for count in (2, 3)]
    headers = [dump.header for dump in join_ranks(*dumps)]
    assert find_blockers(*headers, ()) == [
        "the reference ran as 2 ranks and the target as 3: ranks are compared with their own, or several with a single process"
    ]
