"""The verb: exit codes, what it prints, and the files that it writes and does not write."""

import json
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from precflow.cli import main


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "train.py").write_text("import torch\nimport torch.nn as nn\nm = nn.Dropout().cuda()\n", encoding="utf-8")
    return folder


def listing(folder):
    return sorted((path.name, path.read_bytes()) for path in folder.rglob("*") if path.is_file())


def test_what_the_patch_mends_is_left_only_until_it_is_written(tree, tmp_path, capsys):
    before = listing(tree)
    assert main(["scan", str(tree)]) == 1
    said = capsys.readouterr().out
    assert "the patch mends all 2 places that do not run on an NPU" in said
    assert "precflow scan" in said
    assert main(["scan", str(tree), "--patch", str(tmp_path / "new" / "scan.patch")]) == 0
    assert listing(tree) == before
    said = capsys.readouterr().out
    command = next(line for line in said.splitlines() if "git -C" in line)
    subprocess.run(["bash", "-c", command], check=True)
    assert "nn.Dropout().npu()" in (tree / "train.py").read_text(encoding="utf-8")
    assert main(["scan", str(tree)]) == 0
    assert "random numbers" in capsys.readouterr().out


def test_what_is_left_by_hand_is_listed_with_its_place(tree, tmp_path, capsys):
    (tree / "other.py").write_text("import torch\nm = torch.nn.DataParallel(m)\n", encoding="utf-8")
    assert main(["scan", str(tree), "--patch", str(tmp_path / "scan.patch")]) == 1
    said = capsys.readouterr().out
    assert "other.py:2   torch.nn.DataParallel" in said
    assert "DistributedSampler" in said
    assert "1 to change by hand, 2 by the patch" in said


def test_page_markdown_and_json_show_every_finding_and_no_markup_of_the_tree(tree, tmp_path, capsys):
    (tree / "<b>x|`.py").write_text("import torch\nm = torch.nn.DataParallel(m)\nz = f'cuda:{\"<i>\"}'\n", encoding="utf-8")
    assert main(["scan", str(tree), "--output", str(tmp_path / "out"), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    page, markdown, plain = ((tmp_path / "out" / f"scan.{end}").read_text(encoding="utf-8") for end in ("html", "md", "json"))
    assert json.loads(plain)["findings"] == answer["findings"]
    assert {finding["rule"] for finding in answer["findings"]} >= {"distributed.data_parallel", "randomness.dropout"}
    for text in (page, markdown):
        assert text.count("DataParallel") >= 1
        assert "1 to change by hand, " in text
        assert "train.py" in text.replace("<wbr>", "")
        assert "<b>x" not in text
    assert "<script" not in page
    results = json.loads((tmp_path / "out" / "scan.sarif").read_text(encoding="utf-8"))["runs"][0]["results"]
    assert len(results) == len(answer["findings"])
    root = ET.parse(tmp_path / "out" / "junit.xml").getroot()
    outcomes = {case.get("name"): [child.tag for child in case] for case in root.iter("testcase")}
    assert outcomes["<b>x|`.py"] == ["failure"]  # DataParallel is left by hand
    assert outcomes["train.py"] == ["system-out"]  # the patch mends it
    assert (root.get("tests"), root.get("failures")) == ("3", "2")


def test_rules_of_a_team_come_with_its_folder(tree, tmp_path, capsys):
    folder = tmp_path / "team" / "scan"
    folder.mkdir(parents=True)
    rule = "title: ours\nrules:\n  drop:\n    names: [torch.nn.Dropout]\n    why: We have our own.\n    do: use it\n"
    (folder / "ours.yaml").write_text(rule, encoding="utf-8")
    assert main(["scan", str(tree), "--config-dir", str(tmp_path / "team"), "--json"]) == 1
    assert "ours.drop" in {finding["rule"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert main(["validate", "scan/ours", "--config-dir", str(tmp_path / "team")]) == 0
    (folder / "ours.yaml").write_text(rule.replace("names", "nams"), encoding="utf-8")
    assert main(["scan", str(tree), "--config-dir", str(tmp_path / "team")]) == 2
    assert "ours.yaml:4" in capsys.readouterr().err
    assert main(["validate", "scan/ours", "--config-dir", str(tmp_path / "team")]) == 2


def test_functions_that_do_not_take_the_type_that_is_computed_in_are_found(tree, capsys):
    (tree / "other.py").write_text("import torch\nx = torch.lerp(a, b, 0.5)\n", encoding="utf-8")
    found = {}
    for dtype in ("float16", "bfloat16"):
        main(["scan", str(tree), "--dtype", dtype, "--json"])
        found[dtype] = {finding["rule"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert found["bfloat16"] - found["float16"] == {"support.computes_bfloat16"}


@pytest.mark.parametrize("words", [["nowhere"], [], ["a", "b"], ["--limit", "x", "a"], ["--dtype", "half", "."]])
def test_what_cannot_be_done_is_two(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["scan", *words]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_patch_that_cannot_be_written_is_two(tree, capsys):
    assert main(["scan", str(tree), "--patch", str(tree / "train.py" / "x")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_it_imports_no_torch(tree):
    code = f"import sys; from precflow.cli import main; main(['scan', {str(tree)!r}]); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
