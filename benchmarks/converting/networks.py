"""Five networks as they are converted in practice, made small: seeded weights, no downloads. Each has its inputs by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def clip_text() -> nn.Module:
    """Return a text encoder of CLIP with two layers."""
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
        bos_token_id=0,
        eos_token_id=2,
        attn_implementation="eager",
    )
    return CLIPTextModel(config)


def bert() -> nn.Module:
    """Return a BERT with two layers and a pooler, whose activation is the exact gelu."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        attn_implementation="eager",
    )
    return BertModel(config)


def unet() -> nn.Module:
    """Return a UNet with cross attention at one resolution."""
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=8,
        norm_num_groups=8,
    )


def vae() -> nn.Module:
    """Return an autoencoder with two resolutions."""
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
    )


class _Block(nn.Module):
    """Two convolutions, each with a norm, and a residual."""

    def __init__(self, into: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.down = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out)) if stride > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.down is None else self.down(x)))


def cnn() -> nn.Module:
    """Return a small residual network with batch norms that have seen data."""
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        _Block(16, 16),
        _Block(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low, high in (
                (module.running_mean, -0.2, 0.2),
                (module.running_var, 0.5, 1.5),
                (module.weight.data, 0.5, 1.5),
                (module.bias.data, -0.2, 0.2),
            ):
                tensor.uniform_(low, high)
    return network


def inputs(network: str) -> dict[str, Any]:
    """Return the inputs of a network by name, from the seed of the run."""
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    ids = torch.randint(3, 290, (2, 12))
    ids[:, -1] = 2
    return {
        "clip_text": {"input_ids": ids},
        "bert": {"input_ids": ids, "attention_mask": mask},
        "unet": {
            "sample": torch.randn(2, 4, 16, 16),
            "timestep": torch.tensor(500),
            "encoder_hidden_states": torch.randn(2, 9, 16),
        },
        "vae": {"sample": torch.randn(1, 3, 32, 32)},
        "cnn": {"input": torch.randn(2, 3, 24, 24)},
    }[network]
