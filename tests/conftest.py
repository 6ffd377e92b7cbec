"""What several tests share: a working directory for equal dumps, a header, and a team's folders in a temporary place."""

import functools
import gc
import os
import signal
import subprocess
import textwrap
from pathlib import Path

import amounts
import pytest
import warm
from hypothesis import settings

# No deadlines: how long an example takes says how busy the machine is. The same examples each time, so that a red test is about
# the change that was made and not about luck; PRECFLOW_ALL_EXAMPLES searches further, with others each time.
settings.register_profile("precflow", deadline=None, derandomize=not amounts.ALL)
settings.load_profile("precflow")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell has what it starts in the background ignore interrupts
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Before anything imports torch. Threads of several tests on the same cores wait for each other at every operator; and a fork of
# a process in which an operator has run on several threads waits for ever at its next one: these threads are not in it.
os.environ["OMP_NUM_THREADS"] = "1"


def pytest_configure(config):
    """Collect what is named folder by folder: pytest 9.1 loses the fixtures of a folder that it comes back to."""
    config.args.sort()


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks; after the hooks of folders, which are younger
def pytest_collection_modifyitems(config, items):
    """Hand out slow tests first and one by one, and the others by files: a message for each takes longer than most of them."""
    if getattr(config.option, "loadgroup", False):
        for item in items:
            if not is_slow(item):
                item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}/{item.path.stem}"))
        items.sort(key=lambda item: not is_slow(item))


def pytest_collection_finish():
    """Leave what has been imported out of garbage collections: a capture begins with one, and there are hundreds."""
    gc.collect()
    gc.freeze()
    gc.get_freeze_count = warm.some_are_frozen


@pytest.fixture(scope="module", autouse=True)
def others_objects_are_frozen():
    """Leave out too what tests of other files have left: an agent looks through all objects, in each fork of this process."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def nothing_frozen(monkeypatch):
    """Begin with nothing frozen; afterwards everything is again that is there."""
    gc.unfreeze()
    with monkeypatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", warm.COUNT_FROZEN)
        yield
    gc.enable()
    gc.unfreeze()
    gc.freeze()


def is_slow(item):
    """Tell whether a test is marked as slow or belongs to a group that shares something slow."""
    group = item.get_closest_marker("xdist_group")
    return item.get_closest_marker("slow") is not None or (group is not None and "/" not in group.args[0])


@pytest.fixture(scope="session")
def warm_server(request, tmp_path_factory):
    """Return a server that runs ``precflow`` and its agents in forks of a process that has imported everything."""
    is_worker = hasattr(request.config, "workerinput")
    server = warm.Warm(shared=tmp_path_factory.getbasetemp().parent / "warm" if is_worker else None)  # in the run's own folder
    yield server
    server.close()


@pytest.fixture(scope="session", autouse=True)
def agents_are_warm(warm_server):
    """Agents that this process starts are forks of the warm server, which saves each the import of torch."""
    from precflow.sides import launch

    launch.subprocess = warm_server.agents()
    yield
    launch.subprocess = subprocess


@pytest.fixture
def cold_agents(monkeypatch):
    """Agents of a test are interpreters of their own."""
    from precflow.sides import launch

    monkeypatch.setattr(launch, "subprocess", subprocess)


@pytest.fixture(scope="session", autouse=True)
def own_interpreter_answers_once(warm_server):
    """Ask this interpreter once what is installed, not at every stage of every run and in every dump."""
    from precflow.sides import interpreter

    interpreter.subprocess = warm.OneAnswer(warm_server.folder)
    warm.list_packages_once()
    yield
    interpreter.subprocess = subprocess


@pytest.fixture(scope="session")
def workplace(tmp_path_factory):
    """Return one working directory for the whole session of this worker; in its ``runs/`` equal keys are made once."""
    return tmp_path_factory.mktemp("workplace")


@pytest.fixture(scope="session")
def small_encoder(tmp_path_factory, warm_server):
    """Return a function that gives the overrides for a text encoder of few layers, a twenty-fourth as wide as the real one."""
    program = Path(__file__).parent / "support" / "small_encoder.py"

    @functools.cache
    def overrides(layers=2):
        folder = tmp_path_factory.mktemp("encoder") / str(layers)
        words = (program, folder, layers)
        code, _, said = warm_server.run(words, cwd=folder.parent, env=dict(os.environ), timeout=100, module="")
        assert code == 0, said
        return (f"workload.model.weights={folder}",)

    return overrides


@pytest.fixture
def grown():
    """Return a function that tells by how many bytes memory grew at its peak since the test began.

    The peak that the process had before, and that of the one which started it, count for nothing.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    except OSError:
        pytest.skip("this system does not tell the peak of a while")

    def bytes_of(name):
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

    before = bytes_of("VmRSS")
    return lambda: bytes_of("VmHWM") - before


@pytest.fixture
def plain_header():
    """Return what a header says at the least, besides what its writer adds."""
    return {"side": "target", "dtype": "float32"}


@pytest.fixture
def clean(monkeypatch, tmp_path):
    """No variable and no user configuration of the machine reaches a test."""
    for name in ("PRECFLOW_RECIPES", "PRECFLOW_SITES", "PRECFLOW_TRUST", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def team(tmp_path, monkeypatch):
    """Return a function that writes ``recipes/NAME.yaml``, found through ``PRECFLOW_RECIPES``."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    monkeypatch.setenv("PRECFLOW_RECIPES", str(folder))
    return _writer(folder)


@pytest.fixture
def sites(tmp_path, monkeypatch):
    """Return a function that writes a site file, found through ``PRECFLOW_SITES``."""
    folder = tmp_path / "sites"
    folder.mkdir()
    monkeypatch.setenv("PRECFLOW_SITES", str(folder))
    return _writer(folder)


def _writer(folder):
    def write(name, text):
        file = folder / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text), encoding="utf-8")
        return file

    return write
