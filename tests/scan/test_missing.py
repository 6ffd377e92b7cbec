"""What an error says is missing is found among the rules of the scan, and nothing is found for what no rule knows."""

import pytest

from precflow.scan.index import Index
from precflow.scan.missing import find_rules, find_types
from precflow.scan.rules import load_rules


@pytest.fixture(scope="module")
def index():
    return Index(load_rules())


@pytest.mark.parametrize(
    ("missing", "inside", "rule"),
    [
        ("aten::lgamma.out", "NPU", "operator.no_kernel"),
        ("aten::_linalg_eig", "NPU", "dtype.linear_algebra"),
        ("aten::lgamma_", "NPU", "operator.no_kernel"),
        ("heaviside_cpu", "Half", "operator.no_kernel"),
        ("flash_attn.flash_attn_interface", "", "library.flash_attn"),
    ],
)
def test_a_rule_knows_it(index, missing, inside, rule):
    assert [one.id for _, one in find_rules(missing, index, inside=inside)][:1] == [rule]


def test_an_attribute_of_a_module_is_looked_up_there(index):
    (found, rule), *_ = find_rules("no_such_name", index, inside="torch.cuda")
    assert (found, rule.kind) == ("torch.cuda.no_such_name", "api")


@pytest.mark.parametrize("missing", ["aten::my_operator", "my_package", "aclnnFoo", "no kernel image is available", "", "::"])
def test_nothing_is_known_of_anything_else(index, missing):
    assert find_rules(missing, index, inside="NPU") == []


def test_an_operator_is_looked_up_in_the_list_of_element_types():
    types = load_rules().types
    assert find_types("aten::lerp.Scalar", types) == ("torch.lerp", ("float16", "float32"))
    assert find_types("linear", types) == ("torch.nn.functional.linear", ("bfloat16", "float16", "float32"))
    assert find_types("my_operator", types) is None
