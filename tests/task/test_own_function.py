import pytest

from precflow.errors import ConfigError, TrustError
from precflow.task.own_function import load


def test_only_a_trusted_function_is_imported():
    with pytest.raises(TrustError, match=r"task_metrics.mine.function: os.system is not trusted(?s:.*)PRECFLOW_TRUST=os"):
        load("mine", {"_target_": "os.system"}, ["our_metrics"], [])


@pytest.mark.parametrize(
    ("target", "said"), [("math.no_such", "there is no math.no_such"), ("math.pi", "math.pi is float; expected a function")]
)
def test_what_is_no_function_is_refused_before_anything_is_computed(target, said):
    with pytest.raises(ConfigError, match=said):
        load("mine", {"_target_": target}, ["math"], [])
