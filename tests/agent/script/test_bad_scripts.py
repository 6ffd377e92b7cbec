"""Scripts that fail, or behave as scripts may: each error says what was seen, and nothing empty is sealed."""

import pytest

from precflow import keys

LOOP = """
import os, sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    EXTRA
"""

THREAD = """
import threading, torch
model = torch.nn.Linear(2, 2)
thread = threading.Thread(target=lambda: model(torch.ones(1, 2)))
thread.start()
thread.join()
"""
WITHOUT_CALL = """
import torch
layer = torch.nn.Linear(2, 2)
weight = layer.weight
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    (weight @ torch.ones(2)).sum().backward()
    optimizer.step()
"""


def loop(extra="pass"):
    return LOOP.replace("EXTRA", extra)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            loop("raise ValueError('the batch is upset')"),
            "ValueError: the batch is upset (train.py:10 in <module>) after 1 step",
        ),
        (loop("if step == 1: sys.exit(3)"), "train.py ended itself with exit code 3 after 2 steps"),
        (loop("sys.exit('no data')"), "train.py ended itself with exit code 1 (no data) after 1 step"),
        ("import no_such_module", "train.py raised ModuleNotFoundError: No module named 'no_such_module'"),
        ("def broken(:", "train.py raised SyntaxError"),
        ("print('nothing here')", "no model was called and no optimizer stepped in its process"),
        ("import torch\ntorch.nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()", "never finished a step"),
        (loop("break"), "step 1 should have been recorded, and train.py made only step 0"),
        (THREAD, "called models in other threads only"),
        (WITHOUT_CALL, "no call of its model was seen"),
        (
            WITHOUT_CALL.replace("layer = torch.nn.Linear(2, 2)\nweight = layer", "weight = torch.nn.Linear(2, 2)"),
            "of any model",
        ),
    ],
)
def test_what_went_wrong_is_said(script, watch, text, message):
    seen = watch(script(text))
    assert seen.code == 2, seen.log
    assert message in seen.error["message"]
    assert seen.error["next_step"]
    assert not (seen.folder / "dump.json").exists()


def test_a_script_that_is_not_there_is_named(tmp_path, watch):
    seen = watch(str(tmp_path / "nowhere.py"))
    assert seen.code == 2
    assert "nowhere.py: there is no such file" in seen.error["message"]


def test_records_before_an_exception_can_be_read(script, watch):
    seen = watch(script(loop("if step == 1: raise OSError('disk')")), capture={"step": [0, 1, 2]})
    assert seen.code == 2
    assert not seen.dump.sealed
    assert {call.step for call in seen.dump.calls()} == {0, 1}
    assert "OSError: disk" in seen.printed  # as Python itself would have printed it


@pytest.mark.parametrize(
    ("extra", "printed"),
    [
        pytest.param("print('x' * 2_000_000)", "x" * 2_000_000, id="two megabytes"),
        ("os.write(2, b'from below Python')", "from below Python"),
        ("os.system('echo of a child')", "of a child"),
        ("os.chdir('/')", ""),
        ("sys.exit(0) if step == 1 else print(sys.argv[1:], __name__, os.path.basename(__file__))", "__main__ train.py"),
        ("sys.stdout.close() if step == 2 else None", ""),
        ("assert sys.path[0] == os.path.dirname(os.path.abspath(__file__))", ""),
    ],
)
def test_scripts_may_do_as_they_like(script, watch, extra, printed):
    seen = watch(script(loop(extra)))
    assert seen.code == 0, (seen.error, seen.log)
    assert seen.dump.sealed
    assert printed in seen.printed


def test_files_that_the_script_wrote_are_kept_and_older_ones_are_not(script, watch, tmp_path):
    (tmp_path / "old.json").write_text("{}")
    text = loop("os.makedirs('logs', exist_ok=True); open('logs/gpulog.json', 'a').write(str(step)); os.chdir('logs/..')")
    seen = watch(script(text), workload={"files": ["**/gpulog.json", "old.json", "*.csv"]})
    assert seen.code == 0, seen.log
    assert (seen.folder / "files" / "logs" / "gpulog.json").read_text() == "012"
    assert seen.dump.header.script["files"] == ["logs/gpulog.json"]
    assert seen.dump.header.script["missing_files"] == ["old.json", "*.csv"]


@pytest.mark.parametrize("pattern", ["/etc/hostname", "../*"])
def test_files_from_elsewhere_are_refused(script, watch, pattern):
    seen = watch(script(loop()), workload={"files": [pattern]})
    assert seen.code == 2
    assert "leaves the folder" in seen.error["message"]


def test_a_scope_that_matches_no_module_is_an_error(script, watch):
    seen = watch(script(loop()), capture={"scope": ["encoder.*"]})
    assert seen.code == 2
    assert "capture.scope" in seen.error["message"] or "nothing was recorded" in seen.error["message"]


def test_the_seed_is_set_before_the_script_and_its_own_wins(script, watch):
    unseeded = loop().replace("torch.manual_seed(0)", "")
    first, second = (watch(script(unseeded), determinism={"seed": 5}, folder=name) for name in ("first", "second"))
    assert first.dump.header.files == second.dump.header.files
    assert first.dump.header.script["seeds"] == {"torch": 5, "sites": []}
    own = watch(script(loop()), determinism={"seed": 5}, folder="own")
    assert own.dump.header.script["seeds"] == {"torch": 0, "sites": ["train.py:3 manual_seed"]}


def test_the_users_modules_and_the_steps_of_losses_are_written_down(script, watch, tmp_path):
    installed = tmp_path / "venv" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "bought.py").write_text("import torch\ntorch.manual_seed(0)\n")
    (tmp_path / "nets.py").write_text("layers = 2\n")
    text = "import sys\nsys.path.append('venv/site-packages')\nimport bought, nets\n" + loop()
    seen = watch(script(text), capture={"step": [1, 2]})
    assert seen.code == 0, seen.log
    header = seen.dump.header
    assert set(header.script["modules"]) == {"train.py", "nets.py"}
    assert header.script["modules"]["nets.py"] == keys.file_digest(tmp_path / "nets.py")
    assert header.script["seeds"]["sites"] == ["train.py:6 manual_seed"]
    assert list(header.loss_of_step) == [1, 2]


def test_modules_of_one_step_are_told_apart_by_a_copy_and_a_pickle(script, watch):
    seen = watch(script(loop("import copy, io; copy.deepcopy(model)(torch.ones(1, 4)); torch.save(model, io.BytesIO())")))
    assert seen.code == 0, seen.printed
