import os
import re
import sys
from pathlib import Path

import pytest

from precflow.agent.capture import call_sites
from precflow.agent.capture.call_sites import DEPTH, CallSites, ModuleCaller, relative_path


def inner(sites):
    return sites.find_number()


def outer(sites):
    return inner(sites)


def deep(sites, left):
    return sites.find_number() if not left else deep(sites, left - 1)


def run(source, name, filename, **names):
    """Run source as if it stood in a file of the given module."""
    space = {"__name__": name, **names}
    exec(compile(source, filename, "exec"), space)
    return space


def test_frames_go_from_the_caller_outwards():
    sites = CallSites()
    text = sites.texts[outer(sites)]
    assert text.startswith(("tests/agent/capture/test_call_sites.py:", "test_call_sites.py:"))
    assert [part.split(" in ")[1] for part in text.split(" <- ")][:3] == [
        "inner",
        "outer",
        "test_frames_go_from_the_caller_outwards",
    ]


def test_equal_sites_are_one():
    sites = CallSites()
    numbers = [outer(sites) for _ in range(3)]
    assert numbers == [0, 0, 0]
    assert inner(sites) == 1
    assert len(sites.texts) == 2


def test_depth_is_bounded_and_no_path_is_absolute():
    sites = CallSites()
    parts = sites.texts[deep(sites, 20)].split(" <- ")
    assert len(parts) == DEPTH
    assert not any(part.startswith(os.sep) for part in parts)


def test_frames_of_torch_and_of_capture_are_skipped():
    sites = CallSites()
    hidden = run("def f(g): return g()", "torch.nn.modules.linear", "/x/torch/linear.py")
    mode = run("def f(g): return g()", "precflow.agent.capture.torch_functions", "/x/operators.py")
    text = sites.texts[hidden["f"](lambda: mode["f"](sites.find_number))]
    assert "linear.py" not in text
    assert "operators.py" not in text
    assert "<lambda>" in text


def list_modules_with_modes():
    folder = Path(call_sites.__file__).parents[1]
    modules = [
        path for path in folder.rglob("*.py") if re.search(r"^class .*TorchFunctionMode\)", path.read_text(), re.MULTILINE)
    ]
    return [".".join(("precflow.agent", *path.relative_to(folder).with_suffix("").parts)) for path in modules]


@pytest.mark.parametrize("name", list_modules_with_modes())
def test_frames_of_modes_that_stand_before_capture_are_skipped(name):
    sites = CallSites()
    worker = run("def f(g): return g()", "precflow.agent.worker", "/x/worker.py")
    mode = run("def f(g): return g()", name, "/x/mode.py")
    user = run("def f(g): return g()", "model", "/x/model.py")
    number = worker["f"](lambda: user["f"](lambda: mode["f"](sites.find_number)))
    assert "model.py:1 in f" in sites.texts[number]


def test_the_worker_ends_the_search_and_shipped_workloads_count():
    sites = CallSites()
    worker = run("def f(g): return g()", "precflow.agent.worker", "/x/worker.py")
    factory = run("def f(g): return g()", "precflow.agent.workloads.demo", "/x/demo.py")
    assert sites.texts[worker["f"](lambda: factory["f"](sites.find_number))].startswith("demo.py:1 in f <- ")
    assert "test_the_worker" not in sites.texts[worker["f"](lambda: factory["f"](sites.find_number))]


def test_outside_of_any_user_code_the_site_is_empty():
    sites = CallSites()
    hidden = run("def f(g): return g()", "precflow.agent.worker", "/x/worker.py")
    assert sites.texts[hidden["f"](sites.find_number)] == ""


def test_code_without_a_file_is_skipped():
    sites = CallSites()
    odd = run("def f(g): return g()", "user", "<string>")
    assert "<string>" not in sites.texts[odd["f"](sites.find_number)]


@pytest.mark.parametrize(
    ("path", "roots", "relative"),
    [
        ("/a/site-packages/pkg/m.py", ["/a", "/a/site-packages"], "pkg/m.py"),
        ("/a/m.py", ["/b", "", "/"], "m.py"),
        ("/a/bc/m.py", ["/a/b"], "m.py"),
        ("/a/b/../c/m.py", ["/a"], "c/m.py"),
    ],
)
def test_paths_are_relative_to_the_deepest_root(path, roots, relative):
    assert relative_path(path, roots) == relative


def test_roots_that_come_later_count(monkeypatch):
    sites = CallSites()
    monkeypatch.setattr(sys, "path", [*sys.path, "/later"])
    made = run("def f(g): return g()", "user.model", "/later/user/model.py")
    assert sites.texts[made["f"](sites.find_number)].startswith("user/model.py:1 in f")


def torch_runs(action):
    """Return what a function returns that torch's code calls with its own frame."""
    return run("def f(g):\n    import sys\n    return g(sys._getframe())", "torch.nn.modules.module", "/x/module.py")["f"](
        action
    )


def down(left, action):
    return down(left - 1, action) if left else action()


@pytest.mark.parametrize("inside", [0, 1, DEPTH - 1, DEPTH, DEPTH + 3])
@pytest.mark.parametrize("outside", [0, 2, DEPTH + 3])
def test_what_is_above_a_module_is_looked_at_once_and_told_the_same(inside, outside):
    sites = CallSites()

    def called(frame):
        above = ModuleCaller(frame)
        given = [None, above, above]
        return [down(inside, lambda: sites.find_number(given.pop())) for _ in range(3)], above.places

    found, places = down(outside, lambda: torch_runs(called))
    assert len(set(found)) == 1
    assert len(sites.texts[found[0]].split(" <- ")) == DEPTH
    assert (places is None) == (inside >= DEPTH - 2)  # nobody came that far
    assert places is None or len(places) == 2 * DEPTH


def test_calls_from_two_lines_inside_one_module_stay_two():
    sites = CallSites()

    def called(frame):
        above = ModuleCaller(frame)
        first = sites.find_number(above)
        return first, sites.find_number(above)

    assert torch_runs(called) == (0, 1)
