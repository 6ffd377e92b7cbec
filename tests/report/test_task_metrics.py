"""Task metrics on page, screen, in Markdown, JSON, JUnit and CSV."""

import csv
import dataclasses
import json
import re

import numpy as np
import pytest

from precflow.judgement.task import hold_to_task
from precflow.report import html, junit, markdown, result_json, tables, terminal
from precflow.report.task_metrics import describe_worst, lay_out_text
from precflow.task.outcome import TaskOutcome
from precflow.task.pictures import show
from precflow.task.scores import Text

PICTURE = np.random.default_rng(0).random((9, 9, 3))
NASTY = "<script>alert(1)</script>"
TEXT = Text(0, 0, (5, 6, 7, 8), (5, 6, 9, 8), 2, 4)
OUTCOMES = (
    TaskOutcome(
        "psnr",
        "psnr",
        "vae",
        "beyond",
        unit="dB",
        direction="at_least",
        limit=30.0,
        value=21.5,
        sample="picture",
        samples=6,
        worst=19.0,
        worst_sample=4,
        effect=0.3,
        effect_shown="0.3 dB",
        effect_text="6 pictures could have shown a change of 0.3 dB (level 5 %, power 80 %).",
        each=((21.5,), (float("inf"),)),
        shown=(show(PICTURE, 1 - PICTURE, (0.0, 1.0), 4),),
    ),
    TaskOutcome(NASTY, "own", NASTY, "not computed", why=NASTY, limit=1.0, direction="at_most"),
    TaskOutcome(
        "token_agreement", "token_agreement", "argmax", "not told", unit="share", direction="at_least", limit=0.9, value=0.75,
        why="few", sample="token", samples=4, worst=0.0, effect=0.33, effect_shown="33 % of all tokens", effect_text="e",
        test="binomial", chance=0.3, texts=(TEXT,), each=((1.0,), (1.0,), (0.0,), (1.0,)),
    ),
)  # fmt: skip


@pytest.fixture
def model(aligned):
    return dataclasses.replace(aligned, verdict=hold_to_task(aligned.verdict, OUTCOMES), task_metrics=OUTCOMES)


def test_the_page_shows_pictures_side_by_side_and_lets_no_other_picture_in(model):
    page = html.render(model)
    section = page.partition('id="task-metrics"')[2].partition("</section>")[0]
    assert len(re.findall(r'<img alt="[^"]+" src="data:image/png;base64,iVBOR[\w+/=]+">', section)) == 3
    assert "img-src data:;" in page
    assert "difference, drawn 1 times as large" in section
    assert NASTY not in page
    assert 'href="#task-metrics"' in page


def test_a_page_without_pictures_allows_none(aligned):
    assert "img-src" not in html.render(aligned)


def test_the_page_marks_the_first_token_that_differs_on_both_sides(model):
    section = html.render(model).partition('id="task-metrics"')[2].partition("</section>")[0]
    assert re.findall(r'<td class="first"><strong>(\d+)</strong>', section) == ["7", "9"]
    assert "token 2 of 4 is the first that differs" in section


def test_the_headline_says_that_no_record_is_over_its_limit(model):
    assert "No record is over its limit, and the task metric psnr is beyond its own." in html.render(model)


def test_a_score_never_stands_without_what_its_samples_could_have_shown(model):
    for text in (html.render(model), markdown.render(model)):
        assert "6 pictures could have shown a change of 0.3 dB (level 5 %, power 80 %)" in text
    summary = terminal.render_summary(model, report_path="", exit_code=1)
    assert "psnr 21.5 dB, at least 30 dB: beyond (6 pictures: 0.3 dB would show)" in " ".join(summary.split())


def test_it_is_said_everywhere_that_tensors_differ_while_the_task_does_not(misaligned):
    within = (dataclasses.replace(OUTCOMES[0], state="within", value=40.0),)
    model = dataclasses.replace(misaligned, verdict=hold_to_task(misaligned.verdict, within), task_metrics=within)
    said = "tensors differ, the task does not: psnr is within its limit"
    assert said in html.render(model)
    assert said in markdown.render(model)
    assert said in " ".join(terminal.render_summary(model, report_path="", exit_code=1).split())
    assert model.verdict.verdict == "misaligned"


def test_markdown_names_the_first_token_that_differs(model):
    text = markdown.render(model)
    assert "token 2 is the first that differs, 7 on the reference and 9 on the target" in text
    assert NASTY not in text.replace(f"`{NASTY}`", "")  # as code it is text


def test_json_has_all_but_the_pictures_and_reads_them_back(model):
    text = result_json.render(model)
    found = json.loads(text)["task_metrics"]
    assert [one["state"] for one in found] == ["beyond", "not computed", "not told"]
    assert found[0]["shown"] == []
    assert found[0]["each"] == [[21.5], ["Infinity"]]
    again = result_json.parse(text.encode(), "x").task_metrics
    assert again == tuple(dataclasses.replace(one, shown=()) for one in OUTCOMES)


def test_csv_has_a_row_for_each_sample(model, tmp_path):
    tables.write(model, tmp_path, ["csv"])
    with (tmp_path / tables.TASK_FILE).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["metric"], row["sample"], row["value"]) for row in rows] == [
        ("psnr", "0", "21.5"),
        ("psnr", "1", "inf"),
        (NASTY, "0", ""),
        *(("token_agreement", str(number), value) for number, value in enumerate(["1.0", "1.0", "0.0", "1.0"])),
    ]


def test_a_run_without_task_metrics_writes_no_table_of_them(aligned, tmp_path):
    tables.write(aligned, tmp_path, ["csv"])
    assert not (tmp_path / tables.TASK_FILE).exists()


def test_junit_has_a_case_for_each(model):
    cases = [(case.name, case.outcome) for case in junit.list_cases(model) if case.suite == "task metrics"]
    assert cases == [("psnr", "failure"), (NASTY, "error"), ("token_agreement", "skipped")]


def test_the_worst_of_samples_that_are_the_same_or_not_is_no_news():
    assert describe_worst(OUTCOMES[0]) == "19 (no. 4)"
    assert describe_worst(OUTCOMES[2]) == ""


def test_a_text_is_laid_out_token_by_token():
    (_, here), (_, there) = lay_out_text(TEXT)
    assert here[2] == (7, True, True)
    assert there[3] == (8, False, False)
