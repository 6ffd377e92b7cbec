"""The documents as a web site: all links are checked, each version has a folder, nothing comes from a network."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import markdown
import pytest
import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium")
VERSION = "0.1"
PAGES = sorted(path for pattern in ("*.md", "docs/**/*.md", "examples/*/*.md", "skills/**/*.md") for path in ROOT.glob(pattern))
pytestmark = pytest.mark.xdist_group("pages")  # they are built once


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The branch that a web server shows, as mike makes it in a repository of its own; a link that leads nowhere ends it."""
    home = tmp_path_factory.mktemp("repository")
    for path in ROOT.glob("*.md"):
        shutil.copy(path, home)
    for name in ("LICENSE", "mkdocs.yml"):
        shutil.copy(ROOT / name, home)
    for folder in ("docs", "examples", "skills", "conf/standard"):
        shutil.copytree(ROOT / folder, home / folder, ignore=shutil.ignore_patterns("runs", "__pycache__"))
    programs = Path(sys.executable).parent
    who = {f"GIT_{role}_{what}": "precflow" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    path = os.pathsep.join([str(programs), os.environ["PATH"]])  # mike starts mkdocs
    environment = {**os.environ, **who, "PATH": path, "NO_MKDOCS_2_WARNING": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    commands = (
        ["git", "init", "--quiet", "--initial-branch=main"],
        ["git", "commit", "--quiet", "--allow-empty", "--message=pages"],
        [programs / "mike", "deploy", "--update-aliases", VERSION, "latest"],
        ["git", "checkout", "--quiet", "--force", "gh-pages"],
    )
    for command in commands:
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return home


def test_a_version_has_a_folder_of_its_own(published):
    [version] = json.loads((published / "versions.json").read_text(encoding="utf-8"))
    assert (version["version"], version["aliases"]) == (VERSION, ["latest"])
    assert (published / "latest" / "docs" / "keys.html").exists()


class Assets(HTMLParser):
    """What a page loads by itself."""

    def __init__(self):
        super().__init__()
        self.loaded = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        is_link = tag == "link" and given.get("rel") not in {"canonical", "next", "prev"}
        if tag in {"script", "img", "iframe", "source"} or is_link:
            self.loaded += [given[name] for name in ("src", "href", "srcset") if given.get(name)]


def test_a_page_loads_nothing_from_a_network_and_no_file_is_missing(published):
    pages = [*(published / VERSION).rglob("*.html")]
    assert len(pages) > len(PAGES)  # and one that says that a page is not there
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assets = Assets()
        assets.feed(text)
        assert not [address for address in assets.loaded if re.match(r"(https?:)?//", address)], page
        missing = [address for address in assets.loaded if not (page.parent / address.partition("?")[0]).exists()]
        assert page.name == "404.html" or missing == [], page
        assert "mermaid" not in text, page  # such a picture would load its library from a network
    sheets = "".join(path.read_text(encoding="utf-8") for path in (published / VERSION).rglob("*.css"))
    assert not re.search(r"url\([\"']?(https?:)?//", sheets)


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed: apt-get install chromium")
@pytest.mark.parametrize(("word", "page"), [("PF214", "docs/rules.html"), ("余弦相似度", "docs/zh/glossary.html")])
def test_the_search_works_from_a_folder(published, tmp_path, word, page):
    address = (published / VERSION / "index.html").as_uri() + f"?q={word}"
    flags = "--headless --no-sandbox --disable-gpu --virtual-time-budget=20000 --dump-dom"
    command = [CHROMIUM, *flags.split(), f"--user-data-dir={tmp_path}", address]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    found = re.findall(r'<a href="file://[^"]*/(docs/[^"?]+)[^"]*" class="md-search-result__link"', shown)
    assert page in found[:5], shown[-2000:]


def test_a_page_has_the_same_parts_here_and_on_github():
    """Lists and code inside of them are read differently: four spaces more for each level, and a line between, suit both."""
    named = ["admonition", "attr_list", "sane_lists", "tables", "toc", "pymdownx.superfences"]
    configured = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["markdown_extensions"]
    assert {*named} < {name for each in configured for name in ([each] if isinstance(each, str) else each)}
    of_pages = markdown.Markdown(extensions=named)
    of_github = MarkdownIt("commonmark", {"html": True}).enable("table")
    for page in PAGES:
        text = re.sub(r"\A---\n.*?\n---\n", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        ours, theirs = (
            {tag: len(re.findall(rf"<{tag}[ >]", html)) for tag in "h1 h2 h3 ul ol li pre table tr img".split()}
            for html in (of_pages.reset().convert(text), of_github.render(text))
        )
        assert ours == theirs, page
