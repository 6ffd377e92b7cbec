"""Which calls of a model read a prompt, and which write from the cache."""

import numpy as np
import pytest
from dump_builder import DumpBuilder

from precflow.agent.contract import FORWARD
from precflow.diagnosis.generation import DECODE, PREFILL, find_call_of, find_written
from precflow.dumps.formats import read_dump


def write(path, lengths, *, in_steps=False, dtype=np.int64):
    """Write a dump of a model that is called with so many tokens each time, an operator inside of each call."""
    dump = DumpBuilder(path)
    for number, length in enumerate(lengths):
        tokens = np.full((2, length), number, dtype)
        made = np.full((2, length, 4), number, np.float32)
        when = {"step": number} if in_steps else {"call": number}
        dump.call("lm.layer", "gelu", [made], **when)
        dump.call("lm", "", [made], inputs=[tokens], level="module", **when)
    return read_dump(dump.write())


@pytest.mark.parametrize("in_steps", [False, True])
def test_prompt_and_tokens_are_told_apart(tmp_path, in_steps):
    calls = write(tmp_path, [7, 1, 1, 1], in_steps=in_steps).calls()
    written = find_written(calls)
    assert [(one.part, one.token) for one in written] == [(PREFILL, 1), (DECODE, 2), (DECODE, 3), (DECODE, 4)]
    inside = [find_call_of(written, call.step, call.order) for call in calls if call.operator and call.phase == FORWARD]
    assert [one.token for one in inside] == [1, 2, 3, 4]


def test_two_prompts_one_after_the_other(tmp_path):
    assert [one.token for one in find_written(write(tmp_path, [7, 1, 1, 5, 1]).calls())] == [1, 2, 3, 1, 2]


@pytest.mark.parametrize(("lengths", "dtype"), [([7], np.int64), ([7, 7], np.int64), ([1, 1], np.int64), ([7, 1], np.float32)])
def test_other_models_do_not_write(tmp_path, lengths, dtype):
    assert find_written(write(tmp_path, lengths, dtype=dtype).calls()) == []
