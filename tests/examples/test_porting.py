"""The example of a port: its tree has every kind that its page names, and its two patches leave nothing that does not run."""

import shutil
import subprocess
from pathlib import Path

import pytest

from precflow.verbs import scan

EXAMPLE = Path(__file__).parents[2] / "examples" / "09_porting"
BY_HAND = ("scale_and_add.cu", "+cu118", "nvidia-ml-py", "torch.nn.DataParallel", "apex.amp.initialize", "apex.amp.scale_loss")


@pytest.mark.usefixtures("clean")
def test_the_patches_leave_nothing_that_does_not_run(capsys):
    shutil.copytree(EXAMPLE / "training", "training")
    assert scan.main(["training", "--patch", "scan.patch", "--limit", "0"]) == 1
    shown = capsys.readouterr().out
    assert "6 to change by hand, 21 by the patch" in shown
    assert [name for name in BY_HAND if name not in shown] == []
    for patch in ("scan.patch", EXAMPLE / "by_hand.patch"):
        subprocess.run(["git", "apply", Path(patch).resolve()], cwd="training", check=True)
    assert scan.main(["training"]) == 0
    assert not Path("training/ops/scale_and_add.cu").exists()
