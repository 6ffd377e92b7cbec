"""Event files, read by TensorBoard's own reader."""

import dataclasses
import math

import numpy as np
import pytest

from precflow.comparison.detail.detail import examine as examine_tensors
from precflow.comparison.detail.record import RecordDetail
from precflow.curves.outcome import examine
from precflow.curves.reading import read_curve
from precflow.curves.series import make_series
from precflow.curves.wanted import Wanted
from precflow.report import tensorboard
from precflow.report.groups import find_module

accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

LOSS = 2 + 8 * np.exp(-np.arange(50) / 10)
X = np.random.default_rng(0).standard_normal((4, 16)).astype(np.float32)


def read(folder, run):
    reader = accumulators.EventAccumulator(str(folder / "tensorboard" / run), accumulators.STORE_EVERYTHING_SIZE_GUIDANCE)
    reader.Reload()
    return reader


def scalars(reader, tag):
    return [(event.step, event.value) for event in reader.Scalars(tag)]


@pytest.fixture(scope="module")
def trained(medium, tmp_path_factory):
    """A run with a curve, of which the target's is NaN at step 3, and one record in full."""
    model = medium
    target = LOSS + 0.1
    target[3] = math.nan
    curve = examine("loss", make_series(range(50), LOSS), make_series(range(50), target), limits={"max_abs_error": 0.5})
    record = next(row.measure for row in model.rows if row.role == "introduces")
    detail = RecordDetail(record.record, record.name, examine_tensors(X, X * 1.5))
    folder = tmp_path_factory.mktemp("events")
    model = dataclasses.replace(model, curves=(curve,), details=(detail,))
    assert [path.parent.name for path in tensorboard.write(model, folder)] == ["reference", "target", "difference"]
    return model, folder


def test_curves_of_both_sides_have_one_name_and_only_numbers(trained):
    _, folder = trained
    reference, target = (scalars(read(folder, side), "curves/loss") for side in ("reference", "target"))
    assert reference == [(step, np.float32(value)) for step, value in enumerate(LOSS)]
    assert [step for step, _ in target] == [step for step in range(50) if step != 3]
    assert scalars(read(folder, "difference"), "curves/loss")[0][1] == pytest.approx(0.1)


def test_precflow_reads_the_curve_back(trained):
    _, folder = trained
    series = read_curve(folder / "tensorboard" / "reference", Wanted("curves/loss"))
    assert series.values.tolist() == LOSS.astype(np.float32).tolist()


def test_the_error_along_the_network_and_over_its_modules(trained):
    model, folder = trained
    reader = read(folder, "difference")
    along = scalars(reader, "along the network/relative_l2, forward")
    errors = [row.measure.metrics["relative_l2"] for row in model.rows if "relative_l2" in row.measure.metrics]
    assert [value for _, value in along][:4] == [np.float32(max(errors[at : at + 2])) for at in range(0, 8, 2)]  # 1 084 of them
    worst = scalars(reader, "modules/encoder.layers.4, largest relative_l2")
    inside = [row for row in model.rows if find_module(row) == "encoder.layers.4"]
    assert worst == [(0, np.float32(max(row.measure.metrics.get("relative_l2", 0) for row in inside)))]
    (tag,) = [tag for tag in reader.Tags()["histograms"] if tag.startswith("log10")]
    counted = sum(event.histogram_value.num for event in reader.Histograms(tag))
    assert counted == sum(error > 0 for error in errors)
    text = reader.Tensors("report")[0].tensor_proto.string_val[0].decode()
    assert text.startswith("# ✗ MISALIGNED")


def test_histograms_of_a_record_have_its_values(trained):
    model, folder = trained
    name = model.details[0].name
    for side in ("reference", "target"):
        (event,) = read(folder, side).Histograms(f"values/{name}")
        found = event.histogram_value
        assert sum(found.bucket) == found.num == X.size
        assert (found.min, found.max) == pytest.approx((1.5 * X.min(), 1.5 * X.max()))  # both sides have one range
        assert len(found.bucket) == len(found.bucket_limit)
    (event,) = read(folder, "difference").Histograms(f"log2 of the errors/{name}")
    assert event.histogram_value.num == X.size


def test_of_many_records_the_worst_is_kept(large, tmp_path):
    tensorboard.write(large, tmp_path)
    along = [value for _, value in scalars(read(tmp_path, "difference"), "along the network/share of the limit, forward")]
    assert len(along) <= tensorboard.MOST_POINTS < len(large.rows)
    assert max(along) == np.float32(max(row.judged.ratio for row in large.rows if row.judged.metric))


@pytest.mark.parametrize("name", ["nasty", "empty", "inconclusive"])
def test_any_run_makes_files_that_tensorboard_reads(name, request, tmp_path):
    tensorboard.write(request.getfixturevalue(name), tmp_path)
    reader = read(tmp_path, "difference")
    assert "report" in reader.Tags()["tensors"]
    assert not any("\x1b" in tag for tags in reader.Tags().values() if isinstance(tags, list) for tag in tags)
