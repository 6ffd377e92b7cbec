"""Records of the first pass with tensors of the second."""

import numpy as np
import pytest

from precflow.dumps.formats import read_dump
from precflow.dumps.views.two_passes import TwoPasses, count_unknown, find_unrepeated
from precflow.errors import DumpError

ONE, TWO, THREE = (np.full((2, 3), number, dtype=np.float32) for number in (1, 2, 3))


@pytest.fixture
def passes(build):
    """Return both passes of a side that ran ``fc1`` and ``fc2``; the second one recorded ``fc2`` alone."""

    def make(second=TWO):
        first, again = build("first"), build("second")
        first.call("fc1", "linear", [ONE], [THREE], store=False).call("fc2", "linear", [TWO], [ONE], store=False)
        again.call("fc2", "linear", [second], [ONE])
        return read_dump(first.write()), read_dump(again.write())

    return make


def records(dump):
    return {record.text: record for call in dump.calls() for record in (*call.inputs, *call.outputs)}


def test_tensors_are_the_second_pass_s_and_everything_else_the_first_s(passes):
    first, second = passes()
    both = TwoPasses(first, second)
    assert [call.order for call in both.calls()] == [0, 1]
    assert {text: record.stored for text, record in records(both).items()} == {
        "fc1/linear.0/forward.input.0": False,
        "fc1/linear.0/forward.output.0": False,
        "fc2/linear.0/forward.input.0": True,
        "fc2/linear.0/forward.output.0": True,
    }
    assert np.array_equal(both.tensor(records(both)["fc2/linear.0/forward.output.0"]), TWO)
    assert both.header is first.header


def test_a_tensor_that_no_pass_kept_is_told(passes):
    both = TwoPasses(*passes())
    with pytest.raises(DumpError, match="not stored"):
        both.tensor(records(both)["fc1/linear.0/forward.output.0"])


def test_another_content_is_not_the_same_evidence(passes):
    both = TwoPasses(*passes(second=THREE))
    assert not records(both)["fc2/linear.0/forward.output.0"].stored
    assert find_unrepeated(both.first, both.second) == ["fc2/linear.0/forward.output.0"]


def test_equal_passes_repeat(passes):
    assert find_unrepeated(*passes()) == []


def test_a_record_that_only_the_second_pass_has_was_not_repeated(passes):
    first, second = passes()
    assert find_unrepeated(second, first) == ["fc1/linear.0/forward.input.0", "fc1/linear.0/forward.output.0"]


@pytest.fixture
def marked(build):
    """Return both passes of a side whose first kept statistics alone of ``fc2``'s output: a mark, no content id."""
    first, again = build("first"), build("second")
    first.call("fc1", "linear", [ONE], store=False).call("fc2", "linear", [TWO], [ONE], store=False)
    first.lines[0, 0][1]["outputs"][0].update(content="", mark="5" * 32, statistics=[2, 2, 12, 24, 0, 0, 0, 0, 0, 0])
    again.call("fc2", "linear", [THREE], [ONE])
    return read_dump(first.write()), read_dump(again.write())


def test_a_tensor_stands_for_a_record_whose_bits_nobody_knows(marked):
    both = TwoPasses(*marked)
    output = records(both)["fc2/linear.0/forward.output.0"]
    assert (output.stored, output.content) == (True, "")
    assert np.array_equal(both.tensor(output), THREE)


def test_what_has_no_content_id_cannot_be_found_to_repeat_or_not(marked):
    assert find_unrepeated(*marked) == []
    assert count_unknown(*marked) == 1


@pytest.fixture
def with_weight(build):
    """Return both passes of a side whose second kept the weight of ``fc2``, which the first, as sketches do, did not read."""
    first, again = build("first"), build("second")
    first.call("fc2", "linear", [TWO], [ONE, THREE], store=False)
    again.call("fc2", "linear", [TWO], [ONE, THREE])
    for made in (first, again):
        made.lines[0, 0][0]["inputs"][1].update(weight="fc2.weight")
    first.lines[0, 0][0]["inputs"][1].update(content="")
    return read_dump(first.write()), read_dump(again.write())


def test_a_weight_that_the_first_pass_did_not_read_is_no_record_that_changed(with_weight):
    assert find_unrepeated(*with_weight) == []
    assert count_unknown(*with_weight) == 0, "the headers have the content ids of all weights"


def test_a_weight_that_only_the_second_pass_kept_is_there_to_compute_its_call_again(with_weight):
    both = TwoPasses(*with_weight)
    weight = records(both)["fc2/linear.0/forward.input.1"]
    assert (weight.stored, weight.weight) == (True, "fc2.weight")
    assert np.array_equal(both.tensor(weight), THREE)


def test_of_records_with_content_ids_nothing_is_unknown(passes):
    assert count_unknown(*passes(second=THREE)) == 0


def test_a_record_that_was_not_there_before_is_no_unknown_one(marked):
    first, second = marked
    assert count_unknown(second, first) == 0
    assert find_unrepeated(second, first) == ["fc1/linear.0/forward.output.0"]
