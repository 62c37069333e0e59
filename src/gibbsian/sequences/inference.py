"""Potts machines from families of sequences: mean field, pseudo-likelihood, Boltzmann learning."""

import math
import warnings

import numpy as np
import scipy  # its parts are imported on first use
import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, CapabilityError, TrainingWarning, check_choice, check_count, check_number
from gibbsian.models import Potts
from gibbsian.models.potts import gauged
from gibbsian.progress import progress_bar
from gibbsian.random import require_generator, stream
from gibbsian.sequences.family import Family

_METHODS = ("mean-field", "pseudo-likelihood", "asymmetric", "boltzmann")


def fit_potts(
    family: Family,
    method: str = "pseudo-likelihood",
    *,
    l2: float = 0.01,
    pseudocount: float | None = None,
    steps: int | None = None,
    chains: int = 10_000,
    sweeps: int = 10,
    lr: float = 0.05,
    target: float = 0.95,
    device: str | torch.device = "cpu",
    generator: torch.Generator | None = None,
    progress: bool | None = None,
) -> Potts:
    """A Potts machine learned from a family.

    - "mean-field": J = -C⁻¹ of the covariance over q - 1 states with pseudocount 0.5 (Morcos et al. 2011): seconds.
    - "pseudo-likelihood": min -(1/Meff) Σₙ wₙ Σᵢ log p(xᵢ | rest) + λ‖h‖² + λ Σ_{i<j} ‖Jᵢⱼ‖² by L-BFGS (Ekeberg et al. 2013): the
      best for contacts, minutes.
    - "asymmetric": the same for every site with couplings of its own, averaged afterwards (Ekeberg, Hartonen & Aurell
      2014).
    - "boltzmann": maximum likelihood by persistent chains until connected correlations of pairs agree with the family's
      (bmDCA, Figliuzzi, Barrat-Charlaix & Weigt 2018): the machine that can be drawn from; on a GPU.

    Args:
        family: from `gibbsian.sequences.read`, with its weights.
        method: as above.
        l2: λ of pseudo-likelihood, where the log-likelihood is averaged over the effective number of sequences.
        pseudocount: 0.5 for mean field, 1/Meff for Boltzmann learning.
        steps: iterations at most: 100 of L-BFGS, 2000 updates of Boltzmann learning.
        chains, sweeps, lr: of Boltzmann learning: persistent chains, Gibbs sweeps between updates, learning rate.
        target: Boltzmann learning ends at this Pearson correlation of fᵢⱼ - fᵢfⱼ between chains and family.
        device: where to compute.
        generator: for Boltzmann learning; a fixed seed where it is left out.
        progress: show a progress bar; by default on a terminal.

    Returns:
        The machine, in the zero-sum gauge, on the CPU for what was computed there.

    >>> from gibbsian.sequences import Alphabet, contacts
    >>> g = torch.Generator().manual_seed(0)
    >>> states = torch.randint(1, 5, (500, 8), generator=g)
    >>> states[:, 7] = 5 - states[:, 1]  # sites 1 and 7 pair
    >>> potts = fit_potts(Family(states, Alphabet.of("rna")), "mean-field")
    >>> contacts(potts).pairs[0]
    tensor([1, 7])
    """
    check_choice("fit_potts", "method", method, _METHODS)
    if method == "mean-field":
        return _mean_field(family, 0.5 if pseudocount is None else pseudocount).zero_sum()
    if method == "boltzmann":
        steps = check_count("fit_potts", "steps", 2000 if steps is None else steps)
        g = stream(0, "boltzmann", torch.device(device)) if generator is None else require_generator(generator)
        chosen = _Boltzmann(family, pseudocount, check_count("fit_potts", "chains", chains), sweeps, lr, g)
        return chosen.learn(steps, target, progress).zero_sum()
    steps = check_count("fit_potts", "steps", 100 if steps is None else steps)
    check_number("fit_potts", "l2", l2)
    return _pseudo_likelihood(family, method == "asymmetric", l2, steps, device, progress).zero_sum()


def _machine(family: Family, device: str | torch.device = "cpu") -> Potts:
    """A machine without couplings whose fields are the profile of the family."""
    potts = Potts(family.states.shape[1], len(family.alphabet)).to(device).requires_grad_(False)
    single = family.profile(1 / (1 + family.effective))
    potts.coupling.zero_()
    potts.field.copy_(single.log() - single.log().mean(-1, keepdim=True))
    return potts


def _mean_field(family: Family, pseudocount: float) -> Potts:
    """J = -C⁻¹ off the diagonal, over all states but the last, which is the reference; h from the profile."""
    single, pairs = family.frequencies(pseudocount)
    sites, q = single.shape
    c = pairs - single[:, :, None, None] * single
    c = c[:, :-1, :, :-1].reshape(sites * (q - 1), -1)
    try:
        j = -torch.linalg.inv(c).reshape(sites, q - 1, sites, q - 1)
    except torch.linalg.LinAlgError as error:
        raise CapabilityError(
            f"the covariance of the family cannot be inverted ({error}); use a pseudocount above 0, such as 0.5"
        ) from error
    j[torch.arange(sites), :, torch.arange(sites)] = 0
    potts = Potts(sites, q).requires_grad_(False)
    potts.coupling.zero_()
    potts.coupling[:, :-1, :, :-1] = ((j + j.permute(2, 3, 0, 1)) / 2).to(potts.coupling)
    h = (single / single[:, -1:]).log()
    h[:, :-1] -= torch.einsum("iajb,jb->ia", j, single[:, :-1])
    potts.field.copy_(h)
    return potts


def _pseudo_likelihood(
    family: Family, asymmetric: bool, l2: float, steps: int, device: str | torch.device, progress: bool | None
) -> Potts:
    """L-BFGS over all sequences: value and gradient from two products."""
    potts = _machine(family, device)
    n = potts.sites * potts.states
    x = family.x.to(potts.field)
    flat = x.flatten(1)
    weight = (family.weights / family.weights.sum()).to(x)
    side = 1.0 if asymmetric else 0.5  # every pair is penalized once: half of it on either side

    def value_and_gradient(theta: np.ndarray) -> tuple[float, np.ndarray]:
        values = torch.from_numpy(theta).to(x)
        h, j = values[:n].reshape(potts.field.shape), values[n:].reshape(potts.coupling.shape)
        value = torch.zeros((), dtype=torch.float64, device=x.device)
        slope, a = torch.zeros_like(h), torch.zeros_like(j).reshape(n, n)
        for rows, own, w in zip(x.split(4096), flat.split(4096), weight.split(4096), strict=True):
            log_p = torch.log_softmax(h + (own @ j.reshape(n, n)).reshape(rows.shape), -1)
            value -= (w * (rows * log_p).sum((1, 2))).double().sum()
            residual = log_p.exp_().sub_(rows).mul_(w[:, None, None])
            slope += residual.sum(0)
            a.addmm_(own.T, residual.flatten(1))
        a = a.reshape(j.shape)
        gradient = ((a if asymmetric else (a + a.permute(2, 3, 0, 1)) / 2) + 2 * side * l2 * j) * potts.between
        value += l2 * h.double().square().sum() + side * l2 * j.double().square().sum()
        both = torch.cat([(slope + 2 * l2 * h).flatten(), gradient.flatten()])
        return float(value), both.double().cpu().numpy()

    start = torch.cat([potts.field.flatten(), potts.coupling.flatten()]).double().cpu().numpy()
    with progress_bar(steps, "pseudo-likelihood", progress) as tick:
        found = scipy.optimize.minimize(
            value_and_gradient,
            start,
            jac=True,
            method="L-BFGS-B",
            callback=lambda _: tick(1),
            options={"maxiter": steps, "maxcor": 10, "ftol": 1e-6, "gtol": 1e-6},
        )
    if found.nit >= steps:
        warnings.warn(
            f"pseudo-likelihood was still falling after {steps} iterations; raise steps=", TrainingWarning, stacklevel=3
        )
    values = torch.from_numpy(found.x).to(x)
    own = values[n:].reshape(potts.coupling.shape).permute(2, 3, 0, 1)  # asymmetric ones have a gauge for every site
    uniform = torch.full((potts.states,), 1 / potts.states)
    h, j = gauged(values[:n].reshape(potts.field.shape), own, uniform)
    potts.field.copy_(h)
    potts.coupling.copy_((j + j.permute(2, 3, 0, 1)) / 2)
    return potts


class _Boltzmann:
    """Boltzmann learning: statistics of the family against those of persistent chains."""

    def __init__(
        self, family: Family, pseudocount: float | None, chains: int, sweeps: int, lr: float, generator: torch.Generator
    ) -> None:
        self.sweeps, self.lr, self.generator = check_count("fit_potts", "sweeps", sweeps), lr, generator
        self.potts = _machine(family, generator.device)
        alpha = 1 / family.effective if pseudocount is None else pseudocount
        single, pairs = (f.to(self.potts.field) for f in family.frequencies(alpha))
        self.single, self.pairs = single, pairs
        rows = torch.randint(len(family), (chains,), generator=generator, device=generator.device).cpu()
        self.x = family.x[rows].to(self.potts.field)
        i, j = torch.triu_indices(self.potts.sites, self.potts.sites, 1, device=single.device)
        self.upper = i, j
        self.wanted = self._connected(single, pairs)

    def _connected(self, single: Tensor, pairs: Tensor) -> Tensor:
        i, j = self.upper
        return (pairs - single[:, :, None, None] * single).permute(0, 2, 1, 3)[i, j].flatten()

    def learn(self, steps: int, target: float, progress: bool | None) -> Potts:
        """Update until the connected correlations agree."""
        potts = self.potts
        with progress_bar(steps, "Boltzmann learning", progress) as tick:
            for step in range(steps):
                self.x = potts.swept(self.x, self.sweeps, self.generator)
                flat = self.x.flatten(1)
                single = self.x.mean(0)
                pairs = (flat.T @ flat / len(flat)).reshape(self.pairs.shape)
                potts.field.add_(self.single - single, alpha=self.lr)
                potts.coupling.add_(potts.between * (self.pairs - pairs), alpha=self.lr)
                if step % 10 == 9:
                    found = torch.stack([self.wanted, self._connected(single, pairs)])
                    pearson = float(torch.corrcoef(found)[0, 1])
                    tick(10, pearson=pearson)
                    if not math.isfinite(pearson):
                        raise ArgumentError(
                            f"Boltzmann learning diverged at update {step + 1}; use a smaller lr than {self.lr}"
                        )
                    if pearson >= target:
                        return potts
        warnings.warn(
            f"Boltzmann learning ended after {steps} updates at a Pearson correlation of {pearson:.3f}, below {target}; "
            "raise steps= or lr=",
            TrainingWarning,
            stacklevel=3,
        )
        return potts
