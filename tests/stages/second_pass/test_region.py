"""The scope of a second pass as a file."""

import json

from precflow.diagnosis.second_pass import SecondPass
from precflow.stages.artifacts import write_value
from precflow.stages.second_pass import region

SCOPE = SecondPass(
    rules=({"match": ["fc2"], "operator": ["linear"], "step": [0]},),
    dumps={"target": "c1"},
    calls=1,
    failing=1,
    bytes={"target": 7},
)


def test_the_file_reads_back(tmp_path):
    write_value(tmp_path / region.SCOPE_FILE, SCOPE)
    assert region.read_scope(tmp_path) == SCOPE
    assert json.loads((tmp_path / "region.json").read_text())["rules"][0]["operator"] == ["linear"]


def test_a_dump_depends_on_rules_and_on_what_they_were_chosen_from_and_not_on_counts(tmp_path):
    folders = {}
    for name, scope in (("a", SCOPE), ("b", SecondPass(rules=SCOPE.rules, dumps=SCOPE.dumps, failing=9, left_out=2))):
        folders[name] = tmp_path / name
        folders[name].mkdir()
        write_value(folders[name] / region.SCOPE_FILE, scope)
    assert region.declare_scope({"region": folders["a"]}) == region.declare_scope({"region": folders["b"]})
    assert region.declare_scope({"region": folders["a"]})["first"] == {"target": "c1"}


def test_a_fault_is_looked_into(pair, made, job_of, tmp_path):
    folder = pair(factor=1.01)
    for side in ("reference", "target"):  # as a first pass leaves it: what went in was not kept
        records = folder / side / "rank0" / "step0" / "records-0.jsonl"
        lines = [json.loads(line) for line in records.read_text().splitlines()]
        for line in lines:
            line["inputs"][0]["stored"] = False
        (folder / side / "dump.json").unlink()
        records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    folders = made(folder, until="localize")
    out = tmp_path / "out"
    out.mkdir()
    said = region.STAGE.make(job_of(folder), out, folders)
    scope = region.read_scope(out)
    assert [(rule["match"], rule["operator"]) for rule in scope.rules] == [(["fc2", "fc1"], ["linear"])]
    assert said.note == "2 calls to look into (1 failing record)"
