import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.config import units
from precflow.config.schema import Bytes, Seconds, Share, Ulp


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_share, "1%", 0.01),
        (units.parse_share, "0.1%", 0.001),
        (units.parse_share, "2^-10", 2.0**-10),
        (units.parse_share, 0.999, 0.999),
        (units.parse_share, "1e-3", 0.001),
        (units.parse_ulp, "8ulp", 8.0),
        (units.parse_ulp, "8 ulp", 8.0),
        (units.parse_ulp, 4, 4.0),
        (units.parse_bytes, "2GB", 2_000_000_000),
        (units.parse_bytes, "1.5GB", 1_500_000_000),
        (units.parse_bytes, "1GiB", 2**30),
        (units.parse_bytes, 0, 0),
        (units.parse_seconds, "45m", 2700.0),
        (units.parse_seconds, "1h30m", 5400.0),
        (units.parse_seconds, "500ms", 0.5),
        (units.parse_seconds, "2d", 172800.0),
        (units.parse_number, "2^-10", 2.0**-10),
        (units.parse_number, "-0.5", -0.5),
    ],
)
def test_what_people_write(parse, text, value):
    assert parse(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("parse", "text", "meant"),
    [
        (units.parse_bytes, "2gb", "such as 2GB"),
        (units.parse_bytes, "500 mb", "such as 500MB"),
        (units.parse_bytes, "1.5G", "such as 1.5GB"),
        (units.parse_bytes, "4gib", "such as 4GiB"),
        (units.parse_bytes, "4 apples", "such as 2GB"),
        (units.parse_seconds, "2hours", "such as 2h"),
        (units.parse_seconds, "30 Min", "such as 30m"),
        (units.parse_seconds, "30", "such as 45m"),
    ],
)
def test_a_unit_in_another_spelling_is_told_as_it_is_written(parse, text, meant):
    with pytest.raises(ValueError, match=meant):
        parse(text)


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        (units.parse_share, "5parsec", "1%"),
        (units.parse_share, "-1%", "not negative"),
        (units.parse_share, True, "share"),
        (units.parse_share, float("nan"), "share"),
        (units.parse_share, None, "share"),
        (units.parse_share, "0^-1", "share"),
        (units.parse_ulp, "8ulps", "8ulp"),
        (units.parse_bytes, 2000, "GB"),
        (units.parse_bytes, "2gb", "GiB"),
        (units.parse_bytes, "-2GB", "not negative"),
        (units.parse_seconds, 45, "45m"),
        (units.parse_seconds, "45min", "45m"),
        (units.parse_seconds, "12:30", "45m"),
        (units.parse_number, "1%", "2^-10"),
        (units.parse_number, "9^9999", "number"),
    ],
)
def test_what_is_refused_names_the_known_units(parse, text, said):
    with pytest.raises(ValueError, match="expected") as refused:
        parse(text)
    assert said in str(refused.value)


@given(st.integers(-300, 300))
def test_powers_of_two_are_exact(exponent):
    assert units.parse_share(f"2^{exponent}") == 2.0**exponent


@given(st.floats(0, 1e6, allow_nan=False))
def test_a_percentage_is_the_number_by_a_hundred(number):
    assert units.parse_share(f"{number:.6f}%") == pytest.approx(round(number, 6) / 100)


@given(st.integers(0, 10**15))
def test_bytes_come_back_as_they_were_written(size):
    assert units.parse_bytes(units.format_value(Bytes, size)) == size


@given(st.floats(1e-3, 1e9, allow_nan=False))
def test_seconds_come_back_as_they_were_written(seconds):
    assert math.isclose(units.parse_seconds(units.format_value(Seconds, seconds)), seconds, rel_tol=1e-12)


@pytest.mark.parametrize(("kind", "parse"), [(Ulp, units.parse_ulp), (Share, units.parse_share)])
@given(value=st.floats(1e-9, 1e9, allow_nan=False))
def test_numbers_come_back_as_they_were_written(kind, parse, value):
    assert math.isclose(parse(units.format_value(kind, value)), value, rel_tol=1e-12)


@pytest.mark.parametrize(("written", "numbers"), [(3, [3]), ("3", [3]), ("0-3", [0, 1, 2, 3]), (" 7 - 7 ", [7])])
def test_numbers_and_ranges_of_them(written, numbers):
    assert list(units.parse_numbers(written)) == numbers


@pytest.mark.parametrize("written", [True, -1, "", "3-", "3-1", "0-100000", 1.0, None, "1,2"])
def test_what_is_no_range_of_numbers_is_refused(written):
    with pytest.raises(ValueError, match="expected"):
        units.parse_numbers(written)


@pytest.mark.parametrize("parse", units.PARSERS.values())
@given(text=st.text(max_size=12) | st.from_regex(r"[-+]?[0-9.^e]{1,6} ?(%|ulp|GB|m|x)?", fullmatch=True))
def test_any_text_is_a_number_or_a_value_error(parse, text):
    try:
        value = parse(text)
    except ValueError as refused:
        value = 0.0
        assert "expected" in str(refused)  # noqa: PT017  # both outcomes are right
    assert math.isfinite(value)
