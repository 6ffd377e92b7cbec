"""Train the diffusion transformer. Nothing in these three files knows precflow.

python train.py --steps 200 --log loss.jsonl
"""

import argparse
import json

import torch
from dit import DiT
from gaussian_diffusion import GaussianDiffusion
from torch.utils.data import DataLoader, TensorDataset


def make_latents(count, size):
    """Return latents of shape [count, 4, size, size] and their classes: each class is a pattern of waves of its own."""
    generator = torch.Generator().manual_seed(7)
    classes = torch.randint(0, 10, (count,), generator=generator)
    patterns = torch.randn(10, 4, size, size, generator=generator)
    return patterns[classes] + 0.3 * torch.randn(count, 4, size, size, generator=generator), classes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", default="loss.jsonl")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    latents, classes = make_latents(512, args.size)
    loader = DataLoader(TensorDataset(latents, classes), batch_size=args.batch, shuffle=True, drop_last=True)
    model = DiT(size=args.size, width=args.width, depth=args.depth).to(args.device)
    diffusion = GaussianDiffusion()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)

    step = 0
    with open(args.log, "w") as log:
        while step < args.steps:
            for x, y in loader:
                x, y = x.to(args.device), y.to(args.device)
                t = diffusion.draw_timesteps(x)
                loss = diffusion.training_loss(model, x, t, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                log.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
                if step % 10 == 0:
                    print(f"step {step:5d}  loss {loss.item():.6f}", flush=True)
                step += 1
                if step == args.steps:
                    break


if __name__ == "__main__":
    main()
