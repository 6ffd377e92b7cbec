import pytest
import torch


def test_streams_accept_what_code_does_with_them(npu):
    stream = npu.Stream("npu:1")
    assert stream.device_index == 1
    with npu.stream(stream):
        doubled = torch.ones(2, device="npu:1") * 2
    stream.wait_stream(npu.current_stream())
    stream.wait_event(stream.record_event())
    stream.synchronize()
    npu.set_stream(npu.default_stream())
    doubled.record_stream(torch.Stream("npu:1"))
    assert stream.query() is True
    assert doubled.cpu().tolist() == [2.0, 2.0]


def test_an_error_inside_a_stream_goes_on(npu):
    with pytest.raises(ZeroDivisionError), npu.stream(npu.Stream()):
        raise ZeroDivisionError


def test_events_measure_milliseconds(npu):
    start, end = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
    start.record()
    end.record()
    end.synchronize()
    end.wait()
    assert end.query() is True
    assert 0.0 <= start.elapsed_time(end) < 1000.0
    assert end.elapsed_time(start) <= 0.0


def test_time_between_events_needs_both(npu):
    with pytest.raises(RuntimeError, match="both events must be recorded"):
        npu.Event().elapsed_time(npu.current_stream().record_event())


def test_synchronizing_returns(npu):
    assert npu.synchronize() is None
    assert npu.synchronize("npu:1") is None
