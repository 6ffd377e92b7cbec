"""A result as event files of TensorBoard: curves of both sides over each other, the error along the network, histograms.

TensorBoard takes each folder for a run: ``reference``, ``target`` and ``difference``. What both sides have carries one name
in the first two, so that they are drawn into one picture. The package ``tensorboard`` writes the format, without torch.

TensorBoard keeps about a thousand points of a curve, chosen at random. So that it never drops the worst record of a model, no
curve here has more than ``MOST_POINTS``: of more records the worst of each stretch is kept.
"""

from __future__ import annotations

import datetime
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from precflow.agent.contract import parse_identity
from precflow.comparison.detail.histogram import Histogram, count_bins
from precflow.errors import StoreError
from precflow.files import replacing
from precflow.judgement.floors import MAIN_METRIC
from precflow.report import highlights, markdown
from precflow.report.groups import find_module
from precflow.report.model import ReportModel, Row
from precflow.streams import printable

FOLDER = "tensorboard"
RUNS = REFERENCE, TARGET, DIFFERENCE = ("reference", "target", "difference")
MOST_POINTS = 900
MOST_MODULES = 100  # with a curve of their own, those that are furthest off
_FILE = "events.out.tfevents.precflow"  # TensorBoard knows its files by the middle word
_VERSION = "brain.Event:2"


def write(model: ReportModel, folder: Path) -> list[Path]:
    """Write ``tensorboard/`` into a folder and return its files, each of which appears whole or not at all.

    Raises:
        StoreError: The folder cannot be written.
    """
    from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415  half a second, and an extra
    from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415  the same

    began = _read_time(model.finished)
    written = []
    try:
        for run in RUNS:
            path = folder / FOLDER / run / _FILE
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                with temporary.open("wb") as file:
                    writer = RecordWriter(file)
                    writer.write(Event(wall_time=began, file_version=_VERSION).SerializeToString())
                    for step, value in _list_values(model, run):
                        event = Event(wall_time=began, step=step)
                        event.summary.value.append(value)
                        writer.write(event.SerializeToString())
                temporary.chmod(0o644)
            written.append(path)
    except OSError as error:
        message = f"the event files of TensorBoard cannot be written into {folder}: {error.strerror or error}"
        raise StoreError(message, next_step="choose another folder, or free some space") from error
    return written


def _list_values(model: ReportModel, run: str) -> Iterator[tuple[int, Any]]:
    """Yield step and value of everything that a run of TensorBoard shows."""
    for curve in model.curves:
        for point in curve.points:
            if math.isfinite(number := getattr(point, run)):
                yield point.step, _make_scalar(f"curves/{curve.name}", number)
    for one in model.details:
        if one.detail is not None and run == DIFFERENCE:
            bins = [(math.log2(low), math.log2(high), count) for low, high, count in one.detail.error_bins if low > 0]
            yield 0, _make_histogram(f"log2 of the errors/{one.name}", bins)
        elif one.detail is not None:
            yield 0, _make_histogram(f"values/{one.name}", _cut(getattr(one.detail, run).values))
    if run == DIFFERENCE:
        yield 0, _make_text("report", markdown.render(model))
        yield from _list_errors_along(model.rows)
        yield from _list_errors_of_modules(model.rows)


def _list_errors_along(rows: Sequence[Row]) -> Iterator[tuple[int, Any]]:
    """Yield the errors of all records, in order of the network, by their phase."""
    shares = [(row, highlights.ratio_of(row)) for row in rows if row.judged.metric]
    for title, every in ((MAIN_METRIC, _list_main(rows)), ("share of the limit", shares)):
        by_phase = defaultdict(list)
        for place, (row, number) in enumerate(every):
            if math.isfinite(number):
                by_phase[row.measure.phase].append((place, number))
        for phase, points in by_phase.items():
            for place, number in _keep_worst(points):
                yield place, _make_scalar(f"along the network/{title}, {phase}", number)


def _list_errors_of_modules(rows: Sequence[Row]) -> Iterator[tuple[int, Any]]:
    """Yield the largest error of each module over the training steps, and how the errors of all its records are spread."""
    modules: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row, number in _list_main(rows):
        if math.isfinite(number):
            modules[find_module(row)].append((_find_step(row), number))
    worst = sorted(modules, key=lambda name: -max(number for _, number in modules[name]))
    for name in worst[:MOST_MODULES]:
        steps: dict[int, float] = {}
        for step, number in modules[name]:
            steps[step] = max(number, steps.get(step, 0.0))
        for step, number in _keep_worst(sorted(steps.items())):
            yield step, _make_scalar(f"modules/{name}, largest {MAIN_METRIC}", number)
    for place, name in enumerate(modules):
        logs = np.array([math.log10(number) for _, number in modules[name] if number > 0])
        if logs.size:
            found = count_bins(logs, math.floor(logs.min()), math.floor(logs.max()) + 1.0, 20)
            yield place, _make_histogram(f"log10 of {MAIN_METRIC}, module after module/records that differ", _cut(found))


def _list_main(rows: Sequence[Row]) -> list[tuple[Row, float]]:
    return [(row, row.measure.metrics[MAIN_METRIC]) for row in rows if MAIN_METRIC in row.measure.metrics]


def _cut(found: Histogram) -> list[tuple[float, float, int]]:
    """Return the bins of a histogram with their edges."""
    edges = np.linspace(found.low, found.high, len(found.counts) + 1).tolist()
    return list(zip(edges[:-1], edges[1:], found.counts, strict=True))


def _find_step(row: Row) -> int:
    """Return the training step of a record; 0 if a stranger's dump calls it what is no identity."""
    try:
        return parse_identity(row.measure.record).step
    except ValueError:
        return 0


def _keep_worst(points: Sequence[tuple[int, float]]) -> Iterator[tuple[int, float]]:
    """Yield points, of more than ``MOST_POINTS`` the largest of each stretch.

    >>> len(list(_keep_worst([(place, 0.0) for place in range(10_000)])))
    834
    """
    width = -(-len(points) // MOST_POINTS)
    for start in range(0, len(points), max(width, 1)):
        yield max(points[start : start + width], key=lambda point: point[1])


def _make_scalar(tag: str, number: float) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415  an extra

    return Summary.Value(tag=printable(tag), simple_value=number)


def _make_histogram(tag: str, bins: Sequence[tuple[float, float, int]]) -> Any:
    """Return a histogram; the first bin begins at its own edge, because an empty one before it says so."""
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary  # noqa: PLC0415  an extra

    total = sum(count for _, _, count in bins)
    histogram = HistogramProto(num=total)
    if bins:
        histogram.min, histogram.max = bins[0][0], bins[-1][1]
        middles = [((low + high) / 2, count) for low, high, count in bins]
        histogram.sum = sum(middle * count for middle, count in middles)
        histogram.sum_squares = sum(middle * middle * count for middle, count in middles)
        histogram.bucket_limit.extend([bins[0][0], *(high for _, high, _ in bins)])
        histogram.bucket.extend([0.0, *(float(count) for _, _, count in bins)])
    return Summary.Value(tag=printable(tag), histo=histogram)


def _make_text(tag: str, text: str) -> Any:
    """Return a text that TensorBoard's page of texts shows as Markdown."""
    from tensorboard.compat.proto import tensor_pb2, types_pb2  # noqa: PLC0415  an extra
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata  # noqa: PLC0415  the same

    kind = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    data = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[text.encode("utf-8", "backslashreplace")])
    return Summary.Value(tag=tag, metadata=kind, tensor=data)


def _read_time(text: str) -> float:
    """Return a time of the report, which is in UTC, as seconds since the epoch; 0 if it has none."""
    try:
        return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.timezone.utc).timestamp()
    except ValueError:
        return 0.0
