"""What a whole store holds, what of it can be deleted, and what a pin keeps."""

import functools
import importlib.util
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from precflow import cli
from precflow.errors import StoreError
from precflow.run.pruning import PruneRequest
from precflow.run.remote import listing
from precflow.run.remote.filesystem import Address
from precflow.run.remote.sharing import Remote
from precflow.run.remote.uploads import Upload

_SPEC = importlib.util.spec_from_file_location("remote_fixtures", Path(__file__).with_name("conftest.py"))
fixtures = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixtures)
NOW = 1_000_000_000.0
DAY = 86400.0


def upload(name="dump.target", key="a", days=0.0, path="", **facts):
    seal = {"finished": NOW - days * DAY}
    return Upload(name, key, path or f"{name}-{key}", seal, {}, NOW - days * DAY, "llm", **facts)


@pytest.mark.parametrize(
    ("uploads", "older", "goes"),
    [
        ([upload(days=40), upload(key="b", days=1)], 30, {"dump.target-a": "older than asked for"}),
        ([upload(days=40), upload(key="b", days=1)], None, {}),
        ([upload(days=40)], 30, {}),  # the newest of its name stays, a nightly job may use it
        ([upload(days=40, pinned="nightly"), upload(key="b", days=1)], 30, {}),
        ([replace(upload(days=2), seal={}), upload(key="b")], None, {"dump.target-a": "never finished"}),
        ([replace(upload(days=0.5), seal={}), upload(key="b")], None, {}),
        ([upload(days=3, path="x"), upload(days=2, path="y")], None, {"y": "another upload of the same was first"}),
    ],
)
def test_what_goes(uploads, older, goes):
    decisions = listing.decide(uploads, PruneRequest(older=older and older * DAY, now=NOW))
    assert {one.upload.path: one.why for one in decisions if one.goes} == goes
    assert all(one.why for one in decisions)


@pytest.fixture
def filled(shelf, machine):
    """A store in memory with two recipes, one of which has a slash in its name."""
    for recipe, name, key in (
        ("llm", "dump.reference", "aaaaaaaaaa-bbbbbb"),
        ("llm", "dump.reference", "cccccccccc-bbbbbb"),
        ("team/glm", "judge", "dddddddddd"),
    ):
        store = machine(recipe)
        Remote(Address(shelf.url), recipe, store).share(fixtures.seal(store, name=name, key=key), lambda *_: None)
    return shelf


@pytest.fixture
def later(monkeypatch):
    """Let forty days go by."""
    now = time.time() + 40 * DAY
    monkeypatch.setattr("precflow.verbs.prune.PruneRequest", functools.partial(PruneRequest, now=now))
    return now


def test_all_recipes_are_listed(filled, capsys):
    assert listing.list_recipes(Address(filled.url)) == ["llm", "team/glm"]
    assert cli.main(["ls", "store", filled.url]) == 0
    shown = capsys.readouterr().out
    assert "dump.reference-aaaaaaaaaa-bbbbbb" in shown
    assert "team/glm" in shown
    assert "3 stages" in shown
    assert cli.main(["ls", "store", f"{filled.url}/llm", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [(one["recipe"], one["key"], one["state"]) for one in said["instances"]] == [
        ("llm", "cccccccccc-bbbbbb", ""),
        ("llm", "aaaaaaaaaa-bbbbbb", ""),
    ]


def test_a_folder_is_listed_too(machine, tmp_path, monkeypatch, capsys):
    fixtures.seal(machine("runs/llm"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["ls", "store"]) == 0
    assert "llm   dump.reference-aaaaaaaaaa-bbbbbb" in capsys.readouterr().out
    assert cli.main(["ls", "store", "nowhere"]) == 2
    assert cli.main(["ls", "recipe", "store"]) == 2


def test_what_is_pinned_stays(filled, later, capsys):
    assert cli.main(["pin", "dump.reference-aaaa", filled.url, "--because", "nightly"]) == 0
    assert cli.main(["ls", "store", filled.url]) == 0
    assert "pinned: nightly" in capsys.readouterr().out
    assert cli.main(["prune", filled.url, "--older", "30d"]) == 0
    shown = capsys.readouterr().out
    assert "1 stay: pinned: nightly" in shown
    assert "0 uploads" in shown
    assert cli.main(["pin", "dump.reference-aaaa", filled.url, "--remove"]) == 0
    capsys.readouterr()
    assert cli.main(["prune", filled.url, "--older", "30d"]) == 0
    shown = capsys.readouterr().out
    assert "dump.reference-aaaaaaaaaa-bbbbbb" in shown
    assert f"precflow prune {filled.url} --older 30d --yes" in shown
    assert len([name for name in filled.files() if "aaaaaaaaaa" in name]) == 4
    assert cli.main(["prune", filled.url, "--older", "30d", "--yes", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["deleted"], [one["instance"] for one in said["goes"]]) == (True, ["dump.reference-aaaaaaaaaa-bbbbbb"])
    assert [name for name in filled.files() if "aaaaaaaaaa" in name] == []
    assert len([name for name in filled.files() if "cccccccccc" in name]) == 4


def test_what_was_pinned_in_the_meantime_stays(filled, later):
    recipe = next(one for one in listing.open_recipes(Address(filled.url)) if one.recipe == "llm")
    wish = PruneRequest(older=30 * DAY, now=later)
    decisions = listing.decide(recipe.list_all(), wish)
    (goes,) = [one for one in decisions if one.goes]
    recipe.pin(goes.upload, "wanted")
    assert [why for _, why in listing.prune(recipe, decisions, wish)] == ["it was pinned or finished in the meantime"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pin", "dump", "URL"], "names 2 of them"),
        (["pin", "nothing", "URL"], "has no finished nothing"),
        (["pin", "dump", "runs"], "is a folder"),
        (["prune", "URL", "runs"], "one store behind a URL"),
        (["prune", "nonsense://x"], "no kind of store"),
        (["ls", "store", "nonsense://x"], "no kind of store"),
    ],
)
def test_what_cannot_be_done_is_said(filled, words, said, capsys):
    assert cli.main([filled.url if word == "URL" else word for word in words]) == 2
    assert said in capsys.readouterr().err


def test_a_store_that_does_not_exist_is_named(shelf):
    with pytest.raises(StoreError, match="does not exist"):
        listing.list_recipes(Address("memory://nobody/made/this"))
