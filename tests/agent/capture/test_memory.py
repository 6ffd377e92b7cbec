import gc

import torch

from precflow.agent.capture.memory import address_of, is_new, layout_of, storage_of, storages_of, version_of


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
    assert storage_of(base[1:]).cdata == storage_of(base).cdata
    assert storage_of(base.clone()).cdata != storage_of(base).cdata
    assert not is_new(base.view(2, 2), storages_of([base]))
    assert is_new(base + 1, storages_of([base]))


def test_a_storage_keeps_its_name_after_its_death():
    references = []
    for _ in range(50):
        references.append(storage_of(torch.zeros(3)))
        gc.collect(0)
    assert len({reference.cdata for reference in references}) == 50
    assert all(reference.expired() for reference in references)


def test_tensors_without_bytes_have_no_storage():
    assert storage_of(torch.empty(2, device="meta")) is None
    assert storages_of([torch.eye(2).to_sparse()]) == set()


def test_layouts_tell_views_apart():
    base = torch.zeros(2, 2, dtype=torch.complex64)
    views = [base, base.t(), base[0], base[1], base.conj(), torch.view_as_real(base), base.view(4)]
    assert len({layout_of(view) for view in views}) == len(views)
    assert layout_of(base.detach()) == layout_of(base)


def test_an_address_is_that_of_the_storage():
    base = torch.zeros(4)
    assert address_of(base) == address_of(base[1:]) == storage_of(base).cdata
    assert address_of(torch.empty(2, device="meta")) is None
