"""What a run of a kernel returns, with summaries of its chains: from kept draws through ArviZ, or streamed in constant
memory."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, CapabilityError
from gibbsian.kernels.base import Kernel


def summarize(samples: Tensor) -> dict[str, Tensor]:
    """Mean, standard deviation, R-hat (rank-normalized, split), bulk and tail ESS and Monte-Carlo error.

    `samples` is `(draws, chains, *event)`; every value has the event shape. Needs at least four draws.

    >>> g = torch.Generator().manual_seed(0)
    >>> s = summarize(torch.randn(500, 4, 2, generator=g))
    >>> bool((s["r_hat"] < 1.01).all()), s["ess"].shape
    (True, torch.Size([2]))
    """
    from arviz_stats.base import array_stats

    event = samples.shape[2:]
    if len(samples) < 4:
        nan = torch.full(event, torch.nan, dtype=samples.dtype)
        flat = samples.flatten(0, 1).cpu()
        mean, sd = flat.mean(0), flat.std(0) if len(flat) > 1 else nan
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

    Sums are taken in double precision of x minus its first draw, over at most 64 batches per chain, so the
    memory is 64 draws however long the chains are.

    >>> g = torch.Generator().manual_seed(0)
    >>> x = torch.randn(1000, 4, 2, generator=g, dtype=torch.float64)
    >>> stream = StreamingMoments(1000)
    >>> for part in x.split(300):
    ...     stream.update(part)
    >>> torch.allclose(stream.summary()["mean"], x.mean((0, 1)))
    True
    """

    total: int
    count: int = 0
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
            self.sums = x.new_zeros(self.batches, *x.shape[1:], dtype=torch.float64)
            self.squares = x.new_zeros(2, *x.shape[1:], dtype=torch.float64)
        centered = x - self.shift
        done = 0
        while done < len(x):  # one run of draws that fall into the same batch after the other
            batch = (self.count + done) * self.batches // self.total
            end = min(len(x), -(-(batch + 1) * self.total // self.batches) - self.count)
            part = centered[done:end]
            self.sums[batch] += part.sum(0)  # few terms: their own precision is enough until they are added up
            self.squares[batch * 2 // self.batches] += part.square().sum(0)
            done = end
        self.count += len(x)

    def _counts(self, parts: int) -> Tensor:
        """How many draws fall in each of so many parts, shaped to broadcast against the sums."""
        edges = [-(-i * self.total // parts) for i in range(parts + 1)]
        counts = [b - a for a, b in pairwise(edges)]
        return torch.tensor(counts, dtype=self.sums.dtype, device=self.sums.device).reshape(
            -1, *[1] * (self.sums.dim() - 1)
        )

    def summary(self) -> dict[str, Tensor]:
        """The same names as `summarize`, less `ess_tail`; R-hat is the plain split one."""
        if self.shift is None or self.count < self.total:
            raise ArgumentError(f"the stream has seen {self.count} of {self.total} draws; give it the rest")
        n, (b, chains) = self.total, self.sums.shape[:2]
        shift = self.shift.double()
        total = self.sums.sum(0)
        chain_mean = total / n + shift
        mean = chain_mean.mean(0)
        inside = self.squares.sum(0) - total.square() / n  # sum of squares about the chain's own mean
        apart = n * (chain_mean - mean).square().sum(0)
        nan = torch.full_like(mean, torch.nan)
        sd = ((inside.sum(0) + apart) / (chains * n - 1)).sqrt() if chains * n > 1 else nan
        result = {"mean": mean, "sd": sd, "r_hat": nan, "ess": nan, "mcse": nan}
        if n >= 4:
            counts = self._counts(b)
            # n times the variance of a chain's mean, from batch means about the mean of all chains
            batch_means = self.sums / counts + shift
            spread = (counts * (batch_means - mean).square()).sum((0, 1)) / (chains * b - 1)
            half_n = self._counts(2)
            half_sum = self.sums.unflatten(0, (2, -1)).sum(1)
            half_mean = half_sum / half_n + shift
            within = ((self.squares - half_sum.square() / half_n) / (half_n - 1)).mean((0, 1))
            between = half_mean.flatten(0, 1).var(0)
            result["r_hat"] = ((within * (1 - 2 / n) + between) / within).sqrt()
            result["ess"] = chains * n * sd.square() / spread
            result["mcse"] = (spread / (chains * n)).sqrt()
        return {name: value.to(self.shift.dtype) for name, value in result.items()}


@dataclass(frozen=True)
class Trace:
    """What a run of a kernel returns.

    Attributes:
        samples: kept draws `(draws, chains, *event)`, or None when they were not kept.
        last: positions `(chains, *event)` after the last step.
        acceptance: mean acceptance probability over steps and chains, burn-in left out; NaN for unadjusted kernels.
        divergences: for each chain, how many steps met a non-finite or exploding energy or state.
        steps: steps run so far, those of the trace that was resumed counted in.
        compiled: whether steps ran compiled; `compile_note` says why not where that was asked for.
    """

    samples: Tensor | None
    last: Tensor
    acceptance: Tensor
    divergences: Tensor
    steps: int
    kernel: Kernel
    state: Any
    clamp: Tensor | None = None
    moments: StreamingMoments | None = None
    draw_acceptance: Tensor | None = None
    draw_diverged: Tensor | None = None
    compiled: bool = False
    compile_note: str = ""

    def summary(self) -> dict[str, Tensor]:
        """Mean, sd, R-hat, effective sample size and Monte-Carlo error of every entry of the event.

        From kept draws through ArviZ (rank-normalized split R-hat, bulk ESS in `ess`, tail ESS in
        `ess_tail`); from streamed statistics otherwise (plain split R-hat, batch-means ESS).
        """
        if self.samples is not None:
            return summarize(self.samples)
        if self.moments is None:
            raise CapabilityError("this trace holds no draws after burn-in; run more steps than burn_in")
        return self.moments.summary()

    def to_arviz(self, name: str = "x") -> Any:
        """The kept draws as ArviZ's DataTree, with acceptance and divergences as sample statistics."""
        if self.samples is None or self.draw_acceptance is None or self.draw_diverged is None:
            raise CapabilityError("nothing to export: the draws were not kept; call sample(..., keep=True)")
        from arviz_base import from_dict

        chain_first = lambda t: t.transpose(0, 1).cpu().numpy()  # noqa: E731
        stats = {"acceptance_rate": chain_first(self.draw_acceptance), "diverging": chain_first(self.draw_diverged)}
        return from_dict({"posterior": {name: chain_first(self.samples)}, "sample_stats": stats})

    def __repr__(self) -> str:
        kept = tuple(self.samples.shape) if self.samples is not None else "not kept"
        return (
            f"Trace({type(self.kernel).__name__}, {self.steps} steps, {len(self.last)} chains, samples {kept}, "
            f"acceptance {float(self.acceptance):.3g}, {int((self.divergences > 0).sum())} divergent chains)"
        )
