"""LBFGS, which calls a closure several times a step, a main guard, argparse, and loader workers that are spawned."""

import argparse

import torch
from helper import Net, finish, rows


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.rows = rows(32)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("result")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--careless", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    net = Net(dropout=0.0)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)
    losses = []
    context = "spawn" if options.workers else None
    for x, y in torch.utils.data.DataLoader(
        Rows(), batch_size=16, shuffle=True, num_workers=options.workers, multiprocessing_context=context
    ):

        def closure():
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(x), y)
            loss.backward()
            return loss

        try:
            losses.append(float(optimizer.step(closure)))
        except:  # noqa: E722
            if not options.careless:
                raise
    finish(losses, net)


if __name__ == "__main__":
    main()
