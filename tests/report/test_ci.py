import shlex

import pytest

from precflow.report import ci


def words(line):
    return dict(word.split("=", 1) for word in line.split(" ")[2:])


def test_the_last_line_of_a_build(misaligned):
    assert ci.format_outcome(misaligned, report_path="runs/sd_text_encoder/report.html") == (
        "precflow sd_text_encoder verdict=misaligned start=encoder.layers.4.layer_norm1/layer_norm finding=PF214 "
        "coverage=257/257 report=runs/sd_text_encoder/report.html"
    )


def test_an_old_reference_says_its_age(aligned):
    assert words(ci.format_outcome(aligned, report_path="", reference_age="12 days ago"))["reference_made"] == "12_days_ago"
    assert "reference_made" not in ci.format_outcome(aligned, report_path="")


def test_what_there_is_not_is_none(inconclusive):
    line = words(ci.format_outcome(inconclusive, report_path=""))
    assert (line["verdict"], line["start"], line["finding"], line["report"]) == ("inconclusive", "none", "none", "none")
    assert line["coverage"] == "255/258"


def test_an_emulated_run_says_so(aligned, misaligned):
    assert words(ci.format_outcome(aligned, report_path=""))["emulated"] == "yes"
    assert "emulated" not in ci.format_outcome(misaligned, report_path="")


@pytest.mark.parametrize("name", ["nasty", "empty"])
def test_no_name_can_break_the_line(name, request):
    line = ci.format_outcome(request.getfixturevalue(name), report_path="a path/报告.html")
    assert line.isascii()
    assert line.isprintable()
    assert len(line.split(" ")) == len(shlex.split(line.replace("<", "").replace(">", "").replace("&", "").replace("(", "")))
    assert set(words(line)) >= {"verdict", "start", "finding", "coverage", "report"}


def test_a_stage_without_a_side():
    assert ci.format_stage("r", "judge", side="", state="kept", seconds=0.2) == "precflow r stage=judge state=kept seconds=0"


def test_a_training_run_names_the_guilty_phase(trained, misaligned):
    assert words(ci.format_outcome(trained, report_path=""))["phase"] == "backward"
    assert "phase" not in words(ci.format_outcome(misaligned, report_path=""))
