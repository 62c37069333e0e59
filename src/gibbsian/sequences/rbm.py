"""Restricted Boltzmann machines of families: hidden units that find motifs spread over many sites."""

from pathlib import Path

import torch
from torch import Tensor

from gibbsian.errors import check_count, check_number
from gibbsian.kernels import Gibbs
from gibbsian.models import RBM
from gibbsian.objectives import BlockSparsity, Centered, Objective, PersistentContrastiveDivergence, Weighted
from gibbsian.random import stream
from gibbsian.sequences.family import Family, one_hot
from gibbsian.training.fit import fit
from gibbsian.units import Bernoulli, Softmax, Unit


def fit_rbm(
    family: Family,
    hidden: int | Unit = 100,
    *,
    sparsity: float = 0.25,
    steps: int = 10_000,
    batch_size: int = 300,
    lr: float = 0.005,
    chains: int = 300,
    sweeps: int = 10,
    seed: int = 0,
    device: str | torch.device | None = None,
    run_dir: str | Path | None = None,
    progress: bool | None = None,
) -> RBM:
    """An RBM learned from a family: one-of-q visible units, one a site, and hidden units that see all sites.

        E(v, h) = -Σᵢ gᵢ(vᵢ) - Σ_μ c_μ h_μ - Σᵢμ wᵢμ(vᵢ) h_μ

    Persistent chains, centered gradients where the units allow it, and the penalty (λ²/2Nq) Σ_μ (Σᵢₐ |wᵢμ(a)|)² that makes every
    hidden unit look at few sites, so that its logo can be read. Sequences are drawn by their weights.

    Reference: Tubiana, Cocco & Monasson 2019.

    Args:
        family: from `gibbsian.sequences.read`, with its weights.
        hidden: a number of Bernoulli units, or one of `gibbsian.units`: `units.Gaussian(20)` is a Potts machine of low rank.
        sparsity: λ² of the penalty.
        steps, batch_size: updates, and sequences of each.
        lr: of Adam, falling to 0 along a cosine.
        chains, sweeps: persistent chains, and Gibbs sweeps between updates.
        seed: everything random follows from it.
        device: where to train.
        run_dir: a new folder for checkpoints and metrics, see `gibbsian.fit`.
        progress: show a progress bar; by default on a terminal.

    >>> from gibbsian.sequences import Alphabet
    >>> g = torch.Generator().manual_seed(0)
    >>> family = Family(torch.randint(0, 5, (50, 6), generator=g), Alphabet.of("rna"))
    >>> rbm = fit_rbm(family, 3, steps=5, batch_size=10, chains=10, progress=False)
    >>> hidden_weights(rbm).shape
    torch.Size([3, 6, 5])
    """
    check_number("fit_rbm", "sparsity", sparsity)
    unit = Bernoulli(check_count("fit_rbm", "hidden", hidden)) if isinstance(hidden, int) else hidden
    q = len(family.alphabet)
    rbm = RBM(Softmax(family.sites, q), unit)
    with torch.no_grad():
        rbm.visible_bias.copy_(family.profile(1 / (1 + family.effective)).log().flatten())
    objective: Objective = PersistentContrastiveDivergence(Gibbs(), steps=sweeps, chains=chains, start="data")
    if rbm.linear_biases():
        objective = Centered(objective)
    if sparsity:
        objective = Weighted([objective, BlockSparsity(sparsity)])
    count = check_count("fit_rbm", "steps", steps) * check_count("fit_rbm", "batch_size", batch_size)
    share = family.weights.double() / family.weights.double().sum()
    rows = torch.multinomial(share, min(count, 1_000_000), replacement=True, generator=stream(seed, "weights"))
    states = family.states

    def letters(batch: Tensor, generator: torch.Generator) -> Tensor:
        return one_hot(states[batch.cpu()], q).to(rbm.weight)

    fit(
        rbm, objective, rows, steps=steps, batch_size=batch_size, lr=lr, schedule="cosine", seed=seed, device=device,
        transform=letters, run_dir=run_dir, progress=progress,
    )  # fmt: skip
    return rbm.requires_grad_(False)


def hidden_weights(rbm: RBM) -> Tensor:
    """What hidden units look for, `(hidden, sites, letters)`, in the gauge Σₐ wᵢμ(a) = 0, the strongest unit first."""
    sites, q = rbm.domain.shape
    w = rbm.weight.detach().reshape(sites, q, -1).permute(2, 0, 1)
    w = w - w.mean(-1, keepdim=True)
    return w[w.flatten(1).norm(dim=1).argsort(descending=True)]
