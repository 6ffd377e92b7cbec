import pytest

from precflow.config.composition import compose
from precflow.config.later import AVAILABLE, unavailable
from precflow.config.plain import plain
from precflow.config.schema import RunConfig
from precflow.config.shape import problem_at
from precflow.errors import ConfigError


def test_defaults_are_all_available():
    assert list(unavailable(plain(RunConfig()))) == []


@pytest.mark.parametrize("pattern", AVAILABLE)
def test_every_row_is_a_key_of_the_schema(pattern):
    path = tuple(pattern.replace("*", "target").replace("[]", ".0").split("."))
    assert problem_at(path) == ""


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["golden.device=cpu"], "golden"),
        (["curves.loss.steps=3"], "curves"),
        (["workload.script=train.py"], "workload.script"),
        (["workload.arguments.lr=1"], "workload.arguments"),
        (["workload.tokenizer=/t"], "workload.tokenizer"),
        (["target.layout.tensor=2"], "target.layout"),
        (["target.ranks=8"], "target.ranks"),
        (["target.migration=transfer_to_npu"], "target.migration"),
        (["reference.arguments.a=1"], "reference.arguments"),
        (["capture.slowdown=3x"], "capture.slowdown"),
        (["determinism.algorithms=when_needed"], "determinism.algorithms"),
        (["determinism.shuffle=removed"], "determinism.shuffle"),
        (["determinism.data=recorded"], "determinism.data"),
        (["determinism.seed=script"], "determinism.seed"),
        (["report.language=both"], "report.language"),
        (["tolerance.standards=[default,calibrated]"], "tolerance.standards[1]"),
        (["time_limit=45m"], "time_limit"),
        (["sides=[golden]"], "sides[0]"),
        (["store=s3://bucket/x"], "store"),
    ],
)
def test_what_comes_later_is_refused_and_never_ignored(words, key):
    with pytest.raises(ConfigError) as refused:
        compose(["+recipe=compare_dumps", *words], complete=False)
    assert [problem.key for problem in refused.value.problems] == [key]
    assert "not available in precflow 0.1" in refused.value.problems[0].message
