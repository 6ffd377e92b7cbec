"""What the doctor sees, with devices and interpreters that answer or refuse."""

import json
from dataclasses import replace

import pytest

from precflow.config.schema import RunConfig, Side, Site
from precflow.environment.checks import Row
from precflow.errors import SideError, StoreError
from precflow.report.environment_check import render_rows
from precflow.sides import launch
from precflow.stages.side_check import Asked, Knowledge
from precflow.verbs import doctor
from precflow.verbs.doctor import examine as examine_all
from precflow.verbs.doctor import main
from tests.support.machines import healthy, make_facts


def answer(config, name):
    """A machine with a CPU and the emulated device; every interpreter is fine."""
    device = getattr(config, name).device[0]
    if device in {"cuda", "npu"}:
        raise SideError(
            f"target: no device for target.device={device} here. {device}: none is built in\nmore", next_step="emulated"
        )
    return {"device": {"description": f"some {device}"}, "torch": {"version": "2.13.0"}, "python": {"version": "3.9.18"}}


def answer_machine(config, name):
    """A machine in order, whose packages no table and no issue names."""
    side = getattr(config, name)
    return Asked(make_facts(healthy(), variables=dict(side.variables)), now=None)


def examine(config, ask, ask_machine=answer_machine):
    return examine_all(config, ask, ask_machine, Knowledge((), ()))


@pytest.fixture
def config(tmp_path):
    return RunConfig(runs=str(tmp_path / "runs"))


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    monkeypatch.delenv("HCCL_DETERMINISITIC", raising=False)


def texts(rows, topic):
    return [row.text for row in rows if row.topic == topic]


def test_a_machine_without_accelerator_is_healthy(config):
    rows = examine(config, answer)
    assert not any(row.problem for row in rows)
    assert texts(rows, "sides") == [
        "cpu: some cpu, torch 2.13.0",
        "cuda: none (none is built in)",
        "emulated: some emulated, torch 2.13.0",
        "npu: none (none is built in)",
    ]
    assert texts(rows, "variables") == ["no name looks misspelt"]
    assert texts(rows, "clock")


def test_a_cpu_that_is_no_side_has_to_be_put_right(config):
    def refuse(config, name):
        raise SideError("this interpreter cannot import torch", next_step="pip install torch")

    rows = examine(config, refuse)
    (cpu,) = [row for row in rows if row.text.startswith("cpu")]
    assert cpu.problem
    assert cpu.fix == "pip install torch"


def test_an_accelerator_that_the_kernel_knows_should_work(config, monkeypatch):
    monkeypatch.setattr(doctor, "_has_node", lambda name: name == "npu")
    problems = [row for row in examine(config, answer) if row.problem]
    assert [row.text for row in problems] == ["npu: none (none is built in)"]


def test_a_misspelt_variable_of_the_machine_or_the_site_is_a_problem(config, monkeypatch):
    monkeypatch.setenv("HCCL_DETERMINISITIC", "true")
    site = replace(config, target=Side(variables={"ASCEND_LAUNCH_BLOKING": "1"}))
    problems = sorted(row.text for row in examine(site, answer) if row.problem)
    assert problems == [
        "ASCEND_LAUNCH_BLOKING is set, but nothing reads it: did you mean ASCEND_LAUNCH_BLOCKING?",
        "HCCL_DETERMINISITIC is set, but nothing reads it: did you mean HCCL_DETERMINISTIC?",
    ]


def test_each_interpreter_of_a_site_is_asked_once(config):
    site = replace(
        config, reference=Side(interpreter="/opt/a/python"), target=Side(interpreter="/opt/a/python", launcher=("srun",))
    )
    rows = [row for row in examine(site, answer) if row.topic == "interpreter"]
    assert [row.text for row in rows] == ["/opt/a/python   3.9.18, torch 2.13.0   can be a side"]


def test_an_interpreter_that_is_missing_is_a_problem(config):
    def refuse(config, name):
        if getattr(config, name).interpreter:
            raise SideError("interpreter /opt/none does not exist", next_step="name the Python of this side")
        return answer(config, name)

    (row,) = [row for row in examine(replace(config, target=Side(interpreter="/opt/none")), refuse) if row.problem]
    assert (row.topic, row.fix) == ("interpreter", "name the Python of this side")


def test_the_store_is_tried_where_it_will_be_and_left_as_it_was(config, tmp_path):
    rows = examine(replace(config, site=Site(store=str(tmp_path / "deep" / "store"))), answer)
    assert "can be written" in texts(rows, "store")[0]
    assert list(tmp_path.iterdir()) == []


def test_a_store_below_a_file_cannot_be_written(config, tmp_path):
    (tmp_path / "file").write_text("x")
    (row,) = [row for row in examine(replace(config, store=str(tmp_path / "file" / "store")), answer) if row.problem]
    assert "cannot be written" in row.text


def test_a_store_behind_a_url_is_tried(config, tmp_path, monkeypatch):
    rows = examine(replace(config, store=f"file://{tmp_path}/store"), answer)
    assert texts(rows, "store") == [f"file://{tmp_path}/store   can be read and written"]
    assert list((tmp_path / "store").iterdir()) == []

    def refuse(_):
        raise StoreError("s3://bucket/x refuses: 403", next_step="ask for the right")

    monkeypatch.setattr("precflow.run.remote.filesystem.open_filesystem", refuse)
    (row,) = [row for row in examine(replace(config, store="s3://bucket/x"), answer) if row.topic == "store"]
    assert (row.problem, row.fix) == (True, "ask for the right")
    assert "s3://bucket/x refuses" in row.text


def test_the_screen_says_topics_once_and_counts():
    text = render_rows(
        [Row("sides", "cpu: x"), Row("sides", "npu: none", problem=True, fix="install it"), Row("store", "fine")]
    )
    assert text.splitlines() == [
        " sides  cpu: x",
        "        ✗ npu: none",
        "          install it",
        " store  fine",
        " 1 thing to fix",
    ]


@pytest.mark.parametrize(("problem", "code", "said"), [(False, 0, "nothing to fix"), (True, 2, "1 thing to fix")])
def test_exit_code_and_last_line(monkeypatch, capsys, problem, code, said):
    monkeypatch.setattr(doctor, "examine", lambda *_: [Row("store", "x", problem=problem)])
    assert main([]) == code
    assert capsys.readouterr().err.endswith(f" {said}\n")


def test_json_goes_to_stdout(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda *_: [Row("store", "x", problem=True, fix="y")])
    assert main(["--json"]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert shown == {
        "rows": [{"topic": "store", "text": "x", "problem": True, "fix": "y", "unknown": False}],
        "problems": 1,
    }


def test_a_site_brings_its_interpreter_and_store(monkeypatch, tmp_path):
    (tmp_path / "site").mkdir()
    site = f"# @package _global_\n# A site.\n\nsite:\n  name: here\n  store: {tmp_path}/store\n"
    (tmp_path / "site" / "here.yaml").write_text(f"{site}\ntarget:\n  interpreter: /opt/python\n")
    seen = []
    monkeypatch.setattr(doctor, "examine", lambda config, *_: seen.append(config) or [Row("store", "x")])
    assert main(["+site=here", "--config-dir", str(tmp_path)]) == 0
    assert seen[0].target.interpreter == "/opt/python"
    assert seen[0].site.store == f"{tmp_path}/store"


@pytest.mark.slow
def test_one_process_that_imports_torch_tells_of_every_device(monkeypatch, capsys):
    started, start = [], launch._start
    monkeypatch.setattr(
        launch, "_start", lambda words, *rest, **options: started.append(words) or start(words, *rest, **options)
    )
    main(["--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["text"].partition(":")[0] for row in rows if row["topic"] == "sides"] == list(doctor.DEVICE_KINDS)
    assert ", torch " in next(row["text"] for row in rows if row["text"].startswith("cpu: "))
    assert len(started) == 1
