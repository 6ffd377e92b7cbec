import pytest

from precflow.config import standards


def test_names_are_the_files():
    assert {"allclose", "default"} <= set(standards.names())


def test_limits_are_read_with_their_units():
    assert standards.limits("default", "float32") == {"relative_l2": 2.0**-16}
    assert standards.limits("nothing_of_this_name", "float32") == {}
    assert standards.limits("default", "int8") == {}


@pytest.mark.parametrize(("dtypes", "dtype"), [(("float32", "float16"), "float16"), (("bfloat16", "float16"), "bfloat16")])
def test_the_coarsest_type_decides(dtypes, dtype):
    assert standards.coarsest(*dtypes) == dtype
