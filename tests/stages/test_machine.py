"""A check of environments through both doors, and as a demand of another recipe."""

import json
from xml.etree import ElementTree as ET

import pytest

from precflow import cli
from precflow.config.schema import Environment, Requirements, RunConfig, Side
from precflow.errors import SideError
from precflow.stages import machine, side_check
from precflow.stages.side_check import Asked, Knowledge, check_side
from precflow.verbs import doctor
from tests.support.machines import NPU_SMI_ALARM, healthy, healthy_npu, make_facts

BROKEN = healthy_npu(npu_smi={"code": 0, "text": NPU_SMI_ALARM}, cann="8.0.RC3")


@pytest.fixture(scope="module")
def knowledge():
    return Knowledge.load({})


def run(monkeypatch, tmp_path, facts, *words):
    """Run the recipe on a machine that answers with these facts; return exit code and result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "ask_machine", lambda config, name, agents: Asked(facts))
    code = cli.main(["+recipe=environment_check", "sides=[target]", *words])
    return code, json.loads((tmp_path / "runs/environment_check/public/result.json").read_text())


@pytest.mark.parametrize(
    ("facts", "code", "verdict"),
    [
        (make_facts(healthy()), 0, "aligned"),
        (make_facts(BROKEN, "npu"), 1, "misaligned"),
        (make_facts(healthy_npu(cann="8.5.2"), "npu", packages={"torch-npu": "2.9.0rc7"}), 3, "inconclusive"),
    ],
)
def test_exit_code_page_and_result_say_the_same(monkeypatch, tmp_path, capsys, facts, code, verdict):
    assert run(monkeypatch, tmp_path, facts)[0] == code
    result = json.loads((tmp_path / "runs/environment_check/public/result.json").read_text())
    assert (result["verdict"], result["exit_code"]) == (verdict, code)
    page = (tmp_path / "runs/environment_check/report.html").read_text()
    shown = capsys.readouterr().err
    root = ET.parse(tmp_path / "runs/environment_check/public/junit.xml").getroot()
    rows = result["sides"][0]["rows"]
    problems = {row["topic"] for row in rows if row["problem"]}
    unknown = {row["topic"] for row in rows if row["unknown"]} - problems
    for tag, topics, of_all in (("failure", problems, 1), ("error", unknown, 3)):
        named = {case.get("name") for case in root.iter("testcase") if case.find(tag) is not None}
        assert named == topics | ({"environment"} if code == of_all else set())
    for row in result["sides"][0]["rows"]:
        assert row["text"][:20] in shown
        assert row["topic"] == "known issues" or row["topic"] in page


def test_the_recipe_and_the_doctor_say_the_same(monkeypatch, tmp_path, capsys):
    facts = make_facts(BROKEN, "npu")
    _, result = run(monkeypatch, tmp_path, facts, "target.device=npu", "reference.device=npu")
    capsys.readouterr()
    monkeypatch.setattr(side_check, "ask_machine", lambda config, name, agents: Asked(facts))
    monkeypatch.setattr(doctor, "probe", lambda config, name, agents: facts)
    doctor.main(["--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    of_recipe = [row for row in result["sides"][0]["rows"] if row["topic"] != "side"]
    of_doctor = [row for row in rows if row["topic"] not in {"this machine", "sides", "store"}]
    assert of_doctor == of_recipe
    assert {row["topic"] for row in of_recipe if row["problem"]} == {"matching table", "devices"}


def test_a_torch_that_does_not_load_is_told_with_the_state_of_the_machine(knowledge):
    home = {"home": "/opt/cann", "sourced": False, "in_library_path": False, "atb": False}
    refused = {"message": "torch does not load here: libhccl.so: cannot open", "next_step": ""}
    facts = {**make_facts(healthy_npu(toolkit=home)), "device": {}, "torch": {}, "refused": refused}
    facts["packages"] = {"torch": "2.9.0+cpu", "torch-npu": "2.9.0"}
    checked = check_side(RunConfig(target=Side(device=("npu",))), "target", lambda *_: Asked(facts), knowledge)
    assert [row.topic for row in checked.rows if row.problem] == ["side", "toolkit"]


def test_a_side_whose_agent_does_not_start_is_a_problem(knowledge):
    def refuse(*_):
        raise SideError("interpreter /opt/none does not exist", next_step="name the Python of this side")

    (row,) = check_side(RunConfig(), "target", refuse, knowledge).rows
    assert (row.problem, row.fix) == (True, "name the Python of this side")


@pytest.mark.parametrize(
    ("require", "said"),
    [
        ({"versions": {"cann": ">=9"}}, "cann >=9 is required, 8.5.0 is here"),
        ({"versions": {"flash-attn": ">=2"}}, "does not say its version"),
        ({"device_memory": 70_000_000_000}, "70.0 GB of free device memory are required, 60.0 GB are free"),
        ({"checks": ("clock", "devices")}, ""),
        ({"checks": ("known_issues",)}, "check known_issues is required"),
        ({"checks": ("build_tools",)}, ""),
    ],
)
def test_what_is_required_of_a_machine_is_missed(knowledge, require, said):
    config = RunConfig(environment=Environment(require=Requirements(**require)), target=Side(device=("npu",)))
    facts = make_facts(healthy_npu(), "npu", packages={"torch": "2.9.0+cpu", "torch-npu": "2.9.0"})
    checked = check_side(config, "target", lambda *_: Asked(facts, healthy()["clock"]["now"]), knowledge)
    missed = [row.text for row in checked.rows if row.topic == "required"]
    assert (said in missed[0]) if said else not missed
    assert machine.STAGE.parts(config) == ("reference", "target")


def test_a_recipe_that_requires_nothing_of_a_machine_does_not_ask_it():
    assert machine.STAGE.parts(RunConfig(environment=Environment(require=Requirements(torch=">=2.1")))) == ()
