"""Words of a population, such as spikes of neurons in a time bin: how much of their structure do pairs explain?

    I_N = S₁ - S_N,   I₂ = S₁ - S₂,   I₂/I_N

S₁ is the entropy of independent units with the same means, S₂ that of the pairwise maximum-entropy law, S_N that of the words. I_N, the
multi-information, is all that correlations of any order say; I₂/I_N the share that pairs explain (Schneidman et al. 2006).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gibbsian.errors import CapabilityError, DataError
from gibbsian.kernels import Gibbs
from gibbsian.models import BoltzmannMachine
from gibbsian.random import require_generator
from gibbsian.sampling.sample import sample

_MOST_UNITS = 20  # all words are summed over


@dataclass(frozen=True)
class WordChecks:
    """What a machine says about words against what the data say. Entropies in bits.

    Attributes:
        independent_entropy, pairwise_entropy, word_entropy: S₁ of the data, S₂ of the machine, S_N of the data by its frequencies with Miller and
            Madow's correction, (distinct words - 1)/2N nats; S₂ and S_N are None where there are more than 20 units.
        multi_information: I_N = S₁ - S_N, in bits.
        ratio: I₂/I_N.
        activity: probabilities of 0, …, n active units, `(3, n + 1)`: data, machine, independent units.
        triplets: connected third moments of all i < j < k, `(2, triplets)`: data, machine.
        triplet_error: standard errors of those of the data.
        words: probabilities of the distinct words of the data, `(3, words)`: data, machine, independent units; None above 20 units.
        means, covariances: `(2, n)` and `(2, n, n)`: data, machine.
    """

    independent_entropy: float
    pairwise_entropy: float | None
    word_entropy: float | None
    multi_information: float | None
    ratio: float | None
    activity: Tensor
    triplets: Tensor
    triplet_error: Tensor
    words: Tensor | None
    means: Tensor
    covariances: Tensor

    def __repr__(self) -> str:
        pairs = "" if self.ratio is None else f"pairs explain {self.ratio:.1%} of {self.multi_information:.3f} bits, "
        r = float(torch.corrcoef(self.triplets)[0, 1])
        return f"WordChecks({pairs}third moments correlate {r:.3f})"


def check_words(
    machine: BoltzmannMachine,
    x: Tensor,
    *,
    draws: int = 20_000,
    steps: int = 200,
    generator: torch.Generator | None = None,
) -> WordChecks:
    """Judge a pairwise machine by what it was not told: entropies, the number of active units, triplets, single words.

    Up to 20 units everything of the machine is a sum over all words; beyond that it comes from draws, and entropies of words are
    left out, for no number of samples suffices.

    Reference: Schneidman, Berry, Segev & Bialek 2006; Tkačik et al. 2014 for the number of active units.

    Args:
        machine: over {0, 1} or ±1 units without hidden ones, as from `fit_ising(x).machine`.
        x: samples `(N, n)`, best others than the machine was learned from.
        draws, steps: of the machine, chains and sweeps of each, above 20 units.
        generator: for these draws.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> x = (torch.rand(2000, 5, generator=g) < 0.2 + 0.6 * (torch.rand(2000, 1, generator=g) < 0.3)).float()
    >>> checks = check_words(gb.spins.fit_ising(x, "exact").machine, x)
    >>> 0.9 < checks.ratio < 1
    True
    """
    n, low = machine.n, -1.0 if machine.spin else 0.0
    if machine.hidden:
        raise CapabilityError("check_words is for machines without hidden units, whose pairs are all there is")
    machine.domain.check(x, "x")
    bits = ((x - low) / (1 - low)).double()
    means = bits.mean(0)
    if bool((means == 0).any() | (means == 1).any()):
        raise DataError("a unit has the same value in every sample; leave it out")
    log_odds = torch.stack([torch.log1p(-means), means.log()], 1)
    found, count = np.unique(bits.cpu().numpy(), axis=0, return_counts=True)
    distinct, share = torch.from_numpy(found), torch.from_numpy(count / len(bits))
    entropies: tuple[float | None, float | None] = (None, None)
    words = None
    if n <= _MOST_UNITS:
        with torch.no_grad():
            every = machine.domain.states(dtype=machine.bias.dtype)  # type: ignore[attr-defined]
            log_p = torch.log_softmax(-machine(every).double(), 0)
            own = -machine((distinct * (1 - low) + low).to(machine.bias.dtype)).double()
            own = own - torch.logsumexp(-machine(every).double(), 0)
        states, weight = (every.double() - low) / (1 - low), log_p.exp()
        plug_in = -float(share @ share.log()) + (len(share) - 1) / (2 * len(bits))
        entropies = -float(weight @ log_p) / math.log(2), plug_in / math.log(2)
        alone = (distinct * (log_odds[:, 1] - log_odds[:, 0])).sum(1) + log_odds[:, 0].sum()
        words = torch.stack([share, own.exp(), alone.exp()])
    else:
        states, weight = (
            _drawn(machine, low, draws, steps, generator),
            torch.full((draws,), 1 / draws, dtype=torch.float64),
        )
    first = -float((means * log_odds[:, 1] + (1 - means) * log_odds[:, 0]).sum()) / math.log(2)
    second, full = entropies
    information = None if full is None else first - full
    data, error = _triplets(bits, torch.full((len(bits),), 1 / len(bits), dtype=torch.float64))
    model, _ = _triplets(states, weight)
    model_means = weight @ states
    return WordChecks(
        independent_entropy=first,
        pairwise_entropy=second,
        word_entropy=full,
        multi_information=information,
        ratio=None if second is None or information is None else (first - second) / information,
        activity=torch.stack([_activity(bits), _activity(states, weight), _poisson_binomial(means)]),
        triplets=torch.stack([data, model]),
        triplet_error=error,
        words=words,
        means=torch.stack([means, model_means]),
        covariances=torch.stack([torch.cov(bits.T, correction=0), torch.cov(states.T, correction=0, aweights=weight)]),
    )


def _drawn(machine: BoltzmannMachine, low: float, draws: int, steps: int, generator: torch.Generator | None) -> Tensor:
    generator = require_generator(generator)
    start = machine.domain.sample(draws, generator=generator, dtype=machine.bias.dtype)
    out = sample(
        machine, Gibbs(), start, steps=steps, burn_in=steps - 1, keep=False, generator=generator, progress=False
    )
    return (out.last.double() - low) / (1 - low)


def _activity(bits: Tensor, weight: Tensor | None = None) -> Tensor:
    """The law of the number of active units."""
    k = bits.sum(1).round().long()
    counts = torch.bincount(k, weights=weight, minlength=bits.shape[1] + 1)
    return counts.double() / (len(bits) if weight is None else 1)


def _poisson_binomial(means: Tensor) -> Tensor:
    """The same of independent units."""
    law = torch.ones(1, dtype=torch.float64)
    for p in means.tolist():
        law = torch.nn.functional.pad(law * (1 - p), (0, 1)) + torch.nn.functional.pad(law * p, (1, 0))
    return law


def _triplets(bits: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """⟨δᵢδⱼδₖ⟩ of all i < j < k, and their standard errors."""
    d = bits - weight @ bits
    n = d.shape[1]
    values, squares = [], []
    for i in range(n - 2):
        rest = d[:, i + 1 :]
        one = d[:, i] * weight
        upper = torch.triu_indices(n - i - 1, n - i - 1, 1)
        values.append((rest.T @ (rest * one[:, None]))[upper[0], upper[1]])
        squared = rest.square()
        squares.append((squared.T @ (squared * (one * d[:, i])[:, None]))[upper[0], upper[1]])
    value = torch.cat(values)
    return value, ((torch.cat(squares) - value.square()).clamp(min=0) / len(bits)).sqrt()
