"""What a script's data loaders read is noted by the numbers of the samples, and reading is not changed by that."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, dataloader

from precflow.agent.script.samples import Samples


class Words(TensorDataset):
    pass


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


def read(loader):
    return [batch[0].tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_indices_are_those_of_the_batches_that_come_over_all_epochs(workers):
    words = Words(torch.arange(6))
    loader = DataLoader(words, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(3), num_workers=workers)
    with Samples() as samples:
        batches = read(loader) + read(loader)
    assert list(samples.order) == ["Words"]
    noted = [[int(each) for each in text.split(", ")] for text in samples.order["Words"].values()]
    assert noted == batches
    again = DataLoader(words, batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(3), num_workers=workers)
    assert read(again) + read(again) == batches


def test_each_loader_is_noted_by_itself_in_bounded_size_and_streams_are_not(monkeypatch):
    monkeypatch.setattr("precflow.agent.script.samples.MOST_BATCHES", 3)
    first, second = (DataLoader(Words(torch.arange(40)), batch_size=size) for size in (1, 20))
    with Samples() as samples:
        for loader in (first, second, DataLoader(Stream()), DataLoader(Words(torch.arange(2)), batch_size=None)):
            list(loader)
    assert {name: len(batches) for name, batches in samples.order.items()} == {"Words": 3, "Words#2": 2, "Words#3": 2}
    assert samples.order["Words#2"]["batch 0000"].startswith("0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 ... (20, ")


def test_names_of_samples_are_digests():
    class Named(torch.utils.data.Dataset):
        def __getitem__(self, name):
            return len(name)

    with Samples() as samples:
        list(DataLoader(Named(), sampler=["patient_7.png", "patient_8.png"], batch_size=2))
    (text,) = samples.order["Named"].values()
    assert "patient" not in text
    assert len(set(text.split(", "))) == 2


def test_the_method_is_put_back(monkeypatch):
    original = dataloader._BaseDataLoaderIter._next_index
    with pytest.raises(ValueError, match="x"), Samples():
        raise ValueError("x")
    assert dataloader._BaseDataLoaderIter._next_index is original
    monkeypatch.delattr(dataloader, "_BaseDataLoaderIter")
    with Samples() as samples:  # of a torch that has another name for it
        pass
    assert samples.order == {}
