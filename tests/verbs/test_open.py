import json
import os

import pytest

from precflow.errors import StoreError
from precflow.verbs import open as open_verb


@pytest.fixture
def pages(tmp_path):
    for age, name in enumerate(["new", "old", "older/deep"]):
        page = tmp_path / "runs" / name / "report.html"
        page.parent.mkdir(parents=True)
        page.write_text("x")
        os.utime(page, (1_000_000 - age, 1_000_000 - age))
    inside = tmp_path / "runs" / "old" / "store" / "report-1" / "report.html"
    inside.parent.mkdir(parents=True)
    inside.write_text("newer, but not the one to open")
    return tmp_path / "runs"


def test_the_newest_report(capsys, pages):
    assert open_verb.main(["--print"]) == 0
    assert capsys.readouterr().out == "runs/new/report.html\n"
    assert open_verb.main(["runs/old", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": "runs/old/report.html"}
    assert open_verb.find_newest(pages / "older") == pages / "older" / "deep" / "report.html"


@pytest.mark.parametrize("there_is_one", [True, False])
@pytest.mark.usefixtures("pages")
def test_the_browser_gets_its_address(capsys, monkeypatch, there_is_one):
    opened = []
    monkeypatch.setattr(open_verb.webbrowser, "open", lambda address: opened.append(address) or there_is_one)
    assert open_verb.main([]) == 0
    assert opened[0].endswith("/runs/new/report.html")
    assert ("runs/new/report.html" in capsys.readouterr().out) is not there_is_one


def test_no_report_says_how_to_get_one():
    with pytest.raises(StoreError, match="no report in runs"):
        open_verb.main([])
