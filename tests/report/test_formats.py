import stat
from dataclasses import replace

import pytest

from precflow.config.vocabulary import WORDS
from precflow.errors import PrecflowError, StoreError
from precflow.report import ci, formats, tables, tensorboard, terminal


def test_every_format_is_written_in_the_order_asked_for(misaligned, tmp_path):
    paths = formats.write(misaligned, tmp_path / "public", ["junit", "html", "markdown", "json"])
    assert [path.name for path in paths] == ["junit.xml", "report.html", "report.md", "result.json"]
    assert all(path.stat().st_size > 1000 for path in paths)
    assert sorted((tmp_path / "public").iterdir()) == sorted(paths)


def test_names_that_utf_8_lacks_are_written(nasty, tmp_path):
    first = replace(nasty.findings[0], title="\ud800")  # SARIF has the findings alone
    for path in formats.write(replace(nasty, findings=(first,)), tmp_path, list(formats.FORMATS)):
        assert "\\ud800" in path.read_text(encoding="utf-8")


def test_an_unknown_format_is_refused_before_anything_is_written(misaligned, tmp_path):
    with pytest.raises(PrecflowError, match="no report format pdf; there are html, markdown, json, junit"):
        formats.write(misaligned, tmp_path / "public", ["html", "pdf"])
    assert not (tmp_path / "public").exists()


def test_an_older_report_is_replaced_and_readable_by_others(misaligned, aligned, tmp_path):
    formats.write(misaligned, tmp_path, ["json"])
    path = formats.write(aligned, tmp_path, ["json"])[0]
    assert '"verdict": "aligned"' in path.read_text(encoding="utf-8")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_failure_leaves_the_older_report_and_no_rest(misaligned, aligned, tmp_path, monkeypatch):
    path = formats.write(misaligned, tmp_path, ["json"])[0]
    monkeypatch.setattr(formats.Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(StoreError, match="No space left on device"):
        formats.write(aligned, tmp_path, ["json"])
    assert '"verdict": "misaligned"' in path.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_a_file_is_explained(misaligned, tmp_path):
    (tmp_path / "public").write_text("in the way", encoding="utf-8")
    with pytest.raises(StoreError, match="cannot be written"):
        formats.write(misaligned, tmp_path / "public", ["json"])


def test_no_format_writes_nothing(misaligned, tmp_path):
    assert formats.write(misaligned, tmp_path, []) == []


def test_a_recipe_may_choose_every_format():
    assert WORDS["Report.formats"] == (*formats.FORMATS, *tables.TABLES, tensorboard.FOLDER)


def test_where_records_fail_and_prove_nothing_no_text_says_that_nothing_failed_or_where_it_starts(
    misaligned, inconclusive, tmp_path
):
    model = replace(misaligned, verdict=replace(misaligned.verdict, verdict="inconclusive"))
    assert model.region.start
    texts = [path.read_text(encoding="utf-8") for path in formats.write(model, tmp_path, ["html", "markdown"])]
    screen = terminal.render_summary(model, report_path="", exit_code=3)
    assert "starts at" not in formats.FORMATS["junit"][1](model)
    assert " start=none " in ci.format_outcome(model, report_path="")
    for text in (*texts, screen):
        assert "ecords differ, but that proves nothing yet" in text
        assert "othing failed" not in text
        assert "rror starts at" not in text
    assert "othing failed, but something needed for a verdict is missing" in formats.FORMATS["markdown"][1](inconclusive)


def test_files_for_machines_do_not_change_with_the_language(misaligned, tmp_path):
    for chosen in ("en", "zh", "both"):
        formats.write(replace(misaligned, language=chosen), tmp_path / chosen, list(formats.FORMATS))
    for name in ("result.json", "junit.xml"):
        assert len({(tmp_path / chosen / name).read_text(encoding="utf-8") for chosen in ("en", "zh", "both")}) == 1
    assert "# ✗ MISALIGNED: sd" in (tmp_path / "both/report.md").read_text(encoding="utf-8")
    chinese = (tmp_path / "both/report.zh.md").read_text(encoding="utf-8")
    assert chinese == (tmp_path / "zh/report.md").read_text(encoding="utf-8")
    assert "# ✗ 未对齐" in chinese
    assert not (tmp_path / "en/report.zh.md").exists()
