import gc

import torch

from precflow.agent.capture.lineage import (
    Storages,
    address_of,
    are_disjoint,
    has_own_memory,
    layout_of,
    read_state,
    storages_of,
    version_of,
)


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
    storages.follow(known)
    for place in range(50):
        tensor = torch.zeros(3)
        storages.hold(tensor, address_of(tensor))
        known.setdefault(address_of(tensor), place)
        del tensor
        gc.collect(0)
    assert list(known.values()) == list(range(50))


def test_what_is_known_of_storages_goes_with_them():
    storages, first, second = Storages(), {}, {}
    storages.follow(first)
    storages.follow(second)
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
