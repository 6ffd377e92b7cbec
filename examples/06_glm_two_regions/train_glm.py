"""Train a GLM decoder. Nothing in this file knows precflow.

python train_glm.py --steps 100              writes gpulog.json
"""

import argparse
import json
import types

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import GlmConfig, GlmForCausalLM
from transformers.models.glm.modeling_glm import GlmRMSNorm


def build_model(layers, width):
    """Return a GLM of the published architecture, with fewer and narrower layers."""
    config = GlmConfig(
        vocab_size=512,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        max_position_embeddings=512,
        pad_token_id=0,
        attn_implementation="eager",
    )
    return GlmForCausalLM(config)


def use_fused_norms(model):
    """Replace the norms of the model by the fused operator, which is faster on accelerators."""

    def forward(self, hidden):
        return F.rms_norm(hidden, (hidden.shape[-1],), self.weight, 1e-6)

    for module in model.modules():
        if isinstance(module, GlmRMSNorm):
            module.forward = types.MethodType(forward, module)


def make_sentences(count, length):
    """Return token ids in which each token follows from the one before, with some noise."""
    generator = torch.Generator().manual_seed(11)
    follower = torch.randperm(512, generator=generator)
    tokens = torch.randint(1, 512, (count, 1), generator=generator)
    for _ in range(length - 1):
        surprise = torch.randint(1, 512, (count, 1), generator=generator)
        is_surprise = torch.rand(count, 1, generator=generator) < 0.1
        tokens = torch.cat([tokens, torch.where(is_surprise, surprise, follower[tokens[:, -1:]])], dim=1)
    return tokens


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--fused-norms", action="store_true")
    parser.add_argument("--log", default="gpulog.json")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = build_model(args.layers, args.width).to(args.device)
    if args.fused_norms:
        use_fused_norms(model)
    model.train()
    loader = DataLoader(make_sentences(1024, 32), batch_size=args.batch, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)

    curve = []
    while len(curve) < args.steps:
        for tokens in loader:
            tokens = tokens.to(args.device)
            loss = model(input_ids=tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            curve.append({"step": len(curve), "loss": loss.item()})
            if len(curve) == args.steps:
                break
    with open(args.log, "w") as log:
        json.dump(curve, log)
    print(f"{len(curve)} steps, last loss {curve[-1]['loss']:.4f}")


if __name__ == "__main__":
    main()
