"""No module imports itself by way of others, and none inside imports the package's front door, which imports them all."""

import graphlib
import re
from pathlib import Path

import grimp
import pytest

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("precflow", cache_dir=None)


def test_modules_do_not_import_in_circles(graph):
    imported = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    circle = []
    try:
        graphlib.TopologicalSorter(imported).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1]
    assert " imports ".join(reversed(circle)) == ""


def test_nothing_inside_imports_the_front_door(graph):
    assert graph.find_modules_that_directly_import("precflow") == set()


def test_every_package_has_a_floor(graph):
    """A package that is on no floor could import anything."""
    floors = re.search(r"^layers = \[(.*?)^\]", PYPROJECT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert graph.find_children("precflow") - set(re.findall(r"precflow\.\w+", floors[1])) == {"precflow.agent"}
