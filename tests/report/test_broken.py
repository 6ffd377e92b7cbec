"""A side that broke has a page, Markdown and result.json: with everything that is known, escaped, and without paths."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from precflow.breakdown import AliveTensor, Breakdown, DeviceLog, GivenTensor, Instead, Memory
from precflow.errors import StoreError
from precflow.report import result_json
from precflow.report.broken import BrokenRun, write_files
from precflow.sides.breakdown import read_left_behind, read_reported

BROKE = Breakdown(
    side="target",
    kind="memory",
    step="3",
    phase="backward",
    module="encoder.<b>0",
    class_name="Block",
    operator="gelu",
    missing="aten::gelu",
    missing_in="NPU",
    file="/home/ann/train|it.py",
    line=12,
    source="y = `gelu`(x)",
    given=(GivenTensor("0", "float32", "[3, 2]", "npu:0"),),
    seen=("[4, 2]",),
    last="encoder/forward.output.0",
    memory=Memory("npu", "2.00 GiB", 12, 2_500_000, (AliveTensor("weight w", "float16", "[3]", 6),)),
    instead=(Instead("operator.no_kernel", "gelu", "It has none.", "use another"),),
    logs=(DeviceLog("plog-1.log", 7, ("[INFO] a", "[ERROR] b"), 1),),
    trace='File "/home/ann/train.py"',
)


def broken_run(broke=BROKE):
    when, command = "2026-01-01 10:00", "precflow +recipe=script"
    return BrokenRun("script", "A script", 2, when, command, "dump.target", "it broke", "try", broke.public())


def test_every_format_says_where_and_none_has_a_path(tmp_path):
    write_files(broken_run(), tmp_path, ["html", "markdown", "json", "junit"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["junit.xml", "report.html", "report.md", "result.json"]
    texts = [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()]
    for text in texts:
        assert "/home/ann" not in text
        assert "backward of step 3" in text
        assert "[ERROR] b" in text.replace("\\", "")
    page, markdown = ((tmp_path / name).read_text(encoding="utf-8") for name in ("report.html", "report.md"))
    assert "<b>0" not in page
    assert "<b>0" not in markdown
    assert "The target ran out of memory" in page
    plain = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert (plain["exit_code"], plain["verdict"], plain["breakdown"]["missing"]) == (2, None, "aten::gelu")
    assert plain["breakdown"]["memory"]["largest"][0]["bytes"] == 6
    root = ET.parse(tmp_path / "junit.xml").getroot()
    (case,) = root.iter("testcase")
    assert (root.get("errors"), case.get("name")) == ("1", "dump.target")
    assert case.find("error").get("message") == "The target ran out of memory"
    with pytest.raises(StoreError, match=r"of a run that broke, in dump\.target: nothing was compared"):
        result_json.parse((tmp_path / "result.json").read_bytes(), "here")


def test_in_both_languages_there_are_two_pages_that_lead_to_each_other(tmp_path):
    known = Instead("library.cupy", "cupy", "It is NumPy on CUDA.", "torch on the NPU, or NumPy")
    write_files(broken_run(replace(BROKE, instead=(known,))), tmp_path, ["html", "markdown", "json"], "both")
    names = ["report.html", "report.md", "report.zh.html", "report.zh.md", "result.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    english, _, page, markdown, _ = ((tmp_path / name).read_text(encoding="utf-8") for name in names)
    assert '<a href="report.zh.html" hreflang="zh-CN"' in english
    assert '<a href="report.html" hreflang="en"' in page
    assert '<html lang="zh-CN"' in page
    for text in (page, markdown.replace("\\", "")):
        assert "目标侧内存不足" in text
        assert "第 3 步的反向" in text
        assert "[3, 2]，该模块此前没有遇到过；此前为：[4, 2]" in text
        assert "y = `gelu`(x)" in text
    assert not re.findall(
        r"(?<![\w./<=\"-])[a-z]{3,} [a-z]{3,}(?![^<]*>)", re.sub(r"<(style|code|pre).*?</\1>", "", page, flags=re.DOTALL)
    )


def test_a_row_for_each_fact_that_is_known_and_none_for_others():
    rows = dict(BROKE.rows())
    assert rows["shapes"] == "[3, 2], new to this module; before: [4, 2]"
    assert rows["memory"] == "12 tensors on npu hold 2.5 MB, 2.00 GiB more were asked for"
    assert rows["device log"] == "plog-1.log:7   [ERROR] b"
    assert rows["line"] == "train|it.py:12   y = `gelu`(x)"
    assert Breakdown("target", "silence").rows() == []


@pytest.mark.parametrize(
    "where",
    [
        {"step": "x", "module": 3, "inputs": "abc", "given": [1, {"shape": 4}], "seen": [[1], 2], "memory": [1], "line": -1},
        {"step": True, "seen": {"a": 1}, "memory": {"largest": [{"bytes": "x"}], "bytes": -1}},
        {},
    ],
)
def test_what_an_agent_of_another_version_says_is_read_as_far_as_it_goes(where):
    broke = read_reported("target", where)
    assert broke is not None
    assert isinstance(broke.rows(), list)
    assert read_reported("target", [where]) is None


def test_a_dead_agent_leaves_its_last_call(tmp_path):
    assert read_left_behind("target", "crash", tmp_path, 0, ["a"]).rows() == []
    (tmp_path / "last-call-rank1").write_bytes(b"1\nforward\nm.0\nBlock\nlinear\n\nm/x\n0 float32 [2, 3]; 1 float32 []\0rest")
    broke = read_left_behind("target", "crash", tmp_path, 1, [])
    assert dict(broke.rows())["given"] == "0 float32 [2, 3]; 1 float32 []"
    (tmp_path / "last-call-rank1").write_bytes(b"1\nforward\nm.0\0")  # of an older agent, or cut off
    assert read_left_behind("target", "crash", tmp_path, 1, []).module == "m.0"
