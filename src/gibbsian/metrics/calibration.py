"""Whether a classifier that says 80 % is right in 80 % of cases."""

from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.errors import DataError, ShapeError, check_count, check_tensor


class Reliability(NamedTuple):
    """Mean confidence, accuracy and number of rows of each bin of confidence; NaN where a bin is empty."""

    confidence: Tensor
    accuracy: Tensor
    rows: Tensor


def _check_shapes(probabilities: Tensor, labels: Tensor, bins: int) -> None:
    check_tensor(probabilities, "probabilities", "(rows, classes)")
    check_tensor(labels, "labels", "(rows,)", whole=True)
    if probabilities.dim() != 2 or not len(probabilities):
        raise ShapeError(f"probabilities are {tuple(probabilities.shape)}, expected a tensor (rows, classes)")
    if labels.shape != probabilities.shape[:1] or labels.is_floating_point():
        raise ShapeError(f"labels must be whole numbers ({len(probabilities)},), one a row")
    check_count("reliability_curve", "bins", bins)


def _check_values(p: Tensor, labels: Tensor) -> None:
    if not bool((p >= 0).all()) or not bool(((p.sum(1) - 1).abs() < 1e-3).all()):
        raise DataError("rows of probabilities must be at least 0 and sum to 1; give softmax(logits), not logits")
    if int(labels.min()) < 0 or int(labels.max()) >= p.shape[1]:
        raise DataError(f"labels run from {int(labels.min())} to {int(labels.max())}, expected 0 to {p.shape[1] - 1}")


def reliability_curve(probabilities: Tensor, labels: Tensor, bins: int = 15) -> Reliability:
    """Mean confidence max_y p(y|x) and share of right answers in bins (0, 1/b], (1/b, 2/b], ... of confidence.

    Args:
        probabilities: p(y|x), `(rows, classes)`.
        labels: whole numbers `(rows,)`.
        bins: b, equally wide.

    >>> p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7]])
    >>> reliability_curve(p, torch.tensor([0, 1, 1, 1]), bins=2).accuracy
    tensor([  nan, 0.7500], dtype=torch.float64)
    """
    _check_shapes(probabilities, labels, bins)
    p, y = probabilities.detach().double(), labels.to(probabilities.device)
    _check_values(p, y)
    confidence, guess = p.max(1)
    edges = torch.arange(1, bins, dtype=p.dtype, device=p.device) / bins
    where = torch.bucketize(confidence, edges)  # right edges belong to their bin
    count = torch.bincount(where, minlength=bins)
    empty = p.new_zeros(bins)
    said, right = (empty.index_add(0, where, value) for value in (confidence, (guess == y).to(p.dtype)))
    return Reliability(said / count, right / count, count)


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> Tensor:
    """ECE = Σ_b (n_b/n)·|accuracy_b - confidence_b| over equally wide bins of confidence.

    0 is perfect. It is biased upwards by about √(bins/n): compare models on the same rows and bins.

    Reference: Naeini, Cooper & Hauskrecht 2015; Guo et al. 2017.

    Args:
        probabilities, labels, bins: as in `reliability_curve`.

    >>> p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.4, 0.6]])
    >>> expected_calibration_error(p, torch.tensor([0, 0, 1, 0]))
    tensor(0.1000, dtype=torch.float64)
    """
    confidence, accuracy, count = reliability_curve(probabilities, labels, bins)
    seen = count > 0
    return ((accuracy - confidence).abs()[seen] * count[seen]).sum() / count.sum()


def fit_temperature(log_probabilities: Tensor, labels: Tensor) -> float:
    """T of softmax(log p/T) with the highest likelihood of held-out labels: above 1 for a classifier too sure of itself.

    Ranks and errors stay as they are; only how sure the classifier says it is changes. With z = log p and β = 1/T the mean
    loss is convex in β, and its slope Σ_k p_k z_k - z_y is zero at the answer.

    Reference: Guo et al. 2017. Use rows that neither trained the classifier nor judge it.

    Args:
        log_probabilities: log p(y|x), or logits, `(rows, classes)`.
        labels: whole numbers `(rows,)`.

    >>> z = torch.tensor([[2.0, 0.0]] * 4)
    >>> round(fit_temperature(z, torch.tensor([0, 0, 0, 1])), 3)  # three of four are right: log 3 = 2/T
    1.82
    """
    from scipy.optimize import brentq

    check_tensor(log_probabilities, "log_probabilities", "(rows, classes)")
    check_tensor(labels, "labels", "(rows,)", whole=True)
    z, y = log_probabilities.detach().double(), labels.to(log_probabilities.device)
    _check_shapes(z, y, 1)
    _check_values(torch.softmax(z, 1), y)
    z = z - z.amax(1, keepdim=True)  # below the largest: at most 0, and -∞ for classes that cannot be
    true = z.gather(1, y[:, None]).squeeze(1)
    if not bool(torch.isfinite(true).all()):
        never = int((~torch.isfinite(true)).sum())
        raise DataError(
            f"{never} of {len(y)} labels have probability 0, at every temperature; give log_softmax(logits)"
        )
    scale = float(z[torch.isfinite(z)].square().mean().sqrt()) or 1.0  # of what T is found in

    def slope(beta: float) -> float:
        p = torch.softmax(beta / scale * z, 1)
        return float((torch.where(p > 0, p * z, 0.0).sum(1) - true).mean())

    low, high = 1e-3, 1e3
    if slope(low) >= 0 or slope(high) <= 0:
        kind = "worse than chance" if slope(low) >= 0 else "right in all of them"
        raise DataError(f"the classifier is {kind} on these {len(y)} rows, so no temperature is best; give other rows")
    return scale / float(brentq(slope, low, high, xtol=1e-9))
