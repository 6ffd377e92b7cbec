"""Compiled templates are kept for the next process, and never taken from where somebody else may write."""

import jinja2
import pytest

from precflow.template_cache import TemplateCache


@pytest.fixture
def render(tmp_path, monkeypatch):
    """Render a template as a new process would; ``compiled`` lists what had to be compiled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "filters.py"
    source.write_text("one")

    class Environment(jinja2.Environment):
        def compile(self, text, *args, **kwargs):
            compiled.append(text)
            return super().compile(text, *args, **kwargs)

    def render(text="{{ 1 + one }}"):
        compiled.clear()
        return (
            Environment(loader=jinja2.DictLoader({"page": text}), bytecode_cache=TemplateCache([source]))
            .get_template("page")
            .render(one=1)
        )

    compiled = []
    render.compiled, render.source = compiled, source
    render.files = lambda: list(tmp_path.glob("precflow/templates-*/*"))
    return render


def test_a_second_process_compiles_nothing(render):
    assert render() == render() == "2"
    assert render.compiled == []


def test_what_changed_is_compiled_again(render):
    render()
    assert (render("{{ 2 + one }}"), len(render.compiled)) == ("3", 1)
    render.source.write_text("two")
    assert (render("{{ 2 + one }}"), len(render.compiled)) == ("3", 1)


def test_no_changed_byte_of_what_is_kept_is_run(render):
    render()
    (file,) = render.files()
    whole = file.read_bytes()
    for place in range(0, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert (render(), len(render.compiled)) == ("2", 1)
        assert file.read_bytes() == whole
    file.write_bytes(b"")
    assert render() == "2"


@pytest.mark.parametrize("rights", [0o777, 0o720])
def test_nothing_is_kept_where_others_may_write(render, rights):
    render()
    (file,) = render.files()
    file.parent.chmod(rights)
    try:
        assert (render(), len(render.compiled)) == ("2", 1)
    finally:
        file.parent.chmod(0o700)
