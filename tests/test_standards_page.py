"""docs/standards.md has the table that the files of the standards make."""

from pathlib import Path

import pytest

from precflow.config.sections.standards import find, names, read_standard

PAGE = Path(__file__).parents[1] / "docs" / "standards.md"


def write_row(name):
    """Return a standard's line of the table."""
    file, _ = read_standard(find(name))
    judged = "losses" if file.losses else "operators" if file.operators or file.benchmark else "records"
    day = f"{file.date}, until {file.until}" if file.until else file.date
    return f"| `{name}` | {judged} | {describe_limits(file)} | {file.source} | {day} |"


def describe_limits(file):
    """Return the limits for float32, ratios by level, or limits of losses, as the table shows them."""
    if file.losses:
        parts = [(what, getattr(file.losses, what)) for what in ("first", "mean")]
        texts = [f"{what}: {' or '.join(_describe_deviation(limit))}" for what, limit in parts if limit]
        steps = file.losses.fewest_steps
        return "; ".join([*texts, *([f"{steps} steps"] if steps > 1 else [])])
    if file.benchmark:
        levels = file.benchmark.ratios.items()
        return "; ".join(
            f"{level}: " + ", ".join(f"{name} {limit:g}" for name, limit in limits.items()) for level, limits in levels
        )
    if file.noise:
        return f"float32: {file.noise.times['float32']:g} times the noise floor"
    limits = file.limits.get("float32") or {
        key: getattr(file.operators["float32"], key)
        for key in ("mere", "mare", "share", "atol", "rtol", "largest", "largest_ulps")
        if getattr(file.operators["float32"], key)
    }
    return "float32: " + ", ".join(f"{name} {limit:.4g}" for name, limit in limits.items())


def _describe_deviation(limit):
    if limit.absolute is not None:
        yield f"less than {limit.absolute:g}"
    if limit.relative is not None:
        yield f"less than {100 * limit.relative:.3g} % of the reference"


@pytest.mark.parametrize("name", names())
def test_the_page_has_each_standard_as_its_file_says(name):
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}` |")]
    assert rows == [write_row(name)], "change the row of the table in docs/standards.md to this"


def test_the_page_has_no_other_standard():
    rows = [line.split("`")[1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(names())
