"""The noising process: draws a timestep and noise for each sample, and the loss of the model's guess of that noise."""

import torch


class GaussianDiffusion:
    """Noise is added in 1000 steps with variances that grow linearly."""

    def __init__(self, steps=1000):
        self.steps = steps
        self.kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, steps, dtype=torch.float64), dim=0).float()

    def draw_timesteps(self, x):
        return torch.randint(0, self.steps, (x.shape[0],), device=x.device)

    def add_noise(self, x, t, noise):
        kept = self.kept.to(x.device)[t][:, None, None, None]
        return kept.sqrt() * x + (1 - kept).sqrt() * noise

    def training_loss(self, model, x, t, y):
        noise = torch.randn_like(x)
        guess = model(self.add_noise(x, t, noise), t, y)
        return ((guess - noise) ** 2).mean()
