"""The names by which people are told of calls and records, on every screen and page.

    encoder.layers.0.attn / softmax              an operator in a module
    encoder.layers.0.attn / softmax.1            its second run in the same call of the module
    encoder.layers.0~1                           the second call of a module in a step
    blocks.1 / chunk, output 2                   the third tensor that it returns
    blocks.1.mlp.0 (backward, step 1)            the gradient at a module, in step 1
    blocks.1.mlp.0.weight (gradient)             the gradient of a parameter
    blocks.1.mlp.0.weight exp_avg (optimizer)    a tensor of the optimizer's state behind its step

What is not named is the first: step 0, rank 0, the first call, the first tensor. So no two records of a run have one name.
"""

from __future__ import annotations

from precflow.agent.contract import FORWARD, GRADIENT, OPTIMIZER, OUTSIDE, Identity, module_text

_FIRST = "0"  # index of the first tensor


def name_place(module: str, call: int, operator: str) -> str:
    """Return ``module / operator``, or only the module: what calls of an operator in one call of a module have in common.

    >>> name_place("layers.0.attn", 1, "softmax"), name_place("", 0, "")
    ('layers.0.attn~1 / softmax', '(model)')
    """
    owner = module_text(module, call)
    return f"{owner} / {operator}" if operator else owner


def name_call(identity: Identity) -> str:
    """Return the name of the call that has a record: all of its tensors are of one name, but for what belongs to parameters.

    >>> name_call(Identity("layers.0", 0, "linear", 1, "forward", "output", "2", 3, 0))
    'layers.0 / linear.1 (step 3)'
    >>> name_call(Identity("", 0, "", 0, "optimizer", "output", "pos.exp_avg", 0, 1))
    'pos (optimizer, rank 1)'
    """
    shown = name_place(identity.module, identity.call, identity.operator)
    if identity.ordinal:
        shown = f"{shown}.{identity.ordinal}"
    parameter, _ = split_parameter(identity)
    if parameter:
        shown = f"{shown}.{parameter}" if identity.module or identity.call else parameter
    return shown + _describe_when(identity)


def name_record(identity: Identity) -> str:
    """Return the name of a record.

    >>> name_record(Identity("layers.0", 0, "linear", 1, "forward", "output", "2", 3, 0))
    'layers.0 / linear.1, output 2 (step 3)'
    >>> name_record(Identity("head", 0, "", 0, "optimizer", "output", "weight.exp_avg", 1, 0))
    'head.weight exp_avg (optimizer, step 1)'
    """
    when = _describe_when(identity)
    call = name_call(identity).removesuffix(when)
    parameter, state = split_parameter(identity)
    if identity.role != "output":
        return f"{call}, {identity.role} {identity.index}{when}"
    if parameter:
        return f"{call} {state}{when}" if state else call + when
    return call + when if identity.index == _FIRST else f"{call}, output {identity.index}{when}"


def find_operator(name: str) -> str:
    """Return the operator of a call by its name; ``""`` of a module.

    >>> find_operator("layers.0 / dropout.1 (step 3)"), find_operator("layers.0 (backward)"), find_operator("fc / aten.addmm")
    ('dropout', '', 'aten.addmm')
    """
    operator = name.rpartition(" / ")[2].partition(" (")[0].partition(", ")[0] if " / " in name else ""
    head, _, ordinal = operator.rpartition(".")
    return head if ordinal.isdigit() else operator


def split_parameter(identity: Identity) -> tuple[str, str]:
    """Return the parameter of a gradient or a step of an optimizer, and the tensor of its state; two empty texts of others.

    >>> split_parameter(Identity("head", 0, "", 0, "optimizer", "output", "weight.exp_avg", 0, 0))
    ('weight', 'exp_avg')
    """
    if identity.phase not in {GRADIENT, OPTIMIZER} or identity.operator:
        return "", ""
    if identity.module == OUTSIDE:  # a parameter of no module goes by its group and its number in that: "0.3.exp_avg"
        group, _, rest = identity.index.partition(".")
        number, _, state = rest.partition(".")
        return f"{group}.{number}", state
    parameter, _, state = identity.index.partition(".")
    return parameter, state


def _describe_when(identity: Identity) -> str:
    """Return ``" (backward, step 1, rank 2)"`` without what is the first or the usual."""
    words = [identity.phase] if identity.phase != FORWARD else []
    words += [f"step {identity.step}"] if identity.step else []
    words += [f"rank {identity.rank}"] if identity.rank else []
    return f" ({', '.join(words)})" if words else ""
