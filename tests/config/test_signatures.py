"""Arguments in recipes: what is certainly wrong with them is said before anything runs."""

import ast
import inspect
import subprocess
import sys
import textwrap

import pytest

from precflow import resources
from precflow.agent.contract import FACTORIES
from precflow.config import signatures
from precflow.config.composition import compose
from precflow.config.documents import dotted, read
from precflow.config.schema import RunConfig, Side, Workload
from precflow.errors import ConfigError

TEXT_ENCODER = "precflow.workloads.stable_diffusion.text_encoder"


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a module into the working directory."""

    def write(name, text):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        return file

    return write


def said(*words, complete=True):
    """Return what is wrong with a command line, by key."""
    try:
        compose(words, complete=complete)
    except ConfigError as error:
        return {problem.key: problem.message for problem in error.problems}
    return {}


def told(model=None, *, inputs=None, target=None, **sections):
    """Return what is told of a configuration that runs here, by key."""
    workload = Workload(model=model or {}, inputs=inputs or {}, **sections.pop("workload", {}))
    config = RunConfig(workload=workload, target=Side(**target or {}), **sections)
    return {dotted(path): message for path, message in (*signatures.check_shipped(config), *signatures.check_user_code(config))}


def own(function, **arguments):
    """Return what is told of a model factory of the user's."""
    return told({"_target_": function, **arguments})


@pytest.mark.parametrize(
    ("words", "key", "message"),
    [
        (["workload.model.layer=2"], "workload.model.layer", "Did you mean  layers ?"),
        (["~workload.inputs.token_ids"], "workload.inputs.token_ids", "is missing: prompts needs it"),
        ([f"workload.model._target_={TEXT_ENCODER[:-2]}r"], "workload.model._target_", f"Did you mean  {TEXT_ENCODER} ?"),
    ],
)
def test_what_a_shipped_factory_does_not_take_is_told_of_any_recipe(words, key, message):
    for complete in (True, False):
        found = said("+recipe=sd_text_encoder", *words, complete=complete)
        assert list(found) == [key]
        assert message in found[key]


@pytest.mark.parametrize(
    ("part", "arguments", "key", "message"),
    [
        ("model", {"layers": "two"}, "layers", "expected a whole number, got `two`"),
        ("model", {"layers": True}, "layers", "expected a whole number"),
        ("model", {"weights": 1}, "weights", "expected text"),
        ("inputs", {"token_ids": [[1, "b"]]}, "token_ids", "a whole number in each place"),
        ("inputs", {"token_ids": [[1]], "texts": "cat"}, "texts", "expected a list"),
    ],
)
def test_arguments_of_shipped_factories_are_of_their_types(part, arguments, key, message):
    target = {"model": TEXT_ENCODER, "inputs": "precflow.workloads.stable_diffusion.prompts"}[part]
    found = told(**{part: {"_target_": target, **arguments}})
    assert list(found) == [f"workload.{part}.{key}"]
    assert message in found[f"workload.{part}.{key}"]


def test_shipped_factories_are_called_as_their_source_is_read():
    from precflow.agent.workloads import resolve

    for factory in FACTORIES:
        module, _, name = factory.rpartition(".")
        file = signatures._WORKLOADS / f"{module}.py"
        signature = signatures._look_up(file, module, name)
        real = inspect.signature(resolve.resolve(f"precflow.workloads.{factory}", key="workload.model", trusted=()))
        assert list(signature.parameters) == list(real.parameters)
        for one, other in zip(signature.parameters.values(), real.parameters.values(), strict=True):
            assert (one.kind, one.default is inspect.Parameter.empty) == (other.kind, other.default is inspect.Parameter.empty)
            assert one.annotation == other.annotation


def test_the_users_own_functions_are_looked_up_and_not_run(written):
    written("mine.py", "raise SystemExit('never run')\ndef build(width, *, depth=2): ...\n")
    assert own("mine.build", width=4, weights="a") == {
        "workload.model.weights": "build has no argument `weights`.   It takes width, depth"
    }
    found = own("mine.build", wdth=4)
    assert "Did you mean  width ?" in found["workload.model.wdth"]
    assert found["workload.model.width"] == "is missing: build needs it"
    assert own("mine.bild", width=4)["workload.model._target_"].endswith("Did you mean  build ?")
    assert "mine" not in sys.modules


def test_a_module_that_is_not_there_is_told(written):
    assert "there is no module nowhere in" in own("nowhere.build")["workload.model._target_"]
    written("mine/__init__.py", "")
    written("mine/models.py", "def build(): ...")
    assert own("mine.models.build") == {}
    assert own("mine.model.build")["workload.model._target_"] == "there is no module model in mine. Did you mean  models ?"
    assert own("mine.models.deep.build")["workload.model._target_"] == "there is no module deep in mine.models."


def test_a_name_is_followed_through_imports(written):
    written("mine/__init__.py", "from .models import *\nfrom .other.deep import build as other\n")
    written("mine/models.py", "from mine_too import build, inputs\n")
    written("mine/other/deep.py", "from ..models import inputs\ndef build(depth): ...\n")
    written("mine_too.py", "def build(width=1): ...\nclass inputs:\n    def __init__(self, size=1): ...\n")
    assert "It takes width" in own("mine.build", x=1)["workload.model.x"]
    assert "It takes depth" in own("mine.other", depth=1, x=1)["workload.model.x"]
    assert "It takes size" in own("mine.other.deep.inputs", x=1)["workload.model.x"]
    assert "Did you mean  other ?" in own("mine.othr")["workload.model._target_"]


@pytest.mark.parametrize(
    "text",
    [
        "import functools\n@functools.cache\ndef build(width): ...",  # a decorator may take anything
        "def build(**keywords): ...",
        "def build(width): ...\nbuild = print",
        "if 1:\n    def build(a): ...\nelse:\n    def build(b): ...",
        "class build(dict):\n    pass",
        "class build:\n    def __new__(cls, x): ...",
        "class build(metaclass=type):\n    def __init__(self): ...",
        "from elsewhere import build",
        "from elsewhere import *",
        "from json import *\nfrom elsewhere import *",
        "def __getattr__(name): ...",
        "globals()['build'] = print",
        "def make():\n    global build\n    build = print",
        "for build in (print,): pass",
        "import json as build",
        "def broken(:",
        "async def build(width): ...",
    ],
)
def test_where_the_source_does_not_tell_nothing_is_said(written, text):
    written("mine.py", text)
    assert own("mine.build", x=1) == {}


def test_compiled_modules_and_those_made_at_run_time_are_not_guessed_at(written):
    written("mine/__init__.py", "")
    written("mine/fast.cpython-311-x86_64-linux-gnu.so", "")
    assert own("mine.fast.build") == {}
    assert own("os.path.join") == {}  # os puts its path among the modules itself
    assert own("numpy.linalg.norm") == {}
    assert own("math.sqrt") == {}


def test_what_is_installed_comes_before_this_folder_as_in_a_side(written):
    written("numpy.py", "")
    assert own("numpy.array") == {}


@pytest.mark.parametrize(
    "other", [{"interpreter": "sh"}, {"setup": ("a.sh",)}, {"launcher": ("srun",)}, {"variables": {"PYTHONPATH": "/elsewhere"}}]
)
def test_other_interpreters_may_have_other_modules(other):
    model = {"_target_": "nowhere.build"}
    assert told(model, target=other, sides=("target",)) == {}
    assert "workload.model._target_" in told(model, target=other)  # for the reference


@pytest.mark.parametrize(
    ("part", "arguments", "key", "message"),
    [
        ("optimizer", {"_target_": "torch.optim.AdmW"}, "_target_", "Did you mean  AdamW ?"),
        ("optimizer", {"_target_": "torch.optim.AdamW", "weight_decai": 0}, "weight_decai", "Did you mean  weight_decay ?"),
        ("loss", {"_target_": "torch.nn.MSLoss"}, "_target_", "Did you mean  MSELoss ?"),
        ("optimizer", {"_target_": "torch.optim.AdamW", "lr": 1}, "", ""),
        ("loss", {"_target_": "torch.nn.MSELoss"}, "", ""),
    ],
)
def test_torchs_own_optimizers_and_losses_are_looked_up(part, arguments, key, message):
    found = told(workload={part: arguments})
    assert list(found) == ([f"workload.{part}.{key}"] if key else [])
    assert all(message in each for each in found.values())


def test_torch_is_not_imported_for_that():
    code = """
from precflow.config import signatures
from precflow.config.schema import RunConfig, Workload
config = RunConfig(workload=Workload(optimizer={"_target_": "torch.optim.AdmW"}))
import sys; print(len(list(signatures.check_user_code(config))), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1 False\n"


def test_classes_of_own_metrics_are_looked_up_before_both_dumps_are_made(written):
    written("mine.py", "class Flips:\n    def __init__(self, least): ...\n")
    flips = {"_target_": "mine.Flips"}
    assert told(metrics={"flips": flips}) == {"metrics.flips.least": "is missing: Flips needs it"}
    assert told(metrics={"flips": {**flips, "least": 1}}) == {}
    assert "Did you mean  Flips ?" in told(metrics={"flips": {"_target_": "mine.Flip"}})["metrics.flips._target_"]
    assert told(metrics={"flips": flips}, stages=("environment",)) == {}


def test_types_are_simple_ones_or_not_looked_at():
    def unlike(value, annotation):
        return signatures._describe_expected(value, ast.parse(annotation, mode="eval").body)

    assert unlike(1, "float") == unlike([[1], []], "Sequence[Sequence[int]]") == unlike({}, "Mapping[str, int]") == ""
    assert unlike(1, "bool") == "true or false"
    assert unlike("ab", "Sequence[str]") == "a list"
    assert unlike([1], "Sequence[str]") == "a list with text in each place"


def test_a_side_with_a_dump_of_its_own_needs_nothing():
    assert told({"_target_": "nowhere.build"}, target={"dump": "a"}, sides=("target",)) == {}


def wrong_in(rule):
    return {".".join(path[3:]): message for path, message in signatures.check_fault_rules([rule])}


@pytest.mark.parametrize("file", sorted((resources.directory("conf") / "emulate").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_fault_is_fine(file):
    assert list(signatures.check_fault_rules(read(file, "emulate", file.stem).data.get("rules", []))) == []


@pytest.mark.parametrize(
    ("rule", "key", "message"),
    [
        ({"operator": "exp", "rule": "scael", "factor": 1.0}, "rule", "Did you mean  scale ?"),
        ({"operator": "exp"}, "rule", "`None` is no effect"),
        ({"operator": "exp", "rule": {"_target_": {"x": 1}}}, "rule", "`{'_target_': {'x': 1}}` is no effect"),
        ({"operator": "exp", "rule": ["scale"]}, "rule", "`['scale']` is no effect"),
        ("scale", "", "expected a rule (`rule`, `operator` and its parameters), got `scale`"),
        (None, "", "expected a rule (`rule`, `operator` and its parameters), got `None`"),
        ({"rule": "scale", "factor": 1.0}, "operator", "aten names"),
        ({"operator": [], "rule": "scale", "factor": 1.0}, "operator", "aten names"),
        ({"operator": "exp", "rule": "scale"}, "", "lacks `factor`"),
        ({"operator": "exp", "rule": "scale", "facter": 1.0, "factor": 1}, "facter", "Did you mean  factor ?"),
        ({"operator": "exp", "rule": "scale", "factor": "a"}, "factor", "expected a number, got `a`"),
        ({"operator": "exp", "rule": "ulp", "distance": True}, "distance", "expected a whole number"),
        ({"operator": "exp", "rule": "narrow", "dtype": "int8"}, "dtype", "one of float16, bfloat16, float32, float8_e4m3fn, "),
        ({"operator": "exp", "rule": "fail", "how": 3}, "how", "one of operator, memory, device, crash, hang"),
        ({"operator": "exp", "rule": "scale", "factor": 1.0, "phase": "fwd"}, "phase", "not one of forward"),
        ({"operator": "exp", "rule": "scale", "factor": 1.0, "phase": "backward", "module": "a"}, "module", "no module"),
        ({"operator": "exp", "rule": "scale", "factor": 1.0, "call": -1}, "call", "from 0"),
        ({"rule": "redraw", "parameter": "a", "operator": "mm"}, "", "takes `parameter`"),
    ],
)
def test_what_no_rule_of_a_fault_can_say(rule, key, message):
    assert message in wrong_in(rule)[key]


def test_the_rules_of_a_fault_are_not_endlessly_many():
    assert "at most" in next(signatures.check_fault_rules([{}] * 101))[1]


def test_effects_are_those_of_the_agent():
    effects = pytest.importorskip("precflow.agent.emulated.effects")
    assert set(signatures.read_effects()) | {"redraw"} == set(effects.KNOWN)


def test_the_ways_to_fail_are_those_of_the_device():
    driver = pytest.importorskip("precflow.agent.emulated.driver")
    annotation = signatures.read_effects()["fail"].parameters["how"].annotation
    assert annotation == f"Literal{list(driver.WAYS)}"
