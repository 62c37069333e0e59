"""Energy discrepancy: data against what a small perturbation makes of them, with neither chains nor scores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, check_choice, check_number, hold_counts
from gibbsian.objectives.base import Batch, Loss, Objective, finish, observed_with
from gibbsian.objectives.perturbations import KINDS, Heat, Perturbation


@dataclass(frozen=True)
class EnergyDiscrepancy(Objective):
    """E_p[E(x)] - E_{p(x) q(y|x)}[E_q(y)],   E_q(y) = -log Σ_x' q(y | x') e^{-E(x')}: data against their own blur.

        mean_i log( w/M + (1/M) Σ_j exp(E(xᵢ) - E(xᵢⱼ)) ),      xᵢ → yᵢ ~ q(· | xᵢ),   xᵢⱼ ~ q(yᵢ | ·)

    Each datum is perturbed once, and M negatives are what it could have been instead. No chain, no score and no noise model:
    one pass of the energy over M + 1 times the batch, on real, discrete and mixed rows alike. Between score matching
    (t → 0) and likelihood (t → ∞), and not blind to the weights of modes that the perturbation reaches. With w = 1 the
    minimizer is the law of the data at every M, though the value is offset; w = 0 is unbiased as M grows, and biased at
    any M.

    Perturbations that are told apart from data at once give no gradient: watch the metric `accuracy` (how often the
    datum has the lowest energy of all; 1/(M + 1) by chance, 1 is hopeless), and choose a smaller t. Ties count as misses: of
    discrete rows whose negatives are often the datum again, as those of `Masked`, it tells nothing.

    Reference: Schröder et al. 2023; 2024 for discrete and mixed data.

    Args:
        t: how long data diffuse: the variance of the noise on R^d; bits and spins flip with probability ½(1 - e^{-t}), so that
            t = 0.01 is usual for images; see `objectives.Heat`. One for each part of a joined domain if wanted.
        negatives: M.
        stabilizer: w.
        perturbation: what the states of categorical units are to each other, "uniform", "cyclic" or "ordinal"; or another
            perturbation: `Flips(rate)`, `Around(sigmas)`, `Neighbors(lazy)`, `Masked(sites)`, which know nothing of t.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    >>> objective = EnergyDiscrepancy(t=0.5, negatives=8)
    >>> objective(energy, torch.randn(10, 2, generator=g), (), g).value.backward()
    """

    needs_energy: ClassVar[bool] = True

    t: float | Sequence[float] = 1.0
    negatives: int = 16
    stabilizer: float = 1.0
    perturbation: str | Perturbation = "uniform"

    def __post_init__(self) -> None:
        hold_counts(self, "negatives")
        check_number(self, "stabilizer", self.stabilizer)
        if isinstance(self.perturbation, str):
            check_choice(self, "perturbation", self.perturbation, KINDS)
        elif not isinstance(self.perturbation, Perturbation):
            raise ArgumentError(
                f"EnergyDiscrepancy(perturbation={self.perturbation!r}): give one of {', '.join(map(repr, KINDS))}, or a "
                "perturbation such as objectives.Neighbors() or objectives.Masked()"
            )
        object.__setattr__(self, "t", Heat(self.t).t)

    @property
    def source(self) -> Perturbation:
        """What is done to the data."""
        return Heat(self.t, self.perturbation) if isinstance(self.perturbation, str) else self.perturbation

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        self.source.check(energy.domain)

    def signs(self, numbers: dict[str, float]) -> dict[str, str]:
        share = numbers.get("accuracy", 0.0)
        if share <= 0.99:
            return {}
        text = f"{100 * share:.4g} % of the data are told apart from what the perturbation makes of them, which gives no gradient; "
        return {"accuracy": text + "use a smaller t, or more negatives"}

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        x = observed_with(batch, generator)
        n, m = len(x), self.negatives
        with torch.no_grad():
            every = torch.cat([x[None], self.source.negatives(energy.domain, x, m, generator)])
        energies = energy(every.flatten(0, 1)).reshape(m + 1, n)  # rows fastest, as inputs repeat
        gaps = energies[0] - energies[1:]
        value = self._log_mean(gaps).mean()
        metrics = {
            "accuracy": (energies[0] < energies[1:].amin(0)).to(x.dtype).mean(),
            "energy_data": energies[0].mean(),
            "energy_negatives": energies[1:].mean(),
        }
        return finish(self, value, state, metrics)

    def _log_mean(self, gaps: Tensor) -> Tensor:
        """log(w/M + Σ exp(gaps)/M) of every row."""
        if self.stabilizer:
            gaps = torch.cat([torch.full_like(gaps[:1], math.log(self.stabilizer)), gaps])
        return torch.logsumexp(gaps, 0) - math.log(self.negatives)
