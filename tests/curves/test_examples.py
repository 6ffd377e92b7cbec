"""The examples in docstrings."""

import doctest
import importlib
import pkgutil

import pytest

import precflow.curves

MODULES = [
    *(module.name for module in pkgutil.walk_packages(precflow.curves.__path__, "precflow.curves.")),
    "precflow.config.sections.curves_section",
    "precflow.judgement.curves",
    "precflow.report.curves",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
