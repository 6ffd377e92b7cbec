"""Logs as trainers, loggers and spreadsheets write them are read without a setting: one sample of each."""

import importlib.util
import io
import json
import os
import sys
import zipfile
from pathlib import Path

import pytest

from precflow.config.sections import curves_section
from precflow.curves import formats, layouts
from precflow.curves.outcome import examine
from precflow.curves.reading import read_curve
from precflow.curves.wanted import Wanted
from precflow.errors import CurveError

LOSS = Wanted("loss")
STEPS, LOSSES = [1, 2, 3], [2.5, 2.25, 1.75]
ROWS = [{"step": step, "loss": loss} for step, loss in zip(STEPS, LOSSES, strict=True)]

# As trainers write them: name -> log of losses 2.5, 2.25, 1.75 at steps that the trainer counts in its own way.
OF_TRAINERS = {
    "torch's ImageNet example.log": (
        [0, 100, 200],
        "".join(
            f"Epoch: [{epoch}][ {step:3d}/200]\tTime  0.301 ( 0.412)\tLoss {loss:.4e} (9.9999e+00)\tAcc@1   1.56 (  0.71)\n"
            f"Test: [ 0/50]\tTime  0.1 ( 0.1)\tLoss 9.0e+00 (9.0e+00)\n"
            for epoch, step, loss in ((0, 0, 2.5), (0, 100, 2.25), (1, 0, 1.75))
        ),
    ),
    "timm.log": (
        [0, 50, 1251],
        "".join(
            f"Train: {epoch} [{step:>4d}/1251 (  4%)]  Loss: {loss:>9.6f} (9.9612)  Time: 0.301s,  850.10/s  LR: 1.000e-06\n"
            for epoch, step, loss in ((0, 0, 2.5), (0, 50, 2.25), (1, 0, 1.75))
        ),
    ),
    "mmcv.log": (
        [50, 7330, 7380],
        "".join(
            f"2024-05-01 10:00:00,123 - mmdet - INFO - Epoch [{epoch}][{step}/7330]\tlr: 1.978e-03, eta: 10:00:00, time: 0.4,"
            f" loss_cls: 1.1, loss: {loss}, grad_norm: 3.1\n"
            for epoch, step, loss in ((1, 50, 2.5), (1, 7330, 2.25), (2, 50, 1.75))
        ),
    ),
    "mmengine.log": (
        [50, 7330, 7380],
        "".join(
            f"05/01 10:00:00 - mmengine - INFO - Epoch(train)   [{epoch}][{step:4d}/7330]  loss: {loss}  loss_cls: 1\n"
            f"05/01 10:00:00 - mmengine - INFO - Epoch(val)   [{epoch}][{step:4d}/7330]  loss: 9\n"
            for epoch, step, loss in ((1, 50, 2.5), (1, 7330, 2.25), (2, 50, 1.75))
        ),
    ),
    "mmseg.log": (
        [50, 100, 150],
        "".join(
            f"05/01 10:00:00 - mmengine - INFO - Iter(train) [{step:5d}/40000]  base_lr: 1e-2  loss: {loss}  decode.acc: 1\n"
            for step, loss in zip((50, 100, 150), LOSSES, strict=True)
        ),
    ),
    "mmdet 2.json": (  # its iterations begin anew in each epoch, and those of validation are others
        [50, 100, 150],
        (
            '{"env_info": "x", "seed": 0}\n{"mode": "train", "epoch": 1, "iter": 50, "loss_cls": 1, "loss": 2.5}\n'
            '{"mode": "train", "epoch": 1, "iter": 100, "loss": 2.25}\n{"mode": "val", "epoch": 1, "iter": 625, "loss": 9}\n'
            '{"mode": "train", "epoch": 2, "iter": 50, "loss": 1.75}\n'
        ),
    ),
    "MindSpore.log": (
        [1, 2, 3],
        "epoch: 1 step: 1, loss is 2.5\nepoch: 1 step: 2, loss is 2.25\nTrain epoch time\nepoch: 2 step: 1, loss is 1.75\n",
    ),
    "own loop with epochs.log": (
        [10, 20, 30],
        "[Epoch 0] iter 10 loss 2.5\n[Epoch 0] iter 20 loss 2.25\n[Epoch 1] iter 10 loss 1.75\n",
    ),
    "own loop with steps that go on.log": (
        [10, 20, 30],
        "epoch 0.35 iter 10 loss 2.5\nepoch 0.8 iter 20 loss 2.25\nepoch 1.2 iter 30 loss 1.75\n",
    ),
    "diffusers.log": (
        STEPS,
        "Steps:   0%|          | 0/3 [00:00<?, ?it/s]\r"
        + "".join(
            f"Steps:  33%|###2      | {step}/3 [00:01<00:02,  3.2it/s, lr=1e-5, step_loss={before}]\r"
            f"Steps:  33%|###3      | {step}/3 [00:01<00:02,  3.2it/s, lr=1e-5, step_loss={loss}]\r"
            for step, before, loss in zip(STEPS, (9.0, *LOSSES), LOSSES, strict=False)
        ),
    ),
    "Lightning's bar.log": (
        [1, 2, 3],
        (
            "Epoch 0:  50%|#####     | 1/2 [00:00<00:00,  9.5it/s, v_num=0, train_loss=2.5]\r"
            "Epoch 0: 100%|##########| 2/2 [00:00<00:00,  9.5it/s, v_num=0, train_loss=2.25]\r"
            "Validation DataLoader 0:  50%|#####     | 1/2 [00:00<00:00,  9.5it/s, loss=9]\r"
            "Epoch 1:  50%|#####     | 1/2 [00:00<00:00,  9.5it/s, v_num=0, train_loss=1.75]\n"
        ),
    ),
    "DeepSpeed.log": (
        [10, 20, 30],
        "".join(
            f"[2024-05-01 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, lr=[1e-05, 1e-05]\n"
            f"steps: {step} loss: {loss} iter time (s): 0.412 samples/sec: 77.603\n"
            for step, loss in zip((10, 20, 30), LOSSES, strict=True)
        ),
    ),
    "nanoGPT.log": (
        [0, 1, 2],
        (
            "step 0: train loss 9.3012, val loss 9.5012\niter 0: loss 2.5, time 135.10ms, mfu 17.30%\n"
            "iter 1: loss 2.25, time 135.10ms, mfu 17.30%\niter 2: loss 1.75, time 135.10ms, mfu 17.30%\n"
            "step 2: train loss 9.2, val loss 9.4\n"
        ),
    ),
    "torchtune.log": (
        STEPS,
        "".join(f"Step {step} | loss:{loss} lr:2e-05 grad_norm:1.1\n" for step, loss in zip(STEPS, LOSSES, strict=True)),
    ),
    "fairseq.log": (
        [100, 200, 300],
        "".join(
            f'2024-05-01 10:00:00 | INFO | train_inner | {{"epoch": 1, "loss": "{loss}", "nll_loss": "8.8", "ppl": "1",'
            f' "num_updates": "{step}", "lr": "2e-05", "gnorm": "3.1"}}\n'
            for step, loss in zip((100, 200, 300), LOSSES, strict=True)
        ),
    ),
    "LLaMA-Factory.jsonl": (
        [5, 10, 15],
        "".join(
            json.dumps({"current_steps": step, "total_steps": 300, "loss": loss, "epoch": step / 60}) + "\n"
            for step, loss in zip((5, 10, 15), LOSSES, strict=True)
        ),
    ),
    "MMEngine.json": (
        [50, 100, 150],
        (
            '{"env_info": "x"}\n{"loss": 2.5, "epoch": 1, "iter": 50, "step": 50}\n'
            '{"loss": 2.25, "epoch": 1, "iter": 100, "step": 100}\n'
            '{"coco/bbox_mAP": 0.3, "step": 1}\n{"loss": 1.75, "epoch": 2, "iter": 50, "step": 150}\n'
        ),
    ),
    "verl.jsonl": (STEPS, "".join(json.dumps({"step": row["step"], "data": {"loss": row["loss"]}}) + "\n" for row in ROWS)),
    "Ultralytics.csv": (  # the sum of the parts
        STEPS,
        (
            "      epoch,   time,   train/box_loss,  train/cls_loss, val/box_loss,  lr/pg0\n"
            "          1,    0.0,              1.5,             1.0,          9.0,   0.001\n"
            "          2,   60.0,              1.0,            1.25,          9.0,   0.001\n"
            "          3,  120.0,             1.25,             0.5,          9.0,   0.001\n"
        ),
    ),
    "Lightning.csv": ([49, 99, 149], "epoch,step,train_loss,val_loss\n0,49,2.5,\n0,99,2.25,\n0,99,,9\n1,149,1.75,\n"),
    "Weights & Biases, a chart.csv": (
        STEPS,
        (
            '"Step","silver-sun-4 - train/loss","silver-sun-4 - train/loss__MIN","silver-sun-4 - train/loss__MAX"\n'
            '"1","2.5","2.4","2.6"\n"2","2.25","2.25","2.25"\n"3","1.75","1.75","1.75"\n'
        ),
    ),
    "Weights & Biases, a history.csv": (STEPS, "_step,_runtime,Train/Loss\n1,0.5,2.5\n2,1.5,2.25\n3,2.5,1.75\n"),
    "run-.-tag-Loss_train.csv": (STEPS, "Wall time,Step,Value\n1.7e9,1,2.5\n1.7e9,2,2.25\n1.7e9,3,1.75\n"),
    "MLflow.csv": (
        STEPS,
        "run_id,key,value,step,timestamp\na1,loss,2.5,1,17\na1,accuracy,0.1,1,17\na1,loss,2.25,2,18\na1,loss,1.75,3,19\n",
    ),
    "MLflow's metric": (STEPS, "1714557600000 2.5 1\n1714557601000 2.25 2\n1714557602000 1.75 3\n"),
    "decimal comma.csv": (STEPS, "Schritt;step;loss\na,b;1;2,5\nc;2;2,25\nd;3;1,75e0\n"),
    "quoted decimal comma.csv": (STEPS, 'step,loss\n1,"2,5"\n2,"2,25"\n3,"1,75"\n'),
    "lines that end with a carriage return alone.csv": (STEPS, "step,loss\r1,2.5\r2,2.25\r3,1.75\r"),
    "spaces.txt": (STEPS, "step   loss\n   1    2.5\n   2   2.25\n   3   1.75\n"),
    "separator at the end.csv": (STEPS, "step,loss,\n1,2.5,\n2,2.25,\n3,1.75,\n"),
    "the first line again.csv": (STEPS, "step,loss\n1,2.5\n2,2.25\nstep,loss\n3,1.75\n"),
    "a row an epoch.csv": (STEPS, "epoch,loss\n1,2.5\n2,2.25\n3,1.75\n"),
    "GBK.log": (STEPS, "".join(f"步数 step {row['step']} 损失 loss {row['loss']}\n" for row in ROWS).encode("gbk")),
    "GBK.csv": (STEPS, "step,学习率,loss\n1,高,2.5\n2,低,2.25\n3,低,1.75\n".encode("gbk")),
    "UTF-16.log": (STEPS, "".join(f"step {row['step']} loss {row['loss']}\r\n" for row in ROWS).encode("utf-16")),
    "UTF-16.csv": (STEPS, "step,loss\r\n1,2.5\r\n2,2.25\r\n3,1.75\r\n".encode("utf-16")),
    "UTF-16.jsonl": (STEPS, "".join(json.dumps(row) + "\n" for row in ROWS).encode("utf-16")),
    "UTF-8 with a mark.log": (STEPS, "".join(f"step {row['step']} loss {row['loss']}\n" for row in ROWS).encode("utf-8-sig")),
    "UTF-8 with a mark.csv": (STEPS, "step,loss\n1,2.5\n2,2.25\n3,1.75\n".encode("utf-8-sig")),
}


@pytest.mark.parametrize("name", OF_TRAINERS)
def test_the_logs_of_trainers_are_read_without_a_setting(name, log):
    steps, content = OF_TRAINERS[name]
    series = read_curve(log(name, content), LOSS)
    assert (series.steps.tolist(), series.values.tolist()) == (steps, LOSSES)
    assert (series.duplicates, series.begun_anew, series.restarts) == (0, 0, ())


def test_every_shipped_pattern_is_tried_above(log):
    texts = [log(name, content) for name, (_, content) in OF_TRAINERS.items() if name.endswith(".log")]
    found = {read_curve(text, LOSS).source.rpartition(" ")[2] for text in texts}
    older = {"hugging_face", "megatron", "mindformers", "mindspeed"}  # whose logs test_reading.py has
    assert found | older == set(curves_section.pattern_names())


@pytest.mark.parametrize(
    ("run", "file", "content"),
    [
        ("version_0", "metrics.csv", "epoch,step,train_loss\n0,1,2.5\n0,2,2.25\n0,3,1.75\n"),
        ("train", "results.csv", "epoch, loss\n1, 2.5\n2, 2.25\n3, 1.75\n"),
        ("mlruns/0/a1b2", "metrics/train/loss", OF_TRAINERS["MLflow's metric"][1]),
        ("output", "trainer_state.json", json.dumps({"log_history": ROWS})),
        ("work", "vis_data/scalars.json", json.dumps(ROWS)),
    ],
)
def test_a_folder_of_a_run_is_read_by_the_usual_names_of_its_files(run, file, content, tmp_path):
    path = tmp_path / run / file
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert read_curve(tmp_path / run, LOSS).values.tolist() == LOSSES


def test_metrics_of_mlflow_that_are_another_curve_are_refused(tmp_path):
    path = tmp_path / "metrics" / "accuracy"
    path.parent.mkdir()
    path.write_text(OF_TRAINERS["MLflow's metric"][1])
    with pytest.raises(CurveError, match="holds the metric accuracy by its place, not loss"):
        read_curve(path, LOSS)
    with pytest.raises(CurveError, match=r"has no column loss\. It has accuracy"):
        read_curve(tmp_path, LOSS)
    assert read_curve(path, Wanted("loss", column="accuracy")).values.tolist() == LOSSES


def test_sides_that_log_at_other_intervals_agree_on_the_length_of_an_epoch(log):
    """An epoch has 100 steps at least; a side that logs every thirtieth names 90 at most."""

    def write(name, interval):
        rows = (
            {"epoch": epoch, "iter": step, "loss": epoch + step / 100}
            for epoch in (1, 2)
            for step in range(interval, 101, interval)
        )
        return read_curve(log(name, "".join(json.dumps(row) + "\n" for row in rows)), LOSS)

    every_tenth, every_thirtieth = write("a.jsonl", 10), write("b.jsonl", 30)
    assert every_thirtieth.steps.tolist() == [30, 60, 90, 120, 150, 180]
    outcome = examine("loss", every_tenth, every_thirtieth, limits={"max_abs_error": 0.0})
    assert (outcome.verdict, outcome.found.compared, outcome.last_step) == ("aligned", 6, 190)


def test_a_workbook_is_read(tmp_path):
    openpyxl = pytest.importorskip("openpyxl", reason="needs the extra `excel`")
    book = openpyxl.Workbook()
    for row in (("Step", "loss", "note"), *((row["step"], row["loss"], None) for row in ROWS), (4, None, "no loss")):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    series = read_curve(tmp_path / "a.xlsx", LOSS)
    assert (series.steps.tolist(), series.values.tolist()) == (STEPS, LOSSES)


def test_what_reads_workbooks_is_named_where_it_is_missing(log, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    path = log("a.xlsx", make_zip("xl/workbook.xml"))
    with pytest.raises(CurveError, match="is a workbook of Excel, and what reads it is not installed") as caught:
        read_curve(path, LOSS)
    assert 'pip install "precflow[excel]"' in caught.value.next_step
    with pytest.raises(CurveError, match="is a binary file of no known kind"):
        read_curve(log("a.zip", make_zip("a.txt")), LOSS)


def make_zip(name):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr(name, "x")
    return content.getvalue()


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CurveError, match="is not a regular file but a named pipe"):
        read_curve(tmp_path / "pipe", LOSS)


def test_a_kind_of_log_is_one_file(tmp_path, log, monkeypatch):
    (tmp_path / "of_a_test.py").write_text(
        "from precflow.curves.formats import Format\n"
        "from precflow.curves.series import make_series\n"
        "def read(logs, wanted):\n"
        "    return make_series([7], [float(logs[0].read_text().removeprefix('kind of a test '))])\n"
        "FORMAT = Format('a test', 5, lambda log: log.head.startswith(b'kind of a test'), read)\n"
    )
    monkeypatch.setattr(formats, "__path__", [*formats.__path__, str(tmp_path)])
    formats.list_formats.cache_clear()
    try:
        assert read_curve(log("a.log", "kind of a test 2.5"), LOSS).values.tolist() == [2.5]
    finally:
        formats.list_formats.cache_clear()
        sys.modules.pop("precflow.curves.formats.of_a_test", None)


def test_a_way_to_name_columns_is_one_file(tmp_path, log, monkeypatch):
    (tmp_path / "of_a_test.py").write_text(
        "from precflow.curves.columns import Choice\n"
        "from precflow.curves.layouts import Layout\n"
        "LAYOUT = Layout('a test', lambda wanted, columns, place: Choice(('Verlust',), 'Schritt'))\n"
    )
    monkeypatch.setattr(layouts, "__path__", [*layouts.__path__, str(tmp_path)])
    layouts.list_layouts.cache_clear()
    try:
        assert read_curve(log("a.csv", "Schritt,Verlust\n7,2.5\n"), LOSS).steps.tolist() == [7]
    finally:
        layouts.list_layouts.cache_clear()
        sys.modules.pop("precflow.curves.layouts.of_a_test", None)


def test_the_page_names_every_kind():
    page = (Path(__file__).parents[2] / "docs" / "curves.md").read_text(encoding="utf-8")
    kinds = [*formats.list_formats(), *layouts.list_layouts()]
    names = [*(f"| {kind.title} |" for kind in kinds), *(f"`{name}`" for name in curves_section.pattern_names())]
    assert [name for name in names if name not in page] == []
