"""Trains the classifier: one GPU, several in one process, or one process a GPU.

    python train.py
    python -m torch.distributed.launch --nproc_per_node 8 train.py
"""

import argparse
import os
import random
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from data import make_loader, move
from model import Classifier

try:
    from apex import amp
except ImportError:
    amp = None


def parse_arguments():
    """Return the settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--opt-level", default="O0", help="of apex")
    parser.add_argument("--checkpoint", default="")
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", -1)))
    return parser.parse_args()


def set_seeds(seed):
    """Seed everything, so that runs can be repeated."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = True


def wrap(model, args, distributed):
    """Return the model for as many GPUs as there are."""
    if distributed:
        return nn.parallel.DistributedDataParallel(model, device_ids=[args.local_rank])
    if torch.cuda.device_count() > 1:
        return nn.DataParallel(model)
    return model


def save(model, path):
    """Write the weights."""
    inner = model.module if hasattr(model, "module") else model
    torch.save({"model": inner.state_dict(), "rng": torch.cuda.get_rng_state()}, path)


def main():
    """Train."""
    args = parse_arguments()
    distributed = args.local_rank >= 0
    if distributed:
        torch.cuda.set_device(args.local_rank)
        dist.init_process_group(backend="nccl")
    set_seeds(args.seed)
    model = Classifier(args.width, args.heads, args.depth, args.length).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if amp is not None:
        model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level)
    model = wrap(model, args, distributed)
    criterion = nn.CrossEntropyLoss().cuda()
    loader = make_loader(args, distributed)
    step = 0
    while step < args.steps:
        for batch in loader:
            torch.cuda.synchronize()
            began = time.time()
            values, labels = move(batch)
            loss = criterion(model(values), labels)
            optimizer.zero_grad()
            if amp is not None:
                with amp.scale_loss(loss, optimizer) as scaled:
                    scaled.backward()
            else:
                loss.backward()
            optimizer.step()
            torch.cuda.synchronize()
            memory = torch.cuda.max_memory_allocated() / 2**20
            print(f"step {step} loss {loss.item():.6f} seconds {time.time() - began:.3f} memory {memory:.0f} MiB", flush=True)
            step += 1
            if step == args.steps:
                break
    if args.checkpoint and args.local_rank <= 0:
        save(model, args.checkpoint)


if __name__ == "__main__":
    main()
