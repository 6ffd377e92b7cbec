"""A side that breaks is located: on the screen, on the page and in result.json; the exit code is 2, and nothing is sealed."""

from xml.etree import ElementTree as ET

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.npu]
CRASH = "+recipe=[sd_text_encoder,symptom/crash]"
SCRIPT = """
import torch
class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError("Could not run 'aten::lgamma_backward' with arguments from the 'NPU' backend.")

class Block(torch.nn.Module):
    def forward(self, x):
        return Refusing.apply(x) if step else x

model = torch.nn.Sequential(torch.nn.Linear(4, 2), Block())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.randn(3 + step, 4)).sum().backward()
    optimizer.step()
"""


def test_an_operator_without_a_kernel(precflow, small_encoder, tmp_path):
    rules = "emulate.rules=[{operator: sigmoid, rule: fail, how: operator, module: encoder.layers.1.mlp.activation_fn}]"
    words = (CRASH, *small_encoder(layers=2), "sides=[target]", "+emulate=operator_missing", rules)
    ended = precflow(*words, recipe="sd_text_encoder+symptom/crash", cwd=tmp_path)
    module = "module encoder.layers.1.mlp.activation_fn (QuickGELUActivation)"
    said = ("Could not run 'aten::sigmoid'", "forward of step 0", module, "operator sigmoid", "report: runs/")
    assert ended.problems(2, *said) == []
    broke = ended.result["breakdown"]
    assert (broke["missing"], broke["missing_in"], broke["operator"]) == ("aten::sigmoid", "NPU", "sigmoid")
    assert broke["last"] == "encoder.layers.1.mlp.activation_fn/mul.0/forward.output.0"
    page = (ended.folder / "report.html").read_text(encoding="utf-8")
    assert "The target raised an exception" in page
    assert str(tmp_path) not in page
    assert not list((ended.folder / "store").glob("dump.target-*/sealed.json"))


def test_a_crash_in_the_backward_of_a_script_and_what_the_driver_logged(precflow, tmp_path):
    script = SCRIPT.replace("Refusing.apply(x) if step else x", "x.sigmoid()").replace("(4, 2)", "(4, 2, device='npu')")
    (tmp_path / "train.py").write_text(script.replace("step, 4)", "step, 4, device='npu')"), encoding="utf-8")
    rules = "emulate.rules=[{operator: sigmoid_backward, rule: fail, how: crash}]"
    words = (
        "+recipe=[script,symptom/crash]",
        "workload.script=train.py",
        "target.device=emulated",
        "+emulate=device_error",
        rules,
    )
    ended = precflow(*words, "sides=[target]", recipe="script+symptom/crash", cwd=tmp_path)
    said = ("was killed by SIGSEGV", "backward of step 0", "module 1 (Block)", "[ERROR] RUNTIME(", "logs of the device: runs/")
    assert ended.problems(2, *said) == []
    broke = ended.result["breakdown"]
    assert broke["kind"] == "crash"
    assert "task of sigmoid_backward failed" in broke["logs"][0]["lines"][broke["logs"][0]["at"]]
    assert broke["logs"][0]["lines"][0].startswith("[WARNING]")


def test_a_backward_of_a_script(precflow, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    words = ("+recipe=[script,symptom/crash]", "workload.script=train.py", "capture.step=[0,1]", "target.device=cpu")
    ended = precflow(*words, "sides=[target]", recipe="script+symptom/crash", cwd=tmp_path)
    assert ended.problems(2, "backward of step 1", "module 1 (Block)", "operator RefusingBackward", "operator.no_kernel") == []
    assert ended.result["breakdown"]["inputs"][0]["shape"] == "[4, 2]"


def test_a_side_that_hangs_is_stopped_in_its_stage_and_named(precflow, tmp_path):
    hanging = SCRIPT.replace("Refusing.apply(x) if step else x", "wait(x) if step else x").replace(
        "class Block", "def wait(x):\n    import time\n    while True:\n        time.sleep(1)\n\nclass Block"
    )
    (tmp_path / "train.py").write_text(hanging, encoding="utf-8")
    words = ("+recipe=[script,symptom/crash]", "workload.script=train.py", "capture.step=[0,1]", "target.device=cpu")
    limit = ("sides=[target]", "capture.timeout=20s", "report.formats=[json,junit]")
    ended = precflow(*words, *limit, recipe="script+symptom/crash", cwd=tmp_path)
    assert ended.problems(2, "did not finish within 20 s", "forward of step 1", "module 1 (Block)", "train.py:") == []
    broke = ended.result["breakdown"]
    assert (broke["kind"], broke["class_name"], broke["last"]) == ("hang", "Block", "0/forward.output.0@1.0")
    (case,) = [each for each in ET.parse(ended.folder / "public" / "junit.xml").getroot().iter("testcase") if len(each)]
    assert case.get("name") == "dump.target"
    assert "did not come to its end" in case.find("error").get("message")
    assert not list((ended.folder / "store").glob("dump.target-*/sealed.json"))
