"""A small network that is trained, with one fault of a training migration planted: every factory takes its name."""

import copy

import torch
from torch import nn
from torch.nn import functional


class Uneven(torch.autograd.Function):
    """Does nothing in forward, and weighs the gradient unevenly in backward."""

    @staticmethod
    def forward(ctx, value):
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.linspace(1.0, 1.1, gradient.shape[-1])


class Network(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault
        self.norm = nn.LayerNorm(16, eps=1e-2 if fault == "norm_eps" else 1e-5)
        self.wide = nn.Linear(16, 32)
        self.act = nn.GELU(approximate="tanh" if fault == "activation" else "none")
        self.narrow = nn.Linear(32, 16)
        self.head = nn.Linear(16, 4)
        self.prepare = None

    def forward(self, features):
        hidden = self.narrow(self.act(self.wide(self.norm(features))))
        if self.fault == "backward_operator":
            hidden = Uneven.apply(hidden)
        output = self.head(features + hidden)
        if self.prepare is not None:  # at the end of backward, as a training loop does it between backward and the optimizer
            output.register_hook(lambda _: torch.autograd.Variable._execution_engine.queue_callback(self.prepare))
        return output


def build(fault=""):
    return Network(fault)


def inputs(fault=""):
    features, labels = torch.randn(12, 16), torch.randint(0, 4, (12,))
    order = torch.arange(11, -1, -1) if fault == "shuffled_data" else torch.arange(12)
    return {"features": features[order], "labels": labels[order]}


def loss(fault=""):
    def cross_entropy(output, labels):
        if fault == "reduction_type":
            return functional.cross_entropy(output, labels, reduction="sum")
        value = functional.cross_entropy(output, labels)
        return value / 4 if fault == "loss_division" else value

    return cross_entropy


class Trainer(torch.optim.AdamW):
    """AdamW as a framework wraps it: gradients are changed before its step, and its settings are its own."""

    def __init__(self, model, fault):
        if fault == "frozen":
            model.wide.requires_grad_(requires_grad=False)
        if fault == "other_parameters":  # those from before they were wrapped
            model = copy.deepcopy(model)
        decayed = [weight for name, weight in model.named_parameters() if weight.ndim > 1]
        others = [weight for name, weight in model.named_parameters() if weight.ndim == 1]
        groups = [
            {"params": decayed, "weight_decay": 0.1},
            {"params": others, "weight_decay": 0.1 if fault == "decay_groups" else 0.0},
        ]
        settings = {"eps": 1e-4 if fault == "optimizer_eps" else 1e-8, "betas": (0.9, 0.95 if fault == "betas" else 0.999)}
        super().__init__(groups, lr=0.01, **settings)
        self.fault = fault
        self.made = 0

    def step(self, closure=None):
        weights = [weight for group in self.param_groups for weight in group["params"]]
        kept = weights[0].detach().clone()
        said = [{name: group[name] for name in ("eps", "betas", "lr")} for group in self.param_groups]
        hidden = {"hidden_eps": {"eps": 1e-3}, "hidden_beta": {"betas": (0.9, 0.9)}, "hidden_rate": {"lr": 0.05}}.get(
            self.fault, {}
        )
        for group in self.param_groups:
            group.update(hidden)
        super().step(closure)
        for group, settings in zip(self.param_groups, said, strict=True):
            group.update(settings)
        if self.fault == "weight_overwritten":
            with torch.no_grad():
                weights[0].mul_(1.001)
        if self.fault == "lost_update":
            with torch.no_grad():
                weights[0].copy_(kept)


def change_gradients(model, fault):
    """Clip the gradients, and what else happens to them before the optimizer."""
    weights = [weight for weight in model.parameters() if weight.grad is not None]
    if fault == "clipping_type":
        nn.utils.clip_grad_value_(weights, 0.01)
    else:
        nn.utils.clip_grad_norm_(weights, 0.05 if fault == "clipping_limit" else 0.1)
    for weight in weights:
        if fault == "accumulation":  # a second micro batch is added and not averaged
            weight.grad.mul_(2)
        if fault == "bf16_main_gradients":
            weight.grad.copy_(weight.grad.bfloat16())


def optimizer(model, fault=""):
    made = Trainer(model, fault)
    model.prepare = lambda: change_gradients(model, fault)
    rates, clear = [0.01, 0.02, 0.03], made.zero_grad

    def begin():
        clear()
        for group in made.param_groups:
            group["lr"] = rates[made.made + (fault == "schedule_off_by_one")]
        made.made += 1

    made.zero_grad = begin  # each step begins with it
    return made
