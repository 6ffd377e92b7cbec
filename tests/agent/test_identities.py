"""Golden identities: which records a model makes, and under which names. Everything later keys on them.

Each case runs one small model and compares the text of all its records with ``golden/<case>.json``. After a deliberate
change of the contract write them anew with ``PRECFLOW_WRITE_GOLDEN=1 pytest tests/agent/test_identities.py`` and read the
difference.
"""

import json
import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from toys import Calls

from precflow.agent.capture.recorder import Recorder
from precflow.agent.contract import Identity, identity_text, parse_identity
from precflow.agent.dump.writer import Writer

GOLDEN = Path(__file__).parent / "golden"
GOLDEN_IDENTITIES = sorted(set(GOLDEN.glob("*.json")) - {GOLDEN / "digest.json"})


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin() * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor
    note: str = ""


class ModelOutput(OrderedDict):
    """The shape of transformers' ModelOutput: a mapping whose keys are its fields."""


class Marked(nn.Parameter):
    """A parameter class of a user's own."""


def composite():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    return Calls(lambda self, x: self.attention(x, x, x), attention=attention), (x3(),), {}


def fused_attention():
    return Calls(lambda _, q: functional.scaled_dot_product_attention(q, q, q, is_causal=True)), (x3(),), {}


def autograd_function():
    return Calls(lambda _, x: Double.apply(x + 1)), (x2(),), {}


def compiled_module():
    inner = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), backend="eager")
    return Calls(lambda self, x: self.after(self.block(x)), block=inner, after=nn.ReLU()), (x2(),), {}


def compiled_in_place():
    inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    inner.compile(backend="eager")
    return Calls(lambda self, x: self.block(x) + 1, block=inner), (x2(),), {}


def script_module():
    inner = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    return Calls(lambda self, x: self.block(x) + 1, block=inner), (x2(),), {}


def recomputation():
    def forward(self, x):
        result = checkpoint(self.block, x, use_reentrant=False)
        result.sum().backward()  # computes the block again
        return result.detach() * 2

    return Calls(forward, block=nn.Sequential(nn.Linear(4, 4), nn.Tanh())), (x2().requires_grad_(),), {}


def called_twice():
    def forward(self, x):
        return self.shared(self.shared(x)) + self.shared(x)

    return Calls(forward, shared=nn.Linear(4, 4)), (x2(),), {}


def shared_under_two_names():
    linear = nn.Linear(4, 4)
    return Calls(lambda self, x: self.second(self.first(x)), first=linear, second=linear), (x2(),), {}


def in_place():
    def forward(_, x):
        y = x * 1
        y += 1
        y.mul_(2)
        functional.relu(y, inplace=True)
        row = y.view(8)
        row.neg_()
        return y - 1  # the last writer of y is neg_, through a view

    return Calls(forward), (x2(),), {}


def out_argument():
    def forward(_, x):
        result = torch.zeros(2, 4)
        torch.add(x, x, out=result)
        return result * 2

    return Calls(forward), (x2(),), {}


def item_access():
    def forward(_, x):
        y = x + 0
        y[0] = 3.0
        y[:, 1] = x[0, :2]
        return y[torch.tensor([True, False])] * 2

    return Calls(forward), (x2(),), {}


def nested_outputs():
    def forward(self, x):
        pair = self.pair(x)
        both = self.mapping({"first": pair.left, "rest": [pair.right, (x, 1)]})
        return ModelOutput(last_hidden_state=both["sum"], hidden_states=(x, both["sum"]), attentions=None)

    def mapping(_, values):
        return {"sum": values["first"] + values["rest"][0], "unused": None}

    parts = {"pair": Calls(lambda _, x: Pair(x + 1, x + 2, "note")), "mapping": Calls(mapping)}
    return Calls(forward, **parts), (x2(),), {}


def keyword_tensors():
    def forward(self, hidden, *, attention_mask=None, scale=1.0, extra=()):
        return self.inner(x=hidden, mask=attention_mask) * scale + extra[0]

    inner = Calls(lambda _, x, mask: torch.where(input=x, condition=mask > 0, other=torch.zeros(())))
    keywords = {"attention_mask": torch.ones(2, 4), "scale": 0.5, "extra": [x2(), "text"]}
    return Calls(forward, inner=inner), (x2(),), keywords


def reflected_operators():
    def forward(_, x):
        return [1 + x, 1 - x, 2 * x, 2 / x, 2**x, 2 // x, x / 2, x // 2, x % 2, ~(x > 0) | (x < 1), -x, abs(x), x @ x.T]

    return Calls(forward), (x2(),), {}


def aliases_of_one_operator():
    def forward(_, x):
        return functional.softmax(x, -1), torch.softmax(x, -1), x.softmax(-1), torch.ops.aten.softmax(x, -1)

    return Calls(forward), (x2(),), {}


def parameter_class():
    linear = nn.Linear(4, 4, bias=False)
    linear.weight = Marked(linear.weight.detach())
    return Calls(lambda self, x: self.linear(x) + self.linear.weight.sum(), linear=linear), (x2(),), {}


def not_recorded():
    def forward(_, x):
        half = (x + 1).to(torch.float16)  # the edge runs through casts and through what returns the same tensor
        same = functional.dropout(half.float().contiguous(), 0.5, training=False)
        if same.sum().item() < 0 or x.shape[0] == 0 or x.is_contiguous() is False:
            same = same * 0
        return same.T.exp()

    return Calls(forward), (x2(),), {}


def weights_and_buffers():
    norm = nn.BatchNorm1d(4).train()

    def forward(self, x):
        self.counter += 1
        weight = self.norm.weight.detach()  # still the weight
        return self.norm(x) * weight + self.counter  # the counter was written to: it is no weight any more

    model = Calls(forward, norm=norm)
    model.register_buffer("counter", torch.zeros(()))
    return model, (x2(),), {}


def odd_names():
    names = ["a/b", "with space", "注意力", "n" * 300, "<script>alert(1)</script>", "per%cent~1@2(x)", "line\nbreak", "weight"]
    layers = nn.ModuleDict({name: nn.Identity() for name in names})

    def forward(self, x):
        return {name: layer(x + 1) for name, layer in self.layers.items()}

    return Calls(forward, layers=layers), (x2(),), {}


def x2():
    return torch.arange(8, dtype=torch.float32).reshape(2, 4) + 1


def x3():
    return torch.linspace(0, 1, 48).reshape(2, 3, 8)


CASES = [
    composite,
    fused_attention,
    autograd_function,
    compiled_module,
    compiled_in_place,
    script_module,
    recomputation,
    called_twice,
    shared_under_two_names,
    in_place,
    out_argument,
    item_access,
    nested_outputs,
    keyword_tensors,
    reflected_operators,
    aliases_of_one_operator,
    parameter_class,
    not_recorded,
    weights_and_buffers,
    odd_names,
]


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_golden(case, tmp_path):
    skip_where_torch_is_too_old(case)
    torch.manual_seed(0)
    model, positional, keywords = case()
    lines = record(model, positional, keywords, tmp_path)
    found = {"case": case.__name__, "records": [text for line in lines for text in texts(line)]}
    path = GOLDEN / (case.__name__ + ".json")
    if os.environ.get("PRECFLOW_WRITE_GOLDEN"):
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    expected = json.loads(path.read_text(encoding="utf-8"))
    assert found == expected


@pytest.mark.parametrize("path", GOLDEN_IDENTITIES, ids=lambda path: path.stem)
def test_golden_identities_can_be_read_back(path):
    identities = [text.split("  ")[0] for text in json.loads(path.read_text(encoding="utf-8"))["records"]]
    assert [identity_text(parse_identity(text)) for text in identities] == identities
    assert len(set(identities)) == len(identities)


def test_every_golden_file_has_a_case():
    assert {path.stem for path in GOLDEN_IDENTITIES} == {case.__name__ for case in CASES}


def record(model, positional, keywords, folder):
    writer = Writer(folder)
    with Recorder(writer).watch(model):
        model(*positional, **keywords)
    writer.seal({})
    return [json.loads(line) for line in (folder / "rank0/step0/records-0.jsonl").read_text(encoding="utf-8").splitlines()]


def texts(line):
    """One text for each record of a line: identity, type and shape, where it comes from, and what is said of the call."""
    for role, records in (("input", line["inputs"]), ("output", line["outputs"])):
        for found in records:
            who = [line[key] for key in ("module", "call", "operator", "ordinal", "phase")]
            parts = [identity_text(Identity(*who, role, found["index"], line["step"], line["rank"]))]
            parts.append("{}{}".format(found["dtype"], json.dumps(found["shape"])))
            parts += ["from {}.{}".format(*found["source"])] if found["source"] else []
            parts += ["weight {}".format(found["weight"])] if found["weight"] else []
            parts += [flag for flag in ("movement", "compiled") if line[flag]]
            parts.append(f"by order {line['order']}")
            yield "  ".join(parts)


def skip_where_torch_is_too_old(case):
    """Old versions show a function mode no indexing, and compile less; names that they do show agree."""
    if case in (item_access, composite) and not sees_indexing():
        pytest.skip("this torch does not show x[i] to function modes")
    if case is compiled_in_place and not hasattr(nn.Module, "compile"):
        pytest.skip("this torch has no Module.compile")


def sees_indexing():
    seen = Recorder(None)
    with seen.watch(nn.Identity()):
        torch.ones(2)[0]
    return "(outside)/getitem.0/forward.output.0" in seen.contents
