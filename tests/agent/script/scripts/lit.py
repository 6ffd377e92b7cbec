"""Lightning: automatic optimization runs forward and backward inside the optimizer's step, manual does not."""

import logging
import sys
import tempfile

import lightning
import torch
from helper import Net, batches, finish

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
lightning.seed_everything(0, verbose=False)
losses = []


class Lit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.automatic_optimization = sys.argv[2] == "automatic"

    def training_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        losses.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        losses.append(torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]).item())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


lit = Lit()
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(lit, batches(), batches(2))
finish(losses, lit)
