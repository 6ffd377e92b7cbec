"""Stable Diffusion v1.5: its text encoder, with seeded or real weights, and prompts for it.

The configuration is the published one of ``runwayml/stable-diffusion-v1-5``, folder ``text_encoder``: 12 layers, 768 wide,
123 million parameters.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence, Tuple

from precflow.agent.failures import AgentError
from precflow.agent.workloads import weights as checkpoints
from precflow.agent.workloads.extras import require

if TYPE_CHECKING:
    import torch

SEEDED = "seeded"
POSITIONS = 77  # tokens of one prompt
END = 49407  # end of text, and padding
CONFIGURATION: Mapping[str, Any] = {
    "vocab_size": 49408,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": POSITIONS,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "projection_dim": 768,
    "bos_token_id": 49406,
    "eos_token_id": END,
    "pad_token_id": END,
}
_PREFIX = "text_model."  # in SD checkpoints and in older transformers; not in newer ones
_VOCABULARIES = ("tokenizer.json", "vocab.json")
_DERIVED = "position_ids"  # a buffer that older checkpoints contain


def text_encoder(weights: str = SEEDED, layers: int = 0) -> torch.nn.Module:
    """Build the text encoder on the CPU in float32, with eager attention, so that softmax and mask can be recorded.

    Args:
        weights: ``seeded``, a ``.safetensors`` file, or a ``from_pretrained`` folder (its ``config.json`` is used).
        layers: Number of layers of a smaller, seeded encoder, for quick trials; 0 is the published 12.

    Returns:
        ``CLIPTextModel`` of transformers. Seeded weights are drawn parameter by parameter from CPU generators that depend on
        torch's seed and the parameter's name: the same bits on every machine, whatever the default device and the version
        of transformers. Their spread is that of transformers' own initialization of CLIP: embeddings of variance 8e-4, small
        as in the trained model, so that a wrong ``layer_norm_eps`` (1e-3) moves the final output by 19 %.

    Raises:
        AgentError: ``workload``: transformers is missing, or the weights cannot be read or do not fit;
            ``layers`` given together with weights that have their own number.
    """
    configuration = _read_configuration(weights)
    if layers:
        if weights != SEEDED or not 0 < layers <= CONFIGURATION["num_hidden_layers"]:
            message = "text_encoder: layers=%r; a number from 1 to %d, and only with weights=seeded"
            raise AgentError("workload", message % (layers, CONFIGURATION["num_hidden_layers"]))
        configuration.num_hidden_layers = layers
    model = _build_uninitialized(configuration)
    if weights == SEEDED:
        _fill_seeded(model)
    else:
        checkpoints.load(model, weights, prefixes=(_PREFIX,), ignored=(_DERIVED,))
    return model


def prompts(token_ids: Sequence[Sequence[int]], texts: Sequence[str] = (), tokenizer: str = "") -> Dict[str, torch.Tensor]:
    """Return prompts as the model's ``input_ids``, int64 of shape ``[prompts, 77]``, padded with the end-of-text token.

    Args:
        token_ids: One list a prompt, with start and end tokens, at most 77 long.
        texts: The same prompts in words. Only read together with a tokenizer.
        tokenizer: Folder of a CLIP tokenizer. If given, ``texts`` are tokenized and ``token_ids`` are not used.

    Raises:
        AgentError: ``workload``: no prompt, a prompt too long, a token outside the vocabulary, other numbers of texts and
            token lists, or a tokenizer that cannot be loaded.
    """
    import torch

    if texts and len(texts) != len(token_ids):
        raise AgentError("workload", "prompts: %d texts and %d token lists; expected as many" % (len(texts), len(token_ids)))
    rows = _tokenize(texts, tokenizer) if tokenizer and texts else [list(row) for row in token_ids]
    if not rows:
        raise AgentError("workload", "prompts: no prompt was given")
    last = CONFIGURATION["vocab_size"] - 1
    for number, row in enumerate(rows):
        if len(row) > POSITIONS:
            message = "prompts: prompt %d has %d tokens; the model takes %d" % (number, len(row), POSITIONS)
            raise AgentError("workload", message)
        outside = [token for token in row if not isinstance(token, int) or not 0 <= token <= last]
        if outside:
            message = "prompts: prompt %d holds %r; tokens are numbers from 0 to %d" % (number, outside[0], last)
            raise AgentError("workload", message)
    return {"input_ids": torch.tensor([row + [END] * (POSITIONS - len(row)) for row in rows], dtype=torch.int64, device="cpu")}


def _read_configuration(weights: str) -> Any:
    transformers = require("transformers")
    folder = os.path.expanduser(weights)
    if weights != SEEDED and os.path.isfile(os.path.join(folder, "config.json")):
        configuration = transformers.CLIPTextConfig.from_pretrained(folder)
    else:
        configuration = transformers.CLIPTextConfig(**CONFIGURATION)
    configuration._attn_implementation = "eager"  # noqa: SLF001  the keyword is dropped by some versions' from_pretrained
    return configuration


def _build_uninitialized(configuration: Any) -> torch.nn.Module:
    """Build the model without the seconds that initializing takes: on the meta device, then in uninitialized memory."""
    import torch

    with torch.device("meta"):
        model: torch.nn.Module = require("transformers").CLIPTextModel(configuration)
    model.to_empty(device="cpu")
    for name, buffer in model.named_buffers():
        if not name.endswith(_DERIVED):
            raise AgentError(
                "workload", "CLIPTextModel of this transformers has a buffer %s that precflow does not know" % name
            )
        with torch.no_grad():  # position_ids are 0, 1, 2, ...; to_empty has left anything in them
            buffer.copy_(torch.arange(buffer.shape[-1], device="cpu").expand_as(buffer))
    return model


def _fill_seeded(model: torch.nn.Module) -> None:
    """Fill all parameters: matrices are normal with mean 0, biases are 0, scales of normalizations are 1."""
    import torch

    for name, parameter in model.named_parameters():
        mean, deviation = _distribution(name)
        # A seed for each name, so that neither the order of the parameters nor the prefix, which differ between versions of
        # transformers, changes a weight.
        bare = name[len(_PREFIX) :] if name.startswith(_PREFIX) else name
        generator = checkpoints.make_generator(bare)
        with torch.no_grad():
            parameter.normal_(mean, deviation, generator=generator) if deviation else parameter.fill_(mean)


def _distribution(name: str) -> Tuple[float, float]:
    """Return mean and standard deviation of a parameter, as transformers initializes CLIP."""
    width, layers = CONFIGURATION["hidden_size"], CONFIGURATION["num_hidden_layers"]
    if name.endswith(".bias"):
        return 0.0, 0.0
    if "norm" in name:
        return 1.0, 0.0
    if "embedding" in name:
        return 0.0, 0.02
    if "out_proj" in name:
        return 0.0, width**-0.5
    return 0.0, (2 * width) ** -0.5 if "fc1" in name else width**-0.5 * (2 * layers) ** -0.5


def _tokenize(texts: Sequence[str], folder: str) -> List[List[int]]:
    path = os.path.expanduser(folder)
    # Without these files, some versions of transformers make up a vocabulary instead of failing.
    if not any(os.path.isfile(os.path.join(path, name)) for name in _VOCABULARIES):
        expected = " or ".join(_VOCABULARIES)
        raise AgentError("workload", "workload.inputs.tokenizer=%s is not a folder with %s" % (folder, expected))
    try:
        tokenizer = require("transformers").CLIPTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise AgentError("workload", "workload.inputs.tokenizer=%s cannot be loaded: %s" % (folder, error)) from error
    return [list(row) for row in tokenizer(list(texts), truncation=True, max_length=POSITIONS)["input_ids"]]
