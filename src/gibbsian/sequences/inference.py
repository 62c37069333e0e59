"""Potts machines from families of sequences: mean field, pseudo-likelihood, Boltzmann learning."""

from typing import Literal

import torch

from gibbsian.errors import ArgumentError, check_choice, check_count, check_number
from gibbsian.models import Potts
from gibbsian.random import require_generator, stream
from gibbsian.sequences.boltzmann import BoltzmannLearning
from gibbsian.sequences.family import Family
from gibbsian.sequences.mean_field import fit_mean_field
from gibbsian.sequences.pseudo_likelihood import fit_pseudo_likelihood

_STEPS = {"mean-field": 1, "pseudo-likelihood": 200, "asymmetric": 200, "boltzmann": 2000}  # where none are given


def fit_potts(
    family: Family,
    method: str = "pseudo-likelihood",
    *,
    l2: float | tuple[float, float] | Literal["plmc"] | None = None,
    gaps: str = "letter",
    pseudocount: float | None = None,
    steps: int | None = None,
    tolerance: float = 1e-6,
    chains: int = 10_000,
    sweeps: int = 10,
    lr: float = 0.3,
    target: float = 0.95,
    device: str | torch.device = "cpu",
    generator: torch.Generator | None = None,
    progress: bool | None = None,
) -> Potts:
    """A Potts machine learned from a family.

    - "mean-field": J = -C⁻¹ of the covariance over q - 1 states with pseudocount 0.5 (Morcos et al. 2011): seconds. For contacts
      alone: half of its sequences are drawn uniformly, all sites at once, so conserved sites seem to vary together; their couplings are far too
      strong, fields are turned against conserved letters to make up for it, and mutants are ranked worse than by the profile.
    - "pseudo-likelihood": min -(1/Meff) Σₙ wₙ Σᵢ log p(xᵢ | rest) + λ_h‖h‖² + λ_J Σ_{i<j} ‖Jᵢⱼ‖² by L-BFGS (Ekeberg et al.
      2013): the best for contacts and mutations, a minute.
    - "asymmetric": the same for every site with couplings of its own, averaged afterwards (Ekeberg, Hartonen & Aurell
      2014).
    - "boltzmann": maximum likelihood by persistent chains and centered gradients until connected correlations of pairs agree with the family's
      (bmDCA, Figliuzzi, Barrat-Charlaix & Weigt 2018): the machine that can be drawn from; on a GPU.

    Args:
        family: from `gibbsian.sequences.read`, with its weights.
        method: as above.
        l2: λ of pseudo-likelihood, or λ_h and λ_J, where the log-likelihood is averaged over the effective number Meff of
            sequences; "plmc" for the 0.01 and 0.01 (sites - 1)(letters - 1) of plmc and EVmutation, over that number. By
            default 0.01 (Ekeberg et al. 2013), of couplings (sites - 1)/5 Meff where that is more (Kamisetty, Ovchinnikov & Baker
            2013): few sequences of many sites need it.
        gaps: "letter" counts the gap as one letter more; "ignored" leaves gaps out of the pseudo-likelihood, and the
            machine has one state less, the letters of `family.alphabet.without_gap()` (plmc's way, for mutations).
        pseudocount: 0.5 for mean field, 1/Meff for Boltzmann learning.
        steps: iterations at most: 200 of L-BFGS, 2000 updates of Boltzmann learning.
        tolerance: L-BFGS ends where an iteration gains less than this share of the first value.
        chains, sweeps, lr: of Boltzmann learning: persistent chains, Gibbs sweeps between updates, learning rate.
        target: Boltzmann learning ends at this Pearson correlation of fᵢⱼ - fᵢfⱼ between chains and family.
        device: where to compute.
        generator: for Boltzmann learning; a fixed seed where it is left out.
        progress: show a progress bar; by default on a terminal.

    Returns:
        The machine, in the zero-sum gauge, on the device.

    >>> from gibbsian.sequences import Alphabet, contacts
    >>> g = torch.Generator().manual_seed(0)
    >>> states = torch.randint(1, 5, (500, 8), generator=g)
    >>> states[:, 7] = 5 - states[:, 1]  # sites 1 and 7 pair
    >>> potts = fit_potts(Family(states, Alphabet.of("rna")), "mean-field")
    >>> contacts(potts).pairs[0]
    tensor([1, 7])
    """
    check_choice("fit_potts", "method", method, tuple(_STEPS))
    steps = check_count("fit_potts", "steps", _STEPS[method] if steps is None else steps)
    check_choice("fit_potts", "gaps", gaps, ("letter", "ignored"))
    if gaps == "ignored" and method in ("mean-field", "boltzmann"):
        raise ArgumentError(f"gaps='ignored' is for pseudo-likelihood; {method} counts the gap as a letter")
    if method == "mean-field":
        return fit_mean_field(family, 0.5 if pseudocount is None else pseudocount, device).zero_sum()
    if method == "boltzmann":
        g = stream(0, "boltzmann", torch.device(device)) if generator is None else require_generator(generator)
        learning = BoltzmannLearning(
            family,
            _machine(family, g.device),
            1 / family.effective if pseudocount is None else pseudocount,
            chains=check_count("fit_potts", "chains", chains),
            sweeps=check_count("fit_potts", "sweeps", sweeps),
            lr=lr,
            generator=g,
        )
        return learning.learn(steps, target, progress).zero_sum()
    ignored = family.alphabet.index("-") if gaps == "ignored" else None
    potts = _machine(family, device, ignored)
    return fit_pseudo_likelihood(
        family.states,
        family.weights,
        potts,
        l2=_penalty(l2, family, potts),
        ignored=ignored,
        asymmetric=method == "asymmetric",
        steps=steps,
        tolerance=tolerance,
        progress=progress,
    ).zero_sum()


def _penalty(l2: float | tuple[float, float] | str | None, family: Family, potts: Potts) -> tuple[float, float]:
    """λ of fields and couplings."""
    if l2 is None:
        return 0.01, max(0.01, (potts.sites - 1) / (5 * family.effective))
    if l2 == "plmc":
        return 0.01 / family.effective, 0.01 * (potts.sites - 1) * (potts.states - 1) / family.effective
    if isinstance(l2, str):
        raise ArgumentError(f"fit_potts(l2={l2!r}): expected a number, a pair of numbers, or 'plmc'")
    fields, couplings = l2 if isinstance(l2, tuple) else (l2, l2)
    check_number("fit_potts", "l2", fields)
    check_number("fit_potts", "l2", couplings)
    return fields, couplings


def _machine(family: Family, device: str | torch.device = "cpu", ignored: int | None = None) -> Potts:
    """A machine without couplings whose fields are the profile of the family."""
    single = family.profile(1 / (1 + family.effective))
    if ignored is not None:
        single = single[:, torch.arange(single.shape[1]) != ignored]
    potts = Potts(*single.shape).to(device).requires_grad_(False)
    potts.coupling.zero_()
    potts.field.copy_(single.log() - single.log().mean(-1, keepdim=True))
    return potts
