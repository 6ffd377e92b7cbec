"""Differences between two environments, and their order."""

import pytest

from precflow.environment import differences


def facts(**changed):
    plain = {
        "system": {"machine": "x86_64", "kernel": "6.1"},
        "python": {"version": "3.11.9", "executable": "~/a/python"},
        "torch": {"version": "2.13.0"},
        "device": {"name": "cpu", "kind": "cpu", "description": "some processor", "emulated": False},
        "switches": {"deterministic_algorithms": "True"},
        "packages": {"rich": "13.0", "torch": "2.13.0", "transformers": "5.23.0"},
        "variables": {"OMP_NUM_THREADS": "2"},
    }
    for name, value in changed.items():
        section, _, key = name.partition("__")
        plain[section] = {**plain[section], key: value}
    return plain


def test_equal_sides_do_not_differ():
    assert differences.find_differences(facts(), facts()) == {}


def test_what_must_differ_is_left_out():
    other = facts(
        device__name="npu", device__kind="npu", device__description="910B3", system__kernel="5.10", python__executable="/b"
    )
    assert differences.find_differences(facts(), other) == {}


def test_important_ones_come_first():
    other = facts(
        packages__rich="14.0", variables__OMP_NUM_THREADS="4", packages__transformers="4.40.0", torch__version="2.6.0"
    )
    assert list(differences.find_differences(facts(), other)) == [
        "torch.version",
        "packages.transformers",
        "variables.OMP_NUM_THREADS",
        "packages.rich",
    ]


def test_packages_that_the_recipe_names_come_before_other_libraries():
    other = facts(packages__rich="14.0", packages__transformers="4.40.0")
    assert next(iter(differences.find_differences(facts(), other, same=["rich", "weights"]))) == "packages.rich"


def test_a_fact_of_one_side_is_absent_on_the_other():
    assert differences.find_differences(facts(), facts(device__cann="8.5.0")) == {"device.cann": ("(absent)", "8.5.0")}


def test_what_only_one_kind_of_device_has_is_no_difference():
    npu = {"device__kind": "emulated", "device__emulated": True}
    mine = facts(device__instructions="AVX2", switches__mkldnn="True")
    theirs = facts(**npu, device__cann="8.5.0", switches__jit_compile="False", packages__torch_npu="2.6.0")
    theirs["packages"]["torch-npu"] = theirs["packages"].pop("torch_npu")
    assert differences.find_differences(mine, theirs) == {}
    theirs["switches"]["deterministic_algorithms"] = "False"  # both have it
    theirs["packages"]["flash-attn"] = "2.8"  # no part of a device
    assert list(differences.find_differences(mine, theirs)) == ["switches.deterministic_algorithms", "packages.flash-attn"]


def test_empty_facts_are_no_error():
    assert differences.find_differences({}, {}) == {}
    assert differences.read_variables({}) == {}


@pytest.mark.parametrize(("name", "answer"), [("torch.version", True), ("packages.torch-npu", True), ("packages.rich", False)])
def test_packages_that_compute(name, answer):
    assert differences.is_compute_package(name) is answer


def test_a_package_of_same_counts_as_computing():
    assert differences.is_compute_package("packages.flash-attn", ["flash_attn"])


def test_switches_that_round_products():
    switches = {
        "matmul.allow_tf32": "True",
        "cudnn.allow_tf32": "True",
        "float32_matmul_precision": "highest",
        "matmul.allow_hf32": "False",
        "matmul.allow_bf16_reduced_precision_reduction": "True",
    }
    assert differences.find_reduced_switches({"switches": switches}, convolution=False) == ["matmul.allow_tf32=True"]
    assert differences.find_reduced_switches({"switches": switches}, convolution=True) == ["cudnn.allow_tf32=True"]
    assert differences.find_reduced_switches({"switches": {"float32_matmul_precision": "high"}}, convolution=False)


def test_of_modules_that_are_set_alike_the_first_is_named_and_what_one_side_does_not_say_is_no_difference():
    here, there = (
        {**facts(), "modules": {f"layers.{number}.norm": {"eps": eps} for number in range(3)} | more}
        for eps, more in (("1e-05", {"act": {"approximate": "none"}}), ("0.001", {"head": {"eps": "1"}}))
    )
    assert differences.find_differences(here, there) == {"modules.layers.0.norm.eps": ("1e-05", "0.001")}
