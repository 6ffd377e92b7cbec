import dataclasses

import pytest
from rich.cells import cell_len

from precflow.report import terminal

MODELS = ["aligned", "misaligned", "inconclusive", "nasty", "empty", "large"]


def shown(model, exit_code=0, *, ascii_only=False, report_path="runs/sd_text_encoder/report.html"):
    return terminal.summary(model, report_path=report_path, exit_code=exit_code, ascii_only=ascii_only)


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_at_most_twenty_lines_of_eighty_eight_columns(name, ascii_only, request):
    text = shown(request.getfixturevalue(name), ascii_only=ascii_only)
    lines = text.split("\n")
    assert len(lines) <= 20
    assert max(map(cell_len, lines)) <= 88
    assert all(line.isprintable() for line in lines)
    assert text.isascii() or not ascii_only


def test_aligned(aligned):
    lines = shown(aligned).split("\n")
    assert lines[0] == " sd_text_encoder · cuda float32 -> EMULATED npu float16 · 38 s"
    assert lines[2] == " ✓ ALIGNED (emulated target: shows that the recipe works, says nothing about hardware)"
    assert lines[4] == "   records     257 of 257 compared   0 unpaired   0 unreadable   0 accepted differences"
    assert "% of its limit" in shown(aligned)
    assert lines[-1] == "   exit 0"


def test_misaligned_says_where_what_to_do_and_the_numbers_last(misaligned):
    lines = shown(misaligned, 1).split("\n")
    assert lines[2] == " ✗ MISALIGNED   starts at  encoder.layers.4.layer_norm1 / layer_norm"
    assert lines[4].startswith("   1  PF214  eps of layer_norm differs")
    assert lines[4].endswith("certain")
    text = "\n".join(lines)
    assert text.index("do  ") < text.index("try  ") < text.index("records") < text.index("worst") < text.index("exit 1")
    assert "1 introduces the error" in text


def test_misaligned_without_advice_says_so(misaligned):
    text = shown(dataclasses.replace(misaligned, findings=()), 1)
    assert "no rule knows this fault" in text
    assert misaligned.verdict.reasons[0] in text


def test_inconclusive_says_what_is_missing(inconclusive):
    text = shown(inconclusive, 3)
    assert " ? INCONCLUSIVE" in text
    assert "missing     the target does not repeat itself" in text
    assert "2 unpaired   1 unreadable" in text
    assert "1 blind" in text
    assert text.endswith("exit 3")


def test_an_emulated_target_is_said_in_every_form(misaligned, inconclusive):
    for model in (misaligned, inconclusive):
        assert "(emulated target: shows that the recipe works" in shown(dataclasses.replace(model, emulated=True))


def test_more_than_fits_is_cut_and_said_so(misaligned):
    finding = dataclasses.replace(misaligned.findings[0], fix="word " * 200, title="title " * 60, try_it="precflow " * 60)
    text = shown(dataclasses.replace(misaligned, findings=(finding, finding), emulated=True), 1)
    assert len(text.split("\n")) <= 20
    assert "…" in text
    assert text.endswith("exit 1")


def test_without_a_report_no_path_is_promised(aligned):
    assert "precflow open" not in shown(aligned, report_path="")


def test_wide_letters_count_twice():
    line = terminal.fit("层" * 60)
    assert cell_len(line) <= 88
    assert line.endswith("…")


def test_a_line_breaks_at_wide_gaps_first():
    assert terminal._broken("one two   three four   five six", 16, 3) == ["one two", "three four", "five six"]


def test_a_misaligned_run_tells_what_was_estimated_and_what_is_open(misaligned):
    counts = dict(misaligned.verdict.counts) | {"undecided": 3}
    verdict = dataclasses.replace(misaligned.verdict, counts=counts, estimated=7)
    text = terminal.summary(dataclasses.replace(misaligned, verdict=verdict), report_path="r", exit_code=1, ascii_only=False)
    assert "3 undecided" in text
    assert "7 by estimate" in text


def test_a_standard_that_nothing_failed_is_open(undecided, misaligned):
    assert terminal.standards(undecided) == "default ?"
    assert "✗" in terminal.standards(misaligned)


def test_what_was_estimated_sampled_or_not_decided_is_told(estimated):
    counts = dict(estimated.verdict.counts) | {"undecided": 2}
    verdict = dataclasses.replace(estimated.verdict, counts=counts, estimated=7, sampled=0.25)
    line = terminal.coverage(dataclasses.replace(estimated, verdict=verdict))
    assert "compared (25 % of their elements)" in line
    assert "   2 undecided   " in line
    assert line.endswith("   7 by estimate")
    assert "undecided" not in terminal.coverage(dataclasses.replace(estimated, verdict=dataclasses.replace(verdict, counts={})))


def test_a_command_to_try_is_shown_whole(misaligned):
    options = [f"workload.model.option_{number}={number}" for number in range(6)]
    words = ["precflow", "+recipe=sd_text_encoder", *options, "last=1"]
    finding = dataclasses.replace(misaligned.findings[0], try_it=" ".join(words))
    text = shown(dataclasses.replace(misaligned, findings=(finding,)), 1)
    assert text[text.index("try ") :].split()[1 : len(words) + 1] == words
