"""Summaries of chains: from kept draws through ArviZ, or streamed in constant memory."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

__all__ = ["StreamingMoments", "summarise"]


def summarise(samples: Tensor) -> dict[str, Tensor]:
    """Mean, standard deviation, R-hat (rank-normalised, split), bulk and tail ESS and Monte-Carlo error.

    `samples` is `(draws, chains, *event)`; every value has the event shape. Needs at least four draws.

    >>> g = torch.Generator().manual_seed(0)
    >>> s = summarise(torch.randn(500, 4, 2, generator=g))
    >>> bool((s["r_hat"] < 1.01).all()), s["ess"].shape
    (True, torch.Size([2]))
    """
    from arviz_stats.base import array_stats

    event = samples.shape[2:]
    if len(samples) < 4:
        nan = torch.full(event, torch.nan, dtype=samples.dtype)
        mean, sd = samples.flatten(0, 1).mean(0).cpu(), samples.flatten(0, 1).std(0).cpu()
        return {"mean": mean, "sd": sd, "r_hat": nan, "ess": nan, "ess_tail": nan, "mcse": nan}
    array = np.asarray(samples.detach().cpu().double()).reshape(*samples.shape[:2], -1)

    def tensor(values: np.ndarray) -> Tensor:
        return torch.as_tensor(np.asarray(values), dtype=samples.dtype).reshape(event)

    def per_entry(function: str, **options: object) -> Tensor:
        with np.errstate(invalid="ignore", divide="ignore"):
            return tensor(getattr(array_stats, function)(array, chain_axis=1, draw_axis=0, **options))

    return {
        "mean": tensor(array.mean((0, 1))),
        "sd": tensor(array.std((0, 1), ddof=1)),
        "r_hat": per_entry("rhat"),
        "ess": per_entry("ess", method="bulk"),
        "ess_tail": per_entry("ess", method="tail", prob=(0.05, 0.95)),
        "mcse": per_entry("mcse", method="mean"),
    }


@dataclass
class StreamingMoments:
    """Mean, variance, split R-hat and batch-means ESS of `total` draws that are never kept.

    Sums are taken of x minus its first draw, over at most 64 batches per chain, so the memory is 64 draws
    however long the chains are.

    >>> g = torch.Generator().manual_seed(0)
    >>> x = torch.randn(1000, 4, 2, generator=g, dtype=torch.float64)
    >>> stream = StreamingMoments(1000)
    >>> for part in x.split(300):
    ...     stream.update(part)
    >>> torch.allclose(stream.summary()["mean"], x.mean((0, 1)))
    True
    """

    total: int
    seen: int = 0
    shift: Tensor | None = None
    sums: Tensor = field(default_factory=lambda: torch.empty(0))
    squares: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def batches(self) -> int:
        return max(2, min(64, self.total) // 2 * 2)  # even, so that halves are whole batches

    def update(self, x: Tensor) -> None:
        """Take in draws `(n, chains, *event)`."""
        if not len(x):
            return
        if self.shift is None:
            self.shift = x[0].clone()
            self.sums = x.new_zeros(self.batches, *x.shape[1:])
            self.squares = x.new_zeros(2, *x.shape[1:])
        index = torch.arange(self.seen, self.seen + len(x), device=x.device)
        centred = x - self.shift
        self.sums.index_add_(0, index * self.batches // self.total, centred)
        self.squares.index_add_(0, index * 2 // self.total, centred.square())
        self.seen += len(x)

    def summary(self) -> dict[str, Tensor]:
        """The same names as `summarise`, less `ess_tail`; R-hat is the plain split one."""
        if self.shift is None or self.seen < self.total:
            raise ValueError(f"the stream has seen {self.seen} of {self.total} draws")
        n, (b, chains) = self.total, self.sums.shape[:2]
        counts = torch.bincount(torch.arange(n) * b // n, minlength=b).to(self.sums)
        halves = torch.bincount(torch.arange(n) * 2 // n, minlength=2).to(self.sums)
        event = [1] * (self.sums.dim() - 1)
        total = self.sums.sum(0)
        chain_mean = total / n  # relative to the shift
        mean = (chain_mean + self.shift).mean(0)
        chain_var = (self.squares.sum(0) - total * chain_mean) / max(n - 1, 1)
        every = chain_mean + self.shift
        between = every.var(0) if chains > 1 else torch.zeros_like(mean)
        within = chain_var.mean(0)
        plus = within * (n - 1) / n + between
        nan = torch.full_like(mean, torch.nan)
        if n < 4:
            return {"mean": mean, "sd": plus.sqrt(), "r_hat": nan, "ess": nan, "mcse": nan}
        batch_means = self.sums / counts.reshape(-1, *event)
        spread = (counts.reshape(-1, *event) * (batch_means - chain_mean).square()).sum(0) / (b - 1)  # per chain: n Var(mean)
        ess = chains * n * plus / spread.mean(0)
        half_sum = torch.stack([part.sum(0) for part in self._halves()])
        half_n = halves.reshape(-1, *event)
        half_mean = half_sum / half_n
        half_var = (self.squares - half_sum * half_mean) / (half_n - 1)
        w = half_var.mean((0, 1))
        split = (half_mean + self.shift).flatten(0, 1).var(0)
        r_hat = ((w * (n / 2 - 1) / (n / 2) + split) / w).sqrt()
        return {"mean": mean, "sd": plus.sqrt(), "r_hat": r_hat, "ess": ess, "mcse": (plus / ess).sqrt()}

    def _halves(self) -> tuple[Tensor, Tensor]:
        middle = self.batches // 2
        return self.sums[:middle], self.sums[middle:]
