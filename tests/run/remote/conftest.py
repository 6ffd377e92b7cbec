"""An S3 server for all tests of stores behind a URL, a bucket for each, and small sealed instances to put into it."""

import itertools

import object_store
import pytest

from precflow.run.store import Store

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def endpoint():
    """Return the URL of a server that speaks S3."""
    with object_store.serving() as url:
        yield url


@pytest.fixture
def bucket(endpoint, monkeypatch):
    """Return a store in a bucket of its own."""
    object_store.set_credentials(monkeypatch)
    return object_store.make_bucket(endpoint, f"bucket{next(_NUMBERS)}")


@pytest.fixture
def shelf(monkeypatch):
    """Return an empty store in memory."""
    store = object_store.MemoryStore()
    monkeypatch.setattr(type(store.open()), "store", {})
    monkeypatch.setattr(type(store.open()), "pseudo_dirs", [""])
    return store


def seal(store, name="dump.reference", key="aaaaaaaaaa-bbbbbb", files=None, **facts):
    """Seal an instance with these files (relative name -> bytes) in a local store."""
    with store.making(name, key) as attempt:
        for file, data in (files or {"a.json": b"{}", "rank0/step0/tensors-0.safetensors": b"x" * 100}).items():
            path = attempt.folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return store.seal(attempt, {"name": name, "key": key, "declared": {}, "needs": {}, "note": "", **facts})


@pytest.fixture
def machine(tmp_path):
    """Return a function that returns the local store of a machine by its name."""
    return lambda name: Store(tmp_path / name / "store")
