"""Functions of all 16-bit numbers: errors in ulp against an independent computation, and what is misplaced."""

import json

import mpmath
import pytest
import torch

from precflow.agent import request as requests
from precflow.agent.devices.cpu import Cpu
from precflow.agent.replay.unary import DTYPES, FUNCTIONS, compare, every_number, measure, unary

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_is_there_once(dtype):
    numbers = every_number(dtype)
    assert len(numbers.view(torch.int16).unique()) == 65536
    assert numbers.isnan().any()
    assert numbers.isinf().sum() == 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_result_that_is_rounded_once_is_within_half_an_ulp(dtype):
    numbers = every_number(dtype)
    exact = numbers.double().exp()
    line = compare(numbers, exact.to(dtype), exact)
    assert (line["wrong"], line["misplaced"]) == (0, 0)
    assert 0.49 < line["largest"] < 0.501  # torch rounds float64 to float32 first


@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_are_in_units_of_the_result_s_type(dtype):
    numbers = every_number(dtype)
    exact = numbers.double().exp()
    bits = exact.to(dtype).view(torch.int16)
    place = int((numbers.double() - 1.0).abs().nan_to_num(9.0).argmin())
    bits[place] += 3
    line = compare(numbers, bits.view(dtype), exact)
    digits = -int(torch.tensor(torch.finfo(dtype).eps).log2())
    with mpmath.workdps(30):
        unit = mpmath.mpf(2) ** (1 - digits)  # e lies between 2 and 4
        expected = abs(mpmath.mpf(float(bits.view(dtype)[place])) - mpmath.e) / unit
    assert line["largest"] == pytest.approx(float(expected), rel=1e-9)
    assert (line["at"], line["wrong"]) == (1.0, 1)


def test_nan_infinity_and_another_sign_are_misplaced():
    numbers = every_number(torch.float16)
    exact = numbers.double()
    result = numbers.clone()
    for value, wrong in ((1.0, float("nan")), (2.0, float("inf")), (3.0, -3.0)):
        result[int((exact == value).nonzero())] = wrong
    assert compare(numbers, result, exact)["misplaced"] == 3


def test_a_function_that_the_device_lacks_says_so(monkeypatch):
    def missing(_):
        raise NotImplementedError("no kernel for it\nand more")

    monkeypatch.setitem(FUNCTIONS, "exp", (missing, torch.exp))
    line = measure("exp", torch.float16, CPU)
    assert line["why"] == "NotImplementedError: no kernel for it"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_torch_on_the_cpu_is_near_its_own_float64(name, dtype):
    line = measure(name, dtype, CPU)
    assert line["why"] == ""
    assert line["rounded"] > 20000
    # The others lose digits where they go to 0: gelu cancels, and float32 inside has no smaller numbers than bfloat16.
    if name not in {"gelu", "gelu_tanh", "silu", "sigmoid", "erf"}:
        assert line["largest"] < 1.1, line
        assert line["wrong"] < 0.2 * line["rounded"]


def test_the_action_writes_a_line_for_each_function_and_type(tmp_path, events):
    request = requests.parse({"schema": 1, "action": "unary", "output": str(tmp_path)})
    unary(request, Cpu(), CPU, events)
    lines = json.loads((tmp_path / "unary.json").read_text())["functions"]
    assert len(lines) == len(FUNCTIONS) * len(DTYPES)
