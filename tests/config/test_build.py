import textwrap

import pytest

from precflow.config.build import Builder
from precflow.config.documents import Mark, read
from precflow.config.layers import COMMAND_LINE, Layers
from precflow.config.vocabulary import allowed_words


def built(tmp_path, text):
    file = tmp_path / "r.yaml"
    file.write_text(textwrap.dedent(text), encoding="utf-8")
    layers = Layers()
    document = read(file, "recipe", "r")
    layers.add(document)
    builder = Builder(layers.mark, allowed_words)
    return builder.build(layers.data), [(problem.place, problem.key, problem.message) for problem in builder.problems]


def test_values_become_the_types_of_the_schema(tmp_path):
    config, problems = built(
        tmp_path,
        """
        reference: {device: cuda, variables: {A: "1", B: 2}}
        capture: {budget: 2GB, timeout: 45m, step: 0, scope: ["*.norm"]}
        tolerance:
          relative_l2: 1%
          rules: [{match: a, ulp_distance: 8ulp, because: x}]
        determinism: {seed: 7, repeat: false}
        """,
    )
    assert problems == []
    assert (config.reference.device, config.reference.variables) == (("cuda",), {"A": "1", "B": "2"})
    assert (config.capture.budget, config.capture.timeout, config.capture.step) == (2_000_000_000, 2700.0, (0,))
    assert (config.tolerance.relative_l2, config.tolerance.rules[0].ulp_distance) == (0.01, 8.0)
    assert (config.determinism.seed, config.determinism.repeat) == (7, False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("determinism: {seed: 0123}", "YAML reads `0123` as 83: put it in quotes"),
        ("determinism: {seed: 1:30}", "YAML reads `1:30` as 90: put it in quotes"),
        ("capture: {step: 010}", "YAML reads `010` as 8: put it in quotes"),
        ("capture: {step: [0, 010]}", "YAML reads `010` as 8: put it in quotes"),
        (f"determinism: {{seed: {'9' * 60}}}", "expected a whole number below 2^63"),
        (f"capture: {{keep_last: {'9' * 60}}}", "expected a whole number below 2^63"),
        ("tolerance: ~", "it is empty: leave it out"),
        ("tolerance:", "it is empty: leave it out"),
        ("tolerance: {relative_l2: ~}", "expected a share such as 0.999, 1% or 2^-10, got `~`"),
    ],
)
def test_what_yaml_bends_or_leaves_empty_is_named_with_its_line(tmp_path, text, said):
    _, ((place, _, message),) = built(tmp_path, text)
    assert place.endswith("r.yaml:1")
    assert said in message


def test_all_ranges_together_have_a_bound(tmp_path):
    _, problems = built(tmp_path, "capture: {rules: [{match: a, step: 0-59999}, {match: b, step: 0-59999}]}")
    assert [(key, "100000 numbers of all ranges together" in message) for _, key, message in problems] == [
        ("capture.rules[1].step", True)
    ]


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        (
            "determinism: {algorithms: off}",
            "determinism.algorithms",
            "YAML reads `off` as false. Use native (also: strict, warn, when_needed)",
        ),
        ("determinism: {algorithms: on}", "determinism.algorithms", "YAML reads `on` as true. Use warn"),
        ("determinism: {dropout: no}", "determinism.dropout", "YAML reads `no` as false. Use removed (also: kept)"),
        (
            "environment: {require: {python: 3.10}}",
            "environment.require.python",
            "YAML reads `3.10` as the number 3.1. Put it in quotes",
        ),
        ("about: {owner: yes}", "about.owner", "YAML reads `yes` as true. Put it in quotes"),
        ("about: {owner: ~}", "about.owner", "is empty"),
        ("about: {owner: 010}", "about.owner", "YAML reads `010` as the number 8"),
        ("capture: {timeout: 12:30}", "capture.timeout", "YAML reads `12:30` as 750"),
        ("workload: {model: {x: off}}", "workload.model.x", "YAML reads `off` as false"),
        ("workload: {model: {x: [1, 1:30]}}", "workload.model.x[1]", "YAML reads `1:30` as 90"),
        ("reference: {variables: {A: true}}", "reference.variables.A", "YAML reads `true` as true. Put it in quotes"),
        ("reference: {variables: {A: 0.5}}", "reference.variables.A", "Put it in quotes"),
        ("determinism: {repeat: on}", "determinism.repeat", "write true"),
        ("determinism: {repeat: maybe}", "determinism.repeat", "expected true or false, got `maybe`"),
        ("determinism: {seed: 1.5}", "determinism.seed", "expected a whole number or `script`"),
        (
            "capture: {step: [a]}",
            "capture.step[0]",
            'expected a whole number from 0, or a range of them such as "0-3", got `a`',
        ),
        ("capture: {budget: 2}", "capture.budget", "expected a size with its unit such as 2GB"),
        ("capture: {budget: [2GB]}", "capture.budget", "expected one value"),
        ("capture: {scope: {a: b}}", "capture.scope", "expected a list"),
        ("capture: tensors", "capture", "is a section with keys (level, phase, scope, step...)"),
        ("reference: {variables: 3}", "reference.variables", "expected `name: value` lines"),
        (
            "target: {dtype: bf16}",
            "target.dtype",
            "`bf16` is not one of float64, float32, float16, bfloat16. Did you mean  bfloat16 ?",
        ),
        ("target: {device: [npu, gpu]}", "target.device[1]", "Did you mean  cuda ?"),
        ("tolerance: {standards: [defalt]}", "tolerance.standards[0]", "Did you mean  default ?"),
        ("tolerance: {rules: [{mach: a}]}", "tolerance.rules[0].mach", "Did you mean  tolerance.rules[0].match ?"),
        ("targt: {dtype: float16}", "targt", "Did you mean  target ?"),
        ("tolerance: {cosin_similarity: 1}", "tolerance.cosin_similarity", "Did you mean  tolerance.cosine_similarity ?"),
        ("accepted: {match: a}", "accepted", "expected a list"),
        ("stages: [jugde]", "stages[0]", "Did you mean  judge ?"),
    ],
)
def test_what_is_wrong_is_named_with_place_and_key(tmp_path, text, key, said):
    _, (problem,) = built(tmp_path, text)
    assert problem[:2] == ("r.yaml:1", key)
    assert said in problem[2]


@pytest.mark.parametrize(
    ("key", "typed", "said"),
    [
        ("determinism.seed", "abc", "expected a whole number or `script`"),
        ("determinism.algorithms", "off", "YAML reads `off` as a boolean. Use native"),
        ("determinism.algorithms", "On", "Use warn"),
        ("determinism.dropout", "no", "Use removed"),
        ("capture.detail", "off", "is not one of digest"),
    ],
)
def test_words_of_the_command_line_that_are_none(key, typed, said):
    path = tuple(key.split("."))
    layers = Layers()
    layers.assign(path, typed, Mark(COMMAND_LINE, typed))
    builder = Builder(layers.mark, allowed_words)
    builder.build(layers.data)
    (problem,) = builder.problems
    assert said in problem.message


def test_all_problems_come_at_once(tmp_path):
    _, problems = built(tmp_path, "targt: 1\ntarget:\n  dtype: x\n  devise: npu\ncapture: {budget: 1}\n")
    assert [problem[:2] for problem in problems] == [
        ("r.yaml:1", "targt"),
        ("r.yaml:3", "target.dtype"),
        ("r.yaml:4", "target.devise"),
        ("r.yaml:5", "capture.budget"),
    ]


def test_null_takes_an_inherited_value_away(tmp_path):
    config, problems = built(tmp_path, "tolerance: {relative_l2: null}\nworkload: {model: {a: null, b: 1}}\n")
    assert problems == []
    assert (config.tolerance.relative_l2, dict(config.workload.model)["b"]) == (None, 1)


@pytest.mark.parametrize("raw", ["3.10", "off", "true", "010", "1e5"])
def test_texts_of_the_command_line_are_as_typed(raw):
    builder = Builder(lambda path: Mark(COMMAND_LINE, raw), allowed_words)
    assert builder.build({"about": {"owner": 3.1}}).about.owner == raw
    assert builder.problems == []
