import torch

from precflow.agent.capture.lineage import Sources, Storages


def test_a_tensor_has_the_call_that_returned_it():
    sources, tensor = Sources(Storages()), torch.zeros(2)
    assert sources.find(tensor) is None
    sources.produced(tensor, (3, "0"), made=True)
    assert sources.find(tensor) == (3, "0")


def test_an_unseen_view_has_the_source_of_its_base():
    sources, tensor = Sources(Storages()), torch.zeros(2, 2)
    sources.produced(tensor, (3, "1"), made=True)
    assert sources.find(tensor.t()) == (3, "1")
    assert sources.find(tensor.detach()[0]) == (3, "1")


def test_a_view_of_a_tensor_from_outside_does_not_claim_it():
    sources, tensor = Sources(Storages()), torch.zeros(2, 2)
    view = tensor.view(4)
    sources.produced(view, (0, "0"), made=False)
    assert sources.find(view) == (0, "0")
    assert sources.find(tensor) is None


def test_the_last_writer_counts_for_all_views():
    sources, tensor = Sources(Storages()), torch.zeros(2, 2)
    row = tensor[0]
    sources.produced(tensor, (1, "0"), made=True)
    sources.produced(row, (2, "0"), made=False)
    assert sources.find(tensor) == (1, "0")
    row.add_(1)
    sources.produced(row, (3, "0"), made=True)
    assert sources.find(tensor) == sources.find(row) == sources.find(tensor[:, 1]) == (3, "0")


def test_a_write_leaves_what_lies_beside_it_where_it_comes_from():
    sources, tensor = Sources(Storages()), torch.zeros(3, 4)
    sources.produced(tensor, (0, "0"), made=True)
    gate, up = tensor.chunk(2, -1)
    for index, half in enumerate((gate, up)):
        sources.produced(half, (1, str(index)), made=False)
    gate.sigmoid_()
    sources.produced(gate, (2, "0"), made=True)
    assert sources.find(gate) == sources.find(tensor) == (2, "0")
    assert sources.find(up) == (1, "1")
    assert sources.find(tensor[:, 2:]) == (0, "0")  # a view that nobody recorded
    gate.mul_(up)
    sources.produced(gate, (3, "0"), made=True)
    sources.produced(gate, (3, "0"), made=True)
    assert sources.find(tensor) == (3, "0")
    assert sources.find(up) is None  # two writes behind: its content tells
    assert sources.find(gate[:, 1:]) == (3, "0")


def test_a_write_by_an_unknown_hand_ends_the_edge():
    sources, tensor = Sources(Storages()), torch.zeros(2)
    sources.produced(tensor, (1, "0"), made=True)
    tensor.add_(1)
    assert sources.find(tensor) is None


def test_memory_that_is_used_again_has_no_source():
    sources = Sources(Storages())
    for _ in range(50):
        sources.produced(torch.zeros(100), (1, "0"), made=True)
        assert sources.find(torch.zeros(100)) is None


def test_inference_tensors_keep_their_source():
    sources = Sources(Storages())
    with torch.inference_mode():
        tensor = torch.zeros(2)
        sources.produced(tensor, (1, "0"), made=True)
        assert sources.find(tensor[0]) == (1, "0")


def test_tensors_without_storage_go_by_object():
    sources, tensor = Sources(Storages()), torch.eye(2).to_sparse()
    sources.produced(tensor, (1, "0"), made=True)
    assert sources.find(tensor) == (1, "0")


def test_a_new_step_begins_from_nothing():
    sources, tensor = Sources(Storages()), torch.zeros(2)
    sources.produced(tensor, (1, "0"), made=True)
    sources.forget()
    assert sources.find(tensor) is None


def test_what_is_gone_is_forgotten():
    storages, kept = Storages(), torch.zeros(2)
    sources = Sources(storages)
    sources.produced(kept, (1, "0"), made=True)
    for order in range(50):
        sources.produced(torch.zeros(2), (order, "0"), made=True)
    sources.purge()
    storages.purge()
    assert len(sources._objects) == len(sources._storages) == 1
    assert sources.find(kept) == (1, "0")
