"""The report in a run folder: files of the user beside it stay, links are not followed, and an old verdict is taken away."""

import json

import pytest

from precflow.errors import StoreError
from precflow.run import publication
from precflow.run.publication import LIST_FILE, publish, withdraw
from precflow.run.runner import run


@pytest.fixture
def report(tmp_path):
    """Return a report in a store."""
    folder = tmp_path / "store" / "report-1c9f"
    for name in ("public/report.html", "public/result.json", "repro/repro.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def folder(tmp_path):
    """Return a run folder, and beside it a folder with something that nobody wants to lose."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("years")
    folder = tmp_path / "runs" / "x"
    folder.mkdir(parents=True)
    return folder


def files_of(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


PUBLISHED = sorted([LIST_FILE, "public/report.html", "public/result.json", "report.html", "repro/repro.py"])


def test_what_was_published_is_withdrawn_and_nothing_else(folder, report):
    (folder / "public" / "notes").mkdir(parents=True)
    (folder / "public" / "notes" / "mine.md").write_text("mine")
    (folder / "public" / "mine.txt").write_text("mine")
    assert publish(folder, report) == folder / "report.html"
    assert files_of(folder) == sorted([*PUBLISHED, "public/mine.txt", "public/notes/mine.md"])
    (folder / "repro" / "output.log").write_text("of the user, who ran the repro")
    withdraw(folder)
    assert files_of(folder) == ["public/mine.txt", "public/notes/mine.md", "repro/output.log"]


def test_a_page_in_chinese_lies_beside_that_in_english(folder, report):
    (report / "public" / "report.zh.html").write_text("zh")
    publish(folder, report)
    assert (folder / "report.zh.html").read_text() == "zh"
    withdraw(folder)
    assert files_of(folder) == []


def test_another_report_leaves_no_file_of_the_one_before(folder, report):
    publish(folder, report)
    (report / "repro" / "repro.py").unlink()
    publish(folder, report)
    assert files_of(folder) == [name for name in PUBLISHED if not name.startswith("repro/")]


@pytest.mark.parametrize("name", ["public", "repro", "tensorboard", "tensorboard/target"])
def test_a_linked_folder_is_neither_emptied_nor_written_to(folder, report, name):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(folder.parents[1] / "precious")
    for act in (lambda: withdraw(folder), lambda: publish(folder, report)):
        with pytest.raises(StoreError, match=f"{name} is a link to .*precious") as caught:
            act()
        assert f"rm {folder / name}" in caught.value.next_step
    assert files_of(folder.parents[1] / "precious") == ["thesis.tex"]


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_stands_in_the_way_of_a_file_stays_and_the_others_are_published(folder, report, kind):
    (folder / "public").mkdir()
    mine = folder / "public" / "result.json"
    if kind == "link":
        mine.symlink_to(folder.parents[1] / "precious" / "thesis.tex")
    else:
        mine.mkdir()
    with pytest.raises(StoreError, match=rf"result\.json is a {kind} of your own") as caught:
        publish(folder, report)
    assert str(report) in caught.value.next_step
    assert {"report.html", "public/report.html", "repro/repro.py"} <= set(files_of(folder))
    withdraw(folder)
    assert mine.is_symlink() or mine.is_dir()
    assert (folder.parents[1] / "precious" / "thesis.tex").read_text() == "years"


@pytest.mark.parametrize("name", ["../../precious/thesis.tex", "/etc/hostname", "store/judge-1/judged.jsonl", 7])
def test_a_list_that_no_run_has_written_deletes_nothing(folder, name):
    (folder / LIST_FILE).write_text(json.dumps({"files": [name]}))
    with pytest.raises(StoreError, match="is not what a run has written"):
        withdraw(folder)
    assert files_of(folder.parents[1] / "precious") == ["thesis.tex"]


def test_events_and_sarif_are_published_if_asked_for_and_go_with_the_next_report(composed, tmp_path):
    folder = tmp_path / "runs" / "compare_dumps"
    assert run(composed("report.formats=[html,sarif,tensorboard]", factor=1.01), command="").exit_code == 1
    events = [name for name in files_of(folder) if name.startswith("tensorboard/")]
    assert [name.split("/")[1] for name in events] == ["difference", "reference", "target"]
    assert sorted(path.name for path in (folder / "public").iterdir()) == ["report.html", "result.sarif"]
    assert run(composed("report.formats=[html]"), command="").exit_code == 1
    assert not [name for name in files_of(folder) if name.startswith(("tensorboard/", "public/result.sarif"))]


def test_a_folder_in_public_does_not_end_a_run(composed, tmp_path):
    run(composed(), command="")
    public = tmp_path / "runs" / "compare_dumps" / "public"
    (public / "kept").mkdir()
    (public / "kept" / "old.json").write_text("{}")
    assert run(composed(), command="").exit_code == 0
    assert (public / "result.json").is_file()
    assert (public / "kept" / "old.json").is_file()


def test_the_report_of_a_precflow_without_a_list_is_withdrawn_by_its_seal(composed, tmp_path):
    run(composed(), command="")
    folder = tmp_path / "runs" / "compare_dumps"
    (folder / LIST_FILE).unlink()
    (folder / "public" / "mine.txt").write_text("mine")
    publication.withdraw(folder)
    assert not (folder / "report.html").exists()
    assert [path.name for path in (folder / "public").iterdir()] == ["mine.txt"]
