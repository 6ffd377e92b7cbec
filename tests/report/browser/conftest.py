"""The browser, once for all tests, and reports opened in it."""

import dataclasses

import numpy as np
import pytest
from chromium import CHROMIUM, Browser

from precflow.comparison.detail.detail import examine
from precflow.comparison.detail.record import RecordDetail
from precflow.curves.outcome import examine as examine_curve
from precflow.curves.series import make_series
from precflow.diagnosis.chain import Part, PartError
from precflow.diagnosis.findings import Outcome
from precflow.diagnosis.golden import GoldenRow
from precflow.diagnosis.mend import Mend
from precflow.diagnosis.operator_table import OperatorRow
from precflow.diagnosis.price import Price
from precflow.judgement.task import hold_to_task
from precflow.report import html
from precflow.report.groups import group_rows
from precflow.task.outcome import TaskOutcome
from precflow.task.pictures import show as show_pictures
from precflow.task.scores import Text


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("Debian's chromium is not installed: apt-get install chromium")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def show(chromium, tmp_path):
    """Open the report of a model, at an address behind ``#`` where one is given."""

    def opened(model, address="", **options):
        path = tmp_path / "report.html"
        path.write_text(html.render(model), encoding="utf-8", errors="backslashreplace")
        chromium.open(path.as_uri() + (f"#{address}" if address else ""), **options)
        return chromium

    return opened


def curves_apart():
    """A loss that parts from the reference's at half of the steps and has a hole, and a norm that is the same."""
    steps = np.arange(200)
    loss = 2 + np.exp(-steps / 50)
    bent = np.where(steps == 150, np.nan, loss + np.where(steps > 120, 0.25, 0.0))
    return (
        examine_curve("loss", make_series(steps, loss), make_series(steps, bent), limits={"max_abs_error": 0.5}),
        examine_curve("grad_norm", make_series(steps, 2 * loss), make_series(steps, 2 * loss), limits={}),
    )


def record_of_heads(model):
    """The record that introduces the error in full: a head that is wrong at some tokens."""
    reference = np.random.default_rng(1).standard_normal((1, 6, 20, 8)).astype(np.float32)
    target = reference * np.float32(1 + 1e-6)
    target[:, 3, 10:] *= np.float32(1.01)
    row = next(row for row in model.rows if row.role == "introduces")
    return RecordDetail(row.measure.record, row.measure.name, examine(reference, target))


def with_other_modules(model):
    """The model, with modules that only one side has."""
    rows = list(model.rows)
    for number, (module, join) in enumerate([("encoder.extra", "unpaired_target"), ("pooler", "unpaired_reference")]):
        measure = dataclasses.replace(
            rows[number].measure, module=module, name=module, record=f"{module}/x", join=join, metrics={}
        )
        status = dataclasses.replace(rows[number].judged, record=measure.record, status=join, metric="")
        rows.append(dataclasses.replace(rows[number], measure=measure, judged=status, role="unknown"))
    return dataclasses.replace(model, rows=tuple(rows))


ERROR = PartError("text_encoder/forward.output.0", "relative_l2", 1e-2, 1e-3, 10.0)
SMALL = dataclasses.replace(ERROR, error=1e-4, ratio=0.1)
PARTS = (
    Part("text_encoder", 1, "to blame", ERROR, ERROR, "text_encoder.layers.0 / linear"),
    Part("unet", 20, "inherits", ERROR, SMALL),
    Part("vae", 1, "unknown", why="it was not run"),
)
MENDS = (
    Mend("as it is", (), "fails", ERROR, "text_encoder is to blame", Price(0.5, 1.0, 1.0, 1.0, 5)),
    Mend("text_encoder in float32", ("text_encoder",), "passes", SMALL, "", Price(0.6, 1.2, 1.1, 1.3, 5), smallest=True),
)
OPERATORS = (
    OperatorRow("linear", "forward", "float16", 120, 0, 1.2, 1.1, 1.0),
    OperatorRow("softmax", "forward", "float16", 12, 3, 40.0, 38.0, 1.0, "layers.0 / softmax", "", 2.0),
)
WHATIFS = (Outcome("float32", "linear in float32", "confirmed", ("a",), 1e-3, 1e-6, 0.999, 0.99, ("a",), 1.2, (1.1, 1.3)),)
PICTURE = np.random.default_rng(0).random((9, 9, 3))
TASKS = (
    TaskOutcome(
        *("psnr", "psnr", "vae", "beyond"), unit="dB", direction="at_least", limit=30.0, value=21.5,
        sample="picture", samples=6, worst=19.0, worst_sample=4, effect=0.3, effect_shown="0.3 dB",
        effect_text="6 pictures could have shown a change.", shown=(show_pictures(PICTURE, 1 - PICTURE, (0.0, 1.0), 4),),
    ),
    TaskOutcome(
        *("tokens", "token_agreement", "argmax", "within"), unit="share", direction="at_least", limit=0.7, value=0.75,
        sample="token", samples=4, effect_text="e", texts=(Text(0, 0, (5, 6, 7, 8), (5, 6, 9, 8), 2, 4),),
    ),
)  # fmt: skip


@pytest.fixture
def kinds(aligned, misaligned, inconclusive, undecided, trained):
    """Ten kinds of report."""
    other, curves = dataclasses.replace, curves_apart()
    golden = tuple(
        GoldenRow(row.measure.record, row.measure.name, 1e-7, 3e-5 * number, 300.0 * number)
        for number, row in enumerate(misaligned.rows[1:30], 1)
    )
    return {
        "aligned": aligned,
        "misaligned": other(misaligned, details=(record_of_heads(misaligned),), groups=group_rows(misaligned.rows)),
        "inconclusive": with_other_modules(inconclusive),
        "undecided": undecided,
        "trained": other(trained, curves=curves),
        "curves alone": other(
            misaligned, rows=(), findings=(), curves=curves, verdict=other(misaligned.verdict, counts={}, compared=0, total=0)
        ),
        "task metrics": other(aligned, verdict=hold_to_task(aligned.verdict, TASKS), task_metrics=TASKS),
        "parts": other(misaligned, parts=PARTS, mends=MENDS),
        "operators": other(misaligned, operators=OPERATORS),
        "golden": other(misaligned, golden=golden, whatifs=WHATIFS),
    }
