"""Dumps of msprobe itself: read where they lie, and compared with each other and with ours."""

import json
import pickle
import re
import shutil

import numpy as np
import pytest
import torch

import precflow
from precflow.cli import main
from precflow.dumps.foreign import make_statistics
from precflow.dumps.formats import find_format, msprobe, read_dump
from precflow.dumps.records import Call, Record
from precflow.dumps.tensor_files import find_file
from precflow.errors import DumpError

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("foreign")]
FACTS = [name for name in Call.__struct_fields__ if name not in {"inputs", "outputs"}]
LEVELS, TASKS = ("L0", "L1", "mix"), ("tensor", "statistics", "md5", "xor")


@pytest.fixture
def copy(foreign_runs, tmp_path):
    """Return a function that copies a dump, so that a test can damage it."""

    def make(name):
        return shutil.copytree(foreign_runs / name, tmp_path / f"copy_{name}")

    return make


def folder_of(dump, step=0):
    return next((dump / f"step{step}").iterdir())


def change(dump, edit, name="dump.json"):
    path = folder_of(dump) / name
    plain = json.loads(path.read_text())
    edit(plain)
    path.write_text(json.dumps(plain))
    return dump


def leaf(plain, entry="Functional.gelu.0.forward"):
    return plain["data"][entry]["output"][0]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("task", TASKS)
def test_equal_runs_are_never_misaligned(foreign_runs, copy, task, level):
    name = f"{task}_{level}"
    result = precflow.compare(foreign_runs / name, copy(name), evaluate=False)
    # Statistics cannot prove that all elements agree, and `xor` is not made of numbers without dimensions.
    inconclusive = task == "statistics" or (task == "xor" and level != "L0")
    assert result.verdict == ("inconclusive" if inconclusive else "aligned")
    assert not {row.status for row in result.records} & {"fail", "unpaired_reference", "unpaired_target"}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("task", TASKS)
def test_a_fault_is_found_where_it_was_planted(foreign_runs, task, level):
    result = precflow.compare(foreign_runs / f"{task}_{level}", foreign_runs / f"{task}_{level}_fault", evaluate=False)
    if task == "xor":  # checksums say that bits differ, not by how much
        assert result.verdict == "inconclusive"
        return
    assert result.verdict == "misaligned"
    assert result.start == ("(outside) / mul.4" if level == "L1" else "blocks.1.fc1")


@pytest.mark.parametrize("level", LEVELS)
def test_ours_and_theirs_of_one_run_agree_in_every_bit(foreign_runs, level):
    result = precflow.compare(foreign_runs / "own_tensors", foreign_runs / f"tensor_{level}", evaluate=False)
    assert result.verdict == "aligned", result.reasons
    judged = [row for row in result.records if row.status != "not_judged"]
    assert len(judged) >= (54 if level == "L1" else 103)
    assert all(row.metrics["bitwise_equal"] == 1 for row in judged)


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("own_tensors", "tensor_mix_fault"),
        ("own_tensors", "tensor_L1_fault"),
        ("own_tensors", "statistics_L0_fault"),
        ("own_statistics", "statistics_mix_fault"),
        ("tensor_mix", "own_tensors_fault"),
        ("statistics_L0", "own_tensors_fault"),
        ("tensor_mix", "tensor_L1_fault"),
        ("tensor_L0", "tensor_mix_fault"),
        ("md5_mix", "statistics_mix_fault"),
        ("md5_mix", "tensor_mix_fault"),
    ],
)
def test_any_two_formats_find_the_same_start(foreign_runs, reference, target):
    result = precflow.compare(foreign_runs / reference, foreign_runs / target, evaluate=False)
    assert result.verdict == "misaligned", result.reasons
    assert result.start == ("(outside) / mul.4" if "L1" in target else "blocks.1.fc1")


@pytest.mark.parametrize(("reference", "target"), [("own_tensors", "own_tensors_fault"), ("tensor_L0", "tensor_L0_fault")])
def test_a_module_that_goes_wrong_by_itself_leads_what_was_computed_again(foreign_runs, reference, target):
    result = precflow.compare(foreign_runs / reference, foreign_runs / target)
    assert result.start == "blocks.1.fc1"  # not the gradient of its weight, which float64 shows to be wrong as well
    assert (result.findings[0].rule, result.findings[0].certainty) == ("PF211", "certain")


def test_names_are_ours(foreign_runs):
    ours, theirs = (read_dump(foreign_runs / name) for name in ("own_tensors", "tensor_mix"))
    names = {record.text for call in ours.calls() for record in call.outputs}
    modules = [call for call in theirs.calls() if call.level == "module"]
    assert {call.phase for call in modules} == {"forward", "backward", "gradient", "optimizer"}
    assert {record.text for call in modules for record in call.outputs} <= names
    assert "blocks.1 / softmax" in {call.name for call in theirs.calls()}
    assert theirs.header.weights.entries.keys() == ours.header.weights.entries.keys()
    contents = [{name: one.content for name, one in dump.header.weights.entries.items()} for dump in (ours, theirs)]
    assert contents[0] == contents[1]


def test_call_sites_and_weights_are_known(foreign_runs):
    calls = {call.name: call for call in read_dump(foreign_runs / "tensor_mix").calls()}
    assert "foreign_runs.py" in calls["blocks.0 / softmax"].site
    assert [record.weight for record in calls["blocks.0.fc1 / linear"].inputs] == [
        "",
        "blocks.0.fc1.weight",
        "blocks.0.fc1.bias",
    ]
    later = calls["blocks.0.fc1 / linear (step 1)"]
    assert later.inputs[1].weight == "blocks.0.fc1.weight"
    assert later.inputs[1].content != calls["blocks.0.fc1 / linear"].inputs[1].content


def test_a_wrapper_leaves_no_trace(foreign_runs):
    result = precflow.compare(foreign_runs / "tensor_mix", foreign_runs / "tensor_mix_wrapped", evaluate=False)
    assert result.verdict == "aligned"


def test_another_weight_is_told_before_anything_is_compared(foreign_runs):
    result = precflow.compare(foreign_runs / "tensor_mix", foreign_runs / "tensor_mix_weight", evaluate=False)
    assert result.verdict == "inconclusive"
    assert "blocks.0.fc2.weight" in " ".join(result.reasons)


def test_weights_in_another_type_are_no_other_weights(foreign_runs):
    result = precflow.compare(foreign_runs / "statistics_mix", foreign_runs / "statistics_mix_bfloat16", evaluate=False)
    assert result.verdict != "aligned"
    assert "weights differ" not in " ".join(result.reasons)


def test_a_nan_is_never_lost(foreign_runs):
    result = precflow.compare(foreign_runs / "statistics_mix", foreign_runs / "statistics_mix_nan", evaluate=False)
    assert (result.verdict, result.start) == ("misaligned", "blocks.1 / mul.1")
    same = precflow.compare(foreign_runs / "statistics_mix_nan", copied(foreign_runs), evaluate=False)
    assert same.verdict == "inconclusive"  # NaN on both sides: how many, and where, nobody knows


def copied(runs):
    target = runs / "nan_again"
    if not target.exists():
        shutil.copytree(runs / "statistics_mix_nan", target)
    return target


def test_what_a_program_saved_by_itself_is_read(foreign_runs):
    dump = read_dump(foreign_runs / "tensor_debug")
    assert [record.text for call in dump.calls(step=0) for record in call.outputs] == [
        "(outside)/logits.0/forward.output.0",
        "(outside)/more.0/forward.output.mean",
        "(outside)/more.0/forward.output.both.0",
        "(outside)/more.0/forward.output.both.1",
    ]
    result = precflow.compare(foreign_runs / "tensor_debug", foreign_runs / "tensor_debug_fault", evaluate=False)
    assert (result.verdict, result.start) == ("misaligned", "(outside) / logits")


def test_a_step_or_a_process_alone_is_step_0(foreign_runs):
    step = foreign_runs / "tensor_mix" / "step1"
    one = read_dump(step)
    assert {call.step for call in one.calls()} == {0}
    names = {call.name for call in read_dump(next(step.iterdir()) / "dump.json").calls()}
    assert names == {call.name for call in one.calls()}


def test_two_steps_against_one_are_never_aligned(foreign_runs, copy):
    shorter = copy("tensor_mix")
    shutil.rmtree(shorter / "step1")
    assert precflow.compare(foreign_runs / "tensor_mix", shorter, evaluate=False).verdict != "aligned"


def test_the_recipe_and_the_verbs_read_it(foreign_runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sides = [str(foreign_runs / name) for name in ("tensor_mix", "tensor_mix_fault")]
    assert main(["compare", *sides, "--no-evaluation"]) == 1
    assert "starts at  blocks.1.fc1" in capsys.readouterr().out
    assert main(["+recipe=compare_dumps", f"reference.dump={sides[0]}", f"target.dump={sides[1]}"]) == 1
    assert "starts at  blocks.1.fc1" in capsys.readouterr().err
    assert main(["inspect", sides[0]]) == 0
    assert "msprobe" in capsys.readouterr().out
    assert main(["convert", sides[0], "blocks.0 / softmax", "--to", "npy", "--output", "softmax.npy"]) == 0
    assert np.load("softmax.npy").shape == (2, 6, 6)


def test_what_the_format_does_not_hold_is_said(foreign_runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", str(foreign_runs / "own_tensors"), str(foreign_runs / "tensor_L0"), "--no-evaluation"]) == 0
    told = " ".join(json.loads((tmp_path / "comparison" / "result.json").read_text())["verdict"]["warnings"])
    assert "the target is a dump of msprobe, which does not hold the model as a whole" in told
    assert "are not compared: the other format does not hold them" in told


@pytest.mark.parametrize("ranks", [("rank0", "rank1"), ("proc7", "proc8"), ("rank0", "proc8")])
def test_ranks_are_told_from_two_runs_in_one_folder(copy, ranks):
    dump = copy("tensor_L0")
    for step in ("step0", "step1"):
        first = next((dump / step).iterdir())
        shutil.copytree(first, dump / step / "second")
        first.rename(dump / step / ranks[0])
        (dump / step / "second").rename(dump / step / ranks[1])
    if ranks == ("rank0", "rank1"):
        assert {call.rank for call in read_dump(dump).calls()} == {0, 1}
    else:
        with pytest.raises(DumpError, match="two runs wrote into one folder"):
            read_dump(dump)


def test_old_files_are_read_too(copy):
    def as_before(plain):
        data = plain["data"]
        for name in [name for name in data if ".parameters_grad." in name]:
            data[name.rpartition(".")[0]] = {key: value[0] for key, value in data.pop(name).items()}

    dump = change(copy("tensor_mix"), as_before)
    stacks = json.loads((folder_of(dump) / "stack.json").read_text())
    older = {name: lines for names, lines in stacks.values() for name in names}
    (folder_of(dump) / "stack.json").write_text(json.dumps(older))
    calls = {call.name: call for call in read_dump(dump).calls()}
    assert "blocks.0.fc1.weight (gradient)" in calls
    assert "foreign_runs.py" in calls["blocks.0 / softmax"].site


def test_parts_of_a_pipeline_keep_their_numbers_and_one_model_has_none(copy):
    def number(plain, chunk):
        for name in [name for name in plain["data"] if name.startswith("Module.")]:
            plain["data"][name.replace("Module.", f"Module.{chunk}.", 1)] = plain["data"].pop(name)

    one = change(copy("statistics_L0"), lambda plain: number(plain, 0))
    assert "blocks.0.fc1" in {call.module for call in read_dump(one / "step0").calls()}

    def split(plain):
        data = plain["data"]
        for name in [name for name in data if name.startswith("Module.")]:
            chunk = 1 if "blocks.1" in name else 0
            data[name.replace("Module.", f"Module.{chunk}.", 1)] = data.pop(name)

    two = change(copy("statistics_mix"), split)
    modules = {call.module for call in read_dump(two / "step0").calls()}
    assert {"0.blocks.0.fc1", "1.blocks.1.fc1"} <= modules


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("data", lambda plain: plain.update(data=[]), "no map `data`"),
        ("empty", lambda plain: plain.update(data={}), "has no tensor"),
    ],
)
def test_a_dump_without_calls_is_refused(copy, name, edit, message):
    with pytest.raises(DumpError, match=message):
        read_dump(change(copy("tensor_L0"), edit))


@pytest.mark.parametrize("size", [0, 1, 200, -1])
def test_a_file_that_was_cut_off_is_refused(copy, size, capsys):
    dump = copy("tensor_L0")
    path = folder_of(dump) / "dump.json"
    data = path.read_bytes()
    path.write_bytes(data[:size])
    assert main(["compare", str(dump), str(dump.parent)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def nest(levels):
    nested = 1
    for _ in range(levels):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda plain: leaf(plain).update(data_name="../../../etc/passwd.pt"), "is no name of a tensor's file"),
        (lambda plain: leaf(plain).update(data_name="a/b.pt"), "is no name of a tensor's file"),
        (lambda plain: leaf(plain).update(dtype="torch.float4_e2m1fn_x2"), "which is not read here"),
        (lambda plain: leaf(plain).update(shape=[-1]), "a tensor of shape"),
        (lambda plain: leaf(plain).update(shape=[1.5]), "a tensor of shape"),
        (lambda plain: leaf(plain).update(Max="large"), "statistics are no numbers"),
        (lambda plain: plain["data"].update({"Functional.gelu.0.forward": []}), "expected a map"),
        (lambda plain: plain["data"].update({"Strange": {}}), "an entry of an unknown kind"),
    ],
)
def test_a_strange_entry_is_named_and_the_rest_is_read(copy, foreign_runs, edit, told):
    dump = change(copy("tensor_mix"), edit)
    assert told in " ".join(read_dump(dump).damage)
    assert precflow.compare(foreign_runs / "tensor_mix", dump, evaluate=False).verdict != "aligned"


@pytest.mark.parametrize(
    "edit",
    [
        lambda plain: leaf(plain).update(Max=10**400),
        lambda plain: plain["data"]["Functional.gelu.0.forward"].update(input_args=nest(500)),
    ],
)
def test_a_number_or_a_nesting_beyond_all_bounds_is_refused(copy, edit):
    with pytest.raises(DumpError, match="cannot be read"):
        read_dump(change(copy("tensor_mix"), edit))


class Run:
    """What a pickle with code in it does when it is loaded."""

    def __reduce__(self):
        return (pytest.fail, ("code of a dump was run",))


def damage_missing(path):
    path.unlink()


def damage_cut(path):
    path.write_bytes(path.read_bytes()[:-200])


def damage_dtype(path):
    torch.save(torch.zeros(2, 6, 32, dtype=torch.float64), path)


def damage_shape(path):
    torch.save(torch.zeros(3), path)


def damage_code(path):
    torch.save(Run(), path)


def damage_plain_pickle(path):
    path.write_bytes(pickle.dumps(Run()))


def damage_link(path):
    away = path.with_suffix(".elsewhere")
    path.rename(away)
    path.symlink_to(away)


@pytest.mark.parametrize(
    "damage",
    [damage_missing, damage_cut, damage_dtype, damage_shape, damage_code, damage_plain_pickle, damage_link],
    ids=lambda damage: damage.__name__,
)
def test_a_tensor_that_cannot_be_read_is_never_a_pass(copy, foreign_runs, damage):
    dump = copy("tensor_mix")
    damage(folder_of(dump) / "dump_tensor_data" / "Functional.gelu.0.forward.output.0.pt")
    for sides in ((foreign_runs / "tensor_mix", dump), (dump, foreign_runs / "tensor_mix")):
        result = precflow.compare(*sides, evaluate=False)
        assert result.verdict != "aligned"
        row = next(row for row in result.records if row.name == "blocks.0/gelu.0/forward.output.0")
        assert row.status in {"unreadable", "undecided"}, row.status


def test_every_flipped_byte_of_a_tensor_is_seen(copy):
    name = "Functional.gelu.0.forward"
    dump = change(copy("tensor_mix"), lambda plain: plain.update(data={name: plain["data"][name]}))
    path = folder_of(dump) / "dump_tensor_data" / f"{name}.output.0.pt"
    whole = path.read_bytes()
    healthy = read_dump(folder_of(dump))
    record = next(call for call in healthy.calls() if call.name == "blocks.0 / gelu").outputs[0]
    values = healthy.tensor(record).copy()
    for place in range(0, len(whole), 29):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        damaged = read_dump(folder_of(dump))
        seen = next(call for call in damaged.calls() if call.name == "blocks.0 / gelu").outputs[0]
        try:
            same = np.array_equal(damaged.tensor(seen), values)
        except DumpError:
            continue
        # Bytes of padding, dates and checksums of the archive change no element.
        assert same == (seen.content == record.content)
        assert same or seen.content != record.content


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("statistics_L0", "dump.json"),
        ("md5_L0", "dump.json"),
        ("tensor_L0", "dump.json"),
        ("tensor_L0", "construct.json"),
        ("xor_L0", "dump.json"),
    ],
)
def test_a_flipped_byte_of_the_records_makes_no_aligned_dump(copy, foreign_runs, name, file):
    dump = copy(f"{name}_fault")
    path = folder_of(dump) / file
    whole = path.read_bytes()
    rng = np.random.default_rng(5)
    for place in rng.choice(len(whole), 12, replace=False):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << int(rng.integers(7)))]) + whole[place + 1 :])
        try:
            verdict = precflow.compare(foreign_runs / name / "step0", folder_of(dump), evaluate=False).verdict
        except DumpError:
            continue
        assert verdict != "aligned"


def test_tensors_lie_beside_the_file_wherever_it_was_written(copy):
    dump = change(copy("tensor_L0"), lambda plain: plain.update(dump_data_dir="/nowhere/at/all"))
    first = next(call for call in read_dump(dump).calls() if call.outputs)
    assert read_dump(dump).tensor(first.outputs[0]).size


def test_a_file_that_changes_after_it_was_opened_is_seen(copy):
    path = copy("tensor_L0")
    dump = read_dump(path)
    call = next(call for call in dump.calls() if call.name == "blocks.0.fc1")
    torch.save(torch.ones(2, 6, 32), folder_of(path) / "dump_tensor_data" / "Module.blocks.0.fc1.Linear.forward.0.output.0.pt")
    with pytest.raises(DumpError, match="has changed since the dump was opened"):
        dump.tensor(call.outputs[0])


def test_only_its_own_files_are_taken_for_msprobe(foreign_runs, tmp_path):
    assert find_format(foreign_runs / "tensor_mix").title == "msprobe"
    assert find_format(foreign_runs / "own_tensors").title == "precflow"
    (tmp_path / "step0" / "rank0").mkdir(parents=True)
    (tmp_path / "step0" / "rank0" / "dump.json").write_text("{}")
    assert not msprobe.is_msprobe(tmp_path)


def test_numbers_of_other_tools_become_statistics():
    known = make_statistics("bfloat16", (4, 2), smallest=-1.0, largest=2.0, mean=0.25, norm=3.0)
    assert (known.minimum, known.maximum, known.sum, known.square) == (-1.0, 2.0, 2.0, 9.0)
    assert 2**-8 <= known.rounding < 2**-7
    assert make_statistics("float32", (3,), smallest=None, largest=None) is None
    nan = make_statistics("float32", (3,), smallest=float("nan"), largest=float("nan"), mean=float("nan"), norm=float("nan"))
    assert (nan.nan, nan.minimum, nan.square) == (1, None, None)
    wide = make_statistics("float16", (3,), smallest=-1.0, largest=65504.0, mean=1.0, norm=float("inf"))
    assert (wide.maximum, wide.square, wide.nan) == (65504.0, None, 0)
    masked = make_statistics("float32", (3,), smallest=float("-inf"), largest=0.0, mean=float("-inf"), norm=float("inf"))
    assert (masked.negative_infinity, masked.positive_infinity, masked.minimum) == (1, 0, None)


@pytest.mark.parametrize("name", ["tensor_mix", "statistics_mix", "md5_mix", "xor_L0", "tensor_L1", "tensor_debug"])
def test_a_dump_that_is_written_as_ours_is_the_same(foreign_runs, tmp_path, name):
    ours = tmp_path / "ours"
    assert main(["convert", str(foreign_runs / name), "--to", "precflow", "--output", str(ours)]) == 0
    theirs, rewritten = read_dump(foreign_runs / name), read_dump(ours)
    assert find_format(ours).title == "precflow"
    assert (rewritten.damage, rewritten.verify()) == ((), [])
    assert len(theirs.calls()) == len(rewritten.calls())
    for call, again in zip(theirs.calls(), rewritten.calls(), strict=True):
        assert [getattr(call, name) for name in FACTS] == [getattr(again, name) for name in FACTS]
        pairs = zip((*call.inputs, *call.outputs), (*again.inputs, *again.outputs), strict=True)
        for record, other in pairs:
            assert [getattr(record, name) for name in Record.__struct_fields__] == [
                getattr(other, name) for name in Record.__struct_fields__
            ]
            if record.stored:
                np.testing.assert_array_equal(theirs.tensor(record), rewritten.tensor(record))
    assert (rewritten.header.tool, rewritten.header.weights) == (theirs.header.tool, theirs.header.weights)


def test_what_is_written_as_ours_gives_the_same_answer(foreign_runs, tmp_path):
    ours = tmp_path / "ours"
    assert main(["convert", str(foreign_runs / "tensor_mix_fault"), "--to", "precflow", "--output", str(ours)]) == 0
    sides = [
        precflow.compare(foreign_runs / "tensor_mix", side, evaluate=False)
        for side in (foreign_runs / "tensor_mix_fault", ours)
    ]
    assert sides[0].start == sides[1].start == "blocks.1.fc1"
    assert [row.status for row in sides[0].records] == [row.status for row in sides[1].records]
    sizes = [
        sum(file.stat().st_size for file in side.rglob("*") if file.is_file())
        for side in (foreign_runs / "tensor_mix_fault", ours)
    ]
    assert sizes[1] < sizes[0] / 2


def test_writing_a_dump_as_ours_refuses_what_makes_no_sense(foreign_runs, copy, tmp_path, capsys):
    ours = str(tmp_path / "ours")
    assert main(["convert", str(foreign_runs / "tensor_L0"), "--to", "precflow"]) == 2
    assert main(["convert", str(foreign_runs / "own_tensors"), "--to", "precflow", "--output", ours]) == 2
    assert "is a dump of precflow already" in capsys.readouterr().err
    damaged = copy("tensor_L0")
    (folder_of(damaged) / "dump_tensor_data" / "Module.blocks.0.fc1.Linear.forward.0.output.0.pt").unlink()
    assert main(["convert", str(damaged), "--to", "precflow", "--output", ours]) == 2
    assert "fc1" in capsys.readouterr().err
    assert not next(call for call in read_dump(tmp_path / "ours").calls() if call.name == "blocks.0.fc1").outputs[0].stored
    assert main(["convert", str(foreign_runs / "tensor_L0"), "--to", "precflow", "--output", ours]) == 2
    assert "exists" in capsys.readouterr().err


IN_MINDSPORE = (
    (r"\bModule\.", "Cell."),
    (r"\.Linear\.", ".Dense."),
    (r"\bFunctional\.layer_norm\b", "Primitive.norm.LayerNorm"),
    (r"\bFunctional\.linear\b", "MintFunctional.dense"),
    (r"\bFunctional\.", "MintFunctional."),
    (r"\bTorch\.", "Mint."),
    (r"\btorch\.Tensor\b", "mindspore.Tensor"),
    (r"\btorch\.float32\b", "Float32"),
    (r"\btorch\.int64\b", "Int64"),
    (r'"pytorch"', '"mindspore"'),
    (r"\.pt\b", ".npy"),
)
PARAMETERS = {"LayerNorm": {"weight": "gamma", "bias": "beta"}, "Embedding": {"weight": "embedding_table"}}


def rename(text):
    for old, new in IN_MINDSPORE:
        text = re.sub(old, new, text)
    return text


def write_as_mindspore(dump):
    """Rename a dump of PyTorch to what msprobe writes for MindSpore: cells, mint's functions, its types, ``.npy`` files."""
    for path in sorted(dump.glob("step*/*/*.json")):
        plain = json.loads(rename(path.read_text()))
        for name, values in plain["data"].items() if path.name == "dump.json" else ():
            kinds = next((names for kind, names in PARAMETERS.items() if f".{kind}." in name), {})
            for holder in (values.get("parameters", {}), values if ".parameters_grad" in name else {}):
                for old, new in kinds.items():
                    if old in holder:
                        holder[new] = holder.pop(old)
        path.write_text(json.dumps(plain))
    for path in sorted(dump.glob("step*/*/dump_tensor_data/*.pt")):
        np.save(path.with_name(rename(path.name)), torch.load(path).numpy())
        path.unlink()
    return dump


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_a_dump_of_mindspore_is_compared_with_one_of_pytorch(copy, foreign_runs, task):
    same, other = (write_as_mindspore(copy(f"{task}_mix{suffix}")) for suffix in ("", "_fault"))
    names = {call.name for call in read_dump(same).calls()}
    assert names == {call.name for call in read_dump(foreign_runs / f"{task}_mix").calls()}
    result = precflow.compare(foreign_runs / f"{task}_mix", same, evaluate=False)
    assert result.verdict == ("aligned" if task == "tensor" else "inconclusive"), result.reasons
    assert not {row.status for row in result.records} & {"fail", "unpaired_reference", "unpaired_target"}
    result = precflow.compare(foreign_runs / f"{task}_mix", other, evaluate=False)
    assert (result.verdict, result.start) == ("misaligned", "blocks.1.fc1")


def test_bfloat16_in_a_file_of_float32_is_read_as_what_it_is(tmp_path):
    values = np.array([1.5, -2.0, 0.0078125], np.float32)
    np.save(tmp_path / "a.npy", values)
    array = find_file(tmp_path / "a.npy", "bfloat16").read()
    assert array.dtype.name == "bfloat16"
    np.testing.assert_array_equal(array.astype(np.float32), values)
    np.save(tmp_path / "a.npy", values + np.float32(1e-6))
    with pytest.raises(DumpError, match="not the bfloat16 that the dump says"):
        find_file(tmp_path / "a.npy", "bfloat16").read()
    assert find_file(tmp_path / "a.npy", "float32").read().dtype == np.float32


def test_one_operator_is_shown_in_full_detail(foreign_runs, capsys):
    sides = [str(foreign_runs / name) for name in ("tensor_mix", "tensor_mix_fault")]
    assert main(["compare", *sides, "--record", "blocks.1.fc1", "--no-evaluation"]) == 1
    told = capsys.readouterr().out
    for part in (
        "relative_l2 1e-2",
        "inputs      0: equal bits",
        "foreign_runs.py:",
        "axis 2",
        "ulp_distance",
        "worst",
    ):
        assert part in told
    assert main(["compare", *(side.replace("tensor", "statistics") for side in sides), "--record", "blocks.1.fc1"]) == 1
    assert "estimate" in capsys.readouterr().out


def test_the_checks_of_whole_networks_are_made(foreign_runs, copy):
    def find(reference, target):
        return {finding.rule: finding.title for finding in precflow.compare(reference, target, evaluate=False).findings}

    found = find(foreign_runs / "statistics_mix", foreign_runs / "statistics_mix_nan")
    assert "NaN or Inf" in found["PF501"]
    assert "single-point error" in find(foreign_runs / "tensor_L0", foreign_runs / "tensor_L0_fault")["PF601"]
    other = copy("tensor_L0")
    path = folder_of(other) / "dump_tensor_data" / "Module.embed.Embedding.forward.0.input.0.pt"
    ids = torch.load(path)
    torch.save(ids + 1, path)
    assert find(foreign_runs / "tensor_L0", other)["PF417"] == "step0.0 is the reference's, each value with 1 added"
    ids.view(-1)[0] += 1
    torch.save(ids, path)
    assert "step0.0" in find(foreign_runs / "tensor_L0", other)["PF402"]
