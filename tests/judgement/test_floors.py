"""The floor of a record is the largest difference that a disturbance made; small records share theirs with their inputs."""

import math
from dataclasses import replace

import dump_builder as builder
import ml_dtypes
import numpy as np
import pytest

from precflow.comparison.compare import compare
from precflow.dumps.formats import read_dump
from precflow.judgement.floors import METRICS, find_floors_of_inputs, gather_floors

WIDE = np.random.default_rng(5).standard_normal((16, 32)).astype(np.float32)


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a dump: a wide output, a view of it, and a loss made of the view."""

    def write(name, wide, loss):
        dump = builder.DumpBuilder(tmp_path / name)
        dump.call("fc", "linear", [wide])
        dump.call("fc", "transpose", [wide.T.copy()], [wide], movement=True)
        dump.call("", "mean", [np.float32(loss)], [wide.T.copy()])
        dump.call("", "", {"loss": np.float32(loss)})
        dump.lines[0, 0][1]["inputs"][0]["source"] = [0, "0"]
        dump.lines[0, 0][2]["inputs"][0]["source"] = [1, "0"]
        dump.write()
        return read_dump(tmp_path / name)

    return write


def floors_of(reference, **disturbed):
    found = gather_floors(reference, {name: compare(reference, dump) for name, dump in disturbed.items()})
    return {floor.record: floor for floor in found}


def test_the_largest_disturbance_counts_in_each_metric(written):
    row = WIDE.copy()
    row[3] *= 1.01
    reference, small, one_row = written("r", WIDE, 1.0), written("s", WIDE * np.float32(1.001), 1.0), written("o", row, 1.0)
    floor = floors_of(reference, jitter=small, chunks=one_row)["fc/linear.0/forward.output.0"]
    assert set(floor.metrics) == set(METRICS)
    assert floor.noises["worst_row_error"] == "chunks"
    assert floor.metrics["worst_row_error"] == pytest.approx(0.01, rel=0.3)
    assert floor.metrics["relative_l2"] >= 0.001
    assert floor.metrics["relative_l2"] == max(compare(reference, dump)[0].metrics["relative_l2"] for dump in (small, one_row))


def test_a_small_record_has_at_least_the_floor_of_its_inputs_also_through_movement(written):
    reference, lucky = written("r", WIDE, 1.0), written("l", WIDE * np.float32(1.001), 1.0)
    floors = floors_of(reference, jitter=lucky)
    wide, loss = floors["fc/linear.0/forward.output.0"], floors["(model)/mean.0/forward.output.0"]
    assert loss.metrics["relative_l2"] == wide.metrics["relative_l2"] > 0
    assert loss.noises["relative_l2"] == "inputs"


def test_a_single_number_that_cancels_has_three_times_the_floor_of_its_largest_draw(written):
    """One draw in a thousand is beyond 9.3 times the largest of three others."""
    reference, disturbed = written("r", WIDE, 1.0), written("d", WIDE * np.float32(1 + 1e-6), 1.001)
    floors = floors_of(reference, jitter=disturbed)
    assert floors["(model)/mean.0/forward.output.0"].metrics["relative_l2"] == pytest.approx(0.003, rel=0.01)


def test_small_records_of_the_same_content_share_the_larger_floor(written):
    reference, lucky = written("r", WIDE, 1.0), written("l", WIDE * np.float32(1.001), 1.0)
    floors = floors_of(reference, jitter=lucky)
    assert floors["(model)/forward.output.loss"].metrics == floors["(model)/mean.0/forward.output.0"].metrics


def test_what_was_not_compared_has_no_floor_and_an_estimate_counts_with_its_upper_end(measure, written):
    record = measure(relative_l2=2e-6, ranges={"relative_l2": (1.5e-6, 2.7e-6)})
    bounded = measure("b", metrics={}, ranges={"relative_l2": (0.0, 1.0)})
    alone = measure("c", join="unpaired_reference")
    moved = replace(measure("d"), movement=True)
    found = gather_floors(written("r", WIDE, 1.0), {"jitter": [record, bounded, alone, moved]})
    assert [floor.record for floor in found] == [record.record]
    assert found[0].metrics == {"relative_l2": 2.7e-6}


def test_an_error_that_is_no_number_makes_an_infinite_floor(measure, written):
    found = gather_floors(written("r", WIDE, 1.0), {"jitter": [measure(relative_l2=math.nan)]})
    assert found[0].metrics["relative_l2"] == math.inf


def test_the_worst_element_has_at_least_four_times_the_floor_of_the_norm(measure, written):
    metrics = {"relative_l2": 1e-6, "max_rms_error": 2e-6}
    found = gather_floors(written("r", WIDE, 1.0), {"jitter": [measure(metrics=metrics)]})
    assert found[0].metrics == {"relative_l2": 1e-6, "max_rms_error": 4e-6}
    found = gather_floors(written("s", WIDE, 1.0), {"jitter": [measure(metrics={**metrics, "max_rms_error": 9e-6})]})
    assert found[0].metrics["max_rms_error"] == 9e-6


@pytest.mark.parametrize("noise", [2**-23, 2**-18])
def test_the_floor_of_the_worst_element_grows_with_the_largest(written, noise):
    """One element is four hundred times as large as the others; noise moved it by half of what rounding may, or by more."""
    wide = WIDE.copy()
    wide[2, 3] = 400.0
    moved = wide.copy()
    moved[2, 3] *= np.float32(1 + noise)
    found = floors_of(written("r", wide, 1.0), jitter=written("m", moved, 1.0))["fc/linear.0/forward.output.0"]
    peak = 400 / np.sqrt(np.mean(wide.astype(np.float64) ** 2))
    rounding, of_norm = 4 * 2**-24 * peak, (2 * peak - 4) * found.metrics["relative_l2"]
    assert found.metrics["max_rms_error"] == pytest.approx(max(rounding, of_norm), rel=1e-3)
    assert found.metrics["max_rms_error"] > 1.5 * noise * peak  # what noise itself did to that element


@pytest.mark.parametrize(
    ("phase", "expected"), [("gradient", 2 * 2**-24 * 30.0), ("backward", 2 * 2**-24 * 30.0), ("forward", 1e-9)]
)
def test_the_worst_row_of_a_gradient_has_the_rounding_of_its_largest_row(measure, written, phase, expected):
    """The rows of samples that are right already cancel to zero in all runs of the reference, and not on another chip."""
    table = measure(metrics={"relative_l2": 1e-9, "worst_row_error": 1e-9}, row_peak=30.0, phase=phase, target_dtype="float32")
    found = gather_floors(written("r", WIDE, 1.0), {"jitter": [table], "chunks": [table]})
    assert found[0].metrics["worst_row_error"] == expected


def test_the_worst_complex_number_has_the_rounding_of_its_parts(measure, written):
    complex_one = measure(metrics={"relative_l2": 1e-9, "max_rms_error": 1e-9}, peak=3.0, target_dtype="complex64")
    found = gather_floors(written("r", WIDE, 1.0), {"jitter": [complex_one]})
    assert found[0].metrics["max_rms_error"] == 4 * 2**-24 * 3.0


def test_what_is_added_up_of_16_bits_in_32_may_be_off_by_another_order(tmp_path):
    """Under autocast every disturbance is rounded away before a bias's gradient is summed."""
    narrow, sums = WIDE.astype(ml_dtypes.bfloat16), WIDE.sum(0)

    def write(name):
        dump = builder.DumpBuilder(tmp_path / name)
        dump.call("norm", "layer_norm", [narrow.astype(np.float32)], [narrow])
        for number, (module, arriving) in enumerate({"fc": narrow, "wide": WIDE}.items(), 1):
            dump.call(module, "", [arriving], [arriving], phase="backward")
            dump.call(module, "", {"bias": number * sums}, phase="gradient")
            dump.call(module, "", {"bias": -number * sums}, {"bias": number * sums}, phase="optimizer")
        dump.write()
        return read_dump(tmp_path / name)

    floors = floors_of(write("r"), jitter=write("d"))
    found = {name: floor.metrics["relative_l2"] for name, floor in floors.items()}
    of_order = {"norm/layer_norm.0/forward.output.0", "fc/gradient.output.bias"}
    assert {name for name, floor in found.items() if floor} == of_order
    assert {found[name] for name in of_order} == {64 * 2.0**-24}


def test_an_input_has_the_floor_of_the_output_that_it_is_also_through_movement(written):
    reference, other = written("r", WIDE, 1.0), written("o", WIDE * np.float32(1.001), 1.0)
    floors = floors_of(reference, jitter=other)
    find = find_floors_of_inputs(reference.calls(), floors)
    _, transpose, mean, model = reference.calls()
    wide = floors["fc/linear.0/forward.output.0"].metrics
    assert find(transpose.inputs[0]).metrics == wide
    assert find(mean.inputs[0]).metrics == wide
    assert all(find(record) is None for record in model.inputs)
    assert find_floors_of_inputs(reference.calls(), {})(mean.inputs[0]) is None


@pytest.fixture
def stepped(tmp_path):
    """Return a function that writes a dump of one step of an optimizer: two weights and two counters."""

    def write(name, *, flipped, bias=0.0, count=1.0):
        dump = builder.DumpBuilder(tmp_path / name)
        weight, small = WIDE.copy(), np.full(64, 0.001, np.float32)
        weight[0, 0] += 0.002 * flipped
        small[5] += np.float32(bias)
        copies = {"weight.copy_in_ema": 0.1 * weight, "bias.copy_in_ema": 0.1 * small}
        dump.call("fc", "", {"weight": weight, "bias": small, "bias.step": np.float32(count), **copies}, phase="optimizer")
        dump.call("k", "", {"bias.step": np.float32(count)}, [WIDE], phase="optimizer")
        dump.write()
        return read_dump(tmp_path / name)

    return write


def test_every_weight_of_a_step_may_move_as_far_as_any(stepped):
    reference, disturbed = stepped("r", flipped=False), stepped("d", flipped=True, bias=1e-9)
    floors = floors_of(reference, jitter=disturbed)
    bias = floors["fc/optimizer.output.bias"].metrics
    assert bias["max_rms_error"] == pytest.approx(2.0, rel=0.01)
    assert bias["relative_l2"] == pytest.approx(2.0 / 8, rel=0.01)
    assert floors["fc/optimizer.output.weight"].metrics["relative_l2"] == pytest.approx(0.002 / np.linalg.norm(WIDE), rel=0.01)
    average = floors["fc/optimizer.output.bias.copy_in_ema"].metrics  # of averages: they moved less than the weights
    assert average["max_rms_error"] == pytest.approx(2.0, rel=0.01)


def add_statistics(dump, steps=2):
    """Give the records of the first steps their statistics; movement has none of its own."""
    for step in range(steps):
        for line in (line for line in dump.lines[0, step] if not line["movement"]):
            for record in (*line["outputs"], *line["inputs"]):
                array = dump.tensors[0, step][record["content"]].astype(np.float64)
                record["statistics"] = [array.min(), array.max(), array.sum(), np.square(array).sum(), 0, 0, 0, 0, 0, 0]


@pytest.fixture
def next_step(tmp_path):
    """Return a function that writes an optimizer's step of a table and a bias, and a forward that reads them."""

    def write(name, *, flipped):
        dump = builder.DumpBuilder(tmp_path / name)
        other = WIDE.copy()
        other[0, 0] += 0.002 * flipped
        near = WIDE * np.float32(1 + 1e-7 * flipped)
        weights = {"emb": {"weight": near}, "fc": {"bias": np.full(32, 1e-3, np.float32)}, "k": {"weight": other}}
        for module, stepped in weights.items():
            dump.call(module, "", stepped, phase="optimizer")
        for module, operator, weight in (
            ("emb", "embedding", "emb.weight"),
            ("emb", "", ""),
            ("fc", "add", "fc.bias"),
            ("", "view", ""),
            ("", "sub", ""),
            ("", "", ""),
            ("", "cos", ""),
            ("", "mul", ""),
        ):
            scale = 100 if operator == "sub" or not module + operator else {"add": 2, "cos": 3, "mul": 5000}.get(operator, 1)
            dump.call(module, operator, [near * np.float32(scale)], [WIDE], step=1, movement=operator == "view")
            dump.lines[0, 1][-1]["inputs"][0]["weight"] = weight
        dump.lines[0, 1][3]["inputs"][0]["source"] = [0, "0"]
        dump.lines[0, 1][4]["inputs"][0]["source"] = dump.lines[0, 1][7]["inputs"][0]["source"] = [3, "0"]
        add_statistics(dump)
        dump.write(steps=True)
        return read_dump(tmp_path / name)

    return write


def test_what_reads_a_stepped_weight_may_be_off_by_one_element_of_it(next_step):
    """No disturbance flipped an element of the table, but one of another weight: of the table too, it is chance."""
    floors = floors_of(next_step("r", flipped=False), jitter=next_step("d", flipped=True))
    found = {name.partition("/forward")[0]: floor.metrics["relative_l2"] for name, floor in floors.items() if "@1" in name}
    size = np.sqrt(np.mean(WIDE.astype(np.float64) ** 2))
    one_of_table = 0.002 / size / np.sqrt(WIDE.size)
    assert found["emb/embedding.0"] == pytest.approx(one_of_table, rel=0.01)
    assert found["emb"] == pytest.approx(one_of_table, rel=0.01)
    assert found["fc/add.0"] == pytest.approx(0.001 / size / np.sqrt(32), rel=0.01)  # against the output, not the small bias
    assert found["(model)/sub.0"] == pytest.approx(one_of_table / 100, rel=0.02)  # of something larger it is a smaller part
    assert found["(model)"] == found["(model)/sub.0"]  # the module returns it
    assert found["(model)/mul.0"] == pytest.approx(one_of_table, rel=0.01)  # twice the input is twice the output
    assert found["(model)/cos.0"] < 1e-6  # reads neither


@pytest.fixture
def next_backward(tmp_path):
    """Return a function that writes an optimizer's step of two layers, and the next step's forward, backward and gradients.

    Backward passes ``b`` first, then ``a``; what arrives at ``a`` and at the norm before it is a sum that no call made.
    """

    def write(name, *, flipped):
        dump = builder.DumpBuilder(tmp_path / name)
        near, other = WIDE * np.float32(1 + 1e-7 * flipped), WIDE.copy()
        other[0, 0] += 0.002 * flipped
        for module, stepped in {"a": near, "b": near, "k": other}.items():
            dump.call(module, "", {"weight": stepped}, phase="optimizer")
        one = np.float32(1)
        dump.call("a", "linear", [near], [WIDE], step=1)
        dump.call("a", "", [near], [WIDE], step=1)
        dump.call("b", "", [near], [near], step=1)
        dump.lines[0, 1][2]["inputs"][0]["source"] = [1, "0"]
        dump.call("b", "", [near * 2 * one], [WIDE], phase="backward", step=1)
        dump.call("b", "", {"weight": near, "bias": near[0] * one}, phase="gradient", step=1)
        dump.call("norm", "", [near * 3 * one], [WIDE], phase="backward", step=1)
        dump.call("b", "", {"weight": near, "weight.exp_avg": near * one}, phase="optimizer", step=1)
        dump.call("last", "", [near * 200 * one], [WIDE * 300 * one], phase="backward", step=1)
        add_statistics(dump)
        dump.write(steps=True)
        return read_dump(tmp_path / name)

    return write


def test_what_goes_back_through_a_stepped_weight_may_be_off_by_one_element_of_it(next_backward):
    floors = floors_of(next_backward("r", flipped=False), jitter=next_backward("d", flipped=True))
    found = {name: floor.metrics["relative_l2"] for name, floor in floors.items() if "@1" in name}
    size = np.sqrt(np.mean(WIDE.astype(np.float64) ** 2))
    one_of_table = pytest.approx(0.002 / size / np.sqrt(WIDE.size), rel=0.01)
    assert found["b/backward.output.0@1.0"] == one_of_table
    assert found["b/gradient.output.weight@1.0"] == one_of_table  # the forward brought it
    assert found["b/optimizer.output.weight.exp_avg@1.0"] == one_of_table
    assert found["norm/backward.output.0@1.0"] == one_of_table  # has no weight that moved: it arrived
    assert found["last/backward.output.0@1.0"] == pytest.approx(one_of_table.expected / 100, rel=0.01)  # of a larger sum


def test_a_counter_of_steps_has_no_floor_of_others(stepped):
    floors = floors_of(stepped("r", flipped=False), jitter=stepped("d", flipped=True))
    assert floors["fc/optimizer.output.bias.step"].metrics["relative_l2"] == 0


def test_a_number_that_an_optimizer_keeps_of_a_weight_may_be_off_as_far_as_the_weight(tmp_path):
    """Adafactor keeps its root mean square: elements that step up or down by chance move it, and each draw another way."""

    def write(name, step):
        dump = builder.DumpBuilder(tmp_path / name)
        weight = WIDE + np.float32(step)
        state = {"weight.RMS": np.float32(0.7), "weight.step": np.float32(1), "weight.one": np.full(1, 0.3, np.float32)}
        dump.call("fc", "", {"weight": weight, **state}, phase="optimizer")
        add_statistics(dump, steps=1)
        dump.write()
        return read_dump(tmp_path / name)

    floors = floors_of(write("r", 0), jitter=write("d", 1e-3))
    of_weight = floors["fc/optimizer.output.weight"].metrics["relative_l2"]
    assert of_weight > 1e-4
    for name, expected in {"weight.RMS": of_weight, "weight.one": of_weight, "weight.step": 0.0}.items():
        assert floors[f"fc/optimizer.output.{name}"].metrics["relative_l2"] == expected


def test_clipping_gives_no_gradient_the_floor_of_another(tmp_path):
    """One gradient is zero but for rounding; ``_foreach_mul_`` by 1 leaves the bits of all as they are."""

    def write(name, zero, bias):
        dump = builder.DumpBuilder(tmp_path / name)
        gradients = [np.full(8, value, np.float32) for value in (zero, bias)]
        for module, gradient in zip("kq", gradients, strict=True):
            dump.call(module, "", {"bias": gradient}, phase="gradient")
        given = {f"0.{number}": gradient for number, gradient in enumerate(gradients)}
        dump.call("(outside)", "foreach_mul_", gradients, {**given, "1": np.float32(1)})
        for number, record in enumerate(dump.lines[0, 0][2]["inputs"][:2]):
            record["source"] = [number, "bias"]
        dump.write()
        return read_dump(tmp_path / name)

    floors = floors_of(write("r", 1e-9, 1.0), jitter=write("d", -1e-9, 1.001))
    found = {name: floor.metrics["relative_l2"] for name, floor in floors.items()}
    expected = {"k/gradient.output.bias": 2.0, "q/gradient.output.bias": 1e-3}
    expected |= {"(outside)/foreach_mul_.0/forward.output.0": 2.0, "(outside)/foreach_mul_.0/forward.output.1": 1e-3}
    assert found == pytest.approx(expected, rel=1e-3)
