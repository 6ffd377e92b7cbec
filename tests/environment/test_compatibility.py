"""The published tables: what fits, what does not, and what no table names."""

import pytest

from precflow import resources
from precflow.environment.compatibility import check_file, check_firmware, check_versions, load_tables

FITTING = {"torch": "2.6.0", "torch-npu": "2.6.0.post5", "cann": "8.5.0", "python": "3.10.14"}


@pytest.fixture(scope="module")
def tables():
    return load_tables()


@pytest.mark.parametrize(
    ("changes", "mark", "words", "fix"),
    [
        ({}, "", "2.6.0.post5 belongs to torch 2.6.0, CANN 8.5.0", ""),
        ({"cann": "8.5.2"}, "", "found CANN 8.5.2", ""),  # a later one of the line that no table names
        ({"cann": "8.0.RC3"}, "✗", "found CANN 8.0.RC3", "torch_npu 2.4.0 with torch 2.4.0"),
        ({"cann": "8.0.RC3.alpha001"}, "✗", "found CANN 8.0.RC3", "install CANN 8.5.0"),
        ({"cann": ""}, "?", "no CANN found", "set_env.sh"),
        ({"torch-npu": "2.6.0rc1"}, "?", "no table names this release", "2.6.0.post5 (CANN 8.5.0)"),
        ({"torch": "2.5.1"}, "✗", "found torch 2.5.1", "pip install torch==2.6.0"),
        ({"torch": ""}, "✗", "found torch (none)", "pip install"),
        ({"torch": "2.6.0+cu124"}, "✗", "CUDA build", "CPU build of torch 2.6.0"),
        ({"torch": "2.6.0+cpu"}, "", "belongs to torch 2.6.0", ""),
        ({"torch": "2.10.0", "torch-npu": "2.10.0", "cann": "9.0.0"}, "", "CANN 9.0.0", ""),  # of another source than 9.1.0
    ],
)
def test_torch_npu_belongs_to_torch_and_cann(tables, changes, mark, words, fix):
    row = check_versions({name: text for name, text in {**FITTING, **changes}.items() if text}, tables)[0]
    assert (row.mark, words in row.text, fix in row.fix) == (mark, True, True), row


@pytest.mark.parametrize(
    ("versions", "mark", "words"),
    [
        ({**FITTING, "python": "3.13.1"}, "✗", "published for Python 3.9, 3.10, 3.11; found 3.13.1"),
        (FITTING, "", "published for Python"),
        ({"cann": "9.1.0", "ascend-driver": "25.0.rc1"}, "✗", "found 25.0.rc1"),
        ({"cann": "9.0.1", "ascend-driver": "25.0.rc1"}, "", "CANN 9.0.1 runs with driver"),
        ({"cann": "8.5.0", "ascend-driver": "25.5.1"}, "", "CANN 8.5.0 runs with driver"),
        ({"cann": "8.5.0", "ascend-driver": "24.1.rc3"}, "✗", "found 24.1.rc3"),
        ({"cann": "8.0.RC3", "ascend-driver": "24.1.rc3.7"}, "?", "no table names this CANN (state of 2026-11-27)"),
        ({"cuda": "13.0", "nvidia-driver": "570.133.20"}, "✗", "needs driver 580 or newer; found 570.133.20"),
        ({"cuda": "12.8", "nvidia-driver": "570.133.20"}, "", "needs driver 525"),
    ],
)
def test_python_and_drivers_are_held_to_their_tables(tables, versions, mark, words):
    row = check_versions(versions, tables)[-1]
    assert (row.mark, words in row.text) == (mark, True), row


@pytest.mark.parametrize(
    ("torch", "system", "mark", "words"),
    [
        ("2.12.0", {"machine": "x86_64", "libc": "glibc 2.36"}, "", "aarch64 and x86_64, with glibc 2.28 or newer"),
        ("2.12.0", {"machine": "x86_64", "libc": "glibc 2.17"}, "✗", "found glibc 2.17"),
        ("2.6.0", {"machine": "aarch64", "libc": "glibc 2.17"}, "", "glibc 2.17 or newer"),
        ("2.6.0", {"machine": "aarch64", "libc": "musl 1.2"}, "✗", "found musl 1.2"),
        ("2.6.0", {"machine": "riscv64", "libc": "glibc 2.36"}, "✗", "found riscv64"),
    ],
)
def test_processor_and_c_library_are_those_that_torch_npu_is_built_for(tables, torch, system, mark, words):
    (row,) = [
        row for row in check_versions({"torch": torch, "torch-npu": torch}, tables, system) if "published for a" in row.text
    ]
    assert (row.mark, words in row.text) == (mark, True), row


@pytest.mark.parametrize(
    ("machine", "mark", "words"),
    [
        ({"ascend_firmware": "7.7.0.1.231", "ascend_firmware_range": ["7.0.0", "7.7.99"]}, "", "works with 7.0.0 to 7.7.99"),
        ({"ascend_firmware": "6.4.12.1.241", "ascend_firmware_range": ["7.0.0", "7.7.99"]}, "✗", "firmware 6.4.12.1.241"),
        ({"npu_board": {"firmware": "7.1.0.4.218", "compatibility": "OK"}}, "", "npu-smi says OK"),
        ({"npu_board": {"firmware": "7.1.0.4.218", "compatibility": "NOK"}}, "✗", "npu-smi says NOK"),
        ({"npu_board": {"firmware": "7.1.0.4.218", "compatibility": "UNKNOWN"}}, "?", "neither the driver nor npu-smi"),
        ({"ascend_firmware": "7.1.0", "ascend_firmware_range": ["a", "b"]}, "?", "neither the driver nor npu-smi"),
    ],
)
def test_firmware_is_held_to_what_the_driver_itself_works_with(machine, mark, words):
    (row,) = check_firmware({"ascend_driver": "25.0.rc1", **machine})
    assert (row.mark, words in row.text, bool(row.fix)) == (mark, True, mark == "✗"), row


def test_without_anything_that_a_table_names_nothing_is_said(tables):
    assert check_versions({"torch": "2.13.0+cpu", "python": "3.11.4"}, tables) == []


def test_every_shipped_table_has_a_day_and_an_address(tables):
    assert len(tables) == len(list((resources.directory("conf") / "compatibility").glob("*.yaml")))
    assert all(table.source.startswith("https://") and len(table.date) == len("2026-08-20") for table in tables)


def test_a_file_of_a_team_comes_first_and_its_mistakes_are_named(tmp_path):
    (tmp_path / "ours.yaml").write_text(
        "title: t\nsource: https://a\ndate: '2027-01-01'\nreleases:\n  - {torch_npu: 2.6.0.post9, torch: 2.6.0, cann: 8.5.0}\n"
    )
    (row,) = check_versions({"torch": "2.6.0", "torch-npu": "2.6.0.post9", "cann": "8.5.0"}, load_tables([tmp_path]))
    assert row.mark == ""
    (tmp_path / "ours.yaml").write_text(
        "title: t\nsource: https://a\ndate: '2027'\nrelease: []\nnvidia_drivers: {'14': newest}\npython: {2.6.0: ['3.10', x]}\n"
    )
    said = [(problem.key, problem.message) for problem in check_file(tmp_path / "ours.yaml")[0]]
    assert said == [
        ("release", "no such key. Did you mean  releases ?"),
        ("python.2.6.0[1]", "'x' is no version"),
        ("nvidia_drivers[14]", "'newest' is no version"),
    ]
