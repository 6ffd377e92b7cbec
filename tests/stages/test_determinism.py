"""What stands in the way of a verdict is found before any tensor is read."""

from precflow.stages.determinism import read_reproduction


def test_equal_starts_block_nothing(pair, made):
    found = read_reproduction(made(pair(), until="determinism")["determinism"])
    assert (found.blockers, found.incomplete, found.unrepeatable) == ((), (), ())


def test_other_weights_block(pair, made):
    other = {"digest": "x", "entries": {"linear.weight": {"content": "c1", "dtype": "float32", "shape": [2, 3]}}}
    found = read_reproduction(made(pair(weights=other), until="determinism")["determinism"])
    assert "linear.weight" in found.blockers[0]


def test_an_unsealed_dump_is_incomplete(pair, made):
    found = read_reproduction(made(pair(sealed=False), until="determinism")["determinism"])
    assert found.blockers == ()
    assert "never sealed" in found.incomplete[0]


def test_what_does_not_repeat_is_named_with_its_side(pair, made):
    repeat = {"checked": True, "records": 2, "different": ["fc2/linear.0/forward.output.0"]}
    found = read_reproduction(made(pair(repeat=repeat), until="determinism")["determinism"])
    assert found.unrepeatable == ("target: fc2/linear.0/forward.output.0",)
