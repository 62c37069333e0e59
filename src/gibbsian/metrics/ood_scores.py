"""What a model says about how far outside its data a row lies: energies, ratios, norms of scores, confidence."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gibbsian.capabilities import Classifier, NoiseLevels
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import ArgumentError, CapabilityError


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


def _check(model: Any, method: str, background: Energy | None, batch_size: int) -> None:
    if method not in _NEEDS:
        raise ArgumentError(f"method={method!r}: expected one of {', '.join(map(repr, _NEEDS))}")
    if batch_size < 1:
        raise ArgumentError(f"batch_size={batch_size}: at least one row at a time")
    needed, what = _NEEDS[method]
    if not isinstance(model, Energy | ScoreField) or not isinstance(model, needed):
        raise CapabilityError(f"method={method!r} needs {what}; got {type(model).__name__}")
    if (method == "ratio") != (background is not None):
        raise ArgumentError("method='ratio' compares with background=, an energy; the other methods take none")


def ood_scores(
    model: Any, x: Tensor, method: str = "energy", *, background: Energy | None = None, batch_size: int = 1024
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

    >>> import gibbsian as gb
    >>> narrow, wide = (gb.energies.Gaussian(torch.zeros(2), s * torch.eye(2)) for s in (1.0, 4.0))
    >>> x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> ood_scores(narrow, x), ood_scores(narrow, x, "score_norm"), ood_scores(narrow, x, "ratio", background=wide)
    (tensor([ 0.0000, 12.5000]), tensor([0., 5.]), tensor([0.0000, 9.3750]))
    """
    _check(model, method, background, batch_size)
    model.domain.check(x)
    score: Callable[[Any, Tensor], Tensor] = {"score_norm": _score_norm, "confidence": _confidence}.get(method, _energy)
    rows = [score(model, part) for part in x.split(batch_size)]
    if background is not None:
        rows = [a - _energy(background, part) for a, part in zip(rows, x.split(batch_size), strict=True)]
    return torch.cat(rows).detach()
