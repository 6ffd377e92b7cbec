"""Text that names CUDA and ties nothing to it is told from what does; the patch changes these words and no other byte."""

import ast

import pytest

from precflow.scan.edits import apply_edits
from precflow.scan.index import Index
from precflow.scan.python import scan_source, scan_with_import
from precflow.scan.rules import load_rules

SILENT = [
    '"""Runs model.cuda() on cuda:0."""\n',
    "# model.cuda()  torch.cuda.synchronize()\n",
    'x = "cuda is fast"\n',
    'print("cuda")\n',
    'import logging\nlogging.info("cuda")\n',
    'names = {"barracuda": 1}\n',
    'import re\nre.compile("cuda.*")\nre.match("cuda", text)\n',
    'import os\nos.path.join("src", "cuda")\n',
    "cuda = args.cuda\nuse_cuda = not args.no_cuda\nif cuda: pass\n",
    "def f(x):\n    '''x.cuda()'''\n    return x.npu()\n",
    "nccl = 3\n",
    "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nFSDP(model)\n",
    "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\nDDP(model)\n",
    "import apexlib, my_triton\n",
    'parser.add_argument("--cuda", help="cuda is used")\n',
    "import torch_npu\nimport torch\nx = torch.zeros(1).npu()\ntorch.npu.synchronize()\n",
    "x = Loader(pin_memory=False, fused=False)\n",
    'x = f"cuda version {v}"\n',
    "torch = Fake()\ntorch.cuda.weird()\n",
    "def f(impl='cuda', *, ext='cuda'): return impl == 'cuda' or impl in ['ref', 'cuda'] or f(impl='cuda')\n",
    "import numpy as np\ny = np.unique(x)\n",
    "import numpy as np\nx = np.array(y) > 3\nx = x[x.nonzero()]\ny = np.array([1]).nonzero()[0]\nz = x.double()\n",
    "from torchvision.ops.boxes import box_area\nfrom torchvision.ops import box_iou\n",
    "class Box:\n    double = 2\nBox.double\n",
    "import torch as t\ndef f(t):\n    t.cuda.synchronize()\n",
    "import torch\ndef f(x):\n    torch = x.backend\n    return [torch.cuda.stream for _ in x]\n",
    "import torch\nf = lambda torch: torch.cuda.stream\n",
    "def f():\n    import torch as t\ndef g(t):\n    t.cuda.synchronize()\n",
]

# Source, rule, and what the patch makes of the last line ("" if it is left by hand).
FOUND = [
    ('import torch\nd = torch.device("cuda", 1)\n', "device.text", 'd = torch.device("npu", 1)'),
    ("import torch\nd = 'cuda:0' if ok else 'cpu'\n", "device.text", "d = 'npu:0' if ok else 'cpu'"),
    ('import torch\nd = torch.device(f"cuda:{i}")\n', "device.text", 'd = torch.device(f"npu:{i}")'),
    ('import torch\nd = "cuda:%d" % i\n', "device.text", 'd = "npu:%d" % i'),
    ('import torch\nd = "cuda:{}".format(i)\n', "device.text", 'd = "npu:{}".format(i)'),
    ('import torch\nok = d.startswith("cuda")\n', "device.text", 'ok = d.startswith("npu")'),
    ('import torch\ngetattr(torch, "cuda").synchronize()\n', "device.text", 'getattr(torch, "npu").synchronize()'),
    ('import torch\ns = torch.amp.GradScaler("cuda")\n', "device.text", 's = torch.amp.GradScaler("npu")'),
    ('p.add_argument("--device", default="cuda")\n', "device.text", 'p.add_argument("--device", default="npu")'),
    (
        'import torch\nwith torch.autocast(device_type=f"cuda:{i}"): pass\n',
        "device.text",
        'with torch.autocast(device_type=f"npu:{i}"): pass',
    ),
    ('D = "cu" "da"\n', "device.text", ""),
    ('KERNELS = {"cuda": fast, "cpu": slow}\n', "device.item", ""),
    ('fast = KERNELS.get("cuda")\n', "device.item", ""),
    ('ARGUMENTS = {"device": "cuda"}\n', "device.text", 'ARGUMENTS = {"device": "npu"}'),
    ("PORTS = {'nccl': 1}\n", "distributed.item", ""),
    ("import torch\nx = y.cumsum(0, dtype=torch.double)\n", "support.float64", ""),
    ("import torch\nx = torch.arange(9, dtype=torch.float64)\n", "dtype.float64", ""),
    ("from torch import nn\nlayer = nn.GRU(4, 4)\n", "support.absent", ""),
    ("from torch import nn\nact = nn.GELU()\n", "support.approximate", ""),
    ("model.cuda()\n", "device.method", "model.npu()"),
    ("x = x.to(y).cuda(non_blocking=True).half()\n", "device.method", "x = x.to(y).npu(non_blocking=True).half()"),
    ("class A:\n    def cuda(self): return self\nA().cuda()\n", "device.method", ""),
    ("class A:\n    def cuda(self): return self\n", "device.own_method", ""),
    ("if x.is_cuda: pass\n", "device.asked", "if x.is_npu: pass"),
    ("import torch\nx = torch.zeros(1).to(0)\n", "device.number", 'x = torch.zeros(1).to("npu:0")'),
    ("import torch\nx = torch.zeros(1, device=1)\n", "device.number_by_name", 'x = torch.zeros(1, device="npu:1")'),
    ("x = x.to(local_rank)\n", "device.number_in_variable", ""),
    ('accelerator = "gpu"\n', "device.gpu", ""),
    ("def f():\n    import torch as t\n    t.cuda.synchronize()\n", "api.same_name", "    t.npu.synchronize()"),
    ("def f():\n    global t\n    import torch as t\nt.cuda.synchronize()\n", "api.same_name", "t.npu.synchronize()"),
    ("import torch\ndef f(t=torch.cuda.Event(), torch=0): ...\n", "api.same_name", "def f(t=torch.npu.Event(), torch=0): ..."),
    ("import torch as t\nt.cuda.synchronize()\n", "api.same_name", "t.npu.synchronize()"),
    (
        "import torch\nn = torch.cuda.get_device_properties(0).name\n",
        "api.same_name",
        "n = torch.npu.get_device_properties(0).name",
    ),
    ("import torch\nx.type(torch.cuda.FloatTensor)\n", "api.same_name", "x.type(torch.npu.FloatTensor)"),
    (
        "from torch.cuda.amp import autocast, GradScaler\n",
        "api.same_name",
        "from torch_npu.npu.amp import autocast, GradScaler",
    ),
    ("from torch.cuda import amp\n", "api.same_name", "from torch_npu.npu import amp"),
    ("import torch\nfrom torch import cuda\ncuda.empty_cache()\n", "api.same_name", ""),
    ("import torch\ng = torch.cuda.CUDAGraph()\n", "api.graphs", ""),
    ('import torch\ntorch.cuda.nvtx.range_push("a")\n', "api.ranges", ""),
    ("import torch\nx = torch.cuda.brand_new()\n", "api.other", ""),
    ("from torch.cuda import nccl\n", "api.nccl", ""),
    ("import torch\nv = torch.version.cuda\n", "api.version", ""),
    (
        'import torch\ntorch.distributed.init_process_group("nccl")\n',
        "distributed.backend",
        'torch.distributed.init_process_group("hccl")',
    ),
    ('import torch\ntorch.distributed.init_process_group("cpu:gloo,cuda:nccl")\n', "distributed.backends", ""),
    ("import torch.nn as nn\nm = nn.DataParallel(m)\n", "distributed.data_parallel", ""),
    ("from torch.nn import DataParallel as DP\nm = DP(m)\n", "distributed.data_parallel", ""),
    ("from apex import amp\n", "mixed_precision.apex", ""),
    ('from apex import amp\nm, o = amp.initialize(m, o, opt_level="O1")\n', "mixed_precision.initialize", ""),
    ("import apex\nwith apex.amp.scale_loss(loss, o) as s: pass\n", "mixed_precision.scale_loss", ""),
    ("x = DataLoader(d, pin_memory=True)\n", "data_loading.pinned", ""),
    ("x = x.pin_memory()\n", "data_loading.pin", ""),
    ("import torch\no = torch.optim.AdamW(p, fused=True)\n", "optimizer.fused", ""),
    ("o = make(p, fused=True)\n", "optimizer.fused_given", ""),
    ("import torch\ntorch.backends.cudnn.enabled = False\n", "switch.cudnn", ""),
    ("import torch\nwith torch.backends.cuda.sdp_kernel(): pass\n", "switch.attention", ""),
    ("import torch\nx = x.to(torch.float64)\n", "dtype.float64", ""),
    ("x = x.double()\n", "dtype.to_double", ""),
    ("import torch\nz = torch.view_as_complex(x)\n", "dtype.complex", ""),
    ("import torch\ny = torch.fft.rfft(x)\n", "dtype.fourier", ""),
    ("import torch\nm = torch.compile(m)\n", "compile.compile", ""),
    ("import torch\n@torch.jit.script  # here\ndef f(x): return x\n", "compile.script", ""),
    ("import torch\ni = torch.nonzero(x)\n", "compile.shape_by_value", ""),
    ("from torch.utils.cpp_extension import CUDAExtension\ne = CUDAExtension('a', [])\n", "kernel.extension", ""),
    ("op = get('aten::cudnn_convolution_backward_weight')\n", "kernel.operator_named", ""),
    ("op = get('aten::cudnn_convolution')\nif x.device.type != 'cuda': pass\n", "device.text", ""),
    ("class A:\n    def forward(self, x): return x[x[:, 0] > self.low]\n", "compile.shape_of_mask", ""),
    ("import triton\n@triton.jit  # here\ndef f(x): pass\n", "kernel.triton", ""),
    ("from flash_attn import flash_attn_func\n", "library.flash_attn", ""),
    ("import xformers.ops as xops\n", "library.xformers", ""),
    ("import bitsandbytes as bnb\n", "library.bitsandbytes", ""),
    ("import transformer_engine.pytorch as te\n", "library.transformer_engine", ""),
    ("from nvidia.dali import pipeline_def\n", "data_loading.dali", ""),
    ("import cupy\n", "library.cupy", ""),
    ('m = A.from_pretrained("x", attn_implementation="flash_attention_2")\n', "library.flash_attention_asked", ""),
    (
        'import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "0"\n',
        "variable.devices",
        'os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "0"',
    ),
    ('import os\nos.environ["NCCL_DEBUG"] = "INFO"\n', "variable.collectives", ""),
    ('import os\nos.system("nvidia-smi")\n', "script.smi_in_python", ""),
    (
        "import torch\na = torch.profiler.ProfilerActivity.CUDA\n",
        "profiling.activity",
        "a = torch_npu.profiler.ProfilerActivity.NPU",
    ),
]
# A branch for CUDA in a source with kernels of CUDA must not become one for the NPU.
FOUND += [
    ("s = ['a.cu']\nif x.device.type == 'cuda': pass\n", "device.text", ""),
    ("from .triton_ops import filter_cuda\nif x.is_cuda: filter_cuda(x)\n", "device.asked", ""),
    ("from .ops import norm\nif x.is_cuda: norm(x)\n", "device.asked", "if x.is_npu: norm(x)"),
    ("from .ops import norm\nx = y\nx = np.array(z)\nx.nonzero()\n", "compile.shape_of_method", ""),
    ("from torchvision.ops.boxes import batched_nms\n", "library.torchvision", ""),
    ("session = make(providers=['CUDAExecutionProvider'])\n", "library.onnxruntime", ""),
    ("s = ['a.cc']\nif x.device.type == 'cuda': pass\n", "device.text", "if x.device.type == 'npu': pass"),
    ("kw = {'pin_memory': True}\n", "data_loading.pinned", ""),
    ("import torch\nd = r % torch.npu.device_count()\nx.to(d)\n", "device.number_by_count", 'x.to(f"npu:{d}")'),
]
NUMBERS = [
    ("import torch\ntorch.manual_seed(0)\n", "randomness.seed"),
    ("import torch\ntorch.cuda.manual_seed_all(0)\n", "randomness.seed"),
    ("import numpy as np\nnp.random.seed(0)\n", "randomness.seed"),
    ("import torch\nx = torch.randn(3, device=d)\n", "randomness.draw_on_device"),
    ("import torch\nx = torch.randn_like(y)\n", "randomness.draw_alike"),
    ("w.data.normal_(0, 0.02)\n", "randomness.draw_in_place"),
    ("import torch\ntorch.nn.init.xavier_uniform_(w)\n", "randomness.initial_weights"),
    ("import torch.nn as nn\nd = nn.Dropout(0.1)\n", "randomness.dropout"),
    ("import torch.nn.functional as F\ny = F.dropout(x)\n", "randomness.dropout"),
    ("import torch\ntorch.backends.cuda.matmul.allow_tf32 = True\n", "switch.tf32"),
    ("import torch\ntorch.backends.cudnn.benchmark = True\n", "switch.benchmark"),
    ("x = DataLoader(d, shuffle=True)\n", "data_loading.order"),
    ("import os\nfor f in os.listdir(d): pass\n", "data_loading.files"),
    ("import torch\ns = torch.amp.GradScaler()\n", "mixed_precision.scaler"),
]


WITHOUT_NUMBERS = [
    "import torch\nok = isinstance(m, (torch.nn.Dropout, int)) or isinstance(m, torch.nn.Dropout)\n",
    "import glob\nif glob.glob(p) or not glob.glob(q): pass\nassert glob.glob(p)\n",
    "import glob\nfiles = []\nfiles += glob.glob(p)\nfiles = sorted(f for f in files)\n",
    "import os\nnames = [f for f in os.listdir(p)]\nnames.sort()\n",
]


@pytest.fixture(scope="session")
def index():
    return Index(load_rules())


def scan(source, index):
    scanned, edits = scan_with_import(source, index)
    return scanned.findings, apply_edits(source.encode(), edits).decode()


@pytest.mark.parametrize("source", SILENT)
def test_nothing_is_found_where_nothing_is_tied_to_cuda(source, index):
    findings, patched = scan(source, index)
    assert [finding for finding in findings if finding.weight != "numbers"] == []
    assert patched == source


@pytest.mark.parametrize(("source", "rule", "mended"), FOUND, ids=[f"{rule}-{source}" for source, rule, _ in FOUND])
def test_what_is_tied_to_cuda_is_found_and_mended(source, rule, mended, index):
    findings, patched = scan(source, index)
    lines = source.splitlines()
    ours = [finding for finding in findings if finding.rule == rule]
    assert {finding.line for finding in ours} == {next((n for n, text in enumerate(lines, 1) if "# here" in text), len(lines))}
    assert ours[0].patched == bool(mended)
    assert ours[0].why
    assert ours[0].do
    ast.parse(patched)
    if mended:
        assert mended in patched.splitlines()
    again = scan_source(patched, index).findings
    assert [finding.rule for finding in again if finding.patched] == []  # a second scan has nothing to patch
    assert scan(patched, index)[1] == patched


@pytest.mark.parametrize(("source", "rule"), NUMBERS, ids=[rule for _, rule in NUMBERS])
def test_what_decides_the_numbers_is_said(source, rule, index):
    findings, _ = scan(source, index)
    assert [(finding.rule, finding.line) for finding in findings if finding.weight == "numbers"] == [(rule, source.count("\n"))]


@pytest.mark.parametrize("source", WITHOUT_NUMBERS)
def test_what_decides_no_number_is_not_said(source, index):
    assert scan(source, index)[0] == ()


def test_an_import_that_the_source_can_do_without_is_one_to_look_at(index):
    source = "try:\n    import apex\n    from apex import amp\nexcept ImportError:\n    apex = None\n"
    assert {finding.weight for finding in scan(source, index)[0]} == {"look"}
    assert {finding.weight for finding in scan(source.replace("apex = None", "raise"), index)[0]} == {"stops"}


@pytest.mark.parametrize(
    ("source", "patched"),
    [
        ("import torch\nx.cuda()\n", "import torch\nIMPORT\nx.npu()\n"),
        ('"""Doc."""\r\nimport torch\r\nx.cuda()\r\n', '"""Doc."""\r\nimport torch\r\nIMPORT\r\nx.npu()\r\n'),
        ("x.cuda(); import torch", "x.npu(); import torch\nIMPORT"),
        ("try:\n    import torch\nexcept E: pass\nx.cuda()\n", "try:\n    import torch\nexcept E: pass\nIMPORT\nx.npu()\n"),
        ("import torch\nimport torch_npu\nx.cuda()\n", "import torch\nimport torch_npu\nx.npu()\n"),
        ("x.cuda()  # x.cuda(), no torch here\n", "x.npu()  # x.cuda(), no torch here\n"),
        ("import torch\nprint(1)\n", "import torch\nprint(1)\n"),
    ],
)
def test_torch_npu_is_imported_where_something_is_changed(source, patched, index):
    assert scan(source, index)[1] == patched.replace("IMPORT", "import torch_npu  # noqa: F401")


def test_form_feeds_wide_letters_and_tabs_do_not_shift_a_patch(index):
    source = 'import torch_npu\n\x0c\ndef f(x):\n\tif x: y = "层 \u2028", x.cuda() ; z = f"{x.cuda()} 层"\n'
    findings, patched = scan(source, index)
    assert patched == source.replace("cuda", "npu")
    assert {finding.line for finding in findings} == {4}


@pytest.mark.parametrize("source", ["def f(:\n", "x = '\0'\n", "(" * 500 + ")" * 500, "print 'a'\n", "-" * 100_000 + "1"])
def test_what_python_cannot_parse_is_one_kind_of_error(source, index):
    with pytest.raises(SyntaxError):
        scan_source(source, index)
