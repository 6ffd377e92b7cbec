import re

import pytest

from precflow.report import markdown


@pytest.mark.parametrize("name", ["aligned", "misaligned", "inconclusive", "nasty", "empty"])
def test_tables_have_the_same_number_of_cells_in_every_row(name, request):
    text = markdown.render(request.getfixturevalue(name))
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(cells) == 1, table


def test_the_verdict_comes_first_and_then_where_it_starts(misaligned):
    lines = markdown.render(misaligned).splitlines()
    assert lines[0].startswith("# ✗ MISALIGNED")
    assert misaligned.region.start in lines[2]


def test_what_to_do_comes_before_the_worst_records(misaligned):
    text = markdown.render(misaligned)
    assert text.index("## What to do") < text.index("## Worst records") < text.index("## Environment")
    assert "PF214" in text
    assert text.count("| fail |") == markdown.WORST


def test_an_emulated_run_says_so(aligned):
    assert "> **EMULATED.**" in markdown.render(aligned)


def test_what_was_not_compared_is_listed(inconclusive):
    text = markdown.render(inconclusive)
    assert "| unpaired target |" in text
    assert "no partner of this name" in text


def test_no_markup_of_a_name_survives(nasty):
    text = re.sub(r"`[^`\n]*`", "", markdown.render(nasty))
    assert set(re.findall(r"<[a-z/]+", text)) <= {"<br", "<code", "</code", "<sub", "</sub"}
    assert "\x1b" not in text


def test_it_stays_short_for_a_large_model(large):
    assert len(markdown.render(large)) < 10_000


def test_many_differences_are_cut_and_counted(misaligned):
    differences = {f"packages.number{index}": ("1", "2") for index in range(100)}
    text = markdown.render(type(misaligned)(**{**vars(misaligned), "differences": differences}))
    assert "and 70 more in the HTML report" in text


def test_the_guilty_phase_comes_before_the_numbers(trained):
    text = markdown.render(trained)
    assert text.index("backward misaligned, starts here") < text.index("| coverage |")


def test_the_procedure_is_a_table(trained, misaligned):
    assert "| gradients, from the loss backwards | ✗ differs: it starts here |" in markdown.render(trained)
    assert "## Training" not in markdown.render(misaligned)
