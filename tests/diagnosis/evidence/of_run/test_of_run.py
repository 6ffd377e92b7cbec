"""A module alone adds evidence about a run: it is gathered, and rules may use it."""

import subprocess
import sys

import numpy as np
from dump_builder import DumpBuilder

from precflow.diagnosis.evidence.names import EVIDENCE
from precflow.diagnosis.evidence.pieces import list_of_run, list_of_suspect

MODULE = """
from precflow.diagnosis.evidence.pieces import Evidence

EVIDENCE = {"full_moon": Evidence("the moon was full", "While the target ran.")}

def gather(run):
    return {"full_moon": len(run.target.calls()) == 1}
"""
RULE = """
id: OUR100
title: The moon was full
certainty: certain
about: run
when: full_moon
why: It is known to.
fix: Run it again in two weeks.
evidence: [full_moon]
"""
SCRIPT = """
import sys
from pathlib import Path
from precflow.diagnosis.evidence import of_run
of_run.__path__.append(sys.argv[1])

from precflow.config.schema import RunConfig
from precflow.diagnosis.advice.rule_files import load_rules
from precflow.diagnosis.advice.rules import advise
from precflow.diagnosis.comparison import Comparison
from precflow.diagnosis.evidence.collect import collect
from precflow.dumps.formats import read_dump

dump = read_dump(Path(sys.argv[3]))
(finding,) = advise(collect(Comparison(dump, dump, RunConfig())), load_rules([], [Path(sys.argv[2])]))
print(finding.rule, finding.certainty, dict(finding.evidence))
"""


def test_a_file_alone_adds_evidence_that_rules_may_use(tmp_path):
    modules, rules = tmp_path / "modules", tmp_path / "rules"
    for folder in (modules, rules):
        folder.mkdir()
    (modules / "moon.py").write_text(MODULE)
    (rules / "OUR100_moon.yaml").write_text(RULE.lstrip())
    dump = DumpBuilder(tmp_path / "dump")
    dump.call("a", "linear", [np.ones(3, np.float32)])
    words = [sys.executable, "-c", SCRIPT, modules, rules, dump.write()]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.split(maxsplit=2)[:2] == ["OUR100", "certain"], done.stderr
    assert "{'the moon was full': 'yes'}" in done.stdout


def test_every_piece_says_what_its_evidence_means():
    names = [name for piece in (*list_of_run(), *list_of_suspect()) for name in piece.evidence]
    assert len(names) == len(set(names)) > 50
    assert set(names) <= set(EVIDENCE)
