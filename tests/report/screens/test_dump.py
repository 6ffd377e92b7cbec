import pytest

from precflow.dumps.header import ContentEntries, ContentEntry, Header, RecordedDevice, RepeatCheck
from precflow.dumps.overview import Overview
from precflow.report.screens.dump import show_dump, show_records


class Written:
    """As much of a dump as its screen looks at."""

    def __init__(self, header=None, *, sealed=True):
        self.header = header or Header(side="target", dtype="float16", recipe="test", agent="0.1.0", content="c0")
        self.sealed = sealed


def seen(**changes):
    fields = {
        "steps": ((0, 0),),
        "unfinished": (),
        "calls": 1200,
        "levels": {"api": 1000, "module": 200},
        "phases": {"forward": 1200},
        "operators": {f"operator{number}": 20 - number for number in range(12)},
        "inputs": 10,
        "outputs": 20,
        "kept": {"tensor": 30},
        "dtypes": {"float16": 30},
        "tensors": 1,
        "bytes": 2_000_000,
        "shards": 1,
        "damage": (),
    }
    return Overview(**{**fields, **changes})


def screen(header=None, *, sealed=True, verified=None, **changes):
    return show_dump(Written(header, sealed=sealed), seen(**changes), name="name", verified=verified).render()


def test_counts_are_told_in_words():
    shown = screen()
    assert "20 outputs and 10 inputs of 1 200 calls (1 000 api, 200 module)" in shown
    assert "1 different tensor in 1 shard, 2 MB with the records" in shown
    assert "operator7 13 · and 4 more" in shown


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (((0, 0),), "0 of rank 0"),
        (((0, 0), (0, 1), (0, 2), (0, 7)), "0-2, 7 of rank 0"),
        (((0, 0), (0, 1), (1, 0), (1, 1)), "0-1 of rank 0-1"),
        (((0, 0), (1, 0), (1, 1)), "0 of rank 0; 0-1 of rank 1"),
        ((), "none"),
    ],
)
def test_steps_and_ranks(steps, text):
    assert f"steps       {text}\n" in screen(steps=steps)


def test_an_emulated_device_says_so():
    header = Header(
        side="target",
        dtype="float16",
        device=RecordedDevice("npu", "emulated", "Ascend", emulated=True),
        emulate={"name": "bad"},
    )
    shown = screen(header)
    assert "target · EMULATED npu float16 · Ascend · fault bad" in shown


def test_inputs_weights_and_repetition():
    held = ContentEntries("d", {"ids": ContentEntry("c", "int64", (3, 77))})
    shown = screen(
        Header(side="target", inputs=held, weights=held, repeat=RepeatCheck(checked=True, records=3, different=("x",)))
    )
    assert "inputs      ids int64 [3, 77]" in shown
    assert "weights     1 entry, d" in shown
    assert "1 record changed between two equal runs, first x" in shown
    assert "not checked whether the side repeats itself" in screen(Header(side="target"))


def test_what_repeats_by_statistics_is_not_said_to_repeat_bitwise():
    by_statistics = RepeatCheck(checked=True, records=3, by=("statistics",))
    assert "repeated    by statistics, 3 records\n" in screen(Header(side="target", repeat=by_statistics))
    bitwise = RepeatCheck(checked=True, records=3, by=("bits",))
    assert "repeated    bitwise, 3 records\n" in screen(Header(side="target", repeat=bitwise))
    silent = RepeatCheck(checked=True, records=3)
    assert "repeated    in a way that the dump does not name, 3 records\n" in screen(Header(side="target", repeat=silent))


def test_a_dump_without_header():
    shown = screen(Header(), sealed=False, steps=((0, 0), (0, 1), (1, 0)), unfinished=((0, 1), (1, 0)))
    assert "unknown: it has no header" in shown
    assert "NO: its writer was stopped; rank 0 is complete up to step 0; rank 1 has no complete step" in shown
    assert "no step was begun" in screen(Header(), sealed=False, steps=())


def test_damage_is_listed_and_bounded():
    shown = screen(damage=tuple(f"damage {number}" for number in range(30)))
    assert "damage 11\n" in shown
    assert "and 18 more" in shown
    assert "damage 12" not in shown
    assert "none: every byte was read" in screen(verified=[])
    assert "torn" in screen(verified=["torn"])


def test_a_list_says_how_many_more_there_are():
    paper = show_records([], total=7, pattern="x")
    assert "0 of 7 records that match x   (--limit N for more)" in paper.render()
    assert "--limit" not in show_records([], total=0, pattern="").render()
