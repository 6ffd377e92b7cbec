"""Dumps of ptdbg_ascend, Ascend's runtime, transformers' debugger, and tensors in plain files."""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
import torch
from ascend_files import CODES, LAYOUTS, to_nz, write_operator
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import precflow
from precflow.cli import main
from precflow.dumps.formats import ascend, find_format, read_dump
from precflow.errors import DumpError

RNG = np.random.default_rng(4)


def outputs(dump):
    return {record.text: record for call in dump.calls() for record in call.outputs}


# Plain files


@pytest.fixture
def arrays():
    return {f"layers.{number}.fc": RNG.standard_normal((3, 4)).astype(np.float32) for number in (2, 10)}


def write_npy(folder, arrays):
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def write_npz(folder, arrays):
    np.savez(folder / "all.npz", **arrays)


def write_safetensors(folder, arrays):
    save_file(arrays, folder / "all.safetensors")


def write_torch(folder, arrays):
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, folder / "all.pt")


@pytest.mark.parametrize("write", [write_npy, write_npz, write_safetensors, write_torch])
def test_plain_files_have_the_names_of_modules(tmp_path, arrays, write):
    sides = []
    for name, factor in (("reference", 1.0), ("same", 1.0), ("target", 1.5)):
        sides.append(tmp_path / name)
        sides[-1].mkdir()
        write(sides[-1], {key: (array * factor if "10" in key else array) for key, array in arrays.items()})
    dump = read_dump(sides[0])
    assert list(outputs(dump)) == ["layers.2.fc/forward.output.0", "layers.10.fc/forward.output.0"]
    for record in outputs(dump).values():
        np.testing.assert_array_equal(dump.tensor(record), arrays[record.whose.module])
    assert dump.verify() == []
    assert precflow.compare(sides[0], sides[1], evaluate=False).verdict == "aligned"
    result = precflow.compare(sides[0], sides[2], evaluate=False)
    assert (result.verdict, result.start) == ("misaligned", "layers.10.fc")


def test_plain_files_are_compared_with_a_dump_of_ours(build, tmp_path, arrays):
    dump = build("ours")
    for name, array in arrays.items():
        dump.call(name, "", [array])
    ours = dump.write()
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    write_npy(theirs, arrays)
    assert precflow.compare(ours, theirs, evaluate=False).verdict == "aligned"
    np.save(theirs / "layers.2.fc.npy", arrays["layers.2.fc"] + 1)
    assert precflow.compare(ours, theirs, evaluate=False).start == "layers.2.fc"


def test_names_with_outputs_and_times(tmp_path):
    for index, time in ((0, 1670205071724946), (1, 1670205071724946), (0, 1670205071799999)):
        np.save(tmp_path / f"conv1_relu.{index}.{time}.npy", np.ones(3, np.float32))
    assert list(outputs(read_dump(tmp_path))) == [
        "conv1_relu/forward.output.0",
        "conv1_relu~1/forward.output.0",
        "conv1_relu/forward.output.1",
    ]


def test_one_file_with_several_tensors_is_a_dump(tmp_path, arrays):
    write_safetensors(tmp_path, arrays)
    assert len(outputs(read_dump(tmp_path / "all.safetensors"))) == 2
    assert find_format(tmp_path / "all.safetensors").title == "plain files"


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", b"\x80\x04N."])
def test_a_file_that_is_no_array_is_named(tmp_path, data):
    np.save(tmp_path / "good.npy", np.ones(3, np.float32))
    (tmp_path / "bad.npy").write_bytes(data)
    assert "bad.npy" in " ".join(read_dump(tmp_path).damage)
    (tmp_path / "good.npy").unlink()
    with pytest.raises(DumpError, match=r"no tensor that can be read.*bad\.npy"):
        read_dump(tmp_path)


def test_an_array_of_objects_is_never_loaded(tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{}, []], object), allow_pickle=True)
    with pytest.raises(DumpError, match="cannot be read"):
        read_dump(tmp_path)


# ptdbg_ascend


def write_ptdbg(folder, *, dots, factor=1.0, data=False):
    """Write what ptdbg_ascend writes of ``y = relu(x) + x``, as its source has it."""
    folder.mkdir(parents=True)
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    relu = np.maximum(x, 0) * np.float32(factor)
    lines = []
    for operator, taken, made in (("relu", [x], relu), ("add", [relu, x], relu + x)):
        kind = "Functional" if operator == "relu" else "Torch"
        prefix = f"{kind}.{operator}.0.forward" if dots else f"{kind}_{operator}_0_forward"
        joint = "." if dots else "_"
        named = [(f"{prefix}{joint}input.{number}", array) for number, array in enumerate(taken)]
        for name, array in [*named, (f"{prefix}{joint}output", made)]:
            numbers = [float(array.max()), float(array.min()), float(array.mean())]
            lines.append([name, 1, [], "torch.float32", list(array.shape), numbers])
            if data:
                (folder / "dump").mkdir(exist_ok=True)
                np.save(folder / "dump" / f"{name}.npy", array)
        lines.append([f"{prefix}{joint}stack_info", [["/x/train.py", "12", "forward", "y = relu(x) + x"]]])
    (folder / "api.pkl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize("dots", [False, True])
def test_ptdbg_is_read_in_both_spellings(tmp_path, dots):
    dump = read_dump(write_ptdbg(tmp_path / "a", dots=dots, data=True))
    assert dump.header.tool == "ptdbg_ascend"
    assert [call.name for call in dump.calls()] == ["(outside) / relu", "(outside) / add"]
    assert dump.calls()[0].site == "train.py:12 in forward"
    assert len(dump.calls()[1].inputs) == 2
    same, other = (write_ptdbg(tmp_path / str(factor), dots=not dots, data=True, factor=factor) for factor in (1.0, 1.1))
    assert precflow.compare(tmp_path / "a", same, evaluate=False).verdict == "aligned"
    result = precflow.compare(tmp_path / "a", other, evaluate=False)
    assert (result.verdict, result.start) == ("misaligned", "(outside) / relu")


def test_the_only_file_of_mode_api_stack_has_the_tensors_too(tmp_path):
    folder = write_ptdbg(tmp_path / "a", dots=False, data=True)
    plain = read_dump(folder)
    beside = folder / "api_stack_api.pkl"
    beside.write_text((folder / "api.pkl").read_text())
    assert len(read_dump(folder).calls()) == len(plain.calls())  # beside another one it says the places alone
    (folder / "api.pkl").unlink()
    alone = read_dump(folder)
    assert [record.content for call in alone.calls() for record in call.outputs] == [
        record.content for call in plain.calls() for record in call.outputs
    ]


def test_without_tensors_the_largest_value_of_ptdbg_still_proves_a_difference(tmp_path):
    sides = [write_ptdbg(tmp_path / str(factor), dots=False, factor=factor) for factor in (1.0, 1.1)]
    again = shutil.copytree(sides[0], tmp_path / "again")
    assert precflow.compare(sides[0], again, evaluate=False).verdict == "inconclusive"
    assert precflow.compare(*sides, evaluate=False).verdict != "aligned"


def test_lines_that_are_no_records_are_named(tmp_path):
    dump = write_ptdbg(tmp_path / "a", dots=False)
    with (dump / "api.pkl").open("a") as file:
        file.write('["strange"]\n["Torch_add_1_forward_output", 1, [], "torch.float9", [2], [1, 2, 3]]\n')
    damage = read_dump(dump).damage
    assert "no line of ptdbg_ascend" in damage[0]
    assert "float9" in damage[1]
    (dump / "api.pkl").write_text((dump / "api.pkl").read_text() + '["Torch_add_2_forward_out')
    assert len(read_dump(dump).damage) == 3


# Ascend's runtime


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_all_types_of_ascend_are_read(tmp_path, dtype):
    array = np.ones((3, 5), np.float32).cumsum().reshape(3, 5).astype(dtype)
    write_operator(tmp_path, "net/op", [array], [array])
    dump = read_dump(tmp_path)
    record = outputs(dump)["net.op/forward.output.0"]
    np.testing.assert_array_equal(dump.tensor(record).view(np.uint8), array.view(np.uint8))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_layouts_are_turned_back(tmp_path, layout, dtype):
    array = RNG.standard_normal(LAYOUTS[layout][1]).astype(dtype)
    write_operator(tmp_path, "op", [array], [array], layout=layout)
    dump = read_dump(tmp_path)
    found = dump.tensor(outputs(dump)["op/forward.output.0"])
    assert found.shape == array.shape
    np.testing.assert_array_equal(found.astype(np.float64), array.astype(np.float64))
    located = dump.locate(outputs(dump)["op/forward.output.0"])
    assert (located is not None) == (layout == 2)


@given(height=st.integers(1, 40), width=st.integers(1, 40), lead=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_fractal_layouts_keep_every_element(height, width, lead):
    array = np.arange(lead * height * width, dtype=np.float32).reshape(lead, height, width)
    np.testing.assert_array_equal(ascend.restore_layout(to_nz(array), ascend.FRACTAL_NZ, array.shape), array)


def test_the_folders_of_ascend_are_steps_and_ranks(tmp_path):
    for device, index, factor in ((0, 0, 1.0), (0, 1, 2.0), (1, 0, 3.0), (1, 1, 4.0)):
        array = np.full((2, 2), factor, np.float32)
        write_operator(tmp_path / "20240101" / str(device) / "net" / "7" / str(index), "op", [array], [array])
    dump = read_dump(tmp_path)
    values = {(call.rank, call.step): float(dump.tensor(call.outputs[0])[0, 0]) for call in dump.calls()}
    assert values == {(0, 0): 1, (0, 1): 2, (1, 0): 3, (1, 1): 4}
    write_operator(tmp_path / "20240102" / "0" / "net" / "7" / "0", "op", [array], [array])
    with pytest.raises(DumpError, match="several runs"):
        read_dump(tmp_path)


def test_a_fused_operator_goes_by_the_last_of_those_it_replaced(tmp_path):
    array = np.ones((2, 2), np.float32)
    write_operator(tmp_path, "fused_1_2", [array], [array], original="encoder/layers.0/relu")
    assert list(outputs(read_dump(tmp_path))) == ["encoder.layers.0.relu/forward.output.0"]


def test_a_fault_in_a_dump_of_ascend_is_found(tmp_path):
    arrays = [RNG.standard_normal((4, 4)).astype(np.float32) for _ in range(3)]
    for side, factor in (("a", 1.0), ("b", 1.0), ("c", 1.01)):
        made = arrays[1] * np.float32(factor)
        write_operator(tmp_path / side, "first", [arrays[0]], [made])
        write_operator(tmp_path / side, "second", [made], [made + arrays[2]], time=1670205071724999)
    assert precflow.compare(tmp_path / "a", tmp_path / "b", evaluate=False).verdict == "aligned"
    result = precflow.compare(tmp_path / "a", tmp_path / "c", evaluate=False)
    assert (result.verdict, result.start) == ("misaligned", "first")


def test_files_that_were_cut_off_say_where(tmp_path):
    array = np.ones((8, 8), np.float32)
    path = write_operator(tmp_path, "op", [array], [array, array])
    write_operator(tmp_path, "other", [array], [array])
    whole = path.read_bytes()
    for size in [*range(0, 120, 7), len(whole) - 1]:
        path.write_bytes(whole[:size])
        damage = " ".join(read_dump(tmp_path).damage)
        assert path.name in damage, size
    assert "output 1 is cut short: it ends at byte" in damage


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_no_damage_of_a_header_is_more_than_an_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz")
    array = np.ones((4, 4), np.float32)
    path = write_operator(folder, "op", [array], [array])
    whole = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(whole))
    try:
        dump = read_dump(folder)
        assert all(dump.tensor(record).shape == record.shape for record in outputs(dump).values())
    except DumpError as error:
        assert folder.name in str(error) or path.name in str(error)  # noqa: PT017  either it is read as it says, or refused by name


def test_tensors_without_elements_and_without_dimensions(tmp_path):
    write_operator(tmp_path, "empty", [], [np.empty((0, 3), np.float32)])
    write_operator(tmp_path, "number", [], [np.array(2.5, np.float32)])
    dump = read_dump(tmp_path)
    found = outputs(dump)
    assert dump.tensor(found["empty/forward.output.0"]).shape == (0, 3)
    assert dump.tensor(found["number/forward.output.0"]) == 2.5


# transformers' debugger


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """Return the folders of two runs of a small model under transformers' debugger, the second one with a fault."""
    from transformers import CLIPTextConfig, CLIPTextModel
    from transformers.model_debugging_utils import model_addition_debugger_context

    config = CLIPTextConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=50,
        bos_token_id=1,
        eos_token_id=2,
    )
    folders = []
    for name, factor, printed in (("a", 1.0, False), ("b", 1.0, False), ("c", 1.01, False), ("printed", 1.0, True)):
        torch.manual_seed(0)
        model = CLIPTextModel(config).eval()
        fc1 = next(module for path, module in model.named_modules() if path.endswith("layers.1.mlp.fc1"))
        with torch.no_grad():
            fc1.weight *= factor
            fc1.bias *= factor
        folders.append(tmp_path_factory.mktemp(name))
        with model_addition_debugger_context(model, debug_path=str(folders[-1]), use_repr=printed, do_prune_layers=False):
            model(torch.arange(8)[None])
    return folders


def test_debug_trees_are_read_and_compared(trees):
    dump = read_dump(trees[0])
    assert dump.header.tool == "transformers' debugger"
    assert any(name.endswith("encoder.layers.1.mlp.fc1/forward.output.0") for name in outputs(dump))
    assert precflow.compare(trees[0], trees[1], evaluate=False).verdict == "aligned"
    result = precflow.compare(trees[0], trees[2], evaluate=False)
    assert result.verdict == "misaligned"
    assert result.start.endswith("encoder.layers.1.mlp.fc1")


def test_a_tree_of_printed_text_is_refused(trees):
    with pytest.raises(DumpError, match="as printed text") as error:
        read_dump(trees[3])
    assert "use_repr=False" in error.value.next_step


@pytest.mark.parametrize("dots", [False, True])
def test_modules_of_ptdbg_have_the_names_that_users_gave_them(tmp_path, dots):
    def write(name, factor):
        folder = tmp_path / name
        folder.mkdir()
        x = np.linspace(-1, 1, 6, dtype=np.float32)
        lines = []
        for module, call, made in (("block_1_fc", 0, x * 2), ("block_1_fc", 1, x * np.float32(factor)), ("head", 0, x + 1)):
            for what, array in (("input.0", x), ("output", made)):
                parts = [module, str(call), "forward", what]
                line = (".".join if dots else "_".join)(parts)
                numbers = [float(array.max()), float(array.min()), float(array.mean())]
                lines.append([line, 0, [], "torch.float32", [6], numbers])
                (folder / "dump").mkdir(exist_ok=True)
                np.save(folder / "dump" / f"{line}.npy", array)
        (folder / "dump.pkl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    sides = [write(name, factor) for name, factor in (("a", 3.0), ("b", 3.0), ("c", 3.3))]
    assert [call.name for call in read_dump(sides[0]).calls()] == ["block_1_fc", "block_1_fc~1", "head"]
    assert precflow.compare(*sides[:2], evaluate=False).verdict == "aligned"
    result = precflow.compare(sides[0], sides[2], evaluate=False)
    assert (result.verdict, result.start) == ("misaligned", "block_1_fc~1")


# SGLang


def name_file(**tags):
    return "___".join(f"{key}={value}" for key, value in tags.items()) + ".pt"


def write_dumper(folder, *, factor=1.0, old=False):
    """Write what SGLang's dumper writes, as its source has it, in the form of older and of newer versions."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(2)
    index = 0
    for step in range(2):
        hidden = torch.randn(3, 4, generator=generator)
        for name, tensor, tags in (
            ("param__model.norm.weight", torch.ones(4), {}),
            ("layer_start__hidden_states", hidden, {"layer_id": 0}),
            ("non_intrusive__model.layers.0.mlp.inputs.0", hidden, {"layer_id": 0}),
            ("non_intrusive__model.layers.0.mlp.output", hidden * 2 * (factor if step else 1), {"layer_id": 0}),
            ("layer_start__hidden_states", hidden * 3 * (factor if step else 1), {"layer_id": 1}),
            ("grad__param__model.norm.weight", torch.full((4,), 0.5), {}),
        ):
            index += 1
            if old:
                file = name_file(forward_pass_id=step + 1, rank=0, name=name, dump_index=index, **tags)
                torch.save(tensor, folder / file)
            else:
                file = name_file(step=step, rank=0, dump_index=index, name=name, recompute_status="disabled", **tags)
                torch.save({"value": tensor, "meta": {"name": name, "world": 1, "dims": None}}, folder / file)
    return folder


@pytest.mark.parametrize("old", [False, True])
def test_files_of_sglangs_dumper_are_read_in_both_forms(tmp_path, old):
    dump = read_dump(write_dumper(tmp_path / "a", old=old))
    assert dump.header.tool == "SGLang's dumper"
    assert not dump.damage
    names = [call.name for call in dump.calls(step=0)]
    assert names == [
        "layer_id.0.layer_start__hidden_states",
        "model.layers.0.mlp",
        "layer_id.1.layer_start__hidden_states",
        "model.norm.weight (gradient)",
    ]
    assert list(dump.header.weights.entries) == ["model.norm.weight"]
    assert len(dump.calls()[1].inputs) == 1
    assert precflow.compare(tmp_path / "a", write_dumper(tmp_path / "b", old=not old), evaluate=False).verdict == "aligned"
    result = precflow.compare(tmp_path / "a", write_dumper(tmp_path / "c", factor=1.1), evaluate=False)
    assert (result.verdict, result.start) == ("misaligned", "model.layers.0.mlp (step 1)")


def test_passes_of_sglang_are_steps(tmp_path):
    def write(name, factor):
        for rank in range(2):
            folder = tmp_path / name / f"TP{rank}_PP0_Rank{rank}_pid{4711 + rank}"
            folder.mkdir(parents=True)
            for step in range(2):
                x = torch.arange(6.0) + step + rank
                kept = {"model.layers.0.mlp": x, "model.layers.1.mlp": x * 2 * (factor if (rank, step) == (1, 1) else 1)}
                given = {"model.forward_batch_info.input_ids": torch.arange(3) + step}
                torch.save({**kept, **given}, folder / f"Pass{step:05d}.pt")
        return tmp_path / name

    sides = [write(name, factor) for name, factor in (("a", 1.0), ("b", 1.0), ("c", 1.5))]
    dump = read_dump(sides[0])
    assert {(call.rank, call.step) for call in dump.calls()} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert {"step0.input_ids", "rank1.step1.input_ids"} <= dump.header.inputs.entries.keys()
    assert precflow.compare(*sides[:2], evaluate=False).verdict == "aligned"
    result = precflow.compare(sides[0], sides[2], evaluate=False)
    assert result.verdict == "misaligned"
    assert result.start.startswith("model.layers.1.mlp")


# Damage, of every format


def write_plain(folder, factor):
    folder.mkdir()
    for name in ("layers.0", "layers.1"):
        np.save(folder / f"{name}.npy", np.linspace(1, 2, 8, dtype=np.float32) * np.float32(factor if "1" in name else 1))
    return folder


def write_ascend(folder, factor):
    array = np.linspace(1, 2, 8, dtype=np.float32)
    write_operator(folder, "first", [array], [array])
    write_operator(folder, "second", [array], [array * np.float32(factor)], time=1670205071724999)
    return folder


def write_tree(folder, factor):
    folder.mkdir()
    leaf = {"shape": "torch.Size([8])", "dtype": "torch.float32"}
    for name, times in (("x", 1.0), ("y", factor)):
        save_file({"data": np.linspace(1, 2, 8, dtype=np.float32) * np.float32(times)}, folder / f"{name}.safetensors")
    child = {
        "module_path": "M.fc",
        "inputs": {"args": [{**leaf, "value": "./x.safetensors"}]},
        "outputs": {**leaf, "value": "./y.safetensors"},
    }
    (folder / "M_debug_tree_FULL_TENSORS.json").write_text(json.dumps({"module_path": "M", "children": [child]}))
    return folder


def write_container(write):
    """Return what writes one file with all tensors."""

    def make(folder, factor):
        folder.mkdir()
        write(folder, {f"layers.{number}": np.linspace(1, 2, 8, dtype=np.float32) * np.float32(factor) for number in (0, 1)})
        return folder

    return make


DAMAGED = {
    "npy": (write_plain, "layers.1.npy"),
    "npz": (write_container(write_npz), "*.npz"),
    "safetensors": (write_container(write_safetensors), "*.safetensors"),
    "pt": (write_container(write_torch), "*.pt"),
    "ptdbg": (lambda folder, factor: write_ptdbg(folder, dots=True, data=True, factor=factor), "api.pkl"),
    "ascend": (write_ascend, "*.second.*"),
    "tree": (write_tree, "*.json"),
    "sglang": (lambda folder, factor: write_dumper(folder, factor=factor), "step=1*mlp.output*"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_every_format_becomes_files_and_a_dump_of_ours(tmp_path, name):
    folder = DAMAGED[name][0](tmp_path / "a", 1.0)
    dump = read_dump(folder)
    theirs = outputs(dump)
    for form in ("npy", "txt"):
        assert main(["convert", str(folder), "*", "--to", form, "--output", str(tmp_path / form)]) == 0
        files = list((tmp_path / form).rglob(f"*.{form}"))
        assert len(files) == sum(len(call.inputs) + len(call.outputs) for call in dump.calls())
    assert "float32" in files[0].read_text().partition("\n")[0]
    assert main(["convert", str(folder), "--to", "precflow", "--output", str(tmp_path / "ours")]) == 0
    ours = read_dump(tmp_path / "ours")
    for text, record in outputs(ours).items():
        np.testing.assert_array_equal(ours.tensor(record), dump.tensor(theirs[text]))
    assert precflow.compare(folder, tmp_path / "ours", evaluate=False).verdict == "aligned"


@pytest.mark.parametrize("name", DAMAGED)
def test_no_flipped_byte_makes_a_misaligned_pair_aligned(tmp_path, name):
    write, pattern = DAMAGED[name]
    healthy, fault = write(tmp_path / "a", 1.0), write(tmp_path / "b", 1.5)
    assert precflow.compare(healthy, fault, evaluate=False).verdict == "misaligned"
    path = next(fault.glob(pattern))
    whole = path.read_bytes()
    rng = np.random.default_rng(7)
    for place in rng.choice(len(whole), 8, replace=False):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << int(rng.integers(8)))]) + whole[place + 1 :])
        try:
            verdict = precflow.compare(healthy, fault, evaluate=False).verdict
        except DumpError:
            continue
        assert verdict != "aligned", place
