"""What models say about how far outside their data a row lies, and how well that tells outside from inside.

Scores are numbers that are higher for rows from outside, as energies are. Every measure takes the scores of
both sets, `auroc(inside, outside)`, or all scores with their labels, `auroc(scores, labels=labels)`, 1 or True
for outside. Ties count half, as they should; all are exact and work in double precision on the scores' device.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gibbsian.capabilities import Classifier, NoiseLevels
from gibbsian.distributed.world import World
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import ArgumentError, CapabilityError, DataError, ShapeError, as_numbers, check_count, check_number
from gibbsian.placement import check_rows


class RocCurve(NamedTuple):
    """False and true positive rates as the threshold falls, from (0, 0) to (1, 1), outside being positive."""

    false_positive_rate: Tensor
    true_positive_rate: Tensor
    thresholds: Tensor


def _split(scores: Tensor, outside: Tensor | None, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores of both sets in one row, and which of them come from outside."""
    if (outside is None) == (labels is None):
        raise ArgumentError("give the scores of both sets, (inside, outside), or all scores with labels=, not both")
    scores = as_numbers("a ranking", "scores", scores)
    if outside is not None:
        other = as_numbers("a ranking", "outside", outside)
        positive = torch.cat([torch.zeros(scores.numel()), torch.ones(other.numel())]).bool()
        if scores.dim() != 1 or other.dim() != 1:
            raise ShapeError(f"scores are rows of numbers, got shapes {tuple(scores.shape)} and {tuple(other.shape)}")
        scores = torch.cat([scores, other.to(scores.device)])
    else:
        given = as_numbers("a ranking", "labels", labels)
        if scores.dim() != 1 or given.shape != scores.shape:
            shapes = f"scores have shape {tuple(scores.shape)}, labels {tuple(given.shape)}"
            raise ShapeError(f"{shapes}; expected one row each")
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
    check_number("fpr95", "recall", recall, 0.0, 1.0, open_low=True)
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


def _energy(model: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)


def _score_norm(model: Any, x: Tensor) -> Tensor:
    if isinstance(model, ScoreField) and isinstance(model, NoiseLevels):
        # σ‖s(x, σ)‖ has the same size, √d, at every level inside the data
        norms = [s * model.given(s).score(x).flatten(1).norm(dim=1) for s in model.noise_levels().unbind()]
        return torch.stack(norms).mean(0)
    return model.score(x).flatten(1).norm(dim=1)


def _confidence(model: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return -model.class_log_prob(x).amax(1)


_NEEDS: dict[str, tuple[Any, str]] = {
    "energy": (Energy, "an energy; for a score network use method='score_norm'"),
    "ratio": (Energy, "an energy; for a score network use method='score_norm'"),
    "score_norm": (Energy | ScoreField, "an energy or a score field"),
    "confidence": (Classifier, "a classifier with class_log_prob(x), such as models.JointEnergy"),
}


def _check(model: Any, method: str, background: Energy | None) -> None:
    if method not in _NEEDS:
        raise ArgumentError(f"method={method!r}: expected one of {', '.join(map(repr, _NEEDS))}")
    needed, what = _NEEDS[method]
    if not isinstance(model, Energy | ScoreField) or not isinstance(model, needed):
        raise CapabilityError(f"method={method!r} needs {what}; got {type(model).__name__}")
    if (method == "ratio") != (background is not None):
        raise ArgumentError("method='ratio' compares with background=, an energy; the other methods take none")
    if background is not None and not isinstance(background, Energy):
        raise CapabilityError(
            f"background is a {type(background).__name__}, expected an energy; wrap functions with gibbsian.as_energy"
        )


def ood_scores(
    model: Any,
    x: Tensor,
    method: str = "energy",
    *,
    background: Energy | None = None,
    batch_size: int = 1024,
    world: World | None = None,
) -> Tensor:
    """A number a row, higher for rows that look less like the model's data; `(batch,)`, detached.

        energy       E(x): the negative log-density but for log Z, which does not change the order
        ratio        E(x) - E₀(x) with a background model E₀, trained on noisy or general data: cancels what is
                     merely easy to predict, such as smooth backgrounds in images
        score_norm   ‖∇ₓ log p(x)‖, the norm of the energy's gradient in x: mass rather than density, a point
                     outside the typical set has a steep slope; a noise-conditional score is averaged over its
                     levels as σ‖s(x, σ)‖
        confidence   -log max_y p(y|x), the baseline for classifiers

    Densities alone may rank simple outsiders as insiders (Nalisnick et al. 2019); compare several methods.

    Reference: Liu et al. 2020 (energy); Ren et al. 2019 (ratio); Grathwohl et al. 2020 (norm); Hendrycks &
    Gimpel 2017 (confidence).

    Args:
        model: an `Energy`, or for "score_norm" also a `ScoreField`.
        x: `(batch, *event)`.
        method: one of the four.
        background: E₀ of "ratio".
        batch_size: rows evaluated at a time.
        world: processes that share the batches, `distributed.join()[0]`: all make the same call.

    >>> import gibbsian as gb
    >>> narrow, wide = (gb.energies.Gaussian(torch.zeros(2), s * torch.eye(2)) for s in (1.0, 4.0))
    >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> ood_scores(narrow, x), ood_scores(narrow, x, "score_norm"), ood_scores(narrow, x, "ratio", background=wide)
    (tensor([ 0.0000, 12.5000]), tensor([0., 5.]), tensor([0.0000, 9.3750]))
    """
    _check(model, method, background)
    check_rows(model, x)
    if background is not None:
        check_rows(background, x, "x, under the background,")
    batch_size = check_count("ood_scores", "batch_size", batch_size)
    score: Callable[[Any, Tensor], Tensor] = {"score_norm": _score_norm, "confidence": _confidence}.get(method, _energy)

    def scores(part: Tensor) -> Tensor:
        own = score(model, part)
        return (own if background is None else own - _energy(background, part)).detach()

    return (world or World()).collect(x.split(batch_size), scores)
