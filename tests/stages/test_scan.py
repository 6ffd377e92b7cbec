"""Stage `scan`: alone it is a recipe with a report; beside a comparison its findings stand at the lines of errors."""

import json

import pytest

from precflow.cli import main
from precflow.diagnosis.findings import Finding
from precflow.scan.findings import Finding as Place
from precflow.scan.findings import ScanResult
from precflow.stages.scan import link

HERE = "model.py:12 in forward <- train.py:40 in main"


def place(file, line, end_line=None, rule="dtype.float64"):
    return Place(rule, "look", file, line, end_line or line, "torch.float64", "Few operators.", "float32")


def scan(*places):
    return ScanResult("tree", places, {}, {}, {})


def finding(site):
    return Finding("PF214", "a title", "certain", site=site, evidence=(("eps", "1e-3"),))


@pytest.mark.parametrize(
    ("site", "places", "linked"),
    [
        (HERE, [place("src/model.py", 12)], ["src/model.py:12"]),
        (HERE, [place("src/model.py", 10, 14)], ["src/model.py:10"]),
        (HERE, [place("src/model.py", 13), place("train.py", 40)], ["train.py:40"]),  # the innermost line that has any
        (HERE, [place("a_model.py", 12), place("model.py", 11)], []),
        ("pkg/src/model.py:12 in f", [place("src/model.py", 12)], ["src/model.py:12"]),
        (HERE, [place("model.py", 12)] * 5, ["model.py:12"] * 3),
        ("", [place("model.py", 12)], []),
    ],
)
def test_a_finding_names_what_the_scan_found_at_its_line(site, places, linked):
    (found,) = link([finding(site)], scan(*places))
    assert found.evidence[0] == ("eps", "1e-3")
    assert [text.split(" ")[0] for _, text in found.evidence[1:]] == linked


def test_without_a_scan_nothing_is_linked():
    assert link([finding(HERE)], None) == [finding(HERE)]


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "train.py").write_text("import torch\nmodel.cuda()\n", encoding="utf-8")
    return tmp_path


def test_the_recipe_writes_page_patch_and_json_and_keeps_them(recipe, capsys):
    words = ["+recipe=migration_scan", "scan.tree=tree"]
    assert main(words) == 0
    folder = recipe / "runs" / "migration_scan"
    plain = json.loads((folder / "public" / "scan.json").read_text(encoding="utf-8"))
    assert [one["rule"] for one in plain["findings"]] == ["import.torch_npu", "device.method"]
    assert "+model.npu()" in (folder / "public" / "scan.patch").read_text(encoding="utf-8")
    assert "the patch mends all 2 places" in capsys.readouterr().err
    assert main(["open", "migration_scan@1", "--print"]) == 0
    assert capsys.readouterr().out.strip().endswith("report.html")
    assert main(words) == 0
    assert "kept" in capsys.readouterr().err
    (recipe / "tree" / "train.py").write_text("import torch\nm = torch.nn.DataParallel(m)\n", encoding="utf-8")
    assert main(words) == 1
    assert "train.py:2   torch.nn.DataParallel" in capsys.readouterr().err
    assert main(["ls", "runs"]) == 0
    shown = [line.split("   ")[2] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["the patch mends all 2 places that do not run on an NPU"] * 2 + ["1 to change by hand"]


def test_beside_a_comparison_page_and_patch_lie_in_the_run_folder(recipe, pair):
    folder = pair()
    words = [f"{side}.dump={folder / side}" for side in ("reference", "target")]
    assert (
        main(
            [
                "+recipe=compare_dumps",
                *words,
                "scan.tree=tree",
                "stages=[scan,dump,determinism,compare,judge,localize,advise,report]",
            ]
        )
        == 0
    )
    public = recipe / "runs" / "compare_dumps" / "public"
    assert "+model.npu()" in (public / "scan.patch").read_text(encoding="utf-8")
    assert "mends all 2 places that do not run" in (public / "scan.html").read_text(encoding="utf-8")
    assert json.loads((public / "result.json").read_text(encoding="utf-8"))["verdict"]["verdict"] == "aligned"


def test_what_is_computed_in_is_a_key_of_the_recipe(recipe, capsys):
    (recipe / "tree" / "train.py").write_text("import torch\nx = torch.lerp(a, b, 0.5)\n", encoding="utf-8")
    assert main(["+recipe=migration_scan", "scan.tree=tree", "scan.dtype=bfloat16"]) == 0
    plain = json.loads((recipe / "runs" / "migration_scan" / "public" / "scan.json").read_text(encoding="utf-8"))
    assert [one["rule"] for one in plain["findings"]] == ["support.computes_bfloat16"]
    assert main(["+recipe=migration_scan", "scan.tree=tree", "scan.dtype=half"]) == 2
    assert "bfloat16" in capsys.readouterr().err


def test_a_tree_that_is_missing_is_asked_for(recipe, capsys):
    assert main(["+recipe=migration_scan"]) == 2
    assert "scan.tree=FOLDER" in capsys.readouterr().err
    assert main(["+recipe=migration_scan", "scan.tree=nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
