"""A classifier that may decline: rows that it is unsure of, or that look like nothing it was trained on, get no class."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gibbsian.capabilities import Classifier, require
from gibbsian.errors import DataError, as_written, check_choice, check_number
from gibbsian.placement import check_rows

_BLOCK = 2048  # rows at a time
_BY = ("confidence", "energy")


@dataclass(frozen=True, eq=False)
class Rejecting:
    """Classes of rows, -1 where a row is declined.

    Attributes:
        model: knows p(y|x), and E(x) where rows are declined by energy.
        by: "confidence" or "energy".
        threshold: the largest score of a row that is kept.
    """

    model: Any
    by: str
    threshold: float

    def scores(self, x: Tensor) -> Tensor:
        """Higher for rows that are rather declined, `(batch,)`: -log max_y p(y|x), or E(x)."""
        check_rows(self.model, x)
        with torch.no_grad():
            parts = x.split(_BLOCK)
            if self.by == "energy":
                return torch.cat([self.model(part) for part in parts])
            return torch.cat([-self.model.class_log_prob(part).amax(1) for part in parts])

    def __call__(self, x: Tensor) -> Tensor:
        """Classes `(batch,)`, -1 where a row is declined."""
        keep = self.scores(x) <= self.threshold
        with torch.no_grad():
            guess = torch.cat([self.model.class_log_prob(part).argmax(1) for part in x.split(_BLOCK)])
        return torch.where(keep, guess, -1)


def rejecting(model: Any, x: Tensor, *, coverage: float = 0.95, by: str = "confidence") -> Rejecting:
    """A classifier that declines rows stranger than the share 1 - `coverage` of held-out rows.

        threshold: the ⌈(n + 1)·coverage⌉-th smallest score of n held-out rows

    A new row of their law is kept with probability `coverage` at least, and 1/(n + 1) more at most where no scores are equal, whatever the model is
    (split conformal prediction). Declining by confidence trades rows for fewer errors; by energy it turns away
    what is no row of the data at all, of which a classifier may be quite sure.

    Reference: Chow 1970; Vovk, Gammerman & Shafer 2005; Grathwohl et al. 2020 (energies of classifiers).

    Args:
        model: a classifier such as `models.JointEnergy`; for "energy" one that is an energy as well.
        x: rows that neither trained the model nor judge it, `(n, *event)`.
        coverage: share of rows like these that is kept.
        by: "confidence", -log max_y p(y|x), or "energy", E(x).

    >>> import gibbsian as gb
    >>> joint = gb.models.JointEnergy(gb.nets.MLP(2, (8,), outputs=3), gb.domains.Real(2))
    >>> g = torch.Generator().manual_seed(0)
    >>> classifier = rejecting(joint, torch.randn(99, 2, generator=g), coverage=0.8, by="energy")
    >>> kept = classifier(torch.randn(1000, 2, generator=g)) >= 0
    >>> 0.7 < float(kept.float().mean()) < 0.9
    True
    """
    check_choice("rejecting", "by", by, _BY)
    check_number("rejecting", "coverage", coverage, 0.0, 1.0, open_low=True, open_high=True)
    require(model, Classifier, "a classifier that may decline", "make one with models.JointEnergy")
    scores = Rejecting(model, by, math.inf).scores(x)
    if bool(scores.isnan().any()):  # no row would be kept
        raise DataError(
            f"{int(scores.isnan().sum())} of {len(scores)} held-out rows have a score that is no number (NaN)"
        )
    share = as_written(coverage)
    rank = math.ceil((len(scores) + 1) * share)
    if rank > len(scores):
        needed = math.ceil(share / (1 - share))
        raise DataError(
            f"{len(scores)} held-out rows cannot vouch for a coverage of {coverage:g}; give {needed} or more"
        )
    return Rejecting(model, by, float(scores.sort().values[rank - 1]))
