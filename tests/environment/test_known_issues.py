"""Known issues: which versions have them, at which findings they show, and what a file must say."""

import pytest

from precflow.environment.known_issues import check_file, describe_sides, load_issues, match_versions, meet

NPU = {"transformers": "5.23.0", "torch": "2.9.0+cpu", "torch-npu": "2.9.0", "cann": "8.5.0", "numpy": "1.26.4"}


@pytest.fixture(scope="module")
def issues():
    return {issue.id: issue for issue in load_issues()}


@pytest.mark.parametrize(
    ("name", "versions", "devices", "machine", "text"),
    [
        ("attention_npu.transformers_additive_bias", {}, ["npu"], "", "transformers 5.23.0, torch_npu 2.9.0"),
        ("attention_npu.transformers_additive_bias", {"transformers": "4.56.2"}, ["npu"], "", ""),
        ("attention_npu.transformers_additive_bias", {}, ["cuda"], "", ""),  # another device
        ("packages.numpy_2_cann", {}, ["npu"], "", ""),
        ("packages.numpy_2_cann", {"numpy": "2.0.2"}, ["npu"], "", "cann 8.5.0, numpy 2.0.2"),
        ("packages.numpy_2_cann", {"numpy": "2.0.2", "cann": "8.2.RC1"}, ["npu"], "", "cann 8.2.RC1, numpy 2.0.2"),
        ("packages.numpy_2_cann", {"numpy": "2.0.2", "cann": "9.0.0"}, ["npu"], "", ""),
        ("attention_torch.non_contiguous", {"torch": "2.1.2+cu118"}, ["cuda"], "", "torch 2.1.2+cu118"),
        ("attention_torch.non_contiguous", {"torch": "2.1.1+cu118"}, ["cuda"], "", ""),
        ("attention_torch.arm_bfloat16", {"torch": "2.12.1"}, ["cpu"], "aarch64", "torch 2.12.1"),
        ("attention_torch.arm_bfloat16", {"torch": "2.12.1"}, ["cpu"], "x86_64", ""),
        ("operators.exponential_npu", {"torch-npu": "2.5.1.dev20250218"}, ["npu"], "", "torch_npu 2.5.1.dev20250218"),
        ("operators.exponential_npu", {"torch-npu": "2.5.1"}, ["npu"], "", ""),
    ],
)
def test_an_issue_is_met_by_versions_device_and_machine(issues, name, versions, devices, machine, text):
    assert match_versions(issues[name], {**NPU, **versions}, devices, machine) == text


def test_every_shipped_issue_says_where_it_is_published_and_what_fixes_it(issues):
    assert len(issues) >= 25
    assert all(issue.sources and issue.do and issue.symptom and issue.fixed for issue in issues.values())


def test_an_issue_at_whose_operators_something_was_found_comes_first(issues):
    findings = [("PF214", "layers.0 / layer_norm"), ("PF305", "layers.1.attention / scaled_dot_product_attention")]
    sides = {"reference": ({"torch": "2.13.0"}, ["cpu"], "x86_64"), "target": (NPU, ["npu"], "aarch64")}
    met = meet(list(issues.values()), sides, findings)
    assert met[0].findings == ("PF305   layers.1.attention / scaled_dot_product_attention",)
    assert met[0].issue.id == "attention_npu.transformers_additive_bias"
    assert met[0].sides == {"target": "transformers 5.23.0, torch_npu 2.9.0"}
    assert not met[-1].findings


def test_both_sides_are_named_once_if_they_agree():
    assert (
        describe_sides({"reference": "torch 2.1.0", "target": "torch 2.1.1"}) == "reference: torch 2.1.0; target: torch 2.1.1"
    )


def test_mistakes_of_a_file_are_named_with_their_keys(tmp_path):
    (tmp_path / "ours.yaml").write_text("""\
title: ours
issues:
  one:
    title: t
    affects: {torch: 2.1 or newer}
    fixed: soon
    symptom: s
    do: d
    sources: [our wiki]
    effct: stops
    devices: [tpu]
""")
    problems = {problem.key: problem.message for problem in check_file(tmp_path / "ours.yaml")[0]}
    assert "no range of versions" in problems["issues.one.affects.torch"]
    assert problems["issues.one.fixed"] == "expected a version, unknown, or none"
    assert "address" in problems["issues.one.sources[0]"]
    assert "Did you mean  effect ?" in problems["issues.one.effct"]
    assert "tpu" in problems["issues.one.devices[0]"]
