"""Writes a narrow text encoder: a run over it takes a sixth of the time of one over the real width.

It is a ``from_pretrained`` folder, which recipe ``sd_text_encoder`` takes as it is: the same modules and operators, 32 wide in
place of 768, so that 38 million numbers of the embedding become 1.6 million. As a program: ``small_encoder.py FOLDER LAYERS``.
"""

import sys

WIDTH = 32


def write(folder, layers):
    """Write seeded weights and the configuration of an encoder with so many layers."""
    import torch
    from transformers import CLIPTextConfig, CLIPTextModel

    from precflow.agent.workloads.stable_diffusion import CONFIGURATION

    narrow = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_attention_heads": 4, "num_hidden_layers": layers}
    torch.manual_seed(7)
    CLIPTextModel(CLIPTextConfig(**{**CONFIGURATION, **narrow})).save_pretrained(folder)


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]))
