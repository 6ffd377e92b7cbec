from precflow.comparison.measure import Measure, merged


def measure(record, **given):
    about = {
        "name": record,
        "module": record,
        "operator": "",
        "level": "module",
        "phase": "forward",
        "order": 0,
        "join": "paired",
    }
    return Measure(record=record, **{**about, **given})


FIRST = [
    measure("a", order=3, site="x.py:1", arguments={"dim": ("0", "1")}, metrics={"relative_l2": 0.1}),
    measure("b", order=4, join="sampled_out"),
    measure("c", order=5, metrics={"relative_l2": 0.3}),
]


def test_what_was_measured_anew_takes_the_place_of_its_estimate():
    again = measure("a", order=0, metrics={"relative_l2": 0.125, "ulp_distance": 3.0})
    found = merged(FIRST, [again, measure("b", order=1, metrics={"relative_l2": 0.2})])
    assert [one.metrics.get("relative_l2") for one in found] == [0.125, 0.2, 0.3]
    assert found[0].metrics["ulp_distance"] == 3.0


def test_the_place_in_the_graph_stays_that_of_the_first_pass():
    (found, *_) = merged(FIRST, [measure("a", order=0, metrics={"relative_l2": 0.1})])
    assert (found.order, found.site, found.arguments) == (3, "x.py:1", {"dim": ("0", "1")})


def test_what_the_second_pass_could_not_measure_keeps_its_estimate():
    again = [measure("a", join="unreadable"), measure("b", join="unpaired_target"), measure("c")]
    assert merged(FIRST, again) == FIRST


def test_records_that_only_the_second_pass_has_are_not_added():
    assert merged(FIRST, [measure("z", metrics={"relative_l2": 0.1})]) == FIRST
