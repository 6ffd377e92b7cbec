"""A language model that writes: it reads a prompt (*prefill*), then writes token by token from what it has cached (*decode*).

The loop is greedy, and each token that is chosen goes into the next call of the model. So a run has one call of
``language_model`` for the prompt, and one for each token behind the first::

    language_model         prefill: the whole prompt, fills the cache
    language_model~1       decode: reads the first token and the cache, writes the second token
    language_model~2       ...

With ``whatif: [reference_choice]`` the target goes on with the reference's tokens, so that every call can be compared; which
token it would have chosen itself is recorded all the same.
"""

from __future__ import annotations

import inspect
import os
from typing import Any, Dict, List, Sequence, Tuple

import torch

from precflow.agent.failures import AgentError
from precflow.agent.workloads import weights as checkpoints
from precflow.agent.workloads.extras import require

SEEDED = "seeded"
VOCABULARY = 512
# Two layers of Llama with grouped-query attention: large enough for every operator of the real one.
CONFIGURATION = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_PAD = 0


class Writer(torch.nn.Module):
    """Writes ``tokens`` tokens greedily.

    Args:
        language_model: A causal language model of transformers.
        tokens: How many tokens it writes behind each prompt.
    """

    def __init__(self, language_model: torch.nn.Module, tokens: int) -> None:
        super().__init__()
        self.language_model = language_model
        self.tokens = tokens
        self._takes_positions = "position_ids" in inspect.signature(language_model.forward).parameters

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Dict[str, Any]:
        """Return the tokens and what is left in the cache.

        Args:
            input_ids: Prompts, int64 of shape ``[prompts, length]``, padded on the left.
            attention_mask: 0 where a prompt is padded, else 1; of the same shape.

        Returns:
            ``tokens``: int64 of shape ``[prompts, tokens]``. ``keys`` and ``values``: one tensor a layer, of shape
            ``[prompts, heads, positions, size]``.
        """
        given, seen, cache = input_ids, attention_mask, None
        written: List[torch.Tensor] = []
        for _ in range(self.tokens):
            named: Dict[str, Any] = {"attention_mask": seen, "past_key_values": cache, "use_cache": True}
            if self._takes_positions:
                named["position_ids"] = (seen.cumsum(-1) - 1).clamp(min=0)[:, -given.shape[1] :]
            output = self.language_model(given, **named)
            cache = output.past_key_values
            given = output.logits[:, -1].argmax(-1, keepdim=True)
            written.append(given)
            seen = torch.cat([seen, torch.ones_like(given)], -1)
        keys, values = _read_cache(cache)
        return {"tokens": torch.cat(written, -1), "keys": keys, "values": values}


def writer(weights: str = SEEDED, tokens: int = 8, layers: int = 0) -> torch.nn.Module:
    """Build a language model that writes, on the CPU in float32, with eager attention: softmax and mask are recorded then.

    Args:
        weights: ``seeded``: a small Llama whose weights are drawn; or a ``from_pretrained`` folder of a causal language model.
        tokens: How many tokens it writes behind each prompt.
        layers: Layers of the seeded model; 0 is two.

    Raises:
        AgentError: ``workload``: transformers is missing, or the weights cannot be read; ``tokens`` or ``layers`` is no
            number that makes sense.
    """
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ.setdefault(name, "1")
    transformers = require("transformers")
    if tokens < 1 or layers < 0 or (layers and weights != SEEDED):
        expected = "expected at least 1 token, and layers with weights=seeded only"
        raise AgentError("workload", "writer: tokens=%r, layers=%r; %s" % (tokens, layers, expected))
    if weights == SEEDED:
        sizes = dict(CONFIGURATION, num_hidden_layers=layers or CONFIGURATION["num_hidden_layers"])
        configuration = transformers.LlamaConfig(attn_implementation="eager", **sizes)
        model = transformers.LlamaForCausalLM(configuration)
        checkpoints.fill_seeded(model)
    else:
        folder = os.path.expanduser(weights)
        if not os.path.isfile(os.path.join(folder, "config.json")):
            raise AgentError("workload", "writer: weights=%s is no folder with config.json" % weights)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, local_files_only=True
        )
    return Writer(model, tokens)


def prompts(
    token_ids: Sequence[Sequence[int]] = (), texts: Sequence[str] = (), tokenizer: str = "", pad: int = _PAD
) -> Dict[str, torch.Tensor]:
    """Return prompts padded on the left: ``input_ids`` and ``attention_mask``, int64 of shape ``[prompts, longest]``.

    Args:
        token_ids: One list a prompt.
        texts: Prompts in words, for a tokenizer.
        tokenizer: Folder of the model's tokenizer. If given, ``texts`` are tokenized and ``token_ids`` are not used.
        pad: Token that fills the left of shorter prompts; the mask hides it.

    Raises:
        AgentError: ``workload``: no prompt, an empty one, or a tokenizer that cannot be loaded.
    """
    rows = [list(row) for row in token_ids]
    if tokenizer:
        try:
            loaded = require("transformers").AutoTokenizer.from_pretrained(os.path.expanduser(tokenizer), local_files_only=True)
        except (OSError, ValueError) as error:
            raise AgentError("workload", "workload.inputs.tokenizer=%s cannot be loaded: %s" % (tokenizer, error)) from error
        rows = [list(row) for row in loaded(list(texts))["input_ids"]]
    if not rows or not all(rows):
        raise AgentError("workload", "prompts: expected at least one prompt, each with at least one token")
    longest = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[pad] * (longest - len(row)) + row for row in rows], dtype=torch.int64),
        "attention_mask": torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], dtype=torch.int64),
    }


def _read_cache(cache: Any) -> Tuple[List[torch.Tensor], List[torch.Tensor]]:
    """Return keys and values of each layer: transformers has kept its cache in three forms."""
    if hasattr(cache, "layers"):
        return [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]
    if hasattr(cache, "key_cache"):
        return list(cache.key_cache), list(cache.value_cache)
    return [layer[0] for layer in cache], [layer[1] for layer in cache]
