import dataclasses
import json
import re

import pytest

from precflow.report import junit, result_json
from precflow.report.model import RESULT_SCHEMA
from precflow.resources import directory

SCHEMA = json.loads((directory("docs") / "result.schema.json").read_text(encoding="utf-8"))


def violations(value, schema, place="$"):
    """Check the part of JSON Schema that the schema uses; every keyword in it must be known here."""
    known = {
        "$schema",
        "$id",
        "$defs",
        "$ref",
        "title",
        "description",
        "type",
        "properties",
        "required",
        "additionalProperties",
    }
    unknown = (
        set(schema) - known - {"items", "enum", "const", "minimum", "maximum", "anyOf", "minLength", "minItems", "maxItems"}
    )
    assert not unknown, unknown
    if "$ref" in schema:
        return violations(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], place)
    if "anyOf" in schema:
        return [] if any(not violations(value, choice, place) for choice in schema["anyOf"]) else [f"{place}: no choice fits"]
    return _plain_violations(value, schema, place)


def _plain_violations(value, schema, place):
    types = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
    }
    expected = types[schema["type"]] if "type" in schema else object
    if not isinstance(value, expected) or (isinstance(value, bool) and schema.get("type") in {"integer", "number"}):
        return [f"{place}: {value!r} is no {schema['type']}"]
    found = [f"{place}: not {schema['const']!r}"] if "const" in schema and value != schema["const"] else []
    found += [f"{place}: {value!r} not listed"] if "enum" in schema and value not in schema["enum"] else []
    found += [f"{place}: {value} out of range"] if value_out_of_range(value, schema) else []
    if isinstance(value, dict):
        found += [f"{place}: lacks {key}" for key in schema.get("required", ()) if key not in value]
        for key, inner in value.items():
            rule = schema.get("properties", {}).get(key, schema.get("additionalProperties", False))
            found += [f"{place}: {key} is not in the schema"] if rule is False else violations(inner, rule, f"{place}.{key}")
    if isinstance(value, list):
        found += [text for index, inner in enumerate(value) for text in violations(inner, schema["items"], f"{place}[{index}]")]
    return found


def value_out_of_range(value, schema):
    return ("minimum" in schema and value < schema["minimum"]) or ("maximum" in schema and value > schema["maximum"])


def refuse(word):
    raise AssertionError(f"{word} is not strict JSON")


def parsed(model):
    return json.loads(result_json.render(model), parse_constant=refuse)


@pytest.mark.parametrize("name", ["aligned", "misaligned", "inconclusive", "nasty", "empty", "trained"])
def test_every_result_follows_the_published_schema(name, request):
    assert violations(parsed(request.getfixturevalue(name)), SCHEMA) == []


def test_the_schema_notices_what_is_wrong(misaligned):
    whole = parsed(misaligned)
    whole["verdict"]["verdict"] = "fine"
    whole["rows"][0]["surprise"] = 1
    del whole["recipe"]
    found = violations(whole, SCHEMA)
    assert len(found) == 3, found


def test_text_and_document_agree(misaligned):
    assert parsed(misaligned) == json.loads(json.dumps(result_json.build_document(misaligned)))


def test_numbers_that_json_lacks_become_words(nasty):
    values = {row.get("value") for row in parsed(nasty)["rows"]}
    assert {"NaN", "Infinity"} <= values


def test_a_cosine_next_to_one_is_not_rounded_to_one():
    assert result_json.make_strict(1 - 1e-11) < 1


def test_schema_version_and_exit_code(misaligned, aligned, inconclusive):
    assert parsed(misaligned)["schema"] == RESULT_SCHEMA == SCHEMA["properties"]["schema"]["const"]
    assert [parsed(model)["exit_code"] for model in (aligned, misaligned, inconclusive)] == [0, 1, 3]


def test_the_page_about_it_names_every_key_and_the_version():
    page = (directory("docs") / "result-json.md").read_text(encoding="utf-8")
    keys, changes = page.split("## All keys")[1].split("## What stays")[0], page.split("## Changes")[1]
    assert set(re.findall(r"`(\w+)`", keys.split("Numbers have")[0])) == set(SCHEMA["properties"])
    assert f"| {RESULT_SCHEMA} |" in changes


def test_every_record_is_in_the_result_with_the_shown_metrics_only(misaligned):
    rows = parsed(misaligned)["rows"]
    assert len(rows) == len(misaligned.rows)
    assert set(rows[2]["metrics"]) == set(misaligned.columns)


def test_the_error_s_start_is_one_row(misaligned):
    rows = [row for row in parsed(misaligned)["rows"] if row["role"] == "introduces"]
    assert [row["name"] for row in rows] == [parsed(misaligned)["region"]["start"]]


def test_each_record_stands_on_a_line_of_its_own(misaligned):
    lines = [line for line in result_json.render(misaligned).splitlines() if '"record":' in line and '"order":' in line]
    assert len(lines) == len(misaligned.rows)


def test_very_many_records_are_bounded_and_counted(large):
    whole = parsed(large)
    kept = [row["record"] for row in whole["rows"]]
    assert len(large.rows) >= 20_000
    assert len(kept) + whole["rows_left_out"] == len(large.rows)
    assert whole["rows_left_out"] > 0
    assert len(result_json.render(large).encode()) < result_json.MOST_BYTES + 500_000
    places = {row.measure.record: place for place, row in enumerate(large.rows)}
    assert kept == sorted(kept, key=places.__getitem__)


def test_what_matters_least_is_left_out_first(misaligned, monkeypatch):
    whole = parsed(misaligned)["rows"]
    for most in range(0, len(json.dumps(whole)), 700):
        monkeypatch.setattr(result_json, "MOST_BYTES", most)
        rows = parsed(misaligned)["rows"]
        troubles = [row for row in whole if row["status"] not in {"pass", "not_judged"}]
        if any(row["status"] in {"pass", "not_judged"} for row in rows):
            assert all(row in rows for row in troubles)
        left = [row["ratio"] for row in whole if row["status"] == "pass" and row not in rows]
        kept = [row["ratio"] for row in rows if row["status"] == "pass"]
        assert not left or not kept or max(left) <= min(kept)


def test_an_estimate_carries_its_range_and_what_was_kept(estimated):
    row = result_json.build_document(estimated)["rows"][0]
    assert (row["evidence"], row["share"], row["range"]) == ("sketch", 0.5, [7.5e-08, "Infinity"])
    assert violations(row, SCHEMA["$defs"]["row"]) == []
    exact = result_json.build_document(estimated)["rows"][1]
    assert {"evidence", "share", "range"}.isdisjoint(exact)


def test_names_from_the_net_act_on_no_screen(nasty):
    for text in (result_json.render(nasty), junit.render(nasty)):
        assert [letter for letter in text if not letter.isprintable() and letter not in "\n\u00a0\u202f"] == []
    names = [row.measure.record.encode("utf-8", "backslashreplace").decode() for row in nasty.rows]
    assert [row["record"].encode("utf-8", "backslashreplace").decode() for row in parsed(nasty)["rows"]] == names


def test_rows_say_how_a_pair_was_made_where_it_was_not_by_name(misaligned):
    def row_with(how):
        first = misaligned.rows[0]
        made = dataclasses.replace(first, measure=dataclasses.replace(first.measure, pairing=how))
        return parsed(dataclasses.replace(misaligned, rows=[made]))["rows"][0]

    assert row_with("pairing.rules[2]")["pairing"] == "pairing.rules[2]"
    assert "pairing" not in row_with("name")
