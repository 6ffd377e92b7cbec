import dataclasses
import datetime
from unittest import mock

import pytest

from precflow.config.checks import find_problems
from precflow.config.composition import compose
from precflow.config.schema import Accepted, Capture, CaptureRule, Determinism, MixedPrecision, RunConfig, Side, Workload
from precflow.config.sections.tolerance_section import find_expired
from precflow.errors import ConfigError


def refused(team, text, *words):
    team("r", text)
    with pytest.raises(ConfigError) as error:
        compose(["+recipe=r", *words], complete=False)
    return [(problem.key, problem.message) for problem in error.value.problems]


@pytest.mark.parametrize("name", ["a/b", "../a", ".a", "-a", "a b", "a@2", "x" * 101])
def test_a_run_cannot_have_any_name(team, name):
    assert refused(team, "about: {title: x}", f"name='{name}'") == [("name", mock.ANY)]


def test_a_run_may_have_a_name_in_any_script(team):
    team("r", "about: {title: x}")
    assert compose(["+recipe=r", "name=实验-2.b"], complete=False).config.name == "实验-2.b"


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("tolerance: {rules: [{relative_l2: 1%, because: x}]}", "tolerance.rules[0]", "has no `match`"),
        ("tolerance: {rules: [{match: a}]}", "tolerance.rules[0]", "sets no limit"),
        (
            "tolerance: {rules: [{match: a, relative_l2: 50%}]}",
            "tolerance.rules[0]",
            "loosens relative_l2 of `calibrated` without `because`",
        ),
        (
            "tolerance: {cosine_similarity: 0.9, rules: [{match: a, cosine_similarity: 0.8}]}",
            "tolerance.rules[0]",
            "loosens cosine_similarity",
        ),
        ("tolerance: {cosine_similarity: 99}", "tolerance.cosine_similarity", "at least 99"),
        ("tolerance: {max_abs_error: -1}", "tolerance.max_abs_error", "at most -1"),
        ("tolerance: {standards: []}", "tolerance.standards", "nothing could fail"),
        ("tolerance: {fills: [-10050]}", "tolerance.fills[0]", "within 5% of -10000"),
        ("tolerance: {fills: [-700, -701]}", "tolerance.fills[1]", "within 5% of -700"),
        ("tolerance: {fills: [-0.5]}", "tolerance.fills[0]", "at least 1 in magnitude"),
        (f"tolerance: {{fills: {[-(2**n) for n in range(4, 44)]}}}", "tolerance.fills", "expected at most 32"),
        ("coverage: {minimum: 150%}", "coverage.minimum", "at most 1"),
        ("coverage: {elements: 150%}", "coverage.elements", "at most 1"),
        ("accepted: [{match: a}]", "accepted[0]", "has no `because`, `until`"),
        ("accepted: [{match: a, because: b, until: 2027-13-01}]", "accepted[0].until", "is not a day"),
        ("accepted: [{match: a, because: b, until: next year}]", "accepted[0].until", "is not a day"),
        ("accepted: [{match: a, because: b, until: 2027-W13-3}]", "accepted[0].until", "is not a day"),
        ("capture: {scope: []}", "capture.scope", "empty list"),
        ("reference: {device: []}", "reference.device", "empty list"),
        ("target: {ranks: 0}", "target.ranks", "expected a number of processes from 1"),
        ("capture: {level: []}", "capture.level", "empty list"),
        ("report: {formats: []}", "report.formats", "empty list"),
        ("about: {needs: '>=99'}", "about.needs", "needs precflow >=99, this is 0.1.0"),
        ("about: {needs: newest}", "about.needs", "not a range of versions"),
        ("environment: {require: {torch: two}}", "environment.require.torch", "not a range of versions"),
    ],
)
def test_what_cannot_be_meant_is_refused(team, text, key, said):
    ((found, message),) = refused(team, text)
    assert found == key
    assert said in message


def test_a_rule_with_a_reason_may_loosen_and_one_without_may_tighten(team):
    team("r", "tolerance: {rules: [{match: a, relative_l2: 50%, because: ties}, {match: b, relative_l2: 2^-30}]}")
    assert len(compose(["+recipe=r"], complete=False).config.tolerance.rules) == 2


def test_faults_without_an_emulated_target_would_be_silently_ignored(team):
    ((key, message),) = refused(team, "about: {title: x}", "+emulate=layernorm_eps", "target.device=cpu")
    assert key == "target.device"
    assert "would do nothing" in message


def test_an_accepted_difference_lasts_until_its_day():
    config = RunConfig(accepted=(Accepted(match="a", because="b", until="2027-03-31"),))
    assert list(find_expired(config, datetime.date(2027, 3, 31))) == []
    ((path, message),) = find_expired(config, datetime.date(2027, 4, 1))
    assert path == ("accepted", "0", "until")
    assert message == "2027-03-31 has passed: this difference fails again"


def test_an_expired_one_is_a_note_and_does_not_stop_the_run(team):
    team("r", "accepted: [{match: a, because: b, until: '2020-01-01'}]")
    (note,) = compose(["+recipe=r"], complete=False).notes
    assert (note.key, note.place) == ("accepted[0].until", "recipes/r.yaml:1")


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("about: {title: x}", ["reference.dump", "target.dump"]),
        ("workload: {model: {_target_: precflow.workloads.stable_diffusion.text_encoder}}", ["workload.inputs._target_"]),
        ("workload: {model: {weights: seeded}}", ["workload.model._target_"]),
    ],
)
def test_a_run_needs_something_to_run(team, text, keys):
    team("r", text)
    with pytest.raises(ConfigError) as error:
        compose(["+recipe=r"])
    assert [problem.key for problem in error.value.problems] == keys
    assert compose(["+recipe=r"], complete=False).config.recipe == "r"


def test_a_part_is_named_once(team):
    assert refused(team, "workload: {parts: [unet, vae, unet]}") == [("workload.parts", "has unet more than once")]


def test_only_the_sides_that_run_here_need_something_to_run(team):
    team("r", "about: {title: x}")
    with pytest.raises(ConfigError) as error:
        compose(["+recipe=r", "sides=[target]"])
    assert [problem.key for problem in error.value.problems] == ["target.dump"]


@pytest.mark.parametrize("other", ["a", "./a", "b/../a"])
def test_a_dump_is_not_compared_with_itself(other):
    with pytest.raises(ConfigError, match="always agrees with itself"):
        compose(["+recipe=compare_dumps", "reference.dump=a", f"target.dump={other}"])


def test_dumps_are_something(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    assert compose(["+recipe=compare_dumps", "reference.dump=a", "target.dump=b"]).config.target.dump == "b"


OWN = "metrics: {flips: {_target_: our_metrics.Flips}}"


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("metrics: {flips: {least: 1}}", "metrics.flips", "has no `_target_`"),
        ("metrics: {rmse: {_target_: our_metrics.Flips}}", "metrics.rmse", "is a metric of precflow's"),
        ("tolerance: {metrics: {flips: 1%}}", "tolerance.metrics.flips", "is no metric of this recipe's `metrics`"),
        (f"{OWN}\ntolerance: {{metrics: {{flip: 1%}}}}", "tolerance.metrics.flip", "Did you mean  flips ?"),
        (f"{OWN}\ntolerance: {{metrics: {{flips: -1}}}}", "tolerance.metrics.flips", "not negative"),
        (
            f"{OWN}\ntolerance: {{metrics: {{flips: 1%}}, rules: [{{match: a, metrics: {{flips: 2%}}}}]}}",
            "tolerance.rules[0]",
            "loosens flips of the plain limit",
        ),
        ("report: {columns: [relative_l2, flips]}", "report.columns[1]", "`flips` is not one of"),
        ("report: {columns: [cosine]}", "report.columns[0]", "Did you mean  cosine_similarity ?"),
    ],
)
def test_own_metrics_that_cannot_be_meant_are_refused(team, monkeypatch, text, key, said):
    monkeypatch.setenv("PRECFLOW_TRUST", "our_metrics")
    ((found, message),) = refused(team, text)
    assert found == key
    assert said in message


def test_an_own_metric_has_limits_and_columns_like_ours(team, monkeypatch):
    monkeypatch.setenv("PRECFLOW_TRUST", "our_metrics")
    limits = "metrics: {flips: 1%}, rules: [{match: a, metrics: {flips: 2%}, because: ties}]"
    team("r", f"{OWN}\ntolerance: {{{limits}}}\nreport: {{columns: [flips, relative_l2]}}")
    config = compose(["+recipe=r"], complete=False).config
    assert config.metrics == {"flips": {"_target_": "our_metrics.Flips"}}
    assert (config.tolerance.metrics, config.tolerance.rules[0].metrics) == ({"flips": 0.01}, {"flips": 0.02})


def test_the_class_of_an_own_metric_must_be_trusted(team, monkeypatch):
    team("r", "about: {title: x}\nmetrics: {flips: {_target_: their_code.Flips}}")
    with pytest.raises(ConfigError) as error:
        compose(["+recipe=r"], complete=False)
    assert "their_code.Flips is not trusted" in error.value.problems[0].message
    monkeypatch.setenv("PRECFLOW_TRUST", "their_code")
    assert compose(["+recipe=r"], complete=False).config.metrics


@pytest.mark.parametrize(
    ("words", "key", "said"),
    [
        (["executor.address=tcp://a:1"], "executor.address", "is for executor=dask"),
        (["executor.threads=-1"], "executor.threads", "0 is one a processor"),
        (["executor=slurm"], "+executor=slurm", "no executor of this name"),
    ],
)
def test_executors_that_cannot_be_meant_are_refused(team, words, key, said):
    ((found, message),) = refused(team, "about: {title: x}", *words)
    assert found == key
    assert said in message


def test_the_executor_belongs_to_the_machine(team, tmp_path):
    team("r", "about: {title: x}")
    config = compose(["+recipe=r", "executor=dask", "executor.address=tcp://10.0.0.1:8786"], complete=False)
    assert (config.config.executor.name, config.config.executor.address) == ("dask", "tcp://10.0.0.1:8786")
    assert "executor" not in config.yaml
    assert compose(["+recipe=r"], complete=False).config.executor.name == "local"
    ((key, message),) = refused(team, "executor: {name: dask}")
    assert key == "executor"
    assert "belongs to a machine" in message
    site = tmp_path / "sites" / "site"
    site.mkdir(parents=True)
    (site / "ours.yaml").write_text("site: {name: ours}\nexecutor: {name: dask, address: 'tcp://a:1'}\n")
    team("r", "about: {title: x}")
    assert (
        compose(["+recipe=r", "+site=ours"], config_dirs=[site.parent], complete=False).config.executor.address == "tcp://a:1"
    )


def not_there(*words):
    with pytest.raises(ConfigError) as error:
        compose(["+recipe=sd_text_encoder", *words])
    return {problem.key: problem.message for problem in error.value.problems}


def test_every_path_that_is_not_there_is_told_at_once_by_key(tmp_path):
    (tmp_path / "plain.sh").write_text("")
    (tmp_path / "in the way").write_text("")
    found = not_there(
        "reference.setup=[plain.sh,gone.sh]",
        "reference.interpreter=/nowhere/python",
        f"target.interpreter={tmp_path}/plain.sh",
        "target.launcher=[no_such_launcher]",
        "store='in the way'",
    )
    assert found == {
        "reference.setup[1]": "gone.sh does not exist; expected a shell file to source before the interpreter starts",
        "reference.interpreter": "/nowhere/python does not exist; expected the Python of this side, such as /usr/bin/python3",
        "target.interpreter": (
            f"{tmp_path}/plain.sh is not executable; expected the Python of this side, such as /usr/bin/python3"
        ),
        "target.launcher[0]": "no_such_launcher does not exist; expected the program that starts the agent",
        "store": "in the way is a file; expected a folder, or a place where one can be made",
    }


@pytest.mark.parametrize(
    ("word", "key", "said"),
    [
        ("workload.model.weights=gone.safetensors", "workload.model.weights", "gone.safetensors does not exist"),
        ("workload.inputs.tokenizer=folder", "workload.inputs.tokenizer", "folder does not exist"),
        ("workload.model.weights=~no_such_user/x", "workload.model.weights", "~no_such_user/x does not exist"),
        ("target.setup=[.]", "target.setup[0]", ". is a folder"),
        ("target.setup=[/dev/null]", "target.setup[0]", "/dev/null is no regular file"),
        ("target.dump=gone", "target.dump", "gone does not exist; expected the folder that holds dump.json"),
    ],
)
def test_one_path_that_is_not_there(tmp_path, word, key, said):
    found = not_there(word)
    assert list(found) == [key]
    assert said in found[key]


def test_a_graph_that_is_not_there_is_told_before_torch_has_run():
    with pytest.raises(ConfigError, match=r"no\.onnx does not exist; expected a graph of ONNX"):
        compose(["+recipe=onnx_conversion", "target.conversion.file=no.onnx"])


def test_a_folder_of_the_site_that_the_workload_names_must_be_there(sites, tmp_path):
    sites("s", f"site: {{paths: {{models: {tmp_path}/gone, other: /not/used}}}}")
    found = not_there("+site=s", "workload.model.weights=${site.paths.models}/a.safetensors")
    assert list(found) == ["workload.model.weights", "site.paths.models"]


@pytest.mark.parametrize(
    "words",
    [
        ("sides=[target]", "reference.setup=[gone.sh]"),  # the reference runs elsewhere
        ("target.launcher=[env]", "workload.model.weights=/on/the/other/machine"),
        ("target.setup=[set_env.sh]", "target.launcher=[found_in_its_path]"),
        ("workload.inputs.texts=[/not/a/file]",),
        ("target.dump=.", "target.setup=[gone.sh]"),  # nothing of the target is started
    ],
)
def test_what_this_machine_does_not_use_may_be_absent(tmp_path, words):
    (tmp_path / "set_env.sh").write_text("")
    assert compose(["+recipe=sd_text_encoder", *words]).config.recipe == "sd_text_encoder"


def test_a_name_on_a_hub_is_no_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PRECFLOW_TRUST", "ours")
    (tmp_path / "ours.py").write_text("def build(weights): ...")
    factory = "workload.model._target_=ours.build"
    compose(["+recipe=sd_text_encoder", factory, "workload.model.weights=organisation/model"])
    assert list(not_there(factory, "workload.model.weights=./model")) == ["workload.model.weights"]


def test_a_recipe_may_be_looked_at_where_its_files_are_not(team):
    composed = compose(["+recipe=sd_text_encoder", "target.setup=[gone.sh]"], complete=False)
    assert composed.config.target.setup == ("gone.sh",)


def checked(capture=None, **sides):
    config = RunConfig(capture=capture or Capture(), **sides)
    return [(".".join(path), message) for path, message in find_problems(config, {})]


def with_rules(*rules):
    return checked(Capture(rules=rules))


def composed(*words):
    return compose(["+recipe=sd_text_encoder", *words], complete=False).config.capture


def refused_keys(*words):
    with pytest.raises(ConfigError) as error:
        composed(*words)
    return {problem.key: problem.message for problem in error.value.problems}


def test_defaults_are_usable():
    assert checked() == []


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
    assert list(refused_keys(f"capture.step={written}")) == ["capture.step[0]" if written.startswith("[") else "capture.step"]


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
    said = [message for _, message in checked(Capture(level=(level,), phase=("forward", phase)))]
    assert bool(said) == bool(refusal)
    assert refusal in "".join(said)


def test_a_ring_of_steps_and_fine_sketches_are_keys():
    capture = composed("capture.keep_last=3", "capture.fine=true", "capture.step=0-9")
    assert (capture.keep_last, capture.fine) == (3, True)


def test_all_problems_of_a_rule_are_shown_at_once():
    said = refused_keys('capture.rules=[{mach: a, detail: sketches}, {match: a}, {match: b, slices: "[a]", sample: 0}]')
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
    assert checked(Capture(rank=(0,))) == []
    assert checked(Capture(rank=(0, 7)))[0][0] == "capture.rank"


def test_escalating_needs_two_sides_that_run():
    ((path, message),) = checked(Capture(detail="escalating"), target=Side(dump="b"))
    assert path == "capture.detail"
    assert "target.dump is given" in message


def test_a_ring_of_steps_and_a_second_pass_exclude_each_other():
    assert checked(Capture(detail="escalating", keep_last=3))[0][0] == "capture.keep_last"
    assert checked(Capture(keep_last=-1))[0][0] == "capture.keep_last"


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("nonsense://bucket/x", "no kind of store"),
        ("s3://", "names no place"),
        ("s3://me:secret@bucket", "site.store_profile"),
        ("s3://bucket/x?version=1", "without ? and #"),
    ],
)
def test_a_store_that_the_run_would_refuse_is_refused_before_any_work(team, address, problem):
    ((key, said),) = refused(team, "about: {title: t}", f"store='{address}'")
    assert key == "store"
    assert problem in said


@pytest.mark.parametrize(
    ("rule", "key", "said"),
    [
        ("{target: [b]}", "pairing.rules[0].reference", "is needed"),
        ("{reference: [a]}", "pairing.rules[0].target", "is needed"),
        ("{reference: [a, b], target: [c, d]}", "pairing.rules[0]", "expected one name on one side"),
        ('{reference: ["a.*"], target: [b]}', "pairing.rules[0]", "the same number of *"),
        ('{reference: ["a / b"], target: [c]}', "pairing.rules[0]", "names a module on one side"),
        ("{reference: [a, a], target: [b]}", "pairing.rules[0]", "the same name twice"),
        ("{reference: [a], target: [a]}", "pairing.rules[0]", "changes nothing"),
        ("{reference: [a, b], target: [c], sizes: [1]}", "pairing.rules[0].sizes", "has 1 sizes for 2 names"),
        ("{reference: [a, b], target: [c], sizes: [0, 1]}", "pairing.rules[0].sizes", "above 0"),
        ("{reference: [a, b], target: [c], groups: 0}", "pairing.rules[0].groups", "a number of groups from 1"),
        ("{reference: [a, b], target: [c], axis: 99}", "pairing.rules[0].axis", "the number of an axis"),
        ("{reference: [a], target: [c], axis: 0}", "pairing.rules[0]", "mean nothing"),
        ("{reference: [a], target: [c], permute: [0, 0]}", "pairing.rules[0].permute", "names every axis once"),
        ('{reference: [a], target: [c], slices: "x"}', "pairing.rules[0].slices", "expected an index"),
        ('{reference: [a], target: [c], reference_slices: "x"}', "pairing.rules[0].reference_slices", "expected an index"),
        ("{reference: [a], target: [c, d], pad: 0}", "pairing.rules[0].pad", "exclude each other"),
        ('{reference: ["*********"], target: ["*********x"]}', "pairing.rules[0].reference", "of over 8 *"),
        ("{reference: [a], target: [b], phase: wrong}", "pairing.rules[0].phase", "wrong"),
    ],
)
def test_pairing_rules_that_can_pair_nothing_are_refused(team, rule, key, said):
    found = dict(refused(team, f"pairing: {{rules: [{rule}]}}"))
    assert said in found[key]


def test_the_second_pass_knows_no_pairing_rules(team):
    text = "capture: {detail: escalating}\npairing: {rules: [{reference: [a], target: [b]}]}"
    assert "use capture=tensors" in dict(refused(team, text))["pairing.rules"]


def test_ranks_that_a_side_has_may_be_recorded():
    side = Side(ranks=2)
    config = RunConfig(reference=side, target=side, capture=Capture(rank=(1, 2)))
    assert [message for path, message in find_problems(config, {}) if path == ("capture", "rank")] == [
        "names rank 2; a side has ranks 0 to 1"
    ]


TRAINED = Workload(model={"_target_": "m.build"}, inputs={"_target_": "m.inputs"}, optimizer={"_target_": "torch.optim.SGD"})
BATCHES = Determinism(data="recorded")
SCALED = Side(mixed_precision=MixedPrecision(level="O1", loss_scale="1024"))


@pytest.mark.parametrize(
    ("sections", "path", "said"),
    [
        ({"target": Side(dtype="float16", mixed_precision=MixedPrecision(level="O1"))}, "target.dtype", "starts from float32"),
        ({"target": Side(mixed_precision=MixedPrecision(loss_scale="1k"))}, "target.mixed_precision.loss_scale", "`1k`"),
        (
            {"target": Side(mixed_precision=MixedPrecision(growth_interval=0))},
            "target.mixed_precision.growth_interval",
            "from 1 up",
        ),
        (
            {"target": Side(mixed_precision=MixedPrecision(float32_modules=("head",)))},
            "target.mixed_precision.float32_modules",
            "without a level",
        ),
        (
            {"target": Side(mixed_precision=MixedPrecision(level="O1", operators={"softmax": "float8"}))},
            "target.mixed_precision.operators.softmax",
            "float8",
        ),
        ({"target": SCALED, "reference": SCALED}, "target.mixed_precision.loss_scale", "there is none"),
        (
            {"target": SCALED, "workload": TRAINED, "capture": Capture(phase=("forward", "gradient"))},
            "target.mixed_precision.loss_scale",
            "not comparable",
        ),
        ({"target": SCALED, "workload": Workload(script="train.py")}, "target.mixed_precision", "a script sets its own"),
        ({"determinism": BATCHES, "workload": TRAINED}, "determinism.data", "is for a script"),
        ({"determinism": dataclasses.replace(BATCHES, observer="checked")}, "determinism.data", "exclude each other"),
        ({"determinism": BATCHES, "capture": Capture(detail="escalating")}, "determinism.data", "one pass"),
        ({"workload": Workload(model={"_target_": "m"}, learning_rate=0.0)}, "workload.learning_rate", "there is none"),
        ({"workload": dataclasses.replace(TRAINED, learning_rate=-1.0)}, "workload.learning_rate", "from 0 up"),
    ],
)
def test_settings_of_training_that_make_no_sense_are_refused(sections, path, said):
    found = [message for place, message in find_problems(RunConfig(**sections), {}) if ".".join(place) == path]
    assert any(said in message for message in found), found


def test_settings_of_training_that_make_sense_are_taken():
    config = RunConfig(reference=SCALED, target=SCALED, workload=dataclasses.replace(TRAINED, learning_rate=0.0))
    assert list(find_problems(config, {})) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["target.dump=/tmp", "capture=tensors"], "target.dump is given"),
        (["capture=sketch"], "capture.detail is sketch: use capture=tensors"),
        (["capture=tensors", "reference.ranks=2"], "a side has several ranks"),
        (["capture=tensors", "golden.dtype=float8"], "float32"),
    ],
)
def test_a_golden_run_that_cannot_be_made_is_refused(words, said):
    with pytest.raises(ConfigError) as caught:
        compose(["+recipe=sd_text_encoder", "golden.dtype=float64", *words])
    assert said in str(caught.value) + " ".join(str(problem) for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("target: {conversion: {optimise: none}}", "target.conversion", "does nothing without a runtime"),
        (
            "target: {device: npu, conversion: {runtime: onnxruntime}}",
            "target.device",
            "the graph on target.conversion.provider",
        ),
        ("target: {dtype: bfloat16, conversion: {runtime: onnxruntime}}", "target.dtype", "float32 or float16"),
        ("{target: {conversion: {runtime: onnxruntime}}, capture: {phase: [gradient]}}", "capture.phase", "a forward alone"),
        ("{target: {conversion: {runtime: onnxruntime}}, capture: {detail: sketch}}", "capture.detail", "by its tensors"),
        ("{reference: {conversion: {runtime: onnxruntime}}, whatif: [top]}", "whatif", "the reference runs a graph"),
    ],
)
def test_what_a_converted_side_cannot_do_is_refused(team, text, key, said):
    assert [message for found, message in refused(team, text) if found == key and said in message], refused(team, text)
