"""A small mixture of experts with two experts scored alike but for rounding: on another chip tokens change places."""

import torch
from transformers import MixtralConfig, MixtralForCausalLM


def build():
    """Return a model of two layers with eight experts; expert 5 is a copy of expert 3 but for one part in ten million."""
    config = MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        initializer_range=0.5,  # the usual 0.02 would score all experts nearly alike
        use_cache=False,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    model = MixtralForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            gate = layer.mlp.gate.weight
            gate[5] = gate[3] + 1e-7 * torch.randn(gate[3].shape)
    return model


def inputs(rows=4, tokens=32):
    return {"input_ids": torch.randint(0, 64, (rows, tokens))}
