"""The search for a smaller recipe: over faults that need some of what is there, within bounds, and after it was killed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precflow.errors import StoreError
from precflow.run.knobs import ENTRIES, NUMBER, Knob
from precflow.run.reduction import SAME, Search, kind_of_place, shrink

LOST = "aligned, no finding"


@pytest.fixture
def search(tmp_path):
    """Return a function that makes a search, whose runs are counted, with a fault that is there where ``is_there`` says so."""

    def make(is_there, *, most_runs=1000, key="k"):
        def run(setting):
            made.tried.append(dict(setting))
            return SAME if is_there(setting) else LOST

        made = Search(tmp_path / "tried.json", key, run, most_runs, 3600.0)
        made.tried = []
        made.load()
        return made

    return make


@given(
    layers=st.integers(1, 40),
    needed=st.integers(1, 40),
    rows=st.integers(1, 9),
    picked=st.sets(st.integers(0, 8)),
    heads=st.sampled_from([1, 4, 6]),
)
def test_what_is_left_is_what_the_fault_needs(layers, needed, rows, picked, heads):
    needed, picked = min(needed, layers), {row for row in picked if row < rows} or {0}
    knobs = [
        Knob("layers", ("a",), NUMBER, layers),
        Knob("rows", ("b",), ENTRIES, tuple(range(rows))),
        Knob("width", ("c",), NUMBER, 8 * heads, heads, heads),
    ]
    tried = []

    def run(setting):
        assert dict(setting) not in tried, "run twice"
        tried.append(dict(setting))
        there = setting["layers"] >= needed and picked <= set(setting["rows"]) and setting["width"] > heads
        return SAME if there else LOST

    made = Search(None, "k", run, 1000, 3600.0)
    made.save = lambda: None
    setting, complete = shrink(knobs, made)
    assert complete
    assert setting == {"layers": needed, "rows": tuple(sorted(picked)), "width": 2 * heads}


def test_everything_at_its_smallest_takes_one_run(search):
    made = search(lambda _: True)
    knobs = [Knob("layers", ("a",), NUMBER, 32), Knob("rows", ("b",), ENTRIES, (0, 1, 2))]
    assert shrink(knobs, made) == ({"layers": 1, "rows": (0,)}, True)
    assert len(made.tried) == 1


def test_a_fault_that_needs_everything_leaves_the_recipe_as_it_was(search):
    knobs = [Knob("layers", ("a",), NUMBER, 3), Knob("rows", ("b",), ENTRIES, (0, 1))]
    whole = {"layers": 3, "rows": (0, 1)}
    assert shrink(knobs, search(lambda setting: setting == whole)) == (whole, True)


def test_a_bound_ends_it_with_the_best_so_far_and_the_next_search_goes_on(search):
    knobs = [Knob("layers", ("a",), NUMBER, 32), Knob("tokens", ("b",), NUMBER, 64)]

    def is_there(setting):
        return setting["layers"] >= 3 and setting["tokens"] >= 5

    first = search(is_there, most_runs=4)
    best, complete = shrink(knobs, first)
    assert (len(first.tried), complete) == (4, False)
    assert is_there(best)
    assert best["layers"] < 32
    second = search(is_there)
    assert shrink(knobs, second) == ({"layers": 3, "tokens": 5}, True)
    assert not [setting for setting in second.tried if setting in first.tried]
    assert search(is_there, key="of another recipe").known == []


def test_what_was_finished_before_a_kill_is_known_after_it(search):
    made = search(lambda _: False)
    run = made.run

    def killed(setting):
        if len(made.tried) == 2:
            raise KeyboardInterrupt
        return run(setting)

    made.run = killed
    knobs = [Knob("layers", ("a",), NUMBER, 4), Knob("rows", ("b",), ENTRIES, (0, 1, 2))]
    with pytest.raises(KeyboardInterrupt):
        shrink(knobs, made)
    assert [one.setting for one in search(lambda _: False).known] == made.tried


@pytest.mark.parametrize("text", ["{", '{"schema": 1, "key": "k", "runs": [{"setting": 3}]}', '{"schema": 1}'])
def test_a_damaged_file_is_refused_with_what_to_do(search, tmp_path, text):
    (tmp_path / "tried.json").write_text(text, encoding="utf-8")
    with pytest.raises(StoreError, match="damaged") as refused:
        search(lambda _: True)
    assert "rm " in refused.value.next_step


def test_numbers_of_layers_and_calls_count_for_nothing():
    assert kind_of_place("layers.11.attn / softmax~2") == kind_of_place("layers.0.attn / softmax")
    assert kind_of_place("fc1 / linear") != kind_of_place("fc2 / linear")
    assert kind_of_place("") == ""
