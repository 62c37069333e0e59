"""What the tests of objectives share: gradients, enumerable machines, and z-scores against a known truth."""

import copy

import torch
from torch import Tensor, nn

import gibbsian as gb
from gibbsian import domains

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def flat(gradients) -> Tensor:
    return torch.cat([g.flatten() for g in gradients])


def gradient(energy, objective, batch, seed: int = 0, state=None) -> Tensor:
    """The gradient of one call in the energy's parameters."""
    g = gen(seed)
    state = objective.init(energy, batch, g) if state is None else state
    loss = objective(energy, batch, state, g)
    parameters = [p for p in energy.parameters() if p.requires_grad]
    return flat(torch.autograd.grad(loss.value, parameters, allow_unused=True, materialize_grads=True))


def gradient_of(value: Tensor, energy) -> Tensor:
    parameters = [p for p in energy.parameters() if p.requires_grad]
    return flat(torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True, retain_graph=True))


def z_scores(energy, objective, batch, truth: Tensor, repeats: int = 200, first: int = 0) -> Tensor:
    """(mean over seeds - truth) / standard error, for every entry of the gradient that varies.

    Entries without any variance must be exact. With 200 repeats a |z| above 5 has probability below 2e-6.
    """
    draws = torch.stack([gradient(energy, objective, batch, seed=first + i) for i in range(repeats)])
    error = draws.std(0) / repeats**0.5
    off = draws.mean(0) - truth
    scale = truth.abs().max().clamp(min=1.0)
    still = error < 1e-12 * scale
    assert off[still].abs().max() < 1e-9 * scale if bool(still.any()) else True
    return (off / error)[~still]


class Machine(gb.Energy):
    """An all-visible machine with third-order terms over a few discrete units; the states are enumerable."""

    def __init__(self, domain, seed: int = 0, scale: float = 0.7) -> None:
        super().__init__(domain)
        d, g = domain.numel, gen(seed)
        self.bias = nn.Parameter(scale * torch.randn(d, generator=g, dtype=F64))
        self.pairs = nn.Parameter(scale * torch.randn(d, d, generator=g, dtype=F64))
        self.triple = nn.Parameter(scale * torch.randn(d, generator=g, dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        pairs = (x @ self.pairs.triu(1) * x).sum(1)
        return -(x @ self.bias + pairs + (x * x.roll(1, 1) * x.roll(2, 1)) @ self.triple)

    def states(self) -> Tensor:
        return self.domain.states(dtype=F64)

    def log_probabilities(self) -> Tensor:
        return torch.log_softmax(-self(self.states()), 0)


def other_machine(machine: Machine, seed: int = 1, scale: float = 0.5) -> Machine:
    """A machine of the same kind at another place."""
    copy_ = copy.deepcopy(machine)
    g = gen(seed)
    with torch.no_grad():
        for p in copy_.parameters():
            p += scale * torch.randn(p.shape, generator=g, dtype=F64)
    return copy_


def gaussian(trainable: bool = True) -> gb.energies.Gaussian:
    """A skewed two-dimensional Gaussian."""
    cov = torch.tensor([[1.5, 0.6], [0.6, 0.8]], dtype=F64)
    return gb.energies.Gaussian(torch.tensor([0.5, -0.3], dtype=F64), cov, trainable=trainable)


def mixture_of_three(trainable: bool = True) -> gb.energies.GaussianMixture:
    means = torch.tensor([[-1.5, 0.0], [1.0, 1.0], [0.5, -1.2]], dtype=F64)
    return gb.energies.GaussianMixture(means, 0.4, [0.5, 0.3, 0.2], trainable=trainable)


def some_data(n: int = 64, seed: int = 7) -> Tensor:
    return torch.randn(n, 2, generator=gen(seed), dtype=F64) * torch.tensor([1.2, 0.7], dtype=F64) + 0.4


def random_rbm(visible: int = 6, hidden: int = 4, seed: int = 0, scale: float = 0.6) -> gb.models.RBM:
    rbm = gb.models.RBM(visible, hidden).double()
    g = gen(seed)
    with torch.no_grad():
        for p in rbm.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=g, dtype=F64))
    return rbm


def bits(n: int, d: int, seed: int = 3, p: float = 0.4) -> Tensor:
    return (torch.rand(n, d, generator=gen(seed), dtype=F64) < p).to(F64)


BINARY = domains.Binary(4)
SPIN = domains.Spin(4)
CATEGORICAL = domains.Categorical(2, classes=3)
