"""Sequences to learn: each is a rising or falling line with noise, and the label says which."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Lines(Dataset):
    """Lines of some length with a slope up or down; the same for the same seed."""

    def __init__(self, count, length, seed=0):
        generator = np.random.RandomState(seed)
        self.labels = generator.randint(0, 2, size=count)
        slopes = np.where(self.labels == 1, 1.0, -1.0)[:, None]
        noise = generator.normal(0.0, 0.3, size=(count, length))
        self.values = slopes * np.linspace(-1.0, 1.0, length)[None, :] + noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        values = torch.as_tensor(self.values[index], dtype=torch.float32)
        return values.unsqueeze(-1), int(self.labels[index])


def make_loader(args, distributed):
    """Return the batches of the training data."""
    lines = Lines(args.samples, args.length, args.seed)
    sampler = DistributedSampler(lines, shuffle=False) if distributed else None
    return DataLoader(
        lines,
        batch_size=args.batch_size,
        sampler=sampler,
        shuffle=False,
        num_workers=args.workers,
        pin_memory=True,
        drop_last=True,
    )


def move(batch):
    """Put a batch on the GPU."""
    values, labels = batch
    return values.cuda(non_blocking=True), labels.cuda(non_blocking=True)
