import json
import time

import pytest

from precflow.agent.contract import checksum_of
from precflow.errors import DumpError
from precflow.run.find_dumps import find_dumps, open_named_dump
from precflow.run.runner import run

NO_RUNS = json.dumps({"schema": 2, "runs": [], "checksum": checksum_of({"schema": 2, "runs": []})})


@pytest.fixture
def ran(composed, tmp_path):
    """A run folder whose dumps are given ones."""
    run(composed(), command="precflow")
    return tmp_path / "runs" / "compare_dumps"


def test_a_folder_with_a_header_is_the_dump(composed, tmp_path):
    composed()
    (found,) = find_dumps(str(tmp_path / "dumps" / "target"))
    assert found.path == tmp_path / "dumps" / "target"
    assert open_named_dump(str(found.path)).path == found.path


@pytest.mark.parametrize("text", ["runs/compare_dumps", "compare_dumps", "runs/compare_dumps/", "runs/compare_dumps/store"])
@pytest.mark.usefixtures("ran")
def test_a_run_names_all_its_dumps(text, tmp_path):
    found = {one.side: one for one in find_dumps(text)}
    assert set(found) == {"reference", "target"}
    assert found["reference"].path == tmp_path / "dumps" / "reference"
    assert find_dumps(found["target"].name)[0].path == tmp_path / "dumps" / "target"
    with pytest.raises(DumpError, match="has 2 dumps"):
        open_named_dump(text)


@pytest.mark.parametrize("text", ["compare_dumps:target", "runs/compare_dumps:target", "runs/compare_dumps/store:target"])
@pytest.mark.usefixtures("ran")
def test_a_side_of_a_run_is_one_dump(text, tmp_path):
    assert open_named_dump(text).path == tmp_path / "dumps" / "target"


def test_a_folder_that_holds_one_dump_is_that_dump_and_of_several_each_is_named(composed, tmp_path):
    composed()
    dumps = tmp_path / "dumps"
    with pytest.raises(DumpError, match=r"dumps has 2 dumps:\n.*dumps/\w+   the newest\n.*dumps/\w+\n.*name one of them"):
        open_named_dump(str(dumps))
    outer = tmp_path / "site" / "monday"
    outer.mkdir(parents=True)
    (dumps / "reference").rename(outer / "reference")
    assert open_named_dump(str(tmp_path / "site")).path == outer / "reference"
    (tmp_path / "nothing" / "inside").mkdir(parents=True)
    with pytest.raises(DumpError, match="no dump and no run"):
        open_named_dump(str(tmp_path / "nothing"))


def test_a_stage_instance_is_its_dump(ran, tmp_path):
    (instance,) = (ran / "store").glob("dump.reference-*")
    assert open_named_dump(str(instance)).path == tmp_path / "dumps" / "reference"


def test_the_newest_run_counts_and_not_the_newest_folder(ran, composed, tmp_path):
    run(composed(name="others"), command="precflow")
    assert open_named_dump("compare_dumps:target").path == tmp_path / "others" / "target"
    run(composed(), command="precflow")
    assert open_named_dump("compare_dumps:target").path == tmp_path / "dumps" / "target"
    (ran / "run.json").unlink()
    (ran / "run.json").write_text(NO_RUNS)
    assert open_named_dump("compare_dumps:target").path == tmp_path / "others" / "target"


def test_a_store_elsewhere_is_found_from_the_run_folder(composed, tmp_path):
    run(composed(f"store={tmp_path / 'share'}"), command="precflow")
    assert open_named_dump("compare_dumps:reference").path == tmp_path / "dumps" / "reference"
    assert len(find_dumps(str(tmp_path / "share" / "compare_dumps"))) == 2


@pytest.mark.usefixtures("ran")
def test_what_is_not_there_names_what_is():
    with pytest.raises(DumpError, match=r"Did you mean  compare_dumps \?.*Runs here: compare_dumps"):
        find_dumps("compare_dump")
    with pytest.raises(DumpError, match=r"no dump of traget\. Did you mean  target \?"):
        find_dumps("compare_dumps:traget")
    with pytest.raises(DumpError, match="no dump and no run"):
        find_dumps("")


def test_a_log_leads_to_the_recipe_for_logs(tmp_path):
    (tmp_path / "gpu.jsonl").write_text('{"step": 0, "loss": 2.5}\n')
    with pytest.raises(DumpError, match="is a file that is no dump") as caught:
        find_dumps(str(tmp_path / "gpu.jsonl"))
    assert "+recipe=loss_curves" in caught.value.next_step


def test_a_run_without_a_dump_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "run.json").write_text(NO_RUNS)
    with pytest.raises(DumpError, match="has no sealed dump yet"):
        find_dumps("a")


def test_a_damaged_pointer_is_told(tmp_path):
    (tmp_path / "given.json").write_text("{")
    with pytest.raises(DumpError, match="does not say where the dump is"):
        find_dumps(str(tmp_path))


def test_ages_decide_without_a_history(ran, tmp_path):
    (instance,) = (ran / "store").glob("dump.reference-*")
    sealed = json.loads((instance / "sealed.json").read_text())
    older = ran / "store" / "dump.reference-older"
    older.mkdir()
    for name in ("given.json",):
        (older / name).write_bytes((instance / name).read_bytes())
    seal = {**sealed, "finished": time.time() - 1e6, "key": "older"}
    (older / "sealed.json").write_text(json.dumps({**seal, "checksum": checksum_of(seal)}))
    assert len(find_dumps(str(ran / "store") + ":reference")) == 1
    assert open_named_dump(str(ran / "store") + ":reference").path == tmp_path / "dumps" / "reference"


def test_a_folder_that_cannot_be_read_is_told(tmp_path, monkeypatch):
    def refused(folder):
        raise PermissionError(13, "Permission denied", str(folder / "dump.json"))

    monkeypatch.setattr("precflow.run.find_dumps._locate_dump", refused)
    with pytest.raises(DumpError, match=r"dump\.json cannot be read: Permission denied\n.*give yourself the right"):
        find_dumps(str(tmp_path))
