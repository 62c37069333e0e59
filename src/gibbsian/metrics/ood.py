"""How well a score tells outside from inside: AUROC, AUPR, false positives at 95 % recall, and the curves.

Scores are numbers that are higher for rows from outside, as energies are. Every function takes the scores of
both sets, `auroc(inside, outside)`, or all scores with their labels, `auroc(scores, labels=labels)`, 1 or True
for outside. Ties count half, as they should; all are exact and work in double precision on the scores' device.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, DataError, ShapeError


class RocCurve(NamedTuple):
    """False and true positive rates as the threshold falls, from (0, 0) to (1, 1), outside being positive."""

    false_positive_rate: Tensor
    true_positive_rate: Tensor
    thresholds: Tensor


def _split(scores: Tensor, outside: Tensor | None, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores of both sets in one row, and which of them come from outside."""
    if (outside is None) == (labels is None):
        raise ArgumentError(
            "give the scores of both sets, (inside, outside), or all scores with labels=; one of the two"
        )
    scores = torch.as_tensor(scores)
    if outside is not None:
        other = torch.as_tensor(outside)
        positive = torch.cat([torch.zeros(scores.numel()), torch.ones(other.numel())]).bool()
        if scores.dim() != 1 or other.dim() != 1:
            raise ShapeError(f"scores are rows of numbers, got shapes {tuple(scores.shape)} and {tuple(other.shape)}")
        scores = torch.cat([scores, other.to(scores.device)])
    else:
        given = torch.as_tensor(labels)
        if scores.dim() != 1 or given.shape != scores.shape:
            raise ShapeError(
                f"scores have shape {tuple(scores.shape)}, labels {tuple(given.shape)}; expected one row each"
            )
        if not bool(((given == 0) | (given == 1)).all()):
            raise DataError("labels must be 0 (inside) or 1 (outside); turn others into that, for example y == anomaly")
        positive = given.bool()
    positive = positive.to(scores.device)
    count = int(positive.sum())
    if count in {0, len(positive)}:
        raise DataError(f"{count} of {len(positive)} rows come from outside; both kinds are needed to compare them")
    if not bool(torch.isfinite(scores).all()):
        bad = int((~torch.isfinite(scores)).sum())
        raise DataError(f"{bad} of {len(scores)} scores are not finite; a model that gives such scores ranks nothing")
    return scores.detach().double(), positive


def _counts(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct thresholds, falling, and how many of outside and of inside reach each."""
    order = scores.argsort(descending=True)
    ranked, hit = scores[order], positive[order].double()
    last = torch.cat([ranked[1:] != ranked[:-1], ranked.new_ones(1, dtype=torch.bool)])  # of each run of ties
    true = hit.cumsum(0)[last]
    false = (1 - hit).cumsum(0)[last]
    return ranked[last], true, false


def auroc(scores: Tensor, outside: Tensor | None = None, *, labels: Tensor | None = None) -> Tensor:
    """Area under the ROC curve: P(score outside > score inside) + ½ P(equal). ½ is chance, 1 is perfect.

    Args:
        scores: of the inside rows `(n,)`, or of all rows where labels are given.
        outside: scores of the outside rows `(m,)`.
        labels: 1 or True for outside.

    >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.5]))
    tensor(0.7500, dtype=torch.float64)
    """
    _, true, false = _counts(*_split(scores, outside, labels))
    before = torch.cat([true.new_zeros(1), true[:-1]])
    steps = torch.diff(false, prepend=false.new_zeros(1))
    return (steps * (true + before)).sum() / (2 * true[-1] * false[-1])


def aupr(
    scores: Tensor, outside: Tensor | None = None, *, labels: Tensor | None = None, positive: str = "outside"
) -> Tensor:
    """Average precision, the area under the steps of the precision-recall curve: Σ (Rᵢ - Rᵢ₋₁) Pᵢ.

    Chance is the share of positive rows, so figures compare on equal mixtures only.

    Args:
        scores, outside, labels: as in `auroc`.
        positive: what is to be found, "outside" (AUPR-out) or "inside" (AUPR-in).

    >>> aupr(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.5]))
    tensor(0.8333, dtype=torch.float64)
    """
    if positive not in {"outside", "inside"}:
        raise ArgumentError(f"positive={positive!r}: expected 'outside' or 'inside'")
    values, hit = _split(scores, outside, labels)
    _, true, false = _counts(values, hit) if positive == "outside" else _counts(-values, ~hit)
    recall = true / true[-1]
    return (torch.diff(recall, prepend=recall.new_zeros(1)) * true / (true + false)).sum()


def fpr95(
    scores: Tensor, outside: Tensor | None = None, *, labels: Tensor | None = None, recall: float = 0.95
) -> Tensor:
    """Share of outside rows taken for inside by the strictest threshold that keeps 95 % of the inside rows.

    Inside rows are the positives here, as in the literature on out-of-distribution detection (Hendrycks &
    Gimpel 2017; Liu et al. 2020); 0 is perfect, 0.95 is chance.

    >>> fpr95(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.5]))
    tensor(0.5000, dtype=torch.float64)
    """
    if not 0 < recall <= 1:
        raise ArgumentError(f"recall={recall}: a share of the inside rows above 0, up to 1")
    values, hit = _split(scores, outside, labels)
    _, kept, passed = _counts(-values, ~hit)
    enough = kept >= recall * kept[-1] * (1 - 1e-12)  # rounding must not ask for one row more
    return passed[enough][0] / passed[-1]


def roc_curve(scores: Tensor, outside: Tensor | None = None, *, labels: Tensor | None = None) -> RocCurve:
    """Every point of the ROC curve, one for each distinct score, from (0, 0) on.

    >>> curve = roc_curve(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 0.5]))
    >>> curve.false_positive_rate.tolist(), curve.true_positive_rate.tolist()
    ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0])
    """
    thresholds, true, false = _counts(*_split(scores, outside, labels))
    zero = true.new_zeros(1)
    return RocCurve(
        torch.cat([zero, false / false[-1]]),
        torch.cat([zero, true / true[-1]]),
        torch.cat([zero + torch.inf, thresholds]),
    )
