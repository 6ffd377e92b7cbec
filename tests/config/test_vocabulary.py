from precflow import resources
from precflow.config import vocabulary
from precflow.config.key_tree import attribute, fields, is_section, item, without_none
from precflow.config.schema import RunConfig


def sections(kind):
    yield kind
    for hint in fields(kind).values():
        inner = item(without_none(hint)) if not is_section(without_none(hint)) else without_none(hint)
        if is_section(inner):
            yield from sections(inner)


def test_every_row_of_the_table_is_a_key_of_the_schema():
    known = {f"{kind.__name__}.{name}" for kind in sections(RunConfig) for name in fields(kind)}
    assert set(vocabulary.WORDS) <= known


def test_every_default_is_one_of_the_words():
    wrong = []
    for kind in set(sections(RunConfig)):
        for name in fields(kind):
            allowed, default = vocabulary.allowed_words(f"{kind.__name__}.{name}"), getattr(kind(), attribute(name))
            values = default if isinstance(default, tuple) else (default,)
            wrong += [(kind, name, value) for value in values if allowed and isinstance(value, str) and value not in allowed]
    assert wrong == []


def test_free_text_has_no_words():
    assert vocabulary.allowed_words("About.title") is None


def test_standards_are_those_of_the_folder():
    shipped = {path.stem for path in (resources.directory("conf") / "standard").glob("*.yaml")}
    assert shipped == set(vocabulary.allowed_words("Tolerance.standards"))
    assert {"default", "allclose", "calibrated"} < shipped
