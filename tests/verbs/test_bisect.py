"""Which of several versions is the first that computes something else: over dumps, and over interpreters that are asked for."""

import json
import re
import sys

import numpy as np
import pytest

from precflow.errors import ConfigError
from precflow.language import speaking
from precflow.verbs import bisect

X = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)


@pytest.fixture
def dumps(build):
    """Write a reference, and a dump for each factor; return the words of a bisection of them."""

    def write(*factors):
        for name, factor in [("old", 1.0), *((f"v{number}", factor) for number, factor in enumerate(factors))]:
            made = build(name, side="reference" if name == "old" else "target")
            made.call("a", "linear", [X * np.float32(factor)], {"0": X, "weight": X[0]})
            made.call("", "", [X * np.float32(factor)], [X])
            made.write()
        names = ",".join(f"v{number}" for number in range(len(factors)))
        return ["+recipe=compare_dumps", "reference.dump=old", f"target.dump={names}"]

    return write


def test_the_first_that_differs_is_named_and_its_report_is_the_one_to_open(capsys, dumps, tmp_path):
    assert bisect.main([*dumps(1.0, 1.5, 1.5, 1.5, 1.5), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["text"] == "first misaligned with target.dump=v1 (target.dump=v0 aligned), 3 of 5 runs"
    assert told["first_misaligned"] == "target.dump=v1"
    assert [each["verdict"] for each in told["versions"]] == ["aligned", "misaligned", "not run", "not run", "misaligned"]
    shown = json.loads((tmp_path / "runs" / "compare_dumps" / "public" / "result.json").read_text())
    assert shown["verdict"]["verdict"] == "misaligned"  # though the last one that ran was aligned


def test_in_chinese_the_finding_is_too(capsys, dumps):
    with speaking("zh"):
        assert bisect.main(dumps(1.5, 1.5)) == 1
    lines = capsys.readouterr().err.splitlines()
    (finding,) = [line for line in lines if line.startswith("   PF")]
    assert re.search("[\u4e00-\u9fff]{2}", finding)
    assert not re.search("[a-z]{3,} [a-z]{3,} [a-z]{3,}", finding)


def test_an_aligned_last_one_ends_it_at_once(capsys, dumps):
    assert bisect.main(dumps(1.0, 1.0, 1.0)) == 0
    shown = capsys.readouterr().err
    assert "target.dump=v2 is aligned with the reference: nothing to find, 1 of 3 runs" in shown


def test_one_that_cannot_be_run_is_passed_over(capsys, dumps, tmp_path):
    words = dumps(1.0, 1.0, 1.5)
    (tmp_path / "v1" / "dump.json").write_text("{}")
    assert bisect.main(words) == 3
    shown = capsys.readouterr().err
    assert "misaligned with target.dump=v2 at the latest; target.dump=v1 could not be judged (target.dump=v0 aligned)" in shown


def test_interpreters_are_called_by_what_differs(monkeypatch):
    found = {f"/{number}": {"torch": "2.9.0", "torch-npu": f"2.9.0.post{number}"} for number in range(3)}
    monkeypatch.setattr("precflow.sides.interpreter.take_fingerprint", lambda side: {"packages": found[side.interpreter]})
    versions, reference = bisect.list_versions(["+recipe=x", "/0", "/1", "/2"], [])
    assert reference == "torch-npu 2.9.0.post0"
    assert [version.name for version in versions] == ["torch-npu 2.9.0.post1", "torch-npu 2.9.0.post2"]
    assert versions[1].words == ("+recipe=x", "reference.interpreter=/0", "target.interpreter=/2")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["+recipe=compare_dumps", "target.dump=a"], "needs two versions or more"),
        (["+recipe=compare_dumps", sys.executable, sys.executable], "needs two versions or more"),
        (["+recipe=compare_dumps", "a/python", "b/python", "c/python"], "a/python"),
        (["+recipe=compare_dumps", "target.dump=a,b", sys.executable, sys.executable, sys.executable], "one thing"),
    ],
)
def test_what_cannot_be_searched_is_refused(words, said):
    with pytest.raises(ConfigError, match=said):
        bisect.main(words)
