import importlib
import inspect
import pkgutil
import sys

import pytest

from precflow.agent import workloads
from precflow.agent.contract import FACTORIES
from precflow.agent.failures import AgentError
from precflow.agent.workloads import resolve


@pytest.fixture(autouse=True)
def importable(toy, monkeypatch):
    """Make ``toy_workload`` importable for one test."""
    monkeypatch.syspath_prepend(str(toy))
    yield
    sys.modules.pop("toy_workload", None)


def build(target, trusted=("toy_workload",), **arguments):
    return resolve.build({"_target_": target, **arguments}, key="workload.model", trusted=trusted)


def refused(*words, **options):
    with pytest.raises(AgentError) as caught:
        build(*words, **options)
    return caught.value


def test_a_users_function_is_called_with_the_recipes_arguments():
    assert build("toy_workload.build", width=3).linear.weight.shape == (3, 3)


def test_shipped_names_are_the_agents():
    function = resolve.resolve("precflow.workloads.stable_diffusion.prompts", key="workload.inputs", trusted=())
    assert function.__module__ == "precflow.agent.workloads.stable_diffusion"


def test_an_untrusted_package_is_not_even_imported():
    error = refused("toy_workload.build", trusted=("other",))
    assert error.kind == "untrusted"
    assert "package toy_workload is not trusted" in error.message
    assert "PRECFLOW_TRUST=toy_workload" in error.next_step
    assert "toy_workload" not in sys.modules


@pytest.mark.parametrize("target", ["precflow.agent.worker.run", "precflow.cli.main", "os.system", "precflow_workloads.x.y"])
def test_other_parts_of_precflow_and_of_python_are_not_trusted_by_themselves(target):
    assert refused(target).kind == "untrusted"


HELPERS = ["extras.require", "resolve.resolve", "resolve.build", "weights.load", "stable_diffusion.require", "stable_diffusion"]


@pytest.mark.parametrize("name", HELPERS)
def test_a_helper_beside_our_factories_is_no_factory(name, monkeypatch):
    monkeypatch.setattr(resolve.importlib, "import_module", lambda name: pytest.fail("imports " + name))
    error = refused("precflow.workloads." + name, module="toy_workload")
    assert error.kind == "untrusted"
    assert "is no factory of precflow" in error.message
    assert "precflow.workloads.stable_diffusion.text_encoder" in error.next_step


def test_a_factory_is_one_where_a_workload_is_made():
    with pytest.raises(AgentError, match="is no factory"):
        resolve.resolve("precflow.workloads.stable_diffusion.prompts", key="metrics.mine", trusted=())


def test_a_part_of_a_package_can_be_trusted_alone():
    assert refused("toy_workload.build", trusted=("toy_workload.models",)).kind == "untrusted"
    assert "no module toy_workload.models" in refused("toy_workload.models.x", trusted=("toy_workload.models",)).message


def test_the_factories_are_those_that_there_are():
    """A public function of a module of models is a factory: a new one is named in the contract, or made private."""
    helpers = {"extras", "resolve", "weights"}
    modules = [module.name for module in pkgutil.iter_modules(workloads.__path__) if module.name not in helpers]
    found = {
        f"{name}.{function}"
        for name in modules
        for function, value in vars(importlib.import_module("precflow.agent.workloads." + name)).items()
        if inspect.isfunction(value) and value.__module__.endswith(name) and not function.startswith("_")
    }
    assert found == set(FACTORIES)


def test_a_missing_function_offers_near_names():
    error = refused("toy_workload.biuld")
    assert "module toy_workload has no function biuld" in error.message
    assert "build" in error.next_step


def test_a_missing_module_names_the_interpreter():
    error = refused("toy_workload.models.build")
    assert "no module toy_workload.models" in error.message
    assert sys.executable in error.message


def test_a_module_that_lacks_something_itself_shows_its_own_error(toy):
    (toy / "toy_broken.py").write_text("import surely_not_installed\n")
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        build("toy_broken.build", trusted=("toy_broken",))


def test_arguments_that_do_not_fit_show_the_signature():
    error = refused("toy_workload.build", widht=3)
    assert "toy_workload.build(width=8, kind='Toy') cannot be called" in error.message
    assert "widht" in error.message


def test_a_name_without_a_module_is_refused():
    assert "package.module.function" in refused("build", trusted=("build",)).message


@pytest.mark.parametrize("spec", [{}, {"_target_": None}, {"_target_": 3}])
def test_no_target_is_refused(spec):
    with pytest.raises(AgentError, match=r"workload\.model has no _target_") as caught:
        resolve.build(spec, key="workload.model", trusted=())
    assert caught.value.kind == "bad_request"


def test_what_is_offered_is_passed_only_where_it_is_wanted():
    spec = {"_target_": "toy_workload.inputs"}
    made = resolve.build(spec, key="workload.inputs", trusted=("toy_workload",), rows=2, tokenizer="/x")
    assert made["features"].shape == (2, 8)


def test_what_the_recipe_gives_wins_over_what_is_offered():
    spec = {"_target_": "toy_workload.inputs", "rows": 5}
    assert resolve.build(spec, key="workload.inputs", trusted=("toy_workload",), rows=2)["features"].shape == (5, 8)


def test_import_paths_come_last_and_once(monkeypatch):
    monkeypatch.setattr(sys, "path", ["/a"])
    resolve.extend_path(["/b", "/a", "/b"], {"model": {"_target_": "toy_workload.build"}, "mode": "eval"})
    assert sys.path == ["/a", "/b"]


def test_the_working_folder_is_no_place_for_modules_where_the_workload_is_ours(monkeypatch):
    monkeypatch.setattr(sys, "path", ["/a"])
    ours = {"_target_": "precflow.workloads.stable_diffusion.text_encoder"}
    resolve.extend_path(["/b"], {"model": ours, "loss": {"_target_": "torch.nn.MSELoss"}, "optimizer": {}, "mode": "eval"})
    assert sys.path == ["/a"]
