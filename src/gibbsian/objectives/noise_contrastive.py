"""Noise-contrastive estimation: learn to tell data from noise whose density is known."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import softplus

from gibbsian.capabilities import Sampleable
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, check_choice, check_count
from gibbsian.objectives.base import Batch, Loss, Objective, check_finite, finish, observed_with
from gibbsian.objectives.noise import NAMED, FittedNoise, FlowNoise, easy_noise, given_noise


class LearnedLogZ(nn.Module):
    """c, the log partition function as a parameter."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.log_z = nn.Parameter(start.detach().clone())


class NoiseState(NamedTuple):
    """The learned log Z, and the noise where it was fitted to the data."""

    normalizer: LearnedLogZ
    noise: nn.Module | None


@dataclass(frozen=True)
class NoiseContrastive(Objective):
    """E_data[ζ(-G)] + ν·E_noise[ζ(G)] with G = -E(x) - c - log p_n(x) - log ν, and c = log Z learned along.

    Logistic regression between data and ν noise draws per datum: no sampler, and the model comes out
    normalized. The factor ν belongs there: without it c tends to log Z - log ν. With noise equal to the
    data's law the variance of an estimate is (1 + 1/ν) times the maximum-likelihood one; noise that is told
    apart at once gives no gradient, so watch the metric `accuracy` (½ is ideal, 1 is hopeless) and choose
    closer noise.

    Reference: Gutmann & Hyvärinen 2010, 2012; Gao et al. 2020 for flows trained along.

    Args:
        noise: "gaussian", "mixture" or "flow" on R^d, "uniform" in a box or on discrete units, "marginals" on
            discrete units; one of these with options, such as `FlowNoise(train=True)` or `MixtureNoise(20)`;
            an energy with `log_z()` and `sample()`; or a torch distribution over events.
        ratio: ν, noise draws per datum.

    The state holds `normalizer.log_z`; `gibbsian.fit` returns it as `run.log_z`. It starts at the importance
    estimate under the noise.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    >>> data = torch.randn(100, 2, generator=g)
    >>> objective = NoiseContrastive("gaussian", ratio=4)
    >>> state = objective.init(energy, data, g)
    >>> loss = objective(energy, data, state, g)
    >>> loss.value.backward()
    """

    needs_energy: ClassVar[bool] = True

    noise: str | FittedNoise | Energy | Distribution = "gaussian"
    ratio: int = 1

    def __post_init__(self) -> None:
        check_count(self, "ratio", self.ratio)
        if isinstance(self.noise, str):
            check_choice(self, "noise", self.noise, tuple(NAMED))
        elif not isinstance(self.noise, FittedNoise | Sampleable):
            raise ArgumentError(
                f"NoiseContrastive(noise={self.noise!r}): give one of {', '.join(map(repr, NAMED))}, an "
                "energy with log_z() and sample(), or a torch distribution"
            )

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> NoiseState:
        self.check(energy, batch)
        x = observed_with(batch, generator)
        kind = NAMED[self.noise] if isinstance(self.noise, str) else self.noise
        fitted = kind.fit(energy.domain, x, generator) if isinstance(kind, FittedNoise) else None
        noise = given_noise(kind, energy.domain) if fitted is None else fitted
        with torch.no_grad():
            y = noise.sample(max(1000, len(x)), generator=generator).to(x)  # type: ignore[operator]
            start = torch.logsumexp(-energy(y) - noise.log_prob(y), 0) - math.log(len(y))  # type: ignore[operator]
        check_finite(start, "the first estimate of log Z from the noise")
        return NoiseState(LearnedLogZ(start), fitted)

    def log_z(self, state: NoiseState) -> Tensor:
        return state.normalizer.log_z.detach()

    def signs(self, numbers: dict[str, float]) -> dict[str, str]:
        return easy_noise(numbers)

    def __call__(self, energy: Any, batch: Batch, state: NoiseState, generator: torch.Generator) -> Loss:
        x = observed_with(batch, generator)
        n, c = len(x), state.normalizer.log_z
        noise = given_noise(self.noise, energy.domain) if state.noise is None else state.noise
        with torch.no_grad():
            y = noise.sample(self.ratio * n, generator=generator).to(x)  # type: ignore[operator]
            both = torch.cat([x, y])
            log_noise = noise.log_prob(both)  # type: ignore[operator]
        energies = energy(both)
        log_ratio = -energies - c - log_noise
        g = log_ratio - math.log(self.ratio)
        value = softplus(-g[:n]).mean() + self.ratio * softplus(g[n:]).mean()
        with torch.no_grad():
            right = (log_ratio[:n] > 0).to(x).mean() + (log_ratio[n:] < 0).to(x).mean()
            metrics = {
                "accuracy": 0.5 * right,
                "log_z": c,
                "energy_data": energies[:n].mean(),
                "energy_noise": energies[n:].mean(),
            }
        kind = NAMED.get(self.noise) if isinstance(self.noise, str) else self.noise
        if isinstance(kind, FlowNoise) and kind.train:
            noise_nll = -noise.log_prob(x).mean()  # type: ignore[operator]
            metrics["noise_nll"] = noise_nll
            value = value + noise_nll
        return finish(self, value, state, metrics)
