"""precflow in Python: the public names, the assertion for unit tests, and two values or two dumps compared."""

import collections
import dataclasses
import enum
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch

import precflow
from precflow.errors import ConfigError
from precflow.library import assert_aligned, compare

VALUES = torch.linspace(-3, 3, 60).reshape(6, 10)


def test_the_public_names_are_these():
    assert precflow.__all__ == [
        "AgentError",
        "Compared",
        "Comparison",
        "PrecflowError",
        "__version__",
        "assert_aligned",
        "capture",
        "compare",
        "history",
        "read",
    ]
    assert all(getattr(precflow, name).__doc__ for name in precflow.__all__)
    assert set(dir(precflow)) == set(precflow.__all__)
    with pytest.raises(AttributeError, match="no attribute 'captured'"):
        _ = precflow.captured


@pytest.mark.parametrize(
    ("use", "absent"),
    [
        ("precflow.__version__", ("torch", "numpy", "precflow.library")),
        ("precflow.assert_aligned([1.0], [1.0])", ("torch", "hydra", "pandas", "transformers")),
        ("precflow.capture", ("torch", "numpy")),
    ],
)
def test_a_library_is_imported_where_it_is_used(use, absent):
    code = f"import sys, precflow; {use}; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_rounding_passes_and_a_fault_does_not(dtype):
    assert_aligned(VALUES.to(dtype), VALUES)
    with pytest.raises(AssertionError, match=r"value \(fail\): relative_l2 .* times its limit .* \(calibrated\)"):
        assert_aligned((VALUES * 1.1).to(dtype), VALUES)


def test_equal_bits_of_the_coarsest_type_are_aligned():
    """Its limit is as wide as numbers that have nothing in common; other bits within it prove nothing."""
    coarse = VALUES.to(torch.float8_e5m2)
    assert_aligned(coarse.clone(), coarse)
    other = coarse.clone()
    other.view(torch.uint8).reshape(-1)[0] ^= 1
    with pytest.raises(AssertionError, match="so wide that nothing could fail"):
        assert_aligned(other, coarse)


def test_the_standard_is_chosen():
    assert_aligned(VALUES + 1e-6, VALUES, standard="default")
    with pytest.raises(AssertionError, match="allclose_share_float32"):
        assert_aligned(VALUES + 1e-4, VALUES, standard="allclose")
    with pytest.raises(AssertionError, match="allclose_share_float32"):
        assert_aligned(VALUES + 1e-4, VALUES, standard=["default", "allclose"])
    with pytest.raises(ConfigError, match="no standard 'strict'"):
        assert_aligned(VALUES, VALUES, standard="strict")


def test_a_plain_limit_is_one_more_condition():
    assert_aligned(VALUES * 1.005, VALUES, standard=None, relative_l2="1%")
    with pytest.raises(AssertionError, match=r"relative_l2 0\.005 is .* times its limit 0\.001 \(tolerance\)"):
        assert_aligned(VALUES * 1.005, VALUES, standard=None, relative_l2=0.001)
    with pytest.raises(AssertionError, match=r"\(calibrated\)"):  # the wide limit loosens no standard
        assert_aligned(VALUES * 1.005, VALUES, relative_l2="1%")
    with pytest.raises(AssertionError, match="cosine_similarity"):
        assert_aligned(-VALUES, VALUES, standard=None, cosine_similarity=0.9999)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"cosin_similarity": 0.9}, r"cosin_similarity +no such key\. Did you mean +cosine_similarity \?"),
        ({"relative_l2": "1percent"}, r"relative_l2 +expected a share"),
        ({"relative_l2": -1}, "not negative"),
        ({"rules": []}, "rules +no such limit"),
    ],
)
def test_a_limit_that_is_none_is_refused(limits, message):
    with pytest.raises(ConfigError, match=message):
        assert_aligned(VALUES, VALUES, **limits)


@pytest.mark.parametrize("limits", [{}, {"relative_l2": None}])
def test_without_any_limit_nothing_is_held(limits):
    with pytest.raises(ConfigError, match="nothing to hold the values to"):
        assert_aligned(VALUES, VALUES, standard=None, **limits)


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        (np.ones(3), np.ones(4), r"shape \[3\], expected \[4\]"),
        (np.array([np.nan, 1.0]), np.ones(2), r"\(nonfinite\)"),
        (np.full(2, np.nan), np.full(2, np.nan), r"\(blind\): nothing ordinary"),
        (np.zeros(0), np.zeros(0), r"\(blind\)"),
        (np.zeros(0, int), np.zeros(0, int), r"\(blind\)"),
        (np.int64([1, 2]), np.int64([2, 2]), "1 of 2 int64 values differ; they must be equal"),
        (np.int32([1]), np.int64([1]), "element type int32, expected int64"),
        (np.float32([1]), np.int64([1]), "element type float32, expected int64"),
        ([], [], "no tensor to compare"),
        ({}, {}, "no tensor to compare"),
        (None, None, "no tensor to compare"),
        ({"a": VALUES}, {"a": VALUES, "b": VALUES}, r"b \(unpaired_reference\): only the reference has it"),
        ({"a": VALUES, "b": VALUES}, {"a": VALUES}, r"b \(unpaired_target\): only the target has it"),
        ({"a": VALUES, "b": None}, {"a": VALUES, "b": VALUES}, r"b \(unpaired_reference\): only the reference has it"),
        # Keys whose names would be the same, of which one pair differs.
        ({1: VALUES * 2, "1": VALUES}, {1: VALUES, "1": VALUES}, r"1 of 2 tensors\n   1 \(fail\)"),
        ({1: VALUES, "1": VALUES * 2}, {1: VALUES, "1": VALUES}, r"1 of 2 tensors\n   '1' \(fail\)"),
        ({"a": {"b": VALUES * 2}, "a.b": VALUES}, {"a": {"b": VALUES}, "a.b": VALUES}, r"1 of 2 tensors\n   a\.b \(fail\)"),
        ({"a": {"b": VALUES}, "a.b": VALUES * 2}, {"a": {"b": VALUES}, "a.b": VALUES}, r"1 of 2 tensors\n   'a\.b' \(fail\)"),
        ({"a": {"b": VALUES}}, {"a.b": VALUES}, "2 of 2 tensors"),
        ({1: VALUES}, {"1": VALUES}, "2 of 2 tensors"),
        # Containers of another kind.
        ({0: VALUES}, [VALUES], r"value \(shape\): a dict of 1: 0, expected a list of 1"),
        ([VALUES], VALUES, r"value \(shape\): a list of 1, expected a tensor"),
        ({"a": (VALUES,)}, {"a": {"hidden": VALUES}}, r"a \(shape\): a tuple of 1, expected a dict of 1: hidden"),
        ([], {}, "a list of 0, expected a dict of 0"),
        ([VALUES], [VALUES, VALUES], r"1 \(unpaired_reference\)"),
        ([1.0], 1.0, r"shape \[1\], expected \[\]"),
        # Numbers keep the type that they have.
        (1, 1.0, "element type int64, expected float64"),
        (True, 1, "element type bool, expected int64"),
        (torch.tensor([1.0, 2.0]), [1, 3], r"relative_l2"),
        (torch.tensor([1], dtype=torch.int8), [300], "element type int8, expected int64"),
    ],
)
def test_nothing_passes_by_default(actual, expected, message):
    with pytest.raises(AssertionError, match=message):
        assert_aligned(actual, expected)


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor
    states: tuple = ()
    cache: object = None


Named = collections.namedtuple("Named", "hidden states")  # noqa: PYI024  torch returns such tuples


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (torch.tensor([True, False]), np.array([True, False])),
        ((VALUES, [VALUES]), [VALUES, (VALUES,)]),
        (Named(VALUES, VALUES), (VALUES, VALUES)),
        (collections.OrderedDict(a=VALUES, b=VALUES), {"b": VALUES, "a": VALUES}),
        (Output(VALUES, (VALUES,)), Output(VALUES, (VALUES,))),
        (Output(VALUES), {"hidden": VALUES}),
        ({"a": VALUES, "b": None, "c": [], "d": {}}, {"a": VALUES, "c": []}),
        ([torch.tensor(1.0), torch.tensor(2.0)], [1.0, 2.0]),
        ([[1.0, 2.0], [3.0]], [[1.0, 2.0], [3.0]]),
        (torch.tensor([1, 2], dtype=torch.int32), [1, 2]),
        (torch.tensor([1.0, 2.0]), [1, 2]),
        (VALUES.bfloat16(), VALUES.double()),
        (torch.complex(VALUES, VALUES) * (1 + 1e-7), torch.complex(VALUES, VALUES)),
    ],
)
def test_what_is_the_same_in_another_form_passes(actual, expected):
    assert_aligned(actual, expected)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_equal_nan_and_infinities_pass_and_are_said(special):
    values = np.array([1.0, special, 3.0])
    same = compare({"a": values, "b": VALUES}, {"a": values.copy(), "b": VALUES})
    assert same
    assert "a (pass): 1 NaN or Inf, the same on both sides, are not compared" in same.summary
    assert not compare(values, np.array([1.0, 2.0, 3.0]))
    assert not compare(values, np.array([special, 1.0, 3.0]))
    assert not compare(values, np.array([1.0, special, 3.5]))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"a": {1.0}, "b": VALUES},
            r"1 of 2 tensors\n   a \(unreadable\): a value of class set is no tensor, and was not compared",
        ),
        ([VALUES, object()], r"1 \(unreadable\): a value of class object is no tensor"),
        (VALUES.to_sparse(), r"\(unreadable\): cannot compare a tensor of layout torch\.sparse_coo; expected a dense one"),
        (torch.empty(3, device="meta"), "a meta tensor, which has no values"),
        (VALUES.to(torch.float8_e4m3fnuz), r"torch\.float8_e4m3fnuz; expected one that a dump can hold, such as \.float\(\)"),
        (VALUES.to(torch.float8_e5m2fnuz), r"torch\.float8_e5m2fnuz"),
        (np.array(["a"]), "elements of type <U1"),
        ({"text": "x"}, "there is no tensor to compare"),
    ],
)
def test_what_cannot_be_compared_is_named_and_proves_nothing(value, message):
    assert compare(value, value).verdict == "inconclusive"
    with pytest.raises(AssertionError, match=message):
        assert_aligned(value, value)


class Kind(enum.Enum):
    A = 1
    B = 2


@pytest.mark.parametrize(
    ("expected", "actual", "message"),
    [
        ("a cat", "a dog", r"x \(fail\): 'a dog', expected 'a cat'; what is no tensor has to be equal"),
        (pathlib.Path("a"), pathlib.Path("b"), r"PosixPath\('b'\)"),
        (Kind.A, Kind.B, "<Kind.B: 2>, expected <Kind.A: 1>"),
        (["a", "b"], ["a", "c"], r"x\.1 \(fail\): 'c', expected 'b'"),
        ("a", None, r"x \(unpaired_reference\): only the reference has it: 'a'"),
        ("a", VALUES, r"x \(shape\): a tensor, expected 'a'"),
        ("a" * 500, "b", r"expected 'aaa\S*\.\.\.; what"),
    ],
)
def test_what_is_no_tensor_has_to_be_equal(expected, actual, message):
    assert_aligned({"x": expected, "y": VALUES}, {"x": expected, "y": VALUES})
    with pytest.raises(AssertionError, match=message):
        assert_aligned({"x": actual, "y": VALUES}, {"x": expected, "y": VALUES})


def spoiled(at, by=1.0):
    values = VALUES.reshape(6, 5, 2).clone()
    values[at] += by
    return values


@pytest.mark.parametrize(
    ("actual", "where"),
    [
        (spoiled((3, 4, 1)), r"worst at \[3, 4, 1\]: 1\.\d+, expected 0\.\d+\Z"),
        (spoiled((3, slice(None), 1)), r"worst at \[3, \d, 1\]: .*; the error is at \[3, :, 1\]"),
        (spoiled((slice(4, 6),)), r"the error is at \[4:6, :, :\]"),
        (spoiled((...,)), r"worst at .*; everywhere alike"),
        (spoiled((0, 1, 0), by=torch.nan), r"NaN, Inf or a mask's fill at \[0, 1, 0\]: nan, expected -2\.\d+\Z"),
        (spoiled((slice(2), 1), by=torch.inf), r"fill at \[0, 1, 0\]: inf, .*; \[0, 1, 1\].*; \[1, 1, 0\].*; and 1 more"),
    ],
)
def test_a_failure_says_where(actual, where):
    expected = VALUES.reshape(6, 5, 2)
    with pytest.raises(AssertionError, match=where):
        assert_aligned(actual, expected)
    with pytest.raises(AssertionError, match=r"worst at \[1\]: 3, expected 5"):
        assert_aligned(torch.tensor([1, 3, 7]), torch.tensor([1, 5, 7]))
    with pytest.raises(AssertionError, match=r"worst at \[1\]: False, expected True|at \[1\]: 0, expected 1"):
        assert_aligned(torch.tensor([True, False]), torch.tensor([True, True]))


def test_a_failure_of_many_tensors_lists_the_first():
    with pytest.raises(AssertionError, match=r"not aligned: 30 of 30 tensors(\n.*){40}\n   \.\.\. and 10 more: precflow"):
        assert_aligned([VALUES * 2] * 30, [VALUES] * 30)


EXACT = VALUES.double() * torch.pi  # what the operator gives without rounding
ROUNDED = EXACT.float()


@pytest.mark.parametrize("standard", ["cann_single", "cann_mixed", "cann_mixed_2026_07", "assert_close"])
def test_a_standard_of_operators_takes_the_expected_value_for_the_exact_one(standard):
    assert_aligned(ROUNDED, EXACT, standard=standard)
    assert_aligned(ROUNDED, ROUNDED, standard=["calibrated", standard])
    assert_aligned(ROUNDED, ROUNDED * 1.00001, standard=[standard], golden=EXACT)
    with pytest.raises(AssertionError, match=rf"against the expected value; its limit is .* \({standard}\)\n      worst at"):
        assert_aligned(ROUNDED * 1.01, EXACT, standard=standard)
    with pytest.raises(AssertionError, match="against the golden"):
        assert_aligned(ROUNDED * 1.01, ROUNDED * 1.01, standard=standard, golden=EXACT)
    with pytest.raises(AssertionError, match=r"\(undecided\): what it is held to is bfloat16, less precise than float32"):
        assert_aligned(ROUNDED, ROUNDED.bfloat16(), standard=standard)
    with pytest.raises(AssertionError, match="the golden has no such tensor"):
        assert_aligned({"a": ROUNDED}, {"a": ROUNDED}, standard=standard, golden={"b": EXACT})
    with pytest.raises(AssertionError, match=r"the golden has shape \[60\], expected \[6, 10\]"):
        assert_aligned(ROUNDED, ROUNDED, standard=standard, golden=EXACT.reshape(-1))


def test_a_standard_of_operators_has_no_limits_for_each_type():
    with pytest.raises(AssertionError, match=r"\(undecided\): cann_single has no limits for float64"):
        assert_aligned(EXACT, EXACT, standard="cann_single")
    assert_aligned(torch.tensor([1, 2]), torch.tensor([1, 2]), standard="cann_single")


def test_a_dual_benchmark_divides_by_the_error_of_the_expected_value():
    with pytest.raises(ConfigError, match=r"compares the errors of both values against a third one.*\n.*golden="):
        assert_aligned(ROUNDED, ROUNDED, standard="cann_dual")
    assert_aligned(ROUNDED, ROUNDED, standard="cann_dual", golden=EXACT)
    worse = EXACT.float() * (1 + 2**-20)
    with pytest.raises(AssertionError, match=r"mere is \S+ times the reference's; level L2 allows 1\.2 times; to judge"):
        assert_aligned(worse, ROUNDED, standard="cann_dual", golden=EXACT, operator="matmul")
    with pytest.raises(AssertionError, match="the median ratio of 200 calls is at least"):
        assert_aligned([worse] * 200, [ROUNDED] * 200, standard="cann_dual", golden=[EXACT] * 200)


def test_a_standard_of_losses_takes_one_loss_a_step():
    losses = torch.linspace(5, 2, 40)
    assert_aligned(losses * 1.005, losses, standard="verl_npu")
    with pytest.raises(AssertionError, match=r"\(fail\): the loss, on average, differs by .* \(verl_npu\)"):
        assert_aligned(losses * 1.05, losses, standard="verl_npu")
    with pytest.raises(AssertionError, match=r"it asks for 1000 steps or more, and there are 40"):
        assert_aligned(losses, losses, standard="mindformers_migration")
    with pytest.raises(AssertionError, match=r"one number a step: expected a tensor of one axis, got shape \[6, 10\]"):
        assert_aligned(VALUES, VALUES, standard="verl_npu")
    with pytest.raises(AssertionError, match=r"\(calibrated\)"):
        assert_aligned(losses * 1.005, losses, standard=["calibrated", "verl_npu"])


def test_a_container_that_holds_itself_is_refused():
    value = [VALUES]
    value.append(value)
    with pytest.raises(TypeError, match="does a container hold itself"):
        assert_aligned(value, value)


def test_nested_values_name_the_tensor_that_differs():
    expected = {"logits": VALUES, "cache": [(VALUES, VALUES + 1), None], "loss": torch.tensor(0.5)}
    actual = {"logits": VALUES, "cache": [(VALUES, VALUES + 1.1), None], "loss": torch.tensor(0.5)}
    assert_aligned(expected, expected)
    with pytest.raises(AssertionError) as caught:
        assert_aligned(actual, expected)
    assert str(caught.value).splitlines()[0] == "not aligned: 1 of 4 tensors"
    assert "\n   cache.0.1 (fail): relative_l2" in str(caught.value)


def test_a_comparison_is_true_only_where_all_is_aligned():
    same, other = compare(VALUES, VALUES + 1e-7), compare(VALUES, VALUES * 1.1)
    assert same
    assert same.verdict == "aligned"
    assert same.reasons == ()
    assert not other
    assert other.verdict == "misaligned"
    assert not compare(np.zeros(0), np.zeros(0))
    assert compare(np.zeros(0), np.zeros(0)).verdict == "inconclusive"
    numbers = VALUES.double().numpy()
    error = np.linalg.norm(numbers * 1.1 - numbers) / np.linalg.norm(numbers)
    assert other.records[0].metrics["relative_l2"] == pytest.approx(error, rel=1e-5)
    assert str(same).startswith("aligned: 1 of 1 tensors; closest to its limit: value (pass): relative_l2")


def test_a_folder_is_not_compared_with_a_tensor(tmp_path):
    with pytest.raises(TypeError, match="two folders of dumps, or two tensors"):
        compare(tmp_path, VALUES)
    with pytest.raises(precflow.PrecflowError, match="there is no dump and no run"):
        compare(tmp_path / "a", tmp_path / "b")
