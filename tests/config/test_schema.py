import json

from precflow.config.schema import RunConfig, Share, Tolerance, ToleranceRule, plain


def test_a_whole_configuration_is_json():
    assert json.loads(json.dumps(plain(RunConfig()))) == plain(RunConfig())


def test_order_is_that_of_the_schema_and_tuples_are_lists():
    tolerance = plain(Tolerance(standards=("a", "b"), rules=(ToleranceRule(match="x", relative_l2=Share(0.5)),)))
    assert list(tolerance)[-3:] == ["standards", "rules", "fills"]
    assert tolerance["standards"] == ["a", "b"]
    assert tolerance["rules"][0]["relative_l2"] == 0.5


def test_keys_become_text():
    assert plain({1: (2, {"a": None})}) == {"1": [2, {"a": None}]}
