import pytest

from precflow.agent.emulated import module


def test_the_device_has_the_memory_of_the_host(npu):
    free, total = npu.mem_get_info()
    assert 0 < free <= total == npu.get_device_properties().total_memory


@pytest.mark.parametrize("name", ["memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"])
def test_what_is_not_tracked_is_zero(npu, name):
    assert getattr(npu, name)() == 0
    assert getattr(npu, name)("npu:1") == 0


def test_figures_and_resets_refuse_a_device_that_is_not_here(npu):
    for function in (npu.memory_allocated, npu.mem_get_info, npu.memory_stats, npu.reset_peak_memory_stats, npu.memory_summary):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            function(4)


def test_the_summary_says_why_there_is_none(npu):
    assert npu.memory_stats() == {}
    assert npu.memory_summary() == "npu:0 is emulated on the host: its memory is not tracked"
    assert npu.empty_cache() is None
    assert npu.reset_peak_memory_stats() is None
    assert module.total_memory() > 2**20
