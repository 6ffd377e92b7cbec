"""A script and its port, in two places: their records are paired, and what differs between the programs is shown."""

import pytest

pytestmark = pytest.mark.slow
SCRIPT = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
options = parser.parse_args()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
data = torch.utils.data.TensorDataset(torch.randn(16, 4), torch.randint(2, (16,)))
order = torch.Generator().manual_seed(1)
for values, labels in torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, generator=order):
    torch.nn.functional.cross_entropy(model(values), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def place(precflow, tmp_path):
    """Return a function that runs the recipe in a place of its own, where its own script lies."""

    def run(name, script, text, *words):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / script).write_text(text, encoding="utf-8")
        store, devices = f"store=file://{tmp_path}/shared", ("reference.device=cpu", "target.device=cpu")
        limits = ("tolerance.standards=[default]", "capture.step=[0]")
        return precflow("+recipe=script", *devices, *limits, store, f"sides=[{name}]", *words, recipe="script", cwd=folder)

    return run


def test_a_port_with_another_text_and_name_is_compared_and_its_differences_are_shown(place):
    assert place("reference", "train.py", SCRIPT, "workload.script=train.py").code == 0
    ported = SCRIPT.replace("import torch\n", "import torch  # on the NPU\n", 1)
    alone = place("target", "train_npu.py", ported, "workload.script=train_npu.py")
    assert alone.problems(2, "other content of workload.script; if one is a port", "target.script") == []
    words = ("workload.script=train.py", "target.script=train_npu.py")
    done = place("target", "train_npu.py", ported, *words)
    assert done.problems(0, "aligned") == []
    assert done.result["findings"] == []
    page = (done.folder / "public" / "report.md").read_text(encoding="utf-8")
    assert "+import torch  # on the NPU" in page
    assert "train_npu.py (" not in page  # it is the other side of train.py

    other = ported.replace("manual_seed(1)", "manual_seed(2)").replace("default=0.1", "default=0.2")
    done = place("target", "train_npu.py", other, *words)
    assert done.problems(3) == []
    found = {finding["rule"]: finding["title"] for finding in done.result["findings"]}
    assert found["PF119"].startswith("The target reads other samples: TensorDataset, batch 0000: ")
    assert "hyperparameters.argparse.lr: 0.1 / 0.2" in found["PF118"]
    assert found["PF117"] == "sources differ: train.py"
