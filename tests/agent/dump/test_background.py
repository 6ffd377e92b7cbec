import hashlib
import threading
import time

import pytest
import torch

from precflow.agent.dump.background import QUEUE_BYTES, Background
from precflow.agent.dump.shard import TensorEntry
from precflow.agent.dump.writer import WriteError, Writer
from precflow.agent.measure.content_id import content_id

LINE = {"order": 0, "operator": "add", "inputs": [], "outputs": [{"index": "0"}]}


def entry(count, key="a"):
    return TensorEntry(key, torch.zeros(count), private=True)


def test_entries_are_stored_in_their_order_in_another_thread():
    stored, threads = [], set()

    def store(entry):
        stored.append(entry.key)
        threads.add(threading.get_ident())

    background = Background(store)
    for number in range(500):
        background.put(entry(1, str(number)))
    background.drain()
    assert stored == [str(number) for number in range(500)]
    assert threading.get_ident() not in threads
    background.close()
    assert threading.active_count() == 1 or not any(one.name == "precflow-writer" for one in threading.enumerate())


def test_bytes_that_wait_are_bounded_whatever_the_number_of_tensors():
    background = Background(lambda _: time.sleep(0.001), most_bytes=4000)
    for _ in range(50):
        background.put(entry(250))
    background.drain()
    assert 1000 <= background.peak_bytes <= 4000


def test_items_that_wait_are_bounded():
    go = threading.Event()
    background = Background(lambda _: go.wait(10), most_items=3)
    waiting = threading.Thread(target=lambda: [background.put(entry(0)) for _ in range(20)])
    waiting.start()
    time.sleep(0.1)
    assert waiting.is_alive() or background.peak_bytes == 0
    go.set()
    waiting.join(10)
    background.drain()
    assert not waiting.is_alive()


def test_a_tensor_larger_than_the_queue_waits_until_it_is_alone():
    sizes = []
    background = Background(lambda entry: sizes.append(entry.size), most_bytes=100)
    for count in (10, 1000, 10):
        background.put(entry(count))
    background.drain()
    assert sizes == [40, 4000, 40]
    assert background.peak_bytes == 4000


def test_an_error_is_told_at_the_next_call_and_nothing_is_stored_behind_it():
    stored = []

    def store(entry):
        if entry.key == "bad":
            raise OSError("disk on fire")
        stored.append(entry.key)

    background = Background(store)
    background.put(entry(1, "one"))
    background.put(entry(1, "bad"))
    with pytest.raises(OSError, match="on fire"):
        background.put(entry(1, "two"))
        background.drain()
    with pytest.raises(OSError, match="on fire"):
        background.put(entry(1, "three"))
    background.close()
    assert stored == ["one"]


def test_an_error_wakes_who_waits_for_room():
    def store(_):
        time.sleep(0.05)
        raise OSError("gone")

    background = Background(store, most_bytes=10)
    background.put(entry(2))
    with pytest.raises(OSError, match="gone"):
        background.put(entry(2))


def files_of(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.blake2b(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def fill(writer, steps=2, count=40):
    made = torch.Generator().manual_seed(7)
    for step in range(steps):
        writer.open_step(step, 0)
        for number in range(count):
            tensor = (
                torch.randn(1000 + 37 * number, generator=made)
                .relu()
                .to([torch.float32, torch.bfloat16, torch.float64][number % 3])
            )
            writer.tensor(content_id(tensor), tensor)
            tensor.zero_()  # who gave it away goes on with it
            writer.call({**LINE, "order": number})
    return writer.seal({"schema": 1})


def test_the_bytes_of_a_dump_do_not_depend_on_the_thread(tmp_path, monkeypatch):
    monkeypatch.setattr("precflow.agent.dump.shard.HELD_BYTES", 20_000)
    found = []
    for name, settings in (
        ("direct", {}),
        ("thread", {"queue_bytes": QUEUE_BYTES}),
        ("small", {"queue_bytes": 5000}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        fill(Writer(str(folder), shard_bytes=100_000, **settings))
        found.append(files_of(folder))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) >= 9


def test_memory_is_bounded_by_the_queue_and_not_by_the_step(tmp_path):
    writer = Writer(str(tmp_path), queue_bytes=1_000_000)
    writer.open_step(0, 0)
    for number in range(200):
        writer.tensor(str(number), torch.full((25_000,), float(number)))
    peak = writer._background.peak_bytes
    assert writer.seal({})["counts"]["bytes"] == 20_000_000
    assert 100_000 <= peak <= 1_000_000


def test_a_cpu_tensor_that_was_given_away_is_not_copied(tmp_path, monkeypatch):
    copies = []
    real = TensorEntry.freeze
    monkeypatch.setattr(TensorEntry, "freeze", lambda entry: copies.append(entry.private) or real(entry))
    writer = Writer(str(tmp_path), queue_bytes=QUEUE_BYTES)
    writer.open_step(0, 0)
    writer.tensor("a", torch.ones(10), owned=True)
    writer.tensor("b", torch.ones(10, 2).t())
    writer.tensor("c", torch.ones(10))
    writer.seal({})
    assert copies[0] is True
    assert copies.count(False) == 1, "a transposed tensor was put in order, which has copied it"


@pytest.mark.parametrize("at", ["call", "tensor", "close_step", "seal"])
def test_a_full_disk_is_told_by_the_next_call(tmp_path, monkeypatch, at):
    writer = Writer(str(tmp_path), queue_bytes=QUEUE_BYTES)
    writer.open_step(0, 0)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("precflow.agent.dump.step_files.StepFiles.store", full)
    writer.tensor("a", torch.ones(10))
    writer._background._changed.acquire()
    writer._background._changed.wait_for(lambda: writer._background._problem is not None, 10)
    writer._background._changed.release()
    calls = {
        "call": lambda: writer.call(LINE),
        "tensor": lambda: writer.tensor("b", torch.ones(10)),
        "close_step": lambda: writer.close_step(0, 0),
        "seal": lambda: writer.seal({}),
    }
    assert writer.failure is not None
    with pytest.raises(WriteError, match="no space left") as caught:
        calls[at]()
    assert caught.value.kind == "disk_full"
    assert writer.abandon({}) is False
    assert not (tmp_path / "dump.json").exists()
    assert not (tmp_path / "rank0/step0/step.json").exists()
