import importlib.util
import json
from pathlib import Path

import pytest

from precflow.errors import ConfigError, StoreError
from precflow.verbs import prune

_SPEC = importlib.util.spec_from_file_location("pruned_stores", Path(__file__).parents[1] / "run" / "test_pruning.py")
stores = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(stores)


@pytest.fixture
def runs(tmp_path):
    """Return the store of a run folder ``runs/demo`` with one instance that no run names and one of an old run."""
    folder = stores.write_runs(tmp_path / "runs" / "demo", (40, ["judge-a"]), (1, ["judge-b"]))
    for name, days in (("judge-a", 40), ("judge-b", 1), ("judge-x", 20)):
        stores.make(folder / "store", name, days=days, size=2_000_000)
    return folder / "store"


def names(store):
    return {path.name for path in store.iterdir() if not path.name.startswith(".")}


def test_nothing_is_deleted_unless_that_is_asked_for(runs, capsys):
    assert prune.main([]) == 0
    shown = capsys.readouterr().out
    assert "runs/demo/store" in shown
    assert "judge-x   2.0 MB   20 days   no run names it" in shown
    assert "2 stay (4.0 MB): named by a run" in shown
    assert "1 folders, 2.0 MB can go" in shown
    assert "precflow prune --yes" in shown
    assert names(runs) == {"judge-a", "judge-b", "judge-x"}


def test_it_is_deleted_with_yes(runs, capsys):
    assert prune.main(["demo", "--runs", "1", "--yes"]) == 0
    shown = capsys.readouterr().out
    assert "2 folders, 4.0 MB deleted" in shown
    assert "Nothing was deleted" not in shown
    assert names(runs) == {"judge-b"}
    assert prune.main([]) == 0
    assert "0 folders" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["demo", "runs/demo", "runs/demo/store", "runs"])
def test_a_run_folder_by_its_name_or_its_place(runs, capsys, place):
    assert prune.main([place, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["stores"]
    assert [rest["name"] for rest in one["goes"]] == ["judge-x"]
    assert len(one["stays"]) == 2


def test_a_shared_store_wants_an_age(tmp_path, capsys):
    stores.make(tmp_path / "shared" / "recipe", "judge-a", days=40)
    assert prune.main(["shared", "--yes"]) == 0
    shown = capsys.readouterr().out
    assert "shared" in shown
    assert "--older 30d" in shown
    assert (tmp_path / "shared" / "recipe" / "judge-a").is_dir()
    assert prune.main(["shared", "--older", "30d", "--yes"]) == 0
    assert not (tmp_path / "shared" / "recipe" / "judge-a").exists()


def test_as_json(runs, capsys):
    assert prune.main(["--runs=1", "--yes", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["deleted"], [rest["name"] for rest in said["stores"][0]["goes"]]) == (True, ["judge-a", "judge-x"])
    assert 4_000_000 < said["bytes"] < 4_010_000


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (["--older", "30"], ConfigError, "a duration with its unit"),
        (["--older", "30days"], ConfigError, "such as 30d"),
        (["--runs", "0"], ConfigError, "from 1"),
        (["--runs", "two"], ConfigError, "from 1"),
        (["demmo"], StoreError, "Did you mean  demo ?"),
    ],
)
def test_what_cannot_be_done_is_said(runs, words, error, said):
    with pytest.raises(error) as refused:
        prune.main(words)
    assert said in str(refused.value)


def test_where_there_is_nothing_there_is_nothing_to_do(capsys):
    assert prune.main([]) == 0
    assert "0 folders" in capsys.readouterr().out
