import itertools
import subprocess
import sys

import pytest
import yaml
from amounts import examples
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from precflow import resources
from precflow.config import recipe_source
from precflow.config.composition import compose
from precflow.config.documents import walk_scalars
from precflow.config.schema import RunConfig
from precflow.config.search_path import list_folders
from precflow.errors import ConfigError, TrustError

RECIPES = sorted(path.stem for path in resources.directory("recipes").glob("*.yaml"))


@pytest.fixture
def trusting(monkeypatch):
    monkeypatch.setenv("PRECFLOW_TRUST", "minilm_workload")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.usefixtures("trusting")
def test_every_shipped_recipe_composes_and_is_short(recipe):
    composed = compose([f"+recipe={recipe}"], complete=False)
    assert composed.config.recipe == recipe
    assert composed.config.about.title
    text = (resources.directory("recipes") / f"{recipe}.yaml").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 70
    # A recipe that is laid over another one is run together with it.
    assert f"precflow +recipe={recipe}" in text or f",{recipe}]'" in text


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.usefixtures("trusting")
def test_our_layers_say_what_hydra_says(recipe):
    words = [f"recipe={recipe}", "site=local"]
    if recipe not in {"onnx_conversion", "onnx_upgrade"}:  # what runs in torch of a converted side runs on the CPU
        words += ["emulate=reorder", "++target.device=[emulated]"]
    recipe_source.register()
    with recipe_source.search_in(list_folders()), initialize_config_dir(str(resources.directory("conf")), version_base="1.3"):
        theirs = OmegaConf.to_container(hydra_compose("config", words), resolve=True)
    ours = dict(walk_scalars(compose(words, complete=False).data))
    assert len(ours) > 8
    assert {path: value for path, value in walk_scalars(theirs) if path in ours} == ours


def test_the_main_recipe_is_what_the_interface_promises():
    config = compose(["+recipe=sd_text_encoder"]).config
    assert (config.reference.device, config.reference.dtype) == (("cuda", "cpu"), "float32")
    assert (config.target.device, config.target.dtype) == (("npu", "emulated"), "float16")
    assert config.workload.model["weights"] == "seeded"
    first, chinese, empty = config.workload.inputs["token_ids"]
    assert first == [49406, 320, 8853, 539, 550, 18376, 6765, 320, 4558, 49407]
    assert (len(chinese), empty) == (33, [49406, 49407])
    assert config.tolerance.standards == ("calibrated",)


@pytest.mark.parametrize("words", list(itertools.permutations(["+recipe=r", "+site=s", "target.dtype=float64"])))
def test_order_has_no_meaning(team, sites, words):
    team("r", "target: {dtype: float16, device: cuda}")
    sites("s", "target: {dtype: bfloat16, device: npu, interpreter: /py}")
    target = compose(words, complete=False).config.target
    assert (target.dtype, target.device, target.interpreter) == ("float64", ("npu",), "/py")


def test_hydra_orders_equal_choices_once_and_sees_each_change_of_files(tmp_path, monkeypatch):
    for folder in ("recipes", "capture"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("PRECFLOW_RECIPES", str(tmp_path))
    orders, composed = [], lambda *words: compose(["+recipe=r", *words], complete=False).config
    known = GlobalHydra.config_loader
    monkeypatch.setattr(GlobalHydra, "config_loader", lambda hydra: (orders.append(hydra), known(hydra))[1])
    recipe, capture = tmp_path / "recipes" / "r.yaml", tmp_path / "capture" / "ours.yaml"
    (tmp_path / "recipes" / "later.yaml").write_text("target: {dtype: float16}")
    capture.write_text("budget: 1GB")
    recipe.write_text("defaults: [override /capture: ours, _self_]\ntarget: {dtype: bfloat16}")
    assert composed().capture.budget == 10**9
    capture.write_text("budget: 2GB")
    assert (composed().capture.budget, composed("target.dtype=float64").target.dtype, len(orders)) == (2 * 10**9, "float64", 1)
    recipe.write_text("defaults: [_self_, later, override /capture: ours]\ntarget: {dtype: bfloat16}")
    assert (composed().target.dtype, len(orders)) == ("float16", 2)
    capture.write_text("hydra: {run: {dir: x}}")  # the recipe, and so the order, are as before
    with pytest.raises(TrustError, match="hydra"):
        composed()
    capture.unlink()
    with pytest.raises(ConfigError, match="no capture of this name"):
        composed()
    assert len(orders) == 2


def test_every_value_has_its_place(team, sites):
    team("base", "about:\n  title: base\n  owner: us\n")
    team("r", "defaults: [base, _self_]\nabout:\n  title: r\n")
    sites("s", "site:\n  name: here\n")
    provenance = compose(["+recipe=r", "+site=s", "target.dtype=float16"], complete=False).provenance
    assert provenance["about.title"] == "recipes/r.yaml:3"
    assert provenance["about.owner"] == "recipes/base.yaml:3"
    assert provenance["site.name"] == "sites/s.yaml:2"
    assert provenance["target.dtype"] == "command line"


def test_recipes_inherit_and_stack(team):
    team("a/base", "about: {title: base, owner: base}\ncapture: {scope: [x]}")
    team("a/one", "defaults: [a/base, _self_]\nabout: {title: one}")
    team("two", "capture: {scope: [y]}")
    config = compose(["+recipe=[a/one,two]"], complete=False).config
    assert (config.recipe, config.about.title, config.about.owner, config.capture.scope) == ("a/one+two", "one", "base", ("y",))


@pytest.mark.parametrize("name", ["我的 配方", "<script>", "llama/attention", "x" * 200, "it's"])
def test_recipes_of_any_name_compose(team, name):
    team(name, "about: {title: x}")
    assert compose([f"+recipe={name}"], complete=False).config.recipe == name


def test_a_recipe_file_can_be_named_by_its_path(tmp_path):
    (tmp_path / "some where").mkdir()
    (tmp_path / "some where" / "mine.yaml").write_text("about: {title: mine}")
    composed = compose(["+recipe=some where/mine.yaml"], complete=False)
    assert (composed.config.recipe, composed.config.about.title) == ("mine", "mine")


def test_a_config_dir_brings_every_group(tmp_path):
    for group, text in {
        "recipes": "about: {title: t}",
        "site": "site: {name: s}",
        "capture": "scope: [x]",
        "emulate": "name: e",
    }.items():
        (tmp_path / "team" / group).mkdir(parents=True)
        (tmp_path / "team" / group / "t.yaml").write_text(text)
    words = ["+recipe=t", "+site=t", "capture=t", "+emulate=t", "target.device=emulated"]
    config = compose(words, config_dirs=[tmp_path / "team"], complete=False).config
    assert (config.about.title, config.site.name, config.capture.scope, config.emulate.name) == ("t", "s", ("x",), "e")


def test_a_missing_recipe_names_neighbours_and_folders(team):
    team("our_vision", "about: {title: x}")
    with pytest.raises(ConfigError) as refused:
        compose(["+recipe=our_vison"])
    assert "Did you mean  our_vision ?" in str(refused.value)
    assert "Searched: recipes, " in str(refused.value)


def test_a_missing_parent_is_named_where_it_stands(team):
    team("r", "# why\ndefaults: [nothing_there, _self_]\n")
    with pytest.raises(ConfigError) as refused:
        compose(["+recipe=r"])
    assert (refused.value.problems[0].place, refused.value.problems[0].key) == ("recipes/r.yaml:2", "defaults: nothing_there")


def test_a_recipe_that_inherits_from_itself_is_refused(team):
    team("r", "defaults: [r, _self_]\n")
    with pytest.raises(ConfigError, match="circle"):
        compose(["+recipe=r"])


@pytest.mark.parametrize("words", [[], ["target.dtype=float16"], ["+site=local"]])
def test_without_a_recipe_nothing_runs(words):
    with pytest.raises(ConfigError, match="no recipe was chosen"):
        compose(words)


def test_unknown_keys_hide_no_wrong_values():
    words = ["+captre.scope=x", "target.dtype=fp17", "capture.step=abc", "determinism.seed=1,2", "tolerance.max_abs_error=0.1"]
    with pytest.raises(ConfigError) as refused:
        compose(["+recipe=compare_dumps", *words])
    keys = [problem.key for problem in refused.value.problems]
    assert keys == ["+captre.scope", "determinism.seed", "capture.step", "target.dtype"]
    assert "4 problems in the command line" in str(refused.value)


def test_every_problem_comes_at_once(team):
    team("r", "targt: {x: 1}\ntarget: {dtype: bf16}\n")
    with pytest.raises(ConfigError) as refused:
        compose(["+recipe=r", "capture.budget=3", "determinism.seed=some", "tolerance.standards=[of_tomorrow]"], complete=False)
    keys = {problem.key for problem in refused.value.problems}
    assert keys == {"targt", "target.dtype", "capture.budget", "determinism.seed", "tolerance.standards[0]"}


def test_words_and_screens_of_the_command_line():
    with pytest.raises(ConfigError) as refused:
        compose(["+recipe=sd_text_encoder", "+tolerance.cosin_similarity=0.9999", "target.devise=npu"])
    assert str(refused.value).splitlines() == [
        "2 problems in the command line, nothing was run",
        "   +tolerance.cosin_similarity   no such key. Did you mean  tolerance.cosine_similarity ?   (no + needed)",
        "    target.devise                no such key. Did you mean  target.device ?",
        " Check again without running:  precflow validate +recipe=sd_text_encoder ...",
    ]


def test_a_missing_site_key_names_both_files(team, sites):
    team("r", "workload:\n  model:\n    weights: ${site.paths.models}/glm\n")
    sites("s", "site: {name: s}")
    with pytest.raises(ConfigError) as refused:
        compose(["+recipe=r", "+site=s"], complete=False)
    (problem,) = refused.value.problems
    assert problem.place == "recipes/r.yaml:3"
    assert "sites/s.yaml" in problem.message


def test_site_paths_are_put_in_and_stay_out_of_the_shared_text(team, sites):
    team("r", "workload: {model: {weights: '${site.paths.models}/glm'}}\n")
    sites("s", "site: {paths: {models: /secret/place}}\ntarget: {interpreter: /secret/python, dtype: float16}")
    composed = compose(["+recipe=r", "+site=s", "store=/secret/store"], complete=False)
    assert composed.config.workload.model["weights"] == "/secret/place/glm"
    assert "/secret" not in composed.yaml
    assert "${site.paths.models}/glm" in composed.yaml


@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_shared_text_is_a_recipe_again(team, recipe):
    words = [
        f"+recipe={recipe}",
        "tolerance.max_rel_error=2^-10",
        "target.variables.NCCL_ALGO=on",
        "capture.scope=['*.norm','a: b']",
    ]
    first = compose(words, complete=False)
    with_machine = compose([*words, "target.variables.X=y", "target.setup=[/s.sh]", "sides=[target]"], complete=False)
    assert with_machine.yaml == first.yaml
    team("again", first.yaml)
    second = compose(["+recipe=again"], complete=False)
    assert {**vars(second.config), "recipe": ""} == {**vars(first.config), "recipe": ""}
    assert list(yaml.safe_load(first.yaml)) == [key for key in vars(first.config) if key in yaml.safe_load(first.yaml)]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("workload: {model: {_target_: os.system, command: 'touch hacked'}}", "workload.model._target_"),
        ("hydra: {callbacks: {x: {_target_: os.system}}}", "hydra"),
        ("site: {trusted: [os]}\nworkload: {model: {_target_: os.system}}", "site"),
    ],
)
def test_what_is_not_trusted_is_refused_before_anything(team, text, key):
    team("evil", text)
    with pytest.raises(TrustError) as refused:
        compose(["+recipe=evil"])
    assert refused.value.problems[0].key == key
    assert refused.value.problems[0].place == "recipes/evil.yaml:1"


def test_a_parent_is_not_more_trusted(team):
    team("evil", "hydra: {x: 1}")
    team("nice", "defaults: [evil, _self_]")
    with pytest.raises(TrustError):
        compose(["+recipe=nice"])


def test_the_command_line_needs_trust_too(monkeypatch):
    word = "workload.model._target_=mine.build"
    with pytest.raises(TrustError, match=r"mine\.build is not trusted"):
        compose(["+recipe=sd_text_encoder", word])
    monkeypatch.setenv("PRECFLOW_TRUST", "mine")
    assert compose(["+recipe=sd_text_encoder", word], complete=False).config.workload.model["_target_"] == "mine.build"


def test_a_function_that_the_command_line_replaces_needs_no_trust(team, monkeypatch):
    team("r", "workload: {model: {_target_: theirs.build}, inputs: {_target_: theirs.inputs}}")
    monkeypatch.setenv("PRECFLOW_TRUST", "mine")
    words = ["+recipe=r", "workload.model._target_=mine.build"]
    with pytest.raises(TrustError, match=r"theirs\.inputs is not trusted") as refused:
        compose(words)
    assert "theirs.build" not in str(refused.value)
    config = compose([*words, "workload.inputs._target_=mine.inputs"], complete=False).config
    assert config.workload.model["_target_"] == "mine.build"


def test_a_site_trusts(team, sites):
    team("r", "workload: {model: {_target_: mine.build}, inputs: {_target_: mine.inputs}}")
    sites("s", "site: {trusted: [mine]}")
    assert compose(["+recipe=r", "+site=s"], complete=False).config.site.trusted == ("mine",)


def test_typed_forms(team):
    team("r", "tolerance: {rules: [{match: a, relative_l2: 1%, because: x}]}\ntarget: {variables: {NCCL_ALGO: 'x'}}")
    words = [
        "tolerance.rules[0].relative_l2=2%",
        "~target.variables.NCCL_ALGO",
        "environment.require.python=>=3.10",
        "target.variables.B=01",
    ]
    config = compose(["+recipe=r", *words], complete=False).config
    assert (config.tolerance.rules[0].relative_l2, config.target.variables) == (0.02, {"B": "01"})
    assert config.environment.require.python == ">=3.10"


@pytest.mark.parametrize("word", ["~target.variables.NOT_THERE", "tolerance.rules[3].match=x"])
def test_what_is_not_there_cannot_be_changed(word):
    with pytest.raises(ConfigError, match=r"not set|counted from 0"):
        compose(["+recipe=compare_dumps", word], complete=False)


def test_the_quoted_form_is_recorded():
    composed = compose(["+recipe=compare_dumps", "tolerance.max_rel_error=2^-10"], complete=False)
    assert composed.overrides == ("+recipe=compare_dumps", 'tolerance.max_rel_error="2^-10"')


def test_a_team_folder_that_is_gone_is_an_error(monkeypatch):
    monkeypatch.setenv("PRECFLOW_RECIPES", "/no/where")
    with pytest.raises(ConfigError, match="/no/where"):
        compose(["+recipe=sd_text_encoder"])


def test_composing_imports_neither_torch_nor_pandas():
    code = "import sys, precflow.config.composition as c; c.compose(['+recipe=sd_text_encoder']); print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "hydra" in said
    assert {"torch", "pandas", "scipy", "transformers"}.isdisjoint(said)


WORDS = st.sampled_from(
    [
        "target",
        "dtype",
        "tolerance",
        "rules",
        "0",
        "match",
        "workload",
        "model",
        "_target_",
        "x",
        "site",
        "capture",
        "a b",
        "golden",
        "accepted",
        "hydra",
    ]
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["off", "2^-10", "1%", "${target.dtype}", "${x}", "${oc.env:HOME}", "float16", "*.norm", "2020-01-01"]),
)
TREES = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=10
)
SECTIONS = st.sampled_from([*RunConfig.__dataclass_fields__, "defaults", "hydra", "unknown"])


def composed_or_refused(words):
    """Compose; whatever is wrong must come as an error of ours that names at least one problem or says what does not fit."""
    try:
        return compose(words, complete=False)
    except ConfigError as refused:
        assert str(refused)  # noqa: PT017  # both outcomes are right
        return None


# On a loaded machine the first example may take seconds, which says nothing about the recipe.
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.dictionaries(SECTIONS, TREES, max_size=4))
def test_no_recipe_whatever_it_says_ends_in_anything_but_an_explanation(team, data):
    team("any", yaml.safe_dump(data, allow_unicode=True))
    composed = composed_or_refused(["+recipe=any"])
    assert composed is None or composed.config.recipe == "any"


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=60) | st.text("ab:-[]{}#&*!%@`'\"\n \t", max_size=60).map(str.encode))
def test_no_file_whatever_its_bytes_ends_in_anything_but_an_explanation(team, raw):
    team("any", "").write_bytes(raw)
    composed = composed_or_refused(["+recipe=any"])
    assert composed is None or composed.config.recipe == "any"


@settings(max_examples=examples(150))
@given(
    key=st.lists(WORDS, min_size=1, max_size=4).map(".".join),
    value=st.text(max_size=8) | st.sampled_from(["[1,{a:b}]", "{x:[off]}", "null", "a,b"]),
)
def test_no_word_whatever_it_says_ends_in_anything_but_an_explanation(key, value):
    composed = composed_or_refused(["+recipe=compare_dumps", f"{key}={value}"])
    assert composed is None or composed.config.recipe == "compare_dumps"


def test_two_faults_are_both_planted_and_each_line_keeps_its_file():
    words = ["+recipe=sd_text_encoder", "target.device=emulated"]
    alone = {name: compose([*words, f"+emulate={name}"], complete=False) for name in ("layernorm_eps", "softmax_half", "exact")}
    both = compose([*words, "+emulate=[layernorm_eps,softmax_half]"], complete=False)
    faults = both.config.emulate
    assert faults.name == "layernorm_eps+softmax_half"
    assert faults.rules == (*alone["layernorm_eps"].config.emulate.rules, *alone["softmax_half"].config.emulate.rules)
    assert both.provenance["emulate.rules[0].operator"] == alone["layernorm_eps"].provenance["emulate.rules[0].operator"]
    assert both.provenance["emulate.rules[1].operator"] == alone["softmax_half"].provenance["emulate.rules[0].operator"]
    turned = compose([*words, "+emulate=[softmax_half,layernorm_eps,exact]"], complete=False).config.emulate
    assert turned.rules == (*faults.rules[1:], *faults.rules[:1], *alone["exact"].config.emulate.rules)


@pytest.mark.parametrize("word", ["+capture=[sketch,tensors]", "+executor=[local,dask]"])
def test_where_only_one_can_be_in_force_two_are_refused(word):
    with pytest.raises(ConfigError, match="of several only the last would be in force"):
        compose(["+recipe=sd_text_encoder", word], complete=False)
    compose(["+recipe=sd_text_encoder", word.partition(",")[0] + "]"], complete=False)
