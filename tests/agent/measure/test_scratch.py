import threading

import pytest
import torch

from precflow.agent.measure import scratch
from precflow.agent.measure.scratch import host_memory


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(scratch, "_thread", scratch._Thread())


def test_a_user_gets_the_same_memory_again_and_another_one_gets_another():
    first = host_memory("a", (2, 3), torch.float32, 10)
    assert first.shape == (2, 3)
    assert host_memory("a", (2, 3), torch.float32).data_ptr() == first.data_ptr()
    assert host_memory("a", (10,), torch.float32).data_ptr() == first.data_ptr()
    assert host_memory("b", (2, 3), torch.float32).data_ptr() != first.data_ptr()


def test_memory_grows_with_what_is_asked_for():
    host_memory("a", (4,), torch.int32)
    assert host_memory("a", (3, 1000), torch.int32).shape == (3, 1000)
    assert host_memory("a", (4,), torch.int32).shape == (4,)


def test_threads_share_none():
    found = []
    mine = host_memory("a", (4,), torch.float32)
    thread = threading.Thread(target=lambda: found.append(host_memory("a", (4,), torch.float32).data_ptr()))
    thread.start()
    thread.join()
    assert found != [mine.data_ptr()]


def test_few_views_are_kept():
    for size in range(1, 200):
        host_memory("a", (size,), torch.float32, 200)
    assert len(scratch._thread.views) <= scratch._MOST_VIEWS


def test_memory_made_in_inference_mode_can_be_written_to_outside_of_it():
    with torch.inference_mode():
        made = host_memory("a", (4,), torch.float32)
    made.fill_(1)
    assert host_memory("a", (4,), torch.float32).tolist() == [1.0] * 4
