"""What ran in compiled code and was not seen, in words."""

from precflow.dumps.header import CompiledCode, Header
from precflow.environment.unseen import describe_unseen


def header(unseen=None, capture=None, **script):
    return Header(compiled=CompiledCode(unseen or {}), capture={"compiled": capture} if capture else {}, script=script)


def test_both_sides_alike_are_told_once_and_otherwise_each():
    whole = header({"": 7})
    text = "7 modules inside 1 compiled module could not be seen ((model)); capture.compiled=eager looks inside"
    assert describe_unseen(header(), header()) == []
    assert describe_unseen(whole, whole) == [f"compiled code on both sides: {text}"]
    assert describe_unseen(header(), whole) == [f"compiled code on the target: {text}"]
    assert len(describe_unseen(whole, header({"a": 1}))) == 2


def test_functions_are_counted_apart_and_names_cut_short():
    (text,) = describe_unseen(header(), header({"a": 1, "b": 2, "function act": 0, "c": 0}))
    counted = (
        "3 modules inside 3 compiled modules and the inside of 1 compiled function could not be seen (a, b, act and 1 more)"
    )
    assert text.startswith(f"compiled code on the target: {counted}")


def test_what_stays_compiled_where_nothing_should_be_is_not_told_to_be_looked_into():
    for eager in (header({"a": 1}, "eager"), header({"a": 1}, compile="eager")):
        assert "looks inside" not in describe_unseen(header(), eager)[0]
    assert "looks inside" in describe_unseen(header(), header({"a": 1}, "kept", compile="eager"))[0]
