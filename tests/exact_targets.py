"""Small continuous targets with exact draws, for tests of invariance."""

import torch

import gibbsian as gb
from gibbsian import domains, energies

D = torch.float64


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def correlated(rho=0.9):
    covariance = torch.tensor([[1.0, rho], [rho, 1.0]], dtype=D)
    return energies.Gaussian(torch.tensor([1.0, -2.0], dtype=D), covariance)


def two_modes():
    part = lambda m, s: energies.Gaussian(torch.full((2,), m, dtype=D), s * torch.eye(2, dtype=D))  # noqa: E731
    return gb.mixture([part(-1.5, 0.5), part(1.5, 1.0)], weights=[0.3, 0.7])


def skewed():
    return gb.as_energy(lambda x: (x.exp() - x).sum(-1), domains.Real(2))


def skewed_draws(n, g):
    return torch.log(-torch.log1p(-torch.rand(n, 2, generator=g, dtype=D)))  # exp(x) is exponential


def exponential():
    return gb.as_energy(lambda x: (x.new_tensor([1.0, 3.0]) * x).sum(-1), domains.NonNegative(2))


def exponential_draws(n, g):
    return -torch.log1p(-torch.rand(n, 2, generator=g, dtype=D)) / torch.tensor([1.0, 3.0], dtype=D)


def ramp():
    return gb.as_energy(lambda x: (x.new_tensor([2.0, -1.0]) * x).sum(-1), domains.Box(2, low=-1.0, high=2.0))


def ramp_draws(n, g):
    slope = torch.tensor([2.0, -1.0], dtype=D)
    u = torch.rand(n, 2, generator=g, dtype=D)
    return -1 - torch.log1p(u * torch.expm1(-3 * slope)) / slope


TARGETS = {
    "correlated": (correlated, lambda n, g: correlated().sample(n, generator=g)),
    "two modes": (two_modes, lambda n, g: two_modes().sample(n, generator=g)),
    "skewed": (skewed, skewed_draws),
    "non-negative": (exponential, exponential_draws),
    "box": (ramp, ramp_draws),
}
