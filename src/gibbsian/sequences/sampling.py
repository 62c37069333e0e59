"""New sequences from a machine, and how many it would write: entropy and log Z."""

import math
from typing import NamedTuple

import torch

from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError, check_count
from gibbsian.kernels import Gibbs
from gibbsian.partition import ais
from gibbsian.partition.base import LogZ
from gibbsian.partition.bounds import from_both_sides
from gibbsian.placement import placement
from gibbsian.random import require_generator
from gibbsian.sampling.sample import sample
from gibbsian.sequences.family import Family


def sample_sequences(
    model: Energy,
    family: Family,
    n: int,
    *,
    sweeps: int = 500,
    start: str = "random",
    generator: torch.Generator,
    progress: bool | None = None,
) -> Family:
    """New sequences from a machine that was learned from a family: the ends of n chains of Gibbs sweeps.

    Args:
        model: a `Potts` machine (one learned by "boltzmann" is made to be drawn from) or an `RBM` over the letters of
            the family, or over its letters without the gap.
        family: for the letters, and for where chains begin.
        n: how many.
        sweeps: of every chain. Chains from random letters and from natural sequences should look alike in
            `compare`: where they do not, more are needed.
        start: "random" letters, or "natural" sequences, drawn by their weights.
        generator: the source of randomness, on the device of the model.
        progress: show a progress bar; by default on a terminal.

    >>> import gibbsian as gb
    >>> from gibbsian.sequences import Alphabet
    >>> g = torch.Generator().manual_seed(0)
    >>> family = Family(torch.randint(0, 5, (50, 6), generator=g), Alphabet.of("rna"))
    >>> sample_sequences(gb.models.Potts(6, 5), family, 10, sweeps=5, generator=g)
    Family(10 sequences of 6 sites, rna, effective number 10.0)
    """
    n = check_count("sample_sequences", "n", n)
    dtype, device = placement(model)
    generator = require_generator(generator, device)
    alphabet = family.alphabet
    shape = tuple(model.domain.shape)
    gapless = shape == (family.sites, len(alphabet) - 1)
    if not gapless and shape != (family.sites, len(alphabet)):
        raise ShapeError(
            f"the machine is over {shape}, sites and letters; the family has {family.sites} sites and the letters "
            f"{alphabet.letters}"
        )
    if start == "random":
        x = model.domain.sample(n, generator=generator, dtype=dtype)
    elif start == "natural":
        if gapless:
            raise ArgumentError("a machine without gaps cannot begin at natural sequences; use start='random'")
        rows = torch.multinomial(family.weights.to(device), n, replacement=True, generator=generator)
        x = family.select(rows.cpu()).x.to(device, dtype)
    else:
        raise ArgumentError(f"sample_sequences(start={start!r}): expected 'random' or 'natural'")
    trace = sample(model, Gibbs(), x, check_count("sample_sequences", "sweeps", sweeps), keep=False, generator=generator, progress=progress)  # fmt: skip
    names = tuple(f"drawn{i + 1}" for i in range(n))
    return Family(trace.last.argmax(-1).cpu(), alphabet.without_gap() if gapless else alphabet, names, source="drawn")


class Entropy(NamedTuple):
    """How many sequences a machine writes, exp S, with what it was made of.

    Attributes:
        value: S = log Z + ⟨E⟩, nats.
        stderr: its standard error.
        lower, upper: the interval of log Z, moved by ⟨E⟩, and three standard errors of that on either side.
        energy: ⟨E⟩ over the sequences that were drawn.
        log_z: from both sides.
    """

    value: float
    stderr: float
    lower: float
    upper: float
    energy: float
    log_z: LogZ


def entropy(
    model: Energy,
    family: Family,
    *,
    drawn: Family | None = None,
    chains: int = 500,
    sweeps: int = 500,
    betas: int | None = None,
    max_betas: int = 4000,
    generator: torch.Generator,
    progress: bool | None = None,
) -> Entropy:
    """The entropy of a machine, S = log Z + ⟨E⟩, with log Z by annealing from the profile of the family, up and down again.

    exp S is the number of sequences that the machine holds for about equally likely. log Z is estimated by AIS from
    independent sites, and by reverse AIS from chains that began at natural sequences: the first errs to the low side, the
    second to the high side, and the interval reaches from one to the other (see `gibbsian.partition.ais`).

    Reference: Barton, Chakraborty, Cocco, Jacquin & Monasson 2016 for entropies of families.

    Args:
        model: a `Potts` machine or `RBM` over the letters of the family.
        family: that it was learned from: base of the annealing, and where the descent begins.
        drawn: sequences drawn from the machine, for ⟨E⟩; by default as many as `chains` are drawn with `sweeps` sweeps.
        chains, betas, max_betas: of AIS; without betas ladders grow until both ways agree, up to `max_betas`.
        generator: the source of randomness, on the device of the model.
        progress: show progress bars; by default on a terminal.

    >>> import gibbsian as gb
    >>> from gibbsian.sequences import Alphabet
    >>> g = torch.Generator().manual_seed(0)
    >>> family = Family(torch.randint(0, 5, (50, 4), generator=g), Alphabet.of("rna"))
    >>> found = entropy(gb.models.Potts(4, 5), family, chains=50, sweeps=5, betas=20, generator=g)
    >>> bool(abs(found.value - 4 * torch.tensor(5.0).log()) < 0.1)
    True
    """
    dtype, device = placement(model)
    generator = require_generator(generator, device)
    if tuple(model.domain.shape) != (family.sites, len(family.alphabet)):
        raise ShapeError(
            f"the machine is over {tuple(model.domain.shape)}, sites and letters, the family has {family.sites} sites and "
            f"{len(family.alphabet)} letters: entropies are of machines that count the gap as a letter"
        )
    if drawn is None:
        drawn = sample_sequences(
            model, family, chains, sweeps=sweeps, start="natural", generator=generator, progress=progress
        )
    with torch.no_grad():
        energies = torch.cat([model(x.to(device, dtype)).double() for x, _ in drawn.blocks()])
    mean, error = float(energies.mean()), float(energies.std() / math.sqrt(len(energies)))
    rows = family.select(torch.randperm(len(family), generator=torch.Generator().manual_seed(0))[:10_000])
    estimate = ais(
        model, rows.x.to(device, dtype), chains=chains, betas=betas, max_betas=max_betas, generator=generator, progress=progress
    )  # fmt: skip
    log_z = from_both_sides(estimate)
    value, stderr = float(log_z.value) + mean, math.hypot(float(log_z.stderr), error)
    lower, upper = float(log_z.lower) + mean - 3 * error, float(log_z.upper) + mean + 3 * error
    return Entropy(value, stderr, lower, upper, mean, log_z)
