import dataclasses

from precflow.report import chart
from precflow.report.highlights import is_judged


def test_the_preferred_error_is_drawn(misaligned):
    assert chart.choose_metric(misaligned) == "relative_l2"


def test_another_error_is_drawn_where_the_preferred_one_is_missing(misaligned):
    rows = [
        dataclasses.replace(row, measure=dataclasses.replace(row.measure, metrics={"cosine_similarity": 1.0, "rmse": 0.1}))
        for row in misaligned.rows
    ]
    assert chart.choose_metric(dataclasses.replace(misaligned, rows=tuple(rows))) == "rmse"


def test_every_error_and_limit_lies_on_the_scale(misaligned):
    low, high = chart.find_decades(misaligned.rows, "relative_l2")
    errors = [row.measure.metrics["relative_l2"] for row in misaligned.rows if is_judged(row)]
    assert all(10.0**low <= error <= 10.0**high for error in errors if error > 0)
    assert 10.0**low <= misaligned.rows[0].judged.limit <= 10.0**high


def test_the_scale_survives_nan_infinity_zero_and_nothing(nasty, empty):
    for model in (nasty, empty):
        low, high = chart.find_decades(model.rows, "relative_l2")
        assert -20 < low < high < 20
        assert high - low >= 3


def test_the_parts_under_the_picture_are_layers(misaligned):
    labels = [label for label, _ in chart.build_chart(misaligned).groups]
    assert [label for label in labels if label.startswith("layers.")] == [f"layers.{layer}" for layer in range(12)]
    assert len(labels) <= chart.MOST_GROUPS


def test_a_model_of_one_deep_list_still_has_parts(large):
    assert len(chart.build_chart(large).groups) > 800


def test_a_deep_model_has_parts_as_well(deep):
    assert [index for _, index in chart.build_chart(deep).groups] == [0]


def test_a_row_above_the_depth_belongs_to_what_runs_around_it(misaligned):
    labels = [label for label, _ in chart.build_chart(misaligned).groups]
    assert labels.count("encoder") == 0
    assert labels[-1] == "final_layer_norm"


def test_parts_come_in_order_of_the_network(misaligned):
    places = [index for _, index in chart.build_chart(misaligned).groups]
    assert places == sorted(places)


def test_the_picture_in_words(misaligned, empty):
    assert "1 introduces" in chart.build_chart(misaligned).summary
    assert "nothing to show" in chart.build_chart(empty).summary


def test_what_is_undecided_is_a_point(undecided):
    assert sum(map(is_judged, undecided.rows)) == undecided.verdict.counts["undecided"] > 0


def test_movement_is_no_point(misaligned):
    assert sum(map(is_judged, misaligned.rows)) == misaligned.verdict.total


def test_steps_and_phases_begin_where_their_first_record_stands(aligned):
    rows = [
        dataclasses.replace(
            row,
            measure=dataclasses.replace(
                row.measure,
                phase="forward" if number % 100 < 60 else "backward",
                record=f"a/forward.output.0@{number // 100}.0",
            ),
        )
        for number, row in enumerate(aligned.rows[:200])
    ]
    picture = chart.build_chart(dataclasses.replace(aligned, rows=tuple(rows)))
    assert picture.steps == (("step 0", 0), ("step 1", 100))
    assert picture.phases == (("forward", 0), ("backward", 60), ("forward", 100), ("backward", 160))


def test_what_is_narrower_than_a_pixel_is_no_mark_of_the_picture():
    assert chart._find_runs(["forward", "backward"] * chart.MOST_SPANS) == ()
