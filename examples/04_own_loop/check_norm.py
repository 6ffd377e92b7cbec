"""A unit test: does a normalisation written by hand agree with torch's?"""

import torch

import precflow


def rms_norm(values: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Normalise by the root mean square of the last axis."""
    return values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps) * weight


values, weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(1)), torch.ones(64)
expected = torch.nn.functional.rms_norm(values, (64,), weight, 1e-6)
precflow.assert_aligned(rms_norm(values, weight), expected)
precflow.assert_aligned(rms_norm(values, weight), expected, standard=["default", "allclose"], cosine_similarity=0.999999)
print(precflow.compare(expected, rms_norm(values, weight, eps=1e-3)))
