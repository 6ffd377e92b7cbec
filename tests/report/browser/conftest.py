"""The browser, once for all tests, and reports opened in it."""

import pytest
from chromium import CHROMIUM, Browser

from precflow.report import html


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("Debian's chromium is not installed: apt-get install chromium")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def show(chromium, tmp_path):
    """Open the report of a model, at an address behind ``#`` where one is given."""

    def opened(model, address="", **options):
        path = tmp_path / "report.html"
        path.write_text(html.render(model), encoding="utf-8", errors="backslashreplace")
        chromium.open(path.as_uri() + (f"#{address}" if address else ""), **options)
        return chromium

    return opened
