"""The gallery of faults: its pages are those of ``faults.yaml``, their commands can be typed, and one of them is."""

import importlib.util
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from precflow import cli

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "docs" / "gallery"
FAULTS = yaml.safe_load((GALLERY / "faults.yaml").read_text(encoding="utf-8"))
RULES = {path.name.partition("_")[0] for path in (ROOT / "conf" / "rule").glob("PF*.yaml")}


@pytest.fixture(scope="module")
def make():
    """The program that writes the pages."""
    described = importlib.util.spec_from_file_location("make", GALLERY / "make.py")
    sys.modules["make"] = module = importlib.util.module_from_spec(described)  # its dataclass looks itself up there
    described.loader.exec_module(module)
    yield module
    del sys.modules["make"]


def test_a_page_and_a_picture_for_each_fault(make):
    assert {path.stem for path in GALLERY.glob("*.md")} == {"README", *FAULTS}
    assert {path.stem for path in GALLERY.glob("*.webp")} == {*FAULTS}
    assert sum(path.stat().st_size for path in GALLERY.glob("*")) < 1_500_000
    assert (GALLERY / "README.md").read_text(encoding="utf-8") == make.write_index(FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_a_page_says_what_its_fault_says(make, name):
    fault, page = FAULTS[name], (GALLERY / f"{name}.md").read_text(encoding="utf-8")
    assert fault["rule"] in RULES
    for line in (fault["command"], fault["mended"]):
        assert make.fold(line) in page
    screen, _, after = page.partition("## The evidence")
    assert re.search(rf"^   1  {fault['rule']}  ", screen, re.MULTILINE)
    assert f"[{fault['rule']}](../rules.md#{fault['rule'].lower()})" in after
    assert re.search(r"ALIGNED", after.partition("## The mend")[2])
    assert "MISALIGNED" not in after


@pytest.mark.parametrize("example", sorted({fault.get("in", "") for fault in FAULTS.values()}))
def test_commands_compose(example, tmp_path, monkeypatch, capsys):
    where = tmp_path / "work"
    shutil.copytree(ROOT / "examples" / example, where, ignore=shutil.ignore_patterns("runs")) if example else where.mkdir()
    monkeypatch.chdir(where)
    for file in ("old.onnx", "new.onnx", "mended.onnx"):
        Path(file).touch()
    lines = {fault[key] for fault in FAULTS.values() for key in ("command", "mended") if fault.get("in", "") == example}
    for line in sorted(lines):
        words = [word for word in shlex.split(line) if not re.match(r"HCCL_\w+=", word)]
        assert words[0] == "precflow"
        assert cli.main(["validate", *words[1:]]) == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.xdist_group("text encoder")
def test_a_page_is_written_of_a_run(make, tmp_path, monkeypatch, warm_server, small_encoder):
    fault = FAULTS["scaled_layer"]
    monkeypatch.setenv("PATH", f"{warm_server.shim()}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CI", raising=False)
    smaller = f"{small_encoder(layers=2)[0]} tolerance.standards=[default]"
    line, mended = (fault[key].replace("workload.model.layers=2", smaller) for key in ("command", "mended"))
    ended = make.run(line, tmp_path)
    assert ended.result["findings"][0]["rule"] == fault["rule"]
    page = make.write_page("scaled_layer", fault, ended, make.run(mended, tmp_path))
    for each in ended.result["findings"][0]["evidence"]:
        assert f"| {make.cell(each['what'])} | {make.cell(each['value'])} |" in page
    assert page.index("✗ MISALIGNED") < page.index("## The mend") < page.index("✓ ALIGNED")
