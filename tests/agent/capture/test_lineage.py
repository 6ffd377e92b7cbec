import gc

import torch

from precflow.agent.capture.lineage import (
    Sources,
    Storages,
    address_of,
    are_disjoint,
    has_own_memory,
    layout_of,
    read_state,
    storages_of,
    version_of,
)


def test_a_tensor_has_the_call_that_returned_it():
    sources, tensor = Sources(Storages()), torch.zeros(2)
    assert sources.find(tensor) is None
    sources.note_output(tensor, (3, "0"), wrote=True)
    assert sources.find(tensor) == (3, "0")


def test_an_unseen_view_has_the_source_of_its_base():
    sources, tensor = Sources(Storages()), torch.zeros(2, 2)
    sources.note_output(tensor, (3, "1"), wrote=True)
    assert sources.find(tensor.t()) == (3, "1")
    assert sources.find(tensor.detach()[0]) == (3, "1")


def test_a_view_of_a_tensor_from_outside_does_not_claim_it():
    sources, tensor = Sources(Storages()), torch.zeros(2, 2)
    view = tensor.view(4)
    sources.note_output(view, (0, "0"), wrote=False)
    assert sources.find(view) == (0, "0")
    assert sources.find(tensor) is None


def test_the_last_writer_counts_for_all_views():
    sources, tensor = Sources(Storages()), torch.zeros(2, 2)
    row = tensor[0]
    sources.note_output(tensor, (1, "0"), wrote=True)
    sources.note_output(row, (2, "0"), wrote=False)
    assert sources.find(tensor) == (1, "0")
    row.add_(1)
    sources.note_output(row, (3, "0"), wrote=True)
    assert sources.find(tensor) == sources.find(row) == sources.find(tensor[:, 1]) == (3, "0")


def test_a_write_leaves_what_lies_beside_it_where_it_comes_from():
    sources, tensor = Sources(Storages()), torch.zeros(3, 4)
    sources.note_output(tensor, (0, "0"), wrote=True)
    gate, up = tensor.chunk(2, -1)
    for index, half in enumerate((gate, up)):
        sources.note_output(half, (1, str(index)), wrote=False)
    gate.sigmoid_()
    sources.note_output(gate, (2, "0"), wrote=True)
    assert sources.find(gate) == sources.find(tensor) == (2, "0")
    assert sources.find(up) == (1, "1")
    assert sources.find(tensor[:, 2:]) == (0, "0")  # a view that nobody recorded
    gate.mul_(up)
    sources.note_output(gate, (3, "0"), wrote=True)
    sources.note_output(gate, (3, "0"), wrote=True)
    assert sources.find(tensor) == (3, "0")
    assert sources.find(up) is None  # two writes behind: its content tells
    assert sources.find(gate[:, 1:]) == (3, "0")


def test_a_write_by_an_unknown_hand_ends_the_edge():
    sources, tensor = Sources(Storages()), torch.zeros(2)
    sources.note_output(tensor, (1, "0"), wrote=True)
    tensor.add_(1)
    assert sources.find(tensor) is None


def test_memory_that_is_used_again_has_no_source():
    sources = Sources(Storages())
    for _ in range(50):
        sources.note_output(torch.zeros(100), (1, "0"), wrote=True)
        assert sources.find(torch.zeros(100)) is None


def test_inference_tensors_keep_their_source():
    sources = Sources(Storages())
    with torch.inference_mode():
        tensor = torch.zeros(2)
        sources.note_output(tensor, (1, "0"), wrote=True)
        assert sources.find(tensor[0]) == (1, "0")


def test_tensors_without_storage_go_by_object():
    sources, tensor = Sources(Storages()), torch.eye(2).to_sparse()
    sources.note_output(tensor, (1, "0"), wrote=True)
    assert sources.find(tensor) == (1, "0")


def test_a_new_step_begins_from_nothing():
    sources, tensor = Sources(Storages()), torch.zeros(2)
    sources.note_output(tensor, (1, "0"), wrote=True)
    sources.clear()
    assert sources.find(tensor) is None


def test_what_is_gone_is_forgotten():
    storages, kept = Storages(), torch.zeros(2)
    sources = Sources(storages)
    sources.note_output(kept, (1, "0"), wrote=True)
    for order in range(50):
        sources.note_output(torch.zeros(2), (order, "0"), wrote=True)
    sources.purge()
    storages.purge()
    assert len(sources._objects) == len(sources._writes) == 1
    assert sources.find(kept) == (1, "0")


def test_writes_raise_the_version_for_all_views():
    base = torch.zeros(4)
    row = base[1:]
    before = version_of(base)
    row.add_(1)
    assert version_of(base) == version_of(row) == before + 1


def test_inference_tensors_have_no_version():
    with torch.inference_mode():
        assert version_of(torch.zeros(2)) is None


def test_views_share_their_storage_and_copies_do_not():
    base = torch.zeros(4)
    assert address_of(base[1:]) == address_of(base)
    assert address_of(base.clone()) != address_of(base)
    assert not has_own_memory(base.view(2, 2), storages_of([base]))
    assert has_own_memory(base + 1, storages_of([base]))


def test_a_storage_that_is_held_keeps_its_name_after_its_death():
    storages, known = Storages(), {}
    storages.register(known)
    for place in range(50):
        tensor = torch.zeros(3)
        storages.hold(tensor, address_of(tensor))
        known.setdefault(address_of(tensor), place)
        del tensor
        gc.collect(0)
    assert list(known.values()) == list(range(50))


def test_what_is_known_of_storages_goes_with_them():
    storages, first, second = Storages(), {}, {}
    storages.register(first)
    storages.register(second)
    kept, gone = torch.zeros(3), torch.zeros(3)
    for tensor in (kept, gone, kept[1:]):
        storages.hold(tensor, address_of(tensor))
        first[address_of(tensor)] = second[address_of(tensor)] = True
    del gone, tensor
    storages.purge()
    assert list(first) == list(second) == [address_of(kept)]


def test_a_look_at_a_tensor_has_all_that_records_ask_for():
    base = torch.zeros(4)
    view = base[1:]
    assert read_state(view) == (address_of(base), version_of(base), layout_of(view))
    base.add_(1)
    assert read_state(view).version == version_of(base)
    with torch.inference_mode():
        assert read_state(torch.zeros(2)).version is None
    assert read_state(torch.empty(2, device="meta"))[0] is None


def test_tensors_without_bytes_have_no_storage():
    assert storages_of([torch.eye(2).to_sparse()]) == set()


def test_layouts_tell_views_apart():
    base = torch.zeros(2, 2, dtype=torch.complex64)
    views = [base, base.t(), base[0], base[1], base.conj(), torch.view_as_real(base), base.view(4)]
    assert len({layout_of(view) for view in views}) == len(views)
    assert layout_of(base.detach()) == layout_of(base)


def test_an_address_is_that_of_the_storage():
    base = torch.zeros(4)
    assert address_of(base) == address_of(base[1:]) == base.untyped_storage()._cdata
    assert address_of(torch.empty(2, device="meta")) is None


def views(base):
    """Yield every kind of view of a small tensor."""
    flat = base.view(-1)
    for axis in range(base.dim()):
        for number in range(1, base.shape[axis]):
            yield from base.split(number, axis)
            yield from base.transpose(0, -1).split(number, axis)
        yield base.select(axis, 0)
        yield from (base.narrow(axis, 0, 0), base.unsqueeze(axis))
    yield from (
        flat,
        flat[::2],
        flat[1::2],
        flat[3:17],
        flat[3:17:3],
        base.flip(0),
        base.view(torch.int32),
        base[:1].expand(2, -1, -1),
    )


def test_tensors_that_are_said_to_be_apart_share_no_element():
    base, told = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4), 0
    several = [view for view in views(base) if address_of(view) == address_of(base)]
    for one in several:
        for other in several:
            if are_disjoint(layout_of(one), layout_of(other), other):
                told += 1
                assert not set(one.flatten().tolist()) & set(other.flatten().tolist())
    assert told > 100


def test_halves_along_any_axis_are_apart_and_a_whole_is_not_from_its_half():
    base = torch.zeros(2, 4, 6)
    for axis in range(3):
        first, second = base.chunk(2, axis)
        assert are_disjoint(layout_of(first), layout_of(second), second)
        assert are_disjoint(layout_of(second), layout_of(first), first)
        assert not are_disjoint(layout_of(first), layout_of(base), base)
        assert not are_disjoint(layout_of(base), layout_of(second), second)
