"""The checks of a machine, with what the tools of drivers print on whole and on broken ones."""

import pytest

from precflow.environment.machine_checks import Wanted, check_machine
from precflow.environment.smi import read_npu_smi, read_npu_smi_version, read_nvidia_smi
from tests.support.machines import (
    NPU_SMI,
    NPU_SMI_ALARM,
    NPU_SMI_NO_DRIVER,
    NVIDIA_SMI,
    NVIDIA_SMI_MISMATCH,
    healthy,
    healthy_npu,
)

NOW = 1_700_000_001.0


def check(state, kinds=("cpu",), checks=(), now=NOW, **variables):
    return check_machine(state, variables, Wanted(kinds, checks), now=now)


def find(rows, topic):
    return [row for row in rows if row.topic == topic]


def test_whole_machines_have_nothing_to_fix():
    assert not [row for row in [*check(healthy()), *check(healthy_npu(), ["npu"])] if row.mark]


def test_chips_are_read_with_their_health_and_memory():
    assert [(chip.name, chip.healthy, chip.used >> 20) for chip in read_npu_smi(NPU_SMI)] == [
        ("910B1", True, 3373),
        ("910B1", True, 3367),
    ]
    assert [(chip.number, chip.health) for chip in read_npu_smi(NPU_SMI_ALARM)] == [(0, "Alarm"), (1, "OK")]
    assert read_npu_smi_version(NPU_SMI_ALARM) == "25.5.1"
    assert read_nvidia_smi(NVIDIA_SMI)[0].total >> 20 == 81559
    assert read_npu_smi(NPU_SMI_NO_DRIVER) == read_nvidia_smi(NVIDIA_SMI_MISMATCH) == []


@pytest.mark.parametrize(
    ("changes", "kinds", "variables", "topic", "words", "fix"),
    [
        (
            {"npu_smi": {"code": 0, "text": NPU_SMI_ALARM}},
            ["npu"],
            {},
            "devices",
            "npu 0, Ascend910: Alarm",
            "take another one",
        ),
        (
            {"npu_smi": {"code": 255, "text": NPU_SMI_NO_DRIVER}},
            ["npu"],
            {},
            "devices",
            "-8005 (exit code 255)",
            "/dev/davinci*",
        ),
        ({"npu_smi": {"code": None, "text": ""}}, ["npu"], {}, "devices", "did not answer in time", "npu-smi"),
        ({"npu_smi": {}, "nodes": {"npu": 0, "cuda": 0}}, ["npu"], {}, "devices", "no npu", "give the container"),
        ({"nvidia_smi": {"code": 18, "text": NVIDIA_SMI_MISMATCH}}, ["cuda"], {}, "devices", "version mismatch", "restart"),
        (
            {"nvidia_smi": {"code": 0, "text": NVIDIA_SMI.replace(", 0\n", ", 3\n")}},
            ["cuda"],
            {},
            "devices",
            "3 uncorrected",
            "CUDA_VISIBLE",
        ),
        ({}, ["npu"], {"ASCEND_RT_VISIBLE_DEVICES": "1,2"}, "visible devices", "names 2, and there are 2 (0 to 1)", "there"),
        ({}, ["npu"], {"ASCEND_RT_VISIBLE_DEVICES": ""}, "visible devices", "hides every device", "unset"),
        ({}, ["npu"], {"ASCEND_RT_VISIBLE_DEVICES": "0,0"}, "visible devices", "twice", "once"),
        (
            {"toolkit": {"home": "/opt/cann", "sourced": False, "in_library_path": False, "atb": False}},
            ["npu"],
            {},
            "toolkit",
            "was not sourced",
            "set_env.sh of /opt/cann",
        ),
        (
            {"toolkit": {"home": "", "sourced": False, "in_library_path": False, "atb": False}},
            ["npu"],
            {},
            "toolkit",
            "no CANN",
            "install",
        ),
        ({"shared_memory": {"free": 60_000_000, "total": 64_000_000}}, ["npu"], {}, "shared memory", "0.1 GB", "--shm-size"),
        (
            {"ports": {"first": 60000, "count": 16, "given": "", "taken": [60003], "ephemeral": []}},
            ["npu"],
            {},
            "ports",
            "60003",
            "BASE_PORT",
        ),
        (
            {"ports": {"first": 80, "count": 16, "given": "80", "taken": [], "ephemeral": []}},
            ["npu"],
            {},
            "ports",
            "no port",
            "60000",
        ),
        ({"temporary": {"free": 1_000_000, "total": 10**12}}, ["cpu"], {}, "disk", "0.0 GB free", "TMPDIR"),
        ({"locale": {"encoding": "ANSI_X3.4-1968", "decimal": "."}}, ["cpu"], {}, "locale", "ANSI", "C.UTF-8"),
        ({"locale": {"encoding": "UTF-8", "decimal": ","}}, ["cpu"], {}, "locale", "','", "C.UTF-8"),
        ({"clock": {"now": NOW + 7200, "disk": None}}, ["cpu"], {}, "clock", "7200 s ahead of this machine", "chronyd"),
        ({"clock": {"now": NOW, "disk": NOW + 300}}, ["cpu"], {}, "clock", "300 s behind the disk", "chronyd"),
    ],
)
def test_what_is_broken_is_a_problem_with_its_remedy(changes, kinds, variables, topic, words, fix):
    state = healthy_npu(**changes) if kinds == ["npu"] else healthy(**changes)
    wrong = [row for row in check(state, kinds, **variables) if row.problem]
    assert [row.topic for row in wrong] == [topic]
    assert words in wrong[0].text
    assert fix in wrong[0].fix


def test_what_a_side_on_the_cpu_does_not_use_is_no_problem():
    toolkit = {"home": "", "sourced": False, "in_library_path": False, "atb": False}
    state = healthy(
        shared_memory={"free": 1, "total": 1}, toolkit=toolkit, tools=dict.fromkeys(("cmake", "gcc", "g++", "ninja"), "")
    )
    assert not [row for row in check(state) if row.problem]
    assert [row.topic for row in check(state, checks=["build_tools", "shared_memory"]) if row.problem] == [
        "shared memory",
        "build tools",
    ]


def test_devices_that_no_tool_vouches_for_are_in_doubt():
    (row,) = find(check(healthy_npu(npu_smi={}), ["npu"]), "devices")
    assert row.mark == "?"
