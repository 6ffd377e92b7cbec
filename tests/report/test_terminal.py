import dataclasses
import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import termios

import pytest
from rich.cells import cell_len

from precflow import language
from precflow.diagnosis.advice.whatif import explain
from precflow.diagnosis.findings import Outcome
from precflow.report import terminal

MODELS = ["aligned", "misaligned", "inconclusive", "nasty", "empty", "large", "trained"]


WIDTHS = [48, 60, 80, 88]


def shown(model, exit_code=0, *, report_path="runs/sd_text_encoder/report.html", **options):
    return terminal.render_summary(model, report_path=report_path, exit_code=exit_code, **options)


def proposing(model, command, change="last=1"):
    finding = dataclasses.replace(model.findings[0], try_it=command, change=change)
    return dataclasses.replace(model, findings=(finding,))


@pytest.fixture
def paste(tmp_path):
    """Return a function that gives what a shell starts when a text is pasted into it, with a precflow that says so."""
    stub = tmp_path / "bin" / "precflow"
    stub.parent.mkdir()
    stub.write_text('#!/bin/sh\nprintf "%s\\n" start "$@" >>"$RECORD"\n')
    stub.chmod(0o755)

    def started(text):
        record = tmp_path / "record"
        record.unlink(missing_ok=True)
        environment = {"PATH": f"{stub.parent}:{os.environ['PATH']}", "RECORD": str(record)}
        subprocess.run(["bash", "-c", text], env=environment, check=True, timeout=20)
        return record.read_text().split("\n")[:-1]

    return started


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_at_most_twenty_lines_as_wide_as_the_screen(name, ascii_only, columns, request):
    text = shown(request.getfixturevalue(name), ascii_only=ascii_only, columns=columns)
    lines = text.split("\n")
    assert len(lines) <= (20 if columns >= 80 else 28 if columns >= 60 else 40)
    assert max(map(cell_len, lines)) <= columns
    assert all(line.isprintable() for line in lines)
    assert text.isascii() or not ascii_only


@pytest.mark.parametrize("columns", [48, 80, 120])
@pytest.mark.parametrize("name", ["aligned", "misaligned", "inconclusive", "empty", "trained"])
def test_no_word_of_a_sentence_is_cut(name, columns, request):
    model = request.getfixturevalue(name)
    words = set(re.findall(r"\w+", shown(model, columns=500)))
    for line in shown(model, columns=columns).split("\n"):
        # A name is shortened in its middle; a text that is too long ends behind a word.
        plain = re.sub(r"\S+…\S+|\S*[./]\S*", "", line)
        assert set(re.findall(r"\w+", plain)) <= words, line


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
    assert text.index("do  ") < text.index("next  ") < text.index("records") < text.index("worst") < text.index("exit 1")
    assert "1 introduces the error" in text


def test_where_no_record_introduces_an_error_none_is_counted(misaligned):
    def with_roles(**roles):
        rows = tuple(dataclasses.replace(row, role=roles.get(row.role, row.role)) for row in misaligned.rows)
        return shown(dataclasses.replace(misaligned, rows=rows), 1)

    carried = with_roles(introduces="inherits")
    assert "introduce" not in carried.split("records")[-1]
    assert "inherit an error" in carried
    quiet = with_roles(introduces="agrees", inherits="agrees")
    assert "inherit" not in quiet
    assert "agree" in quiet


def test_every_operator_of_a_finding_is_named_and_warnings_are_shown_where_there_is_room(misaligned):
    facts = (*(("fact", str(number)) for number in range(5)), ("also at", "b / linear (the output is multiplied by 1.02)"))
    finding = dataclasses.replace(misaligned.findings[0], evidence=facts)
    verdict = dataclasses.replace(misaligned.verdict, warnings=("accepted 'a' was valid until 2026-03-31: it fails again",))
    text = shown(dataclasses.replace(misaligned, findings=(finding,), verdict=verdict), 1)
    assert "also at: b / linear (the output is multiplied by 1.02)" in text
    assert "warning     accepted 'a' was valid until 2026-03-31: it fails again" in text
    assert len(text.split("\n")) <= 20
    crowded = dataclasses.replace(finding, fix="word " * 200, title="title " * 60, try_it="precflow " * 60)
    text = shown(dataclasses.replace(misaligned, findings=(crowded, crowded), verdict=verdict, emulated=True), 1)
    assert len(text.split("\n")) <= 20


def test_what_ifs_that_no_finding_tells_of_are_told(misaligned):
    on_cpu = Outcome("suspects_on_cpu", "2 suspects on the CPU", "confirmed", removed=0.998)
    cheapest = Outcome("cheapest", "a / linear in float64", "confirmed", removed=0.997, price=1.25)
    refuted = Outcome("padded_rows", "linear with rows padded to 16", "refuted")
    text = shown(dataclasses.replace(misaligned, whatifs=(on_cpu, cheapest, refuted)), 1)
    assert "what-if     confirmed: with 2 suspects on the CPU, 99.8 % of the error is gone" in text
    assert "with a / linear in float64, 99.7 % of the error is gone, in 1.25 times the time" in " ".join(text.split())
    assert "padded" not in text
    assert len(text.split("\n")) <= 20
    finding = dataclasses.replace(misaligned.findings[0], evidence=(("confirmed", explain(on_cpu)),))
    again = shown(dataclasses.replace(misaligned, findings=(finding,), whatifs=(on_cpu,)), 1)
    assert again.count("2 suspects on the CPU") == 1
    crowded = dataclasses.replace(finding, evidence=(), fix="word " * 200, title="title " * 60, try_it="precflow " * 60)
    model = dataclasses.replace(misaligned, findings=(crowded, crowded), whatifs=(on_cpu, cheapest), emulated=True)
    assert len(shown(model, 1).split("\n")) <= 20
    assert "what-if" in shown(model, 1)


def test_a_standard_that_fails_alone_is_no_fault_that_no_rule_knows(aligned):
    why = "cann_single: 1 output of an operator fails, first a / linear"
    verdict = dataclasses.replace(aligned.verdict, verdict="misaligned", reasons=(why,))
    text = " ".join(shown(dataclasses.replace(aligned, verdict=verdict, findings=()), 1).split())
    assert why in text
    assert "no record is over its limit, and no operator errs by more than rounding" in text
    assert "no rule knows" not in text


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


def test_several_ranks_are_said(aligned):
    sides = tuple(dataclasses.replace(side, ranks=8 if side.side == "target" else 1) for side in aligned.sides)
    first = terminal.render_summary(dataclasses.replace(aligned, sides=sides), report_path="", exit_code=0).splitlines()[0]
    assert " 8 ranks · " in first


def test_an_emulated_target_is_said_in_every_form(misaligned, inconclusive):
    for model in (misaligned, inconclusive):
        assert "(emulated target: shows that the recipe works" in shown(dataclasses.replace(model, emulated=True))


def test_more_than_fits_is_cut_and_said_so(misaligned):
    finding = dataclasses.replace(misaligned.findings[0], fix="word " * 200, title="title " * 60, try_it="precflow " * 60)
    text = shown(dataclasses.replace(misaligned, findings=(finding, finding), emulated=True), 1)
    assert len(text.split("\n")) <= 20
    assert "…" in text
    assert text.endswith("exit 1")


@pytest.mark.parametrize("reasons", range(7))
def test_what_to_change_in_the_command_is_whole_however_little_room_there_is(inconclusive, misaligned, reasons):
    change = "determinism.dropout=kept determinism.random_numbers=cpu_of_the_reference_and_moved"
    finding = dataclasses.replace(misaligned.findings[0], change=change, fix="Look at it. " * 30, evidence=(("a", "b"),) * 4)
    verdict = dataclasses.replace(inconclusive.verdict, unseen=("something that was not seen",) * reasons)
    lines = shown(dataclasses.replace(inconclusive, findings=(finding,) * 2, verdict=verdict)).splitlines()
    (at,) = [place for place, line in enumerate(lines) if line.startswith("      next ")]
    assert " ".join(" ".join(lines[at : at + 3]).split()).startswith(f"next the same command with {change}")


def test_without_a_report_no_path_is_promised(aligned):
    assert "precflow open" not in shown(aligned, report_path="")


def test_wide_letters_count_twice():
    line = terminal.fit("层" * 60)
    assert cell_len(line) <= 88
    assert line.endswith("…")


def test_a_line_breaks_at_wide_gaps_first():
    assert terminal._break_lines("one two   three four   five six", 16, 3) == ["one two", "three four", "five six"]


def test_a_misaligned_run_tells_what_was_estimated_and_what_is_open(misaligned):
    counts = dict(misaligned.verdict.counts) | {"undecided": 3}
    verdict = dataclasses.replace(misaligned.verdict, counts=counts, estimated=7)
    text = terminal.render_summary(
        dataclasses.replace(misaligned, verdict=verdict), report_path="r", exit_code=1, ascii_only=False
    )
    assert "3 undecided" in text
    assert "7 by estimate" in text


def test_a_standard_that_nothing_failed_is_open(undecided, misaligned):
    assert terminal.describe_standards(undecided) == "default ?"
    assert "✗" in terminal.describe_standards(misaligned)


def test_what_was_estimated_sampled_or_not_decided_is_told(estimated):
    counts = dict(estimated.verdict.counts) | {"undecided": 2}
    verdict = dataclasses.replace(estimated.verdict, counts=counts, estimated=7, sampled=0.25)
    line = terminal.describe_coverage(dataclasses.replace(estimated, verdict=verdict))
    assert "compared (25 % of their elements)" in line
    assert "   2 undecided   " in line
    assert "   7 by estimate" in line
    assert "undecided" not in terminal.describe_coverage(
        dataclasses.replace(estimated, verdict=dataclasses.replace(verdict, counts={}))
    )


def test_an_aligned_run_in_16_bits_says_what_it_cannot_see_and_advises_nothing(aligned):
    hidden = "errors below the rounding of bfloat16 (0.4 %) do not show"
    narrow = tuple(dataclasses.replace(view, dtype="bfloat16") for view in aligned.sides)
    assert hidden not in terminal.describe_coverage(aligned)
    assert terminal.describe_coverage(dataclasses.replace(aligned, sides=narrow)).endswith(hidden)
    verdict = dataclasses.replace(aligned.verdict, verdict="misaligned")
    assert hidden not in terminal.describe_coverage(dataclasses.replace(aligned, sides=narrow, verdict=verdict))


OPTIONS = [f"workload.model.option_{number}={number}" for number in range(6)]
COMMANDS = {
    "short": ["+recipe=sd_text_encoder", "target.dtype=float32"],
    "long": ["+recipe=sd_text_encoder", *OPTIONS, "last=1"],
    "quoted": [
        "+recipe=some where/mine.yaml",
        *OPTIONS[:3],
        'capture.rules=[{match:"*.a b"}]',
        "it's",
        "$HOME",
        "a\\",
        "last=1",
    ],
    "one long word": ["+recipe=sd_text_encoder", "workload.model.weights=/" + "x" * 100, "last=1"],
    "Chinese": ["+recipe=配方", "workload.model.weights=/数据/模型 一/权重", *OPTIONS[:4], "last=1"],
}


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_to_try_can_be_pasted_as_it_stands(misaligned, paste, name, columns):
    words = COMMANDS[name]
    model = proposing(misaligned, " ".join(["PRECFLOW_TRUST='a b'", "precflow", *map(shlex.quote, words)]))
    text = shown(model, 1, columns=columns)
    first = text.index("PRECFLOW_TRUST")
    command = re.match(r"(?:[^\n]*\\\n)*[^\n]*", text[first:])[0]  # up to the first line that does not end with a backslash
    assert paste(command) == ["start", *words]
    assert "the same command with   last=1" in text
    long = [line for line in text.split("\n") if cell_len(line) > columns]
    assert all(len(re.findall(r"'[^']*'|\S+", line)) <= 2 for line in long), "only a word that is longer than a line sticks out"


def test_a_command_that_does_not_fit_is_left_out_whole_and_its_change_told(misaligned):
    words = ["precflow", *(f"workload.model.option_{number}={number}" for number in range(60))]
    text = shown(proposing(misaligned, " ".join(words), "target.dtype=float32"), 1)
    assert "option_" not in text
    assert "the same command with   target.dtype=float32" in text
    assert len(text.split("\n")) <= 20


@pytest.mark.parametrize("command", ["precflow +recipe=a b=$'\x1b[31m'", "precflow +recipe=配方"])
def test_a_command_that_the_screen_cannot_show_as_it_is_is_left_out(misaligned, command):
    assert "precflow +recipe" not in shown(proposing(misaligned, command), 1, ascii_only=True)


def test_open_is_offered_only_where_there_is_a_page_and_finds_it(aligned):
    assert shown(aligned).split("\n")[-2].endswith("precflow open")
    assert "precflow open" not in shown(aligned, report_path="runs/sd_text_encoder/public")
    assert "runs/sd_text_encoder/public" in shown(aligned, report_path="runs/sd_text_encoder/public")
    assert "precflow open '/my runs/sd'" in shown(aligned, report_path="/my runs/sd/report.html")


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_path_of_the_report_is_whole_on_every_screen(aligned, columns):
    path = "/" + "folder/" * 20 + "report.html"
    assert path in shown(aligned, report_path=path, columns=columns)


def test_an_old_reference_says_its_age(aligned):
    assert "   the reference was made 12 days ago\n" in shown(aligned, reference_age="12 days ago")
    assert "was made" not in shown(aligned)


def test_a_run_that_computed_nothing_says_whose_results_these_are(aligned):
    lines = shown(dataclasses.replace(aligned, seconds=0.42), kept=True).split("\n")
    assert lines[0].endswith("0.4 s")
    assert lines[1] == "   nothing was computed: everything is kept from run 3"


def test_what_tells_names_apart_is_shown_on_a_narrow_screen(misaligned):
    text = shown(misaligned, 1, columns=60)
    assert "layer_norm1 / layer_norm" in text
    worst = max(misaligned.rows, key=lambda row: row.judged.ratio if row.judged.status == "fail" else 0)
    assert worst.measure.name[-20:] in text


@pytest.mark.parametrize(("wide", "columns"), [(30, 40), (72, 72), (200, 88)])
def test_a_summary_is_as_wide_as_the_terminal_within_bounds(wide, columns, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    main, terminal_end = pty.openpty()
    os.set_blocking(main, False)
    with os.fdopen(terminal_end, "w") as stream:
        fcntl.ioctl(stream.fileno(), termios.TIOCSWINSZ, struct.pack("4H", 24, wide, 0, 0))
        assert terminal.count_columns(stream) == columns
        monkeypatch.setenv("COLUMNS", "66")
        assert terminal.count_columns(stream) == 66
    os.close(main)


def test_where_nobody_looks_on_a_summary_has_its_full_width(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    with (tmp_path / "log").open("w") as stream:
        assert terminal.count_columns(stream) == 88


def test_accepted_records_are_told_beside_those_that_agree(misaligned):
    index = next(index for index, row in enumerate(misaligned.rows) if row.role == "agrees")
    rows = list(misaligned.rows)
    taken = dataclasses.replace(rows[index].judged, status="accepted")
    rows[index] = dataclasses.replace(rows[index], judged=taken, role="accepted")
    counts = {**misaligned.verdict.counts, "accepted": 1}
    model = dataclasses.replace(misaligned, rows=tuple(rows), verdict=dataclasses.replace(misaligned.verdict, counts=counts))
    agreeing = sum(row.role == "agrees" for row in misaligned.rows if row.judged.status != "not_judged")
    text = " ".join(shown(model, 1).split())
    assert f"inherit it {agreeing - 1} agree 1 accepted difference" in text


def test_a_published_standard_is_shown_with_its_source(aligned):
    sources = {"cann_mixed": "2026-09-23, hicann/opbase at 233ee24"}
    verdict = dataclasses.replace(aligned.verdict, standards={"default": True, "cann_mixed": True}, sources=sources)
    text = shown(dataclasses.replace(aligned, verdict=verdict))
    assert "cann_mixed: 2026-09-23, hicann/opbase at 233ee24" in text
    assert "source  " not in shown(aligned)


def test_a_standard_that_was_not_applied_is_open_in_a_misaligned_run(aligned):
    verdict = dataclasses.replace(aligned.verdict, verdict="misaligned", standards={"cann_mixed": False, "default": False})
    verdict = dataclasses.replace(verdict, not_applied={"cann_mixed": "no tensors"})
    assert terminal.describe_standards(dataclasses.replace(aligned, verdict=verdict)) == "cann_mixed ?   default ✗"


def test_the_guilty_phase_stands_below_the_verdict(trained):
    lines = shown(trained, 1).split("\n")
    assert lines[2].startswith(" ✗ MISALIGNED")
    assert lines[3] == "   data, forward aligned · backward misaligned, starts here · optimizer not told"


def test_without_training_there_are_no_phases(misaligned):
    assert "forward" not in shown(misaligned, 1)


@pytest.mark.parametrize("columns", [40, 60, 80, 88])
def test_in_chinese_the_lines_fit_too_and_labels_stay_below_each_other(columns, request):
    for name in ("aligned", "misaligned", "inconclusive", "trained"):
        model = request.getfixturevalue(name)
        with language.speaking("zh"):
            lines = terminal.render_summary(model, report_path="", exit_code=1, columns=columns).split("\n")
        shown = [line for line in lines if not isinstance(line, terminal.Uncut) and "precflow" not in line]
        assert max(map(cell_len, shown)) <= columns
        records = next(line for line in lines if line.strip().startswith("记录"))
        assert records.startswith("   记录        已比对 ")
