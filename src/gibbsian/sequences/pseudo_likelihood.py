"""Pseudo-likelihood of families: value and gradient from two passes over the sequences, minimized by L-BFGS."""

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from gibbsian.errors import TrainingWarning
from gibbsian.models import Potts
from gibbsian.models.potts import gauged
from gibbsian.progress import progress_bar

_ROWS = 1024  # sequences at a time: their residuals stay in the cache


class Products:
    """Some sequences as one-hot rows: what devices with fast matrix products want.

    Args:
        at: `(sequences, sites)`, for every site the row of J that its letter stands for; `n` for gaps that are ignored.
        n: rows of J.
        like: for precision and device.
    """

    def __init__(self, at: Tensor, n: int, like: Tensor) -> None:
        x = torch.zeros(len(at), n + 1, dtype=like.dtype, device=like.device)
        self.x = x.scatter_(1, at, 1.0)[:, :n]

    def pulls(self, j: Tensor) -> Tensor:
        """Σⱼ Jᵢⱼ(a, xⱼ), `(sequences, n)`; `j` has a last row of zeros."""
        return self.x @ j[:-1]

    def sums(self, residual: Tensor) -> Tensor:
        """The residuals of all sequences that have a letter at a site, added up: `(n, n)`."""
        return self.x.T @ residual


class Lookups:
    """The same by looking rows up and adding them: one of `states` numbers where a product multiplies them all."""

    def __init__(self, at: Tensor, n: int, like: Tensor) -> None:
        self.at = at.int()
        order = at.flatten().argsort(stable=True)
        ends = torch.bincount(at.flatten(), minlength=n + 1).cumsum(0)
        self.offsets = torch.cat([ends.new_zeros(1), ends[:n]]).int()
        self.rows = (order // at.shape[1])[: int(ends[n - 1])].int()

    def pulls(self, j: Tensor) -> Tensor:
        return embedding_bag(self.at, j, mode="sum")

    def sums(self, residual: Tensor) -> Tensor:
        return embedding_bag(self.rows, residual, self.offsets, mode="sum", include_last_offset=True)


class PseudoLikelihood:
    """-(1/Meff) Σₙ wₙ Σᵢ log p(xᵢ | rest) + λ_h‖h‖² + λ_J Σ_{i<j} ‖Jᵢⱼ‖², and its gradient.

    Its parameters are one vector: h, then Jᵢⱼ of i < j; asymmetric ones have every block of both sides, each penalized by
    λ_J/2, so that the minimum is that of every site for itself.

    Args:
        states: `(sequences, sites)`, letters as numbers.
        weights: of the sequences.
        letters: q.
        l2: λ_h and λ_J.
        ignored: a letter, such as a gap, that is neither predicted nor looked at; the others move down by one above it.
        asymmetric: whether every site has couplings of its own.
        looked_up: by `Lookups` instead of `Products`; on the CPU by default.
        like: for precision and device.
    """

    def __init__(
        self,
        states: Tensor,
        weights: Tensor,
        letters: int,
        *,
        l2: tuple[float, float],
        like: Tensor,
        ignored: int | None = None,
        asymmetric: bool = False,
        looked_up: bool | None = None,
    ) -> None:
        states = states.long().to(like.device)
        self.sites, self.q = states.shape[1], letters - (ignored is not None)
        self.n, self.l2, self.asymmetric = self.sites * self.q, l2, asymmetric
        known = torch.ones_like(states, dtype=torch.bool) if ignored is None else states != ignored
        letter = states if ignored is None else states - (states > ignored).long()
        at = torch.where(known, letter + self.q * torch.arange(self.sites, device=like.device), self.n)
        share = (weights / weights.sum()).to(like)[:, None] * known
        form = Lookups if (like.device.type == "cpu" if looked_up is None else looked_up) else Products
        size = _ROWS if form is Lookups else 4 * _ROWS
        self.blocks = [
            (form(rows, self.n, like), rows.clamp(max=self.n - 1), w)
            for rows, w in zip(at.split(size), share.split(size), strict=True)
        ]
        self.upper = tuple(torch.triu_indices(self.sites, self.sites, 1, device=like.device))
        self.table = like.new_zeros(self.n + 1, self.n)  # J, and a row of zeros for gaps that are ignored
        self.between = (1 - torch.eye(self.sites, dtype=like.dtype, device=like.device))[:, None, :, None]

    def start(self, field: Tensor) -> Tensor:
        """Parameters without couplings."""
        pairs = self.sites**2 if self.asymmetric else len(self.upper[0])
        return torch.cat([field.flatten(), field.new_zeros(pairs * self.q**2)])

    def couplings(self, theta: Tensor) -> Tensor:
        """J of the parameters, `(sites, states, sites, states)`: what the first site does to the second."""
        j = self.table[:-1].view(self.sites, self.q, self.sites, self.q)
        if self.asymmetric:
            j.copy_(theta[self.n :].view(j.shape))
        else:
            blocks, (a, b) = j.permute(0, 2, 1, 3), self.upper
            pairs = theta[self.n :].view(-1, self.q, self.q)
            blocks[a, b], blocks[b, a] = pairs, pairs.transpose(1, 2)
        return j

    def __call__(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Value, in double precision, and gradient."""
        h, rest = theta[: self.n], theta[self.n :]
        self.couplings(theta)
        value = torch.zeros((), dtype=torch.float64, device=theta.device)
        slope, a = torch.zeros_like(h), torch.zeros_like(self.table[:-1])
        for rows, residual, part in self._residuals(h):
            value += part
            slope += residual.sum(0)
            a += rows.sums(residual)
        a4 = a.view(self.sites, self.q, self.sites, self.q)
        if self.asymmetric:
            gradient = (a4 * self.between).flatten()
        else:
            i, j = self.upper
            blocks = a4.permute(0, 2, 1, 3)
            gradient = (blocks[i, j] + blocks[j, i].transpose(1, 2)).flatten()
        fields, pairs = self.l2[0], self.l2[1] * (0.5 if self.asymmetric else 1.0)
        value += fields * h.double().square().sum() + pairs * rest.double().square().sum()
        return value, torch.cat([slope + 2 * fields * h, gradient.add_(rest, alpha=2 * pairs)])

    def _residuals(self, h: Tensor) -> Iterator[tuple[Products | Lookups, Tensor, Tensor]]:
        """For every block of sequences wₙ(p - x), `(sequences, n)`, and its part of the value."""
        for rows, letter, w in self.blocks:
            g = rows.pulls(self.table).add_(h)
            sites = g.view(-1, self.sites, self.q)
            sites -= sites.amax(-1, keepdim=True)
            own = g.gather(1, letter)
            total = sites.exp_().sum(-1)  # softmax over few states is slow in torch
            value = (w * (total.log() - own)).double().sum()
            sites *= (w / total)[..., None]
            yield rows, g.scatter_add_(1, letter, -w), value


def minimized(
    loss: PseudoLikelihood, field: Tensor, steps: int, tolerance: float, progress: bool | None
) -> tuple[Tensor, Tensor]:
    """h and J at the minimum, J the average of both sides where they are two."""
    theta = loss.start(field).requires_grad_(True)
    with torch.no_grad():
        first = float(loss(theta)[0])
    optimizer = torch.optim.LBFGS(
        [theta],
        max_iter=steps,
        max_eval=10 * steps,
        history_size=10,
        line_search_fn="strong_wolfe",
        tolerance_change=tolerance * max(first, 1e-12),
        tolerance_grad=0.0,
    )

    def iterations() -> int:
        return int(optimizer.state[theta].get("n_iter", 0))

    with progress_bar(steps, "pseudo-likelihood", progress) as tick:
        seen = 0

        def closure() -> float:
            nonlocal seen
            with torch.no_grad():
                value, theta.grad = loss(theta)
            tick(iterations() - seen, value=float(value))
            seen = iterations()
            return float(value)

        optimizer.step(closure)
    if iterations() >= steps:
        warnings.warn(
            f"pseudo-likelihood was still falling after {steps} iterations; raise steps=", TrainingWarning, stacklevel=4
        )
    theta = theta.detach()
    h, j = theta[: loss.n].view(loss.sites, loss.q), loss.couplings(theta).permute(2, 3, 0, 1)
    if loss.asymmetric:  # every site has a gauge of its own
        h, j = gauged(h, j, torch.full((loss.q,), 1 / loss.q))
        j = (j + j.permute(2, 3, 0, 1)) / 2
    return h, j


def fit_pseudo_likelihood(
    states: Tensor,
    weights: Tensor,
    potts: Potts,
    *,
    l2: tuple[float, float],
    ignored: int | None,
    asymmetric: bool,
    steps: int,
    tolerance: float,
    progress: bool | None,
) -> Potts:
    """The machine with the parameters of largest pseudo-likelihood, starting from its fields."""
    letters = potts.states + (ignored is not None)
    loss = PseudoLikelihood(
        states, weights, letters, l2=l2, ignored=ignored, asymmetric=asymmetric, like=potts.field.detach()
    )
    h, j = minimized(loss, potts.field.detach(), steps, tolerance, progress)
    potts.field.copy_(h)
    potts.coupling.copy_(j)
    return potts
