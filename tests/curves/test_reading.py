"""The same curve from every kind of log, and what is said about a log that is none."""

import base64
import json
import math
import signal

import pytest

from precflow.curves.formats import text_log
from precflow.curves.reading import read_curve
from precflow.curves.wanted import Wanted
from precflow.errors import CurveError

STEPS, LOSSES = [1, 2, 3], [2.5, 2.25, 1.75]

# Written by tensorboard 2.20's EventFileWriter: tag `train/loss` as simple_value at steps 0, 10, 20, 30, and tag `new` as a
# tensor at 40 (float_val), 50 (tensor_content) and 60 (double_val).
EVENTS = base64.b64decode(
    "SAAAAAAAAAD+kkidCZoYCELJwNpBGg1icmFpbi5FdmVudDoyUi4KLHRlbnNvcmJvYXJkLnN1bW1hcnkud3JpdGVyLmV2ZW50X2ZpbGVfd3JpdGVy"
    "nIAHsx4AAAAAAAAA2dwSMgkAAAAAAADwPyoTChEKCnRyYWluL2xvc3MVAAAgQL3NwtkgAAAAAAAAACntqVAJAAAAAAAA8D8QCioTChEKCnRyYWlu"
    "L2xvc3MVAAAQQM7bZjkgAAAAAAAAACntqVAJAAAAAAAA8D8QFCoTChEKCnRyYWluL2xvc3MVAADAf9SbTxwgAAAAAAAAACntqVAJAAAAAAAA8D8Q"
    "HioTChEKCnRyYWluL2xvc3MVAADgP31WZ7EeAAAAAAAAANncEjIJAAAAAAAA8D8QKCoRCg8KA25ld0IICAEqBAAAYEBjceQuHgAAAAAAAADZ3BIy"
    "CQAAAAAAAPA/EDIqEQoPCgNuZXdCCAgBIgQAAGBAUPug1yIAAAAAAAAAeBE9/QkAAAAAAADwPxA8KhUKEwoDbmV3QgwIAjIIAAAAAAAAEkDpMxDv"
)
LOSS = Wanted("loss")
ROWS = [{"step": step, "loss": loss} for step, loss in zip(STEPS, LOSSES, strict=True)]
WHOLE = {
    "lists.json": json.dumps({"loss": LOSSES, "step": STEPS, "lr": [0.1] * 3}),
    "rows.json": json.dumps(ROWS),
    "rows.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "rows without an ending": "".join(json.dumps(row) + "\n" for row in ROWS),
    "inside.json": json.dumps({"log": ROWS, "seed": 1}),
    "trainer_state.json": json.dumps(
        {"best": None, "log_history": [*ROWS, {"step": 3, "eval_loss": 9.0}, {"train_loss": 2.0}]}
    ),
    "by_step.json": json.dumps({str(row["step"]): {"loss": row["loss"]} for row in ROWS}),
    "by_name.json": json.dumps({"loss": {str(row["step"]): row["loss"] for row in ROWS}}),
    "pairs.json": json.dumps([[row["step"], row["loss"]] for row in ROWS]),
    "tensorboard.json": json.dumps([[1.5, row["step"], row["loss"]] for row in ROWS]),
    "table.csv": "step,loss,lr\n1,2.5,0.1\n2,2.25,0.1\n3,1.75,0.1\n",
    "table.tsv": "iteration\ttrain_loss\n1\t2.5\n2\t2.25\n3\t1.75\n",
    "table": '"step";"loss"\n1;2.5\n2;2.25\n3;1.75\n',
    "sparse.csv": "step,loss,eval\n1,2.5,\n1,,9\n2,2.25,\n3,1.75,\n",
    "megatron.log": "".join(
        f" [2026-11-22 10:00:0{step}] iteration {step:8d}/    2000 | consumed samples: 16 | learning rate: 1.0E-05 |"
        f" lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 5.1 | number of skipped iterations:   0 |\n"
        for step, loss in zip(STEPS, LOSSES, strict=True)
    ),
    "mindspeed.log": "".join(
        f" iteration {step:8d}/    5000 | learning rate: 1.0E-05 | loss: {loss:.6E} | loss scale: 1.0 |\n"
        for step, loss in zip(STEPS, LOSSES, strict=True)
    ),
    "mindformers.log": "".join(
        f"INFO - {{ Epoch:[  1/  2], step:[ {step:4d}/ 6500], loss: {loss}, time: 12ms, lr: 1e-06, global_norm: [4.3]\n"
        for step, loss in zip(STEPS, LOSSES, strict=True)
    ),
    "step behind the loss.log": "".join(
        f"{{'loss': {loss}, 'epoch': 0.01, 'step': {step}}}\n" for step, loss in zip(STEPS, LOSSES, strict=True)
    ),
    "step of all.log": "".join(
        f"{{'loss': '{loss}', 'grad_norm': 1.2, 'global_step/max_steps': '{step}/120', 'train_speed(iter/s)': 0.2}}\n"
        f"Train:   1%|#   | {step}/120 [01:02<09:01,  4.7s/it]\n"
        for step, loss in zip(STEPS, LOSSES, strict=True)
    ),
    "step of all.jsonl": "".join(
        json.dumps({"loss": loss, "global_step/max_steps": f"{step}/120"}) + "\n"
        for step, loss in zip(STEPS, LOSSES, strict=True)
    ),
    "step of all.csv": "loss,step\n2.5,1/3\n2.25,2/3\n1.75,3/3\n",
    "own loop, loss first.log": "".join(
        f"loss {loss} (step {step}/3), step time 0.4 s\n" for step, loss in zip(STEPS, LOSSES, strict=True)
    ),
    "hugging_face.log": "".join(
        f"{{'loss': {loss}, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.01}}\n" for loss in LOSSES
    ),
    "newest_hugging_face.log": "".join(f"{{'loss': '{loss}', 'epoch': '0.01'}}\n" for loss in LOSSES),
    "plain.log": (
        "step 1 loss 2.5\nvalidation\nstep 1 val_loss 9\nIter: 2, lr: 1e-4, Loss: 2.25\n[0] global_step=3 train_loss=1.75 s\n"
    ),
    "bar.log": "step 1 loss 2.5\rstep 2 loss 2.25\r\n\x1b[32mstep\x1b[0m 3 \x1b[1mloss\x1b[0m 1.75\n",
}


@pytest.mark.parametrize("name", WHOLE)
def test_the_same_curve_from_every_log(name, log):
    series = read_curve(log(name, WHOLE[name]), LOSS)
    assert (series.steps.tolist(), series.values.tolist()) == (STEPS, LOSSES)


@pytest.mark.parametrize(
    ("name", "curve", "value"),
    [
        ("megatron.log", "grad_norm", 5.1),
        ("megatron.log", "loss_scale", 1.0),
        ("megatron.log", "learning_rate", 1e-5),
        ("mindformers.log", "grad_norm", 4.3),
        ("mindformers.log", "learning_rate", 1e-6),
        ("hugging_face.log", "grad_norm", 1.2),
    ],
)
def test_other_curves_of_the_same_logs(name, curve, value, log):
    assert read_curve(log(name, WHOLE[name]), Wanted(curve)).values.tolist() == [value] * 3


def test_steps_of_epochs_are_numbered_through(log):
    line = "INFO - {{ Epoch:[  {}/  2], step:[    {}/    3], loss:[{}/2.0], per_step_time: 12ms\n"
    lines = "".join(line.format(epoch, step, epoch + step / 4) for epoch in (1, 2) for step in (1, 2, 3))
    series = read_curve(log("mindformers.log", lines), LOSS)
    assert series.steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert series.values.tolist() == [1.25, 1.5, 1.75, 2.25, 2.5, 2.75]
    assert (series.restarts, series.begun_anew) == ((), 0)
    own = Wanted("loss", pattern=r"(?P<epoch>\d+)/.*\[ *(?P<step>\d+)/ *(?P<epoch_steps>\d+)\], loss:\[(?P<value>[\d.]+)")
    assert read_curve(log("mindformers.log", lines), own).steps.tolist() == [1, 2, 3, 4, 5, 6]


def test_event_files_of_tensorboard(tmp_path, log):
    path = log("events.out.tfevents.1.host.1.0", EVENTS)
    for given in (path, tmp_path):  # the file, and the folder of the run
        series = read_curve(given, LOSS)
        assert series.steps.tolist() == [0, 10, 20, 30]
        assert series.values.tolist()[:2] == [2.5, 2.25]
        assert math.isnan(series.values[2])
        assert read_curve(given, Wanted("loss", column="new")).values.tolist() == [3.5, 3.5, 4.5]
    log("events.out.tfevents.2.host.1.0", EVENTS)  # a restart writes a second file
    assert read_curve(tmp_path, LOSS).restarts[0].at == 0


def try_reading(path):
    """Return the notes of a curve, or the message of the error."""
    try:
        return "; ".join(read_curve(path, LOSS).notes)
    except CurveError as error:
        return error.message


def test_a_damaged_and_a_cut_event_file(log):
    for place in range(12, len(EVENTS)):
        broken = bytearray(EVENTS)
        broken[place] ^= 0x40
        said = try_reading(log("tfevents", bytes(broken)))
        # A length in front of the last records that is larger than the file reads like a file that was cut.
        assert any(words in said for words in ("a checksum is wrong", "is damaged", "is cut and left out")), place
    cut = read_curve(log("tfevents", EVENTS[:-10]), Wanted("loss", column="new"))
    assert (cut.values.tolist(), cut.notes) == ([3.5, 3.5], ("the last record of tfevents is cut and left out",))


def test_a_pattern_of_ones_own(log):
    path = log("a.json", "3 -> (loss=2.5),\n4 -> (loss=2.25),\n")  # a pattern reads lines, whatever the ending of the file
    series = read_curve(path, Wanted("loss", pattern=r"(?P<step>\d+) -> \(loss=(?P<value>\S+)"))
    assert (series.steps.tolist(), series.values.tolist()) == ([3, 4], [2.5, 2.25])
    named = read_curve(log("b.log", WHOLE["megatron.log"]), Wanted("loss", pattern="megatron"))
    assert named.values.tolist() == LOSSES


def test_nan_and_null_are_numbers_that_are_not_finite(log):
    rows = '{"step": 1, "loss": NaN}\n{"step": 2, "loss": null}\n{"step": 3, "loss": "inf"}\n'
    values = read_curve(log("a.jsonl", rows), LOSS).values.tolist()
    assert math.isnan(values[0])
    assert math.isnan(values[1])
    assert values[2] == math.inf
    assert math.isnan(read_curve(log("b.log", "step 1 loss nan\n"), LOSS).values[0])


def test_numbers_without_steps_are_counted_and_that_is_said(log):
    series = read_curve(log("a.json", '{"loss": [2.5, 2.25]}'), LOSS)
    assert (series.steps.tolist(), series.notes) == (
        [0, 1],
        ("it names no steps: they are counted from 0",),
    )
    assert read_curve(log("b.json", "[2.5, 2.25]"), LOSS).notes == ("it names no steps: they are counted from 0",)


def test_a_log_that_is_cut_in_its_last_line(log):
    series = read_curve(log("a.jsonl", WHOLE["rows.jsonl"][:-9]), LOSS)
    assert (series.steps.tolist(), series.notes) == ([1, 2], ("its last line (3) is cut and left out",))
    with pytest.raises(CurveError, match=r"is no whole JSON: .* at line 1, column") as caught:
        read_curve(log("a.json", WHOLE["lists.json"][:-20]), LOSS)
    assert "copy it again" in caught.value.next_step


BAD = {
    "no line has loss by one of the patterns": ("a.log", "hello\nworld\n", LOSS),
    "no line has loss by the pattern epoch": (
        "a.log",
        "step 1 loss 2\n",
        Wanted("loss", r"epoch (?P<step>\d+) (?P<value>\S+)"),
    ),
    "a.log is empty": ("a.log", "", LOSS),
    "a.json is empty": ("a.json", "", LOSS),
    "has no column lss. Did you mean  loss": ("a.json", WHOLE["lists.json"], Wanted("loss", column="lss")),
    "has no column accuracy. It has loss, lr, step": ("a.json", WHOLE["lists.json"], Wanted("accuracy")),
    "has no column epoch for steps": ("a.json", WHOLE["rows.json"], Wanted("loss", step_column="epoch")),
    "has no column loss. It has step, x": ("a.csv", "step,x\n1,2\n", LOSS),
    "a.bin is a binary file": ("a.bin", b"\x89PNG\0\0" * 9, LOSS),
    "pattern has no group value": ("a.log", "step 1\n", Wanted("loss", r"step (?P<step>\d+)")),
    "pattern has no group step and no group value": ("a.log", "step 1\n", Wanted("loss", r"step (\d+)")),
    "pattern is no regular expression": ("a.log", "step 1\n", Wanted("loss", "step (")),
    "where a number is expected": ("a.log", "step 1 x\n", Wanted("loss", r"step (?P<step>\d+) (?P<value>\S+)")),
    "where a step is expected": ("a.log", "step one 2\n", Wanted("loss", r"step (?P<step>\S+) (?P<value>\S+)")),
    "expected whole numbers as steps, got 0.5": ("a.json", '[{"step": 0.5, "loss": 2}]', LOSS),
    "loss has 3 numbers and step has 2": ("a.json", '{"loss": [1, 2, 3], "step": [1, 2]}', LOSS),
    "entry 2 of loss is the text 'two', expected a number": ("a.json", '{"loss": [1, "two"]}', LOSS),
    "entry 1 of loss is true or false": ("a.json", '{"loss": [true]}', LOSS),
    "nested too deeply": ("a.json", "[" * 100_000, LOSS),
    "a.jsonl cannot be read as JSON": ("a.jsonl", '{"loss": ' + "[" * 100_000 + "\n", LOSS),
    "number 1e400 is beyond what a float64 holds": ("a.json", '{"loss": [1e400]}', LOSS),
    "has 5000 digits": ("a.json", '{"loss": [1], "step": [' + "9" * 5000 + "]}", LOSS),
    "entry 1 of step has 5000 digits": ("a.csv", "step,loss\n" + "9" * 5000 + ",1\n", LOSS),
    "entry 1 of loss has 200000 digits": ("a.csv", "step,loss\n1," + "2" * 200_000 + "\n", LOSS),
    "a.csv has 2 columns loss": ("a.csv", "step,loss,loss\n1,2,3\n", LOSS),
    "a.csv has 2 columns step": ("a.csv", "step,step,loss\n1,2,3\n", LOSS),
    "entry 1 of step is the text '1/x', expected a step": ("a.json", '{"loss": [1], "step": ["1/x"]}', LOSS),
    "a.csv: entry 2 of loss is the text 'two'": ("a.csv", "step,loss\n1,1\n2,two\n", LOSS),
    "is no table that can be read: line 3 has 1000002 letters": ("a.csv", "step,x,loss\n1,y,2\n" + "y" * 10**6 + ",1\n", LOSS),
    "is no table that can be read: Error tokenizing data": ("a.csv", 'step,loss\n1,"2\n3,4\n', LOSS),
    "a line has 40001 cells": ("a.csv", "step,loss\n1,2" + "," * 39_999 + "\n", LOSS),
    "entry 1 of loss is the text '1,000', expected a number": ("a.csv", 'step,loss\n1,"1,000"\n', LOSS),
    "entry 2 of step is the text '1,000', expected a step": ("a.csv", "step;loss\n999;2,5\n1,000;2,4\n", LOSS),
    "line 3 has more entries than the 2 names": ("a.csv", "step,loss\n1,2\n2,1,75\n", LOSS),
    "entry 1 of loss is 1e400, which is beyond what a float64 holds": ("a.csv", "step,loss\n1,1e400\n", LOSS),
    "loss is 1e400, which is beyond what a float64 holds": ("a.log", "step 1 loss 1e400\n", LOSS),
    "entry 1 of loss is an integer beyond what a float64 holds": ("a.json", '{"loss": [' + "9" * 350 + "]}", LOSS),
    "loss has 5000 digits": ("a.log", "step 1 loss " + "9" * 5000 + "\n", LOSS),
    # One number of many that a trainer logs is not chosen for the user.
    "a.jsonl has no column loss. These may be meant: actor/pg_loss, critic/vf_loss, val/loss_mean. It has actor/lr,": (
        "a.jsonl",
        '{"step": 1, "data": {"actor/pg_loss": 0.1, "critic/vf_loss": 0.2, "actor/lr": 1e-6, "val/loss_mean": 1}}\n',
        LOSS,
    ),
    "no line has loss. These may be meant: actor/pg_loss, critic/vf_loss": (
        "a.log",
        "step:1 - actor/pg_loss:0.02 - actor/entropy:0.4 - critic/vf_loss:0.1\n",
        LOSS,
    ),
    "has train/loss of 2 runs: gpu - train/loss, npu - train/loss": (
        "a.csv",
        '"Step","gpu - train/loss","npu - train/loss"\n"1","2.5","2.5"\n',
        LOSS,
    ),
    "tag-accuracy_train.csv holds the curve accuracy_train by its name, not loss": (
        "run-.-tag-accuracy_train.csv",
        "Wall time,Step,Value\n1.5,1,2.5\n",
        LOSS,
    ),
    "a.csv has loss of 2 runs: a, b": ("a.csv", "run_id,key,value,step\na,loss,2,1\nb,loss,2,1\n", LOSS),
    "a workbook of an Excel before 2007": ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), LOSS),
}


@pytest.mark.parametrize("message", BAD)
def test_what_is_said_about_a_log_that_cannot_be_read(message, log):
    name, content, wanted = BAD[message]
    with pytest.raises(CurveError) as caught:
        read_curve(log(name, content), wanted)
    assert message in caught.value.message
    assert caught.value.next_step


def test_what_is_said_about_a_log_that_is_not_there(tmp_path):
    with pytest.raises(CurveError, match="does not exist"):
        read_curve(tmp_path / "nothing", LOSS)
    with pytest.raises(CurveError, match="is a folder without a log that is known by its name"):
        read_curve(tmp_path, LOSS)


def test_a_pattern_that_never_ends_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "a.log").write_text("step 1 loss " + "1" * 40 + "x\n")
    monkeypatch.setattr(text_log, "LONGEST", 0.1)
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(CurveError, match=r"curves\.loss\.pattern takes more than 0\.1 s for 8 MB of the log"):
        read_curve(tmp_path / "a.log", Wanted("loss", pattern=r"step (?P<step>\d+) loss (?P<value>(\d+)+)$"), "a.log")
    assert signal.getsignal(signal.SIGVTALRM) is before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
