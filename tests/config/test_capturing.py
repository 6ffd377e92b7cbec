import pytest

from precflow.config.checks import problems
from precflow.config.composition import compose
from precflow.config.schema import Capture, CaptureRule, RunConfig, Side
from precflow.errors import ConfigError


def found(capture=None, **sides):
    config = RunConfig(capture=capture or Capture(), **sides)
    return [(".".join(path), message) for path, message in problems(config, {})]


def with_rules(*rules):
    return found(Capture(rules=rules))


def composed(*words):
    return compose(["+recipe=sd_text_encoder", *words], complete=False).config.capture


def refused(*words):
    with pytest.raises(ConfigError) as error:
        composed(*words)
    return {problem.key: problem.message for problem in error.value.problems}


def test_defaults_are_usable():
    assert found() == []


@pytest.mark.parametrize("name", ["digest", "statistics", "sketch", "tensors", "escalating"])
def test_every_shipped_group_composes(name):
    capture = composed(f"capture={name}")
    assert (capture.detail, capture.level) == (name, ("module", "api"))


def test_rules_are_read_with_units_and_words_and_class():
    (first, second) = composed(
        'capture.rules=[{match: "encoder.*", class: CLIPMLP, step: "0-2", sample: 1%},{operator: [softmax, add], detail: none}]'
    ).rules
    assert first == CaptureRule(match=("encoder.*",), class_=("CLIPMLP",), step=(0, 1, 2), sample=0.01)
    assert second == CaptureRule(operator=("softmax", "add"), detail="none")


@pytest.mark.parametrize(("written", "steps"), [("3", (3,)), ('"0-3"', (0, 1, 2, 3)), ("[4, 0, '1-2', 1]", (0, 1, 2, 4))])
def test_steps_are_numbers_and_ranges(written, steps):
    assert composed(f"capture.step={written}").step == steps


@pytest.mark.parametrize("written", ["-1", "3-1", "1.5", "a", "[[0]]", "0-900000000", "true"])
def test_what_is_no_step_is_refused(written):
    assert list(refused(f"capture.step={written}")) == ["capture.step[0]" if written.startswith("[") else "capture.step"]


@pytest.mark.parametrize(
    ("level", "phase", "refusal"),
    [
        ("api", "gradient", "gradient is recorded at level module, and capture.level has api only: capture.level=[module,api]"),
        ("operator", "optimizer", "is recorded at level module"),
        ("api", "backward", "is recorded at level module or operator"),
        ("operator", "backward", ""),
        ("module", "gradient", ""),
        ("api", "forward", ""),
    ],
)
def test_phases_that_no_level_records_are_refused(level, phase, refusal):
    said = [message for _, message in found(Capture(level=(level,), phase=("forward", phase)))]
    assert bool(said) == bool(refusal)
    assert refusal in "".join(said)


def test_a_ring_of_steps_compression_and_fine_sketches_are_keys():
    capture = composed("capture.keep_last=3", "capture.compress=true", "capture.fine=true", "capture.step=0-9")
    assert (capture.keep_last, capture.compress, capture.fine) == (3, True, True)


def test_all_problems_of_a_rule_are_shown_at_once():
    said = refused('capture.rules=[{mach: a, detail: sketches}, {match: a}, {match: b, slices: "[a]", sample: 0}]')
    assert "Did you mean  capture.rules[0].match" in said["capture.rules[0].mach"]
    assert "not one of digest, statistics, sketch, tensors, none" in said["capture.rules[0].detail"]


@pytest.mark.parametrize(
    ("rule", "key", "said"),
    [
        (CaptureRule(match=("a",)), "capture.rules.0", "changes nothing"),
        (CaptureRule(match=("a",), detail="none", sample=0.1), "capture.rules.0", "mean nothing"),
        (CaptureRule(match=("a",), sample=0.0), "capture.rules.0.sample", "above 0"),
        (CaptureRule(match=("a",), sample=1.5), "capture.rules.0.sample", "at most 1"),
        (CaptureRule(match=("a",), slices="[::-1]"), "capture.rules.0.slices", "expected an index such as"),
        (CaptureRule(match=("a",), rank=(1,), detail="none"), "capture.rules.0.rank", "names rank 1; a side is one process"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(rule, key, said):
    ((path, message),) = with_rules(rule)
    assert path == key
    assert said in message


def test_a_rule_behind_one_that_matches_everything_never_counts():
    rules = [CaptureRule(detail="digest"), CaptureRule(match=("a",), detail="tensors")]
    ((path, message),) = with_rules(*rules)
    assert path == "capture.rules.1"
    assert "rules[0] matches everything" in message


def test_a_rank_that_no_side_has_is_refused():
    assert found(Capture(rank=(0,))) == []
    assert found(Capture(rank=(0, 7)))[0][0] == "capture.rank"


def test_escalating_needs_two_sides_that_run():
    ((path, message),) = found(Capture(detail="escalating"), target=Side(dump="b"))
    assert path == "capture.detail"
    assert "target.dump is given" in message


def test_a_ring_of_steps_and_a_second_pass_exclude_each_other():
    assert found(Capture(detail="escalating", keep_last=3))[0][0] == "capture.keep_last"
    assert found(Capture(keep_last=-1))[0][0] == "capture.keep_last"
