"""A tree is scanned whatever lies in it, and its patch changes what it says and no other byte."""

import ast
import json
import os
import subprocess

import pytest

from precflow.errors import StoreError
from precflow.scan.tree import LARGEST, scan_tree

TRAIN = "import torch\n\nmodel.cuda()  # to the GPU\n"
MENDED = "import torch\nimport torch_npu  # noqa: F401\n\nmodel.npu()  # to the GPU\n"
CELLS = {
    "cells": [
        {"cell_type": "markdown", "source": ["model.cuda()\n"]},
        {"cell_type": "code", "outputs": [], "source": ["%matplotlib inline\n", "!pip install flash-attn\n", "import torch"]},
        {"cell_type": "code", "outputs": [], "source": ["x = 'é\\n'\n", "files = !ls\n", "model = model.cuda()"]},
        {"cell_type": "code", "outputs": [], "source": ["%%bash\n", "CUDA_VISIBLE_DEVICES=0 python x.py\n"]},
        {"cell_type": "code", "outputs": [], "source": ["def f(:\n"]},
    ],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
}


def places(result, weight="stops"):
    return [(finding.place, finding.rule) for finding in result.of_weight(weight)]


def test_the_patch_keeps_every_other_byte(write, rules, git_apply):
    files = {
        "plain.py": TRAIN,
        "windows.py": TRAIN.replace("\n", "\r\n"),
        "marked.py": b"\xef\xbb\xbf" + TRAIN.encode(),
        "no end.py": TRAIN.rstrip("\n"),
        "latin.py": "# coding: latin-1\n# é\n".encode("latin-1") + TRAIN.encode(),
        "chinese.py": "# -*- coding: gbk -*-\ns = '中文'\n".encode("gbk") + TRAIN.encode(),
        "层/模型.py": "s = '层'; x = s, y.cuda(), '层'\n",
        "mixed.py": TRAIN + "y = 1\r\n" + "z.cuda()\n",
        "run.sh": "#!/bin/sh\n# CUDA_VISIBLE_DEVICES=1\nCUDA_VISIBLE_DEVICES=0 python train.py --device cuda  # cuda\n",
        "conf.yaml": "device: cuda  # cuda\nbackend: 'nccl'\n",
    }
    tree = write(files)
    result = scan_tree(tree, rules)
    git_apply(result.patch, tree)

    def mend(text):
        return text.replace("import torch\n", "import torch\nimport torch_npu  # noqa: F401\n").replace(".cuda()", ".npu()")

    for name in ("plain.py", "mixed.py"):
        assert (tree / name).read_bytes() == mend(files[name]).encode()
    assert (tree / "windows.py").read_bytes() == MENDED.replace("\n", "\r\n").encode()
    assert (tree / "marked.py").read_bytes() == b"\xef\xbb\xbf" + MENDED.encode()
    assert (tree / "no end.py").read_text(encoding="utf-8") == MENDED.rstrip("\n")
    assert (tree / "latin.py").read_bytes() == "# coding: latin-1\n# é\n".encode("latin-1") + MENDED.encode()
    assert (tree / "chinese.py").read_bytes() == "# -*- coding: gbk -*-\ns = '中文'\n".encode("gbk") + MENDED.encode()
    assert (tree / "层/模型.py").read_text(encoding="utf-8") == "s = '层'; x = s, y.npu(), '层'\n"
    assert (tree / "run.sh").read_text(encoding="utf-8").splitlines()[1:] == [
        "# CUDA_VISIBLE_DEVICES=1",
        "ASCEND_RT_VISIBLE_DEVICES=0 python train.py --device npu  # cuda",
    ]
    assert (tree / "conf.yaml").read_text(encoding="utf-8") == "device: npu  # cuda\nbackend: 'hccl'\n"
    for path in tree.rglob("*.py"):
        ast.parse(path.read_bytes())
    again = scan_tree(tree, rules)
    assert again.patch == b""
    assert places(again) == []


def test_the_patch_is_applied_inside_of_a_larger_repository(write, rules, git_apply):
    tree = write({"inner/train.py": TRAIN})
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    git_apply(scan_tree(tree / "inner", rules).patch, tree / "inner")
    assert (tree / "inner" / "train.py").read_text(encoding="utf-8") == MENDED


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_notebook_is_one_source_with_the_lines_of_its_file(write, rules, git_apply, indent, ascii_only):
    text = json.dumps(CELLS, indent=indent, ensure_ascii=ascii_only)
    tree = write({"a.ipynb": text})
    result = scan_tree(tree, rules)
    lines = {finding.rule: (finding.line, finding.cell) for finding in result.findings}
    written = text.splitlines()
    for rule, cell, needle in (("device.method", 3, "model = model.cuda"), ("library.flash_attn", 2, "flash-attn")):
        assert lines[rule] == (next(n for n, line in enumerate(written, 1) if needle in line), cell)
    assert lines["variable.devices"][1] == 4
    assert lines["syntax.python"][1] == 5
    git_apply(result.patch, tree)
    patched = json.loads((tree / "a.ipynb").read_text(encoding="utf-8"))
    sources = ["".join(cell["source"]) for cell in patched["cells"]]
    assert sources[1].endswith("import torch\nimport torch_npu  # noqa: F401")
    assert sources[2] == "x = 'é\\n'\nfiles = !ls\nmodel = model.npu()"
    assert sources[0] == "model.cuda()\n"
    assert scan_tree(tree, rules).patch == b""


def test_other_files_are_read_without_their_comments(write, rules):
    tree = write(
        {
            "kernel.cu": "__global__ void f() {}\n",
            "op.cpp": "// #include <cuda.h>\n#include <ATen/cuda/CUDAContext.h>\nint x = cudaSetDevice(0);\n",
            "requirements.txt": "# xformers\nflash-attn>=2\ntorch==2.1.0+cu118\nnumpy\nmy-apex-tools\n",
            "setup.py": "from setuptools import setup\nsetup(install_requires=['bitsandbytes>=0.40', 'numpy'])\n",
            "Dockerfile": "FROM nvidia/cuda:12.1.0-base\nRUN pip install \\\n    xformers \\\n    numpy\nRUN echo triton\n",
            "ds.json": '{"device": "cuda", "note": "a cuda note"}',
            "start.sh": "torchrun train.py\nnvidia-smi\nexport NCCL_DEBUG=INFO\necho cudagraphs\n",
            "README.md": "model.cuda() flash-attn\n",
        }
    )
    result = scan_tree(tree, rules)
    assert sorted(places(result)) == [
        ("Dockerfile:1", "script.image"),
        ("Dockerfile:3", "library.xformers"),
        ("ds.json:1", "device.setting"),
        ("kernel.cu:1", "kernel.source"),
        ("op.cpp:2", "kernel.header"),
        ("op.cpp:3", "kernel.cpp"),
        ("requirements.txt:2", "library.flash_attn"),
        ("requirements.txt:3", "script.cuda_build"),
        ("setup.py:2", "library.bitsandbytes"),
    ]
    assert sorted(places(result, "look")) == [("start.sh:2", "script.smi"), ("start.sh:3", "variable.collectives")]


def test_what_cannot_be_read_is_said_and_the_rest_is_scanned(write, rules, tmp_path):
    tree = write(
        {
            "good.py": "x.cuda()\n",
            "broken.py": "x = 1\nif x\n    y.cuda()\n",
            "old.py": "import os\nprint 'a'\n",
            "binary.py": b"\0\1\2" * 10,
            "huge.py": b"x = 1\n" * (LARGEST // 6 + 1),
            "wrong.py": b"# coding: utf-8\nx = '\xff'\n",
            "nowhere.py": b"# coding: no-such-codec\nx.cuda()\n",
            "a.ipynb": "{not json",
            "b.ipynb": '{"cells": [{"cell_type": "code", "source": [1]}]}',
            ".venv/pyvenv.cfg": "",
            ".hidden/x.py": "x.cuda()\n",
            "env/pyvenv.cfg": "",
            "env/lib/x.py": "x.cuda()\n",
        }
    )
    (tmp_path / "outside.py").write_text("x.cuda()\n", encoding="utf-8")
    (tree / "link.py").symlink_to(tmp_path / "outside.py")
    (tree / "inside.py").symlink_to(tree / "good.py")
    (tree / "up").symlink_to(tmp_path)
    (tree / "circle.py").symlink_to(tree / "circle.py")
    (tree / "lib.so").symlink_to(tmp_path / "lib.so")
    os.mkfifo(tree / "pipe.py")
    (tree / "closed.py").write_text("x.cuda()\n", encoding="utf-8")
    (tree / "closed.py").chmod(0)
    result = scan_tree(tree, rules)
    closed = {"closed.py"} if os.geteuid() else set()  # root reads everything
    unread = {"binary.py", "huge.py", "wrong.py", "a.ipynb", "b.ipynb", "link.py", "up", "circle.py", "pipe.py"} | closed
    assert {*result.unread} == unread
    assert ("good.py:1", "device.method") in places(result)
    assert ("old.py:2", "syntax.python") in places(result)
    broken = [finding for finding in result.findings if finding.rule == "syntax.python" and finding.file == "broken.py"]
    assert [(finding.line, finding.weight) for finding in broken] == [(2, "look")]
    assert not any(finding.file.startswith((".", "env")) for finding in result.findings)


def test_no_folder_and_an_empty_one(tmp_path, rules):
    with pytest.raises(StoreError, match="no such folder"):
        scan_tree(tmp_path / "nowhere", rules)
    (tmp_path / "README.md").write_text("cuda", encoding="utf-8")
    with pytest.raises(StoreError, match="has nothing that a scan reads"):
        scan_tree(tmp_path, rules)
    (tmp_path / "huge.py").write_bytes(b"x = 1\n" * (LARGEST // 6 + 1))
    with pytest.raises(StoreError, match=r"requirements; huge\.py "):
        scan_tree(tmp_path, rules)


def test_one_file_can_be_scanned(write, rules):
    tree = write({"train.py": TRAIN})
    assert places(scan_tree(tree / "train.py", rules))[0][0] == "train.py:1"
