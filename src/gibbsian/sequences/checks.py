"""Do drawn sequences look like natural ones? Statistics of one, two and three sites, principal components, distances."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, check_count
from gibbsian.random import stream
from gibbsian.sequences.family import Family


class Agreement(NamedTuple):
    """A statistic of natural sequences against the same of drawn ones.

    Attributes:
        natural, drawn: the numbers, in one order.
        pearson: their correlation.
        slope: of the line drawn = slope · natural + constant: below 1 the machine is too timid, above 1 too bold.
    """

    natural: Tensor
    drawn: Tensor
    pearson: float
    slope: float


class Checks(NamedTuple):
    """What `compare` found.

    Attributes:
        one: frequencies fᵢ(a).
        two: connected correlations fᵢⱼ - fᵢfⱼ of pairs of sites, i < j.
        three: connected correlations of triples of sites.
        components: the first two principal components of natural and of drawn sequences, `(sequences, 2)` each.
        explained: the shares of the natural variance that they hold.
        nearest: for every drawn sequence the largest identity with a natural one.
        nearest_natural: the same between natural ones, themselves left out.
    """

    one: Agreement
    two: Agreement
    three: Agreement
    components: tuple[Tensor, Tensor]
    explained: tuple[float, float]
    nearest: Tensor
    nearest_natural: Tensor

    def __repr__(self) -> str:
        sites = ", ".join(
            f"{name} {one.pearson:.3f} (slope {one.slope:.2f})"
            for name, one in (("one", self.one), ("two", self.two), ("three", self.three))
        )
        identity = f"{float(self.nearest.mean()):.2f} (natural {float(self.nearest_natural.mean()):.2f})"
        return f"Checks(Pearson of sites: {sites}; nearest identity {identity})"


def compare(natural: Family, drawn: Family, *, triples: int = 500, most: int = 5000) -> Checks:
    """Drawn sequences beside natural ones: what the field looks at before it trusts a machine.

    One- and two-site statistics are what Boltzmann learning fits; three-site ones and the clouds of principal
    components are not, so they tell whether pairs suffice. Natural sequences count with their weights. Distances tell
    copies from new sequences: drawn ones that are as near to a natural one as natural ones are to each other are new.

    Reference: Figliuzzi, Barrat-Charlaix & Weigt 2018; Russ et al. 2020.

    Args:
        natural: the family, weighted.
        drawn: from `sample_sequences`.
        triples: of sites, drawn by a fixed seed, where there are more.
        most: sequences of each kind whose distances are looked at.

    >>> from gibbsian.sequences import Alphabet
    >>> g = torch.Generator().manual_seed(0)
    >>> one, other = (Family(torch.randint(0, 3, (200, 6), generator=g), Alphabet("-AB")) for _ in range(2))
    >>> compare(one, other).nearest.shape
    torch.Size([200])
    """
    _check_comparable(natural, drawn)
    both = [family.frequencies() for family in (natural, drawn)]
    i, j = torch.triu_indices(natural.sites, natural.sites, 1)
    two = [(f2 - f1[:, :, None, None] * f1).permute(0, 2, 1, 3)[i, j].flatten() for f1, f2 in both]
    chosen = _triples(natural.sites, check_count("compare", "triples", triples))
    three = [_connected_triples(f, chosen, *stats) for f, stats in zip((natural, drawn), both, strict=True)]
    axes, mean, explained = _principal_axes(*both[0])
    components = tuple(
        torch.cat([(x.flatten(1).double() - mean) @ axes for x, _ in f.blocks()]) for f in (natural, drawn)
    )
    few, new = _some(natural, most), _some(drawn, most)
    return Checks(
        _agreement(*(f1.flatten() for f1, _ in both)),
        _agreement(*two),
        _agreement(*three),
        (components[0], components[1]),
        explained,
        nearest_identity(new, natural),
        nearest_identity(few, natural, leave_out=1),
    )


def nearest_identity(family: Family, among: Family, *, leave_out: int = 0) -> Tensor:
    """For every sequence of a family the largest share of sites in which it agrees with one of another.

    Args:
        family, among: aligned to the same sites.
        leave_out: how many of the nearest to pass over: 1 where a family is compared with itself.

    >>> from gibbsian.sequences import Alphabet
    >>> rows = [Family(torch.tensor(states), Alphabet("-AB")) for states in ([[0, 1, 2, 2]], [[0, 1, 1, 1], [0, 1, 2, 0]])]
    >>> nearest_identity(*rows)
    tensor([0.7500])
    """
    best = []
    for x, _ in family.blocks(1024):
        flat, tops = x.flatten(1), x.new_full((len(x), 1 + leave_out), -1.0)
        for y, _ in among.blocks(4096):
            near = torch.cat([tops, flat @ y.flatten(1).T], 1)
            tops = near.topk(1 + leave_out, 1).values
        best.append(tops[:, -1])
    return torch.cat(best) / family.sites


def _some(family: Family, most: int) -> Family:
    if len(family) <= most:
        return family
    return family.select(torch.randperm(len(family), generator=stream(0, "compare"))[:most])


def _agreement(natural: Tensor, drawn: Tensor) -> Agreement:
    covariance = torch.cov(torch.stack([natural, drawn]))
    (var, between), (_, other) = covariance.tolist()
    spread = (var * other) ** 0.5
    return Agreement(
        natural, drawn, between / spread if spread else float("nan"), between / var if var else float("nan")
    )


def _check_comparable(natural: Family, drawn: Family) -> None:
    if natural.alphabet.letters != drawn.alphabet.letters or natural.sites != drawn.sites:
        raise ArgumentError(f"compare: {natural!r} and {drawn!r} differ in sites or letters")
    if natural.sites < 3:
        raise ArgumentError(f"compare: statistics of three sites need three, these sequences have {natural.sites}")
    if not natural.varies:
        raise ArgumentError(f"compare: the {len(natural)} natural sequences are all the same; give some that differ")


def _triples(sites: int, count: int) -> Tensor:
    """i < j < k, all of them or some drawn without replacement."""
    whole = sites * (sites - 1) * (sites - 2) // 6
    if whole <= count:
        return torch.combinations(torch.arange(sites), 3)
    generator = stream(0, "triples")
    found: set[tuple[int, ...]] = set()
    while len(found) < count:
        found.add(tuple(sorted(torch.randperm(sites, generator=generator)[:3].tolist())))
    return torch.tensor(sorted(found))


def _connected_triples(family: Family, chosen: Tensor, f1: Tensor, f2: Tensor) -> Tensor:
    """fᵢⱼₖ - fᵢⱼfₖ - fᵢₖfⱼ - fⱼₖfᵢ + 2fᵢfⱼfₖ of every triple and letters, `(triples·q³,)`."""
    q = f1.shape[1]
    states, share = family.states.long(), family.weights.double() / family.weights.double().sum()
    out = []
    for i, j, k in chosen.tolist():
        code = (states[:, i] * q + states[:, j]) * q + states[:, k]
        whole = torch.bincount(code, share, minlength=q**3).reshape(q, q, q)
        a, b, c = f1[i][:, None, None], f1[j][None, :, None], f1[k][None, None, :]
        ij, ik, jk = f2[i, :, j][:, :, None], f2[i, :, k][:, None, :], f2[j, :, k][None]
        out.append((whole - ij * c - ik * b - jk * a + 2 * a * b * c).flatten())
    return torch.cat(out)


def _principal_axes(f1: Tensor, f2: Tensor) -> tuple[Tensor, Tensor, tuple[float, float]]:
    """The two directions of largest variance, `(sites·letters, 2)`, the mean, and the shares of variance."""
    from scipy.sparse.linalg import eigsh

    mean = f1.flatten()
    covariance = (f2.reshape(len(mean), len(mean)) - torch.outer(mean, mean)).numpy()
    values, vectors = eigsh(covariance, k=2, v0=np.ones(len(mean)) + np.arange(len(mean)) / len(mean))
    axes = torch.from_numpy(vectors[:, ::-1].copy())
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()  # an axis has two directions: one of them
    total = float(np.trace(covariance))
    return axes, mean, (float(values[1]) / total, float(values[0]) / total)
