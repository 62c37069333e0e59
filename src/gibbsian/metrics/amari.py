"""How well a mixing was undone, whatever the order, sign and scale of the components."""

from torch import Tensor

from gibbsian.errors import ShapeError, check_tensor
from gibbsian.metrics.two_sample import precision


def amari_distance(unmixing: Tensor, mixing: Tensor) -> Tensor:
    """Amari distance between an unmixing W and the true mixing A, in [0, 1]: 0 iff P = WA has one entry a row and column.

        (1/2d(d-1)) [Σᵢ (Σⱼ |Pᵢⱼ|/maxₖ|Pᵢₖ| - 1) + Σⱼ (Σᵢ |Pᵢⱼ|/maxₖ|Pₖⱼ| - 1)]

    The mean size of an entry that should be 0, relative to the one that should be 1. Other texts leave out the
    factor 1/(d-1).

    Reference: Amari, Cichocki & Yang 1996.

    Args:
        unmixing: W `(d, d)`, d ≥ 2.
        mixing: A `(d, d)`.

    >>> import torch
    >>> swapped = torch.tensor([[0.0, -3.0], [2.0, 0.0]])
    >>> amari_distance(swapped, torch.eye(2)), amari_distance(torch.ones(2, 2), torch.eye(2))
    (tensor(0.), tensor(1.))
    """
    check_tensor(unmixing, "unmixing", "(d, d)")
    check_tensor(mixing, "mixing", "(d, d)")
    d = unmixing.shape[0] if unmixing.dim() else 0
    if unmixing.shape != (d, d) or mixing.shape != (d, d) or d < 2:
        both = f"unmixing {tuple(unmixing.shape)} and mixing {tuple(mixing.shape)}"
        raise ShapeError(f"{both} must be square, of one size, 2 × 2 at least")
    kind = precision(unmixing, mixing)
    p = (unmixing.detach().to(kind) @ mixing.detach().to(kind)).abs()
    rows = (p / p.amax(1, keepdim=True)).sum() - d
    columns = (p / p.amax(0, keepdim=True)).sum() - d
    return (rows + columns) / (2 * d * (d - 1))
