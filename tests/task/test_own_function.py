import re
from pathlib import Path

import numpy as np
import pytest

from precflow.errors import ConfigError, TrustError
from precflow.task.own_function import call, load

PAGE = Path(__file__).parents[2] / "docs" / "task-metrics.md"


def test_only_a_trusted_function_is_imported():
    with pytest.raises(TrustError, match=r"task_metrics.mine.function: os.system is not trusted(?s:.*)PRECFLOW_TRUST=os"):
        load("mine", {"_target_": "os.system"}, ["our_metrics"], [])


@pytest.mark.parametrize(
    ("target", "said"), [("math.no_such", "there is no math.no_such"), ("math.pi", "math.pi is float; expected a function")]
)
def test_what_is_no_function_is_refused_before_anything_is_computed(target, said):
    with pytest.raises(ConfigError, match=said):
        load("mine", {"_target_": target}, ["math"], [])


def test_the_classifier_of_the_page_tells_classes_apart(tmp_path):
    (code,) = re.findall(r"```python\n(import functools\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "our_classifier.py").write_text(code, encoding="utf-8")
    function = load("same_class", {"_target_": "our_classifier.same_class"}, ["our_classifier"], [str(tmp_path)])
    states = np.random.default_rng(1).standard_normal((77, 32))
    assert call(function, {}, states, states + 1e-6, 0) == (1.0,)
    assert call(function, {}, states, -states, 0) == (0.0,)
