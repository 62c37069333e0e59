"""Which sites touch: strong couplings, with the average-product correction, and how many of them are right."""

from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, ShapeError, check_count
from gibbsian.models import Potts
from gibbsian.models.potts import gauged


class Contacts(NamedTuple):
    """Pairs of sites, strongest first.

    Attributes:
        pairs: `(count, 2)`, i < j, sites from 0.
        values: the corrected strength of each.
        scores: of all pairs, `(sites, sites)`, 0 on the diagonal.
    """

    pairs: Tensor
    values: Tensor
    scores: Tensor


def contacts(
    potts: Potts, *, minimum_separation: int = 5, gap: int | str | None = "first", corrected: bool = True
) -> Contacts:
    """Pairs of sites by the strength of their coupling.

        Fᵢⱼ = ‖Jᵢⱼ‖ in the zero-sum gauge, without the gap;   Fᵢⱼ - FᵢFⱼ/F with the average-product correction

    Strongly coupled sites are mostly in contact in the folded molecule. The correction takes away what a site has with
    all others (Dunn, Wahl & Gloor 2008).

    Reference: Morcos et al. 2011; Ekeberg et al. 2013.

    Args:
        potts: learned from a family.
        minimum_separation: pairs with |i - j| below this are left out: neighbors along the chain always touch.
        gap: the state that stands for a gap, left out of the norm; None where there is none. "first" is state 0, where
            alphabets have it, but none in machines of 4 or 20 states, whose letters are those of nucleotides and proteins.
        corrected: whether to subtract the average product.

    >>> import gibbsian as gb
    >>> found = contacts(gb.models.Potts(8, 5))
    >>> found.pairs.shape, found.scores.shape
    (torch.Size([6, 2]), torch.Size([8, 8]))
    """
    least = check_count("contacts", "minimum_separation", minimum_separation)
    with torch.no_grad():
        _, coupling = gauged(potts.field, potts.symmetric(), torch.full((potts.states,), 1 / potts.states))
    if gap == "first":
        gap = None if potts.states in (4, 20) else 0
    if gap is not None:
        if not isinstance(gap, int) or not 0 <= gap < potts.states:
            raise ArgumentError(f"gap={gap!r}: expected a state from 0 to {potts.states - 1}, 'first', or None")
        coupling[:, gap] = coupling[..., gap] = 0.0
    scores = torch.linalg.vector_norm(coupling, dim=(1, 3))
    sites = potts.sites
    if sites <= least:
        raise ArgumentError(f"minimum_separation={least} leaves no pair of {sites} sites")
    if corrected:
        mean = scores.mean(1)  # the diagonal counted as 0, as plmDCA and its successors do
        scores = scores - mean[:, None] * mean / mean.mean()
        scores.fill_diagonal_(0.0)
    i, j = torch.triu_indices(sites, sites, least, device=scores.device)
    values, order = scores[i, j].sort(descending=True)
    return Contacts(torch.stack([i[order], j[order]], 1), values, scores)


def precision(found: Contacts, touching: Tensor, count: int | None = None) -> float:
    """The share of the first `count` pairs (as many as there are sites where it is left out) that touch.

    Args:
        found: predicted contacts.
        touching: `(sites, sites)`, True where two sites touch in a structure; NaN (as numbers) where nobody knows.
        count: how many of the strongest pairs whose distance is known.

    >>> scores = torch.tensor([[0.0, 2.0, 1.0], [2.0, 0.0, 3.0], [1.0, 3.0, 0.0]])
    >>> found = Contacts(torch.tensor([[1, 2], [0, 1], [0, 2]]), torch.tensor([3.0, 2.0, 1.0]), scores)
    >>> precision(found, torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0]]).bool(), 2)
    0.5
    """
    if touching.shape != found.scores.shape:
        raise ShapeError(f"touching has shape {tuple(touching.shape)}, expected {tuple(found.scores.shape)}")
    count = found.scores.shape[0] if count is None else check_count("precision", "count", count)
    values = touching.double()[found.pairs[:, 0], found.pairs[:, 1]]
    return float(values[~values.isnan()][:count].mean())
