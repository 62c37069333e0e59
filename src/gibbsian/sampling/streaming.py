"""Statistics of draws that are never kept, in memory that does not grow with the run."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError
from gibbsian.sampling.diagnostics import summarize

_LARGE = 1 << 24  # numbers in all draws that are at hand: fewer draws of large events


def _even(low: int, wanted: float, high: int) -> int:
    """The nearest bound or even number below, so that halves of a run are whole parts of it."""
    return int(min(max(low, wanted), high)) // 2 * 2


def sums_in_two_passes(x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Σ(x - shift) and Σ(x - shift)² over the first axis."""
    centered = x - shift
    return centered.sum(0), centered.square_().sum(0)


def sums_in_one_pass(x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """The same for GPUs, where memory is what costs, by a pass that is slow on a CPU."""
    variance, mean = torch.var_mean(x, 0, correction=0)
    mean = mean - shift
    return len(x) * mean, len(x) * (variance + mean.square())


@dataclass
class StreamingMoments:
    """Mean, variance, R-hat and effective sample sizes of `total` draws that are never kept.

    Mean and standard deviation are sums over all draws. So is the variance of batch means, b batches of each of m chains: from it
    come the effective sample size for the mean, known to √(2/mb), and its Monte-Carlo error. Ranks are no sums: R-hat
    (rank-normalized, split, folded, as ArviZ defines it) and the tail ESS are those of r draws of every chain, equally
    spaced over the run, so that the tail ESS is at most their number. A run of no more than r draws has all of them at hand, and
    its summary is that of kept draws.

    b is at most 64 and r = 1024/√m at most 512: R-hat of chains that agree is then 1 ± 0.001. Where a draw of all chains has more
    than a hundred thousand entries both are smaller, 16 and 8 at the least, and all that is held stays about 128 MB.

    Sums are taken in double precision of x minus its first draw.

    >>> g = torch.Generator().manual_seed(0)
    >>> x = torch.randn(1000, 4, 2, generator=g, dtype=torch.float64)
    >>> stream = StreamingMoments(1000)
    >>> for part in x.split(300):
    ...     stream.update(part)
    >>> torch.allclose(stream.summary()["mean"], x.mean((0, 1)))
    True
    """

    total: int
    crowd: int | None = None  # chains that the summary will be of, where these are a share of them
    count: int = 0
    filled: int = 0
    spaced: Tensor | None = None  # (r, chains, *event)
    sums: Tensor = field(default_factory=lambda: torch.empty(0))
    squares: Tensor = field(default_factory=lambda: torch.empty(0))

    def _begin(self, x: Tensor) -> Tensor:
        """Make room, for as much as so many chains need."""
        chains = x.shape[1] if self.crowd is None else self.crowd
        large = _LARGE / (x[0, 0].numel() * chains)
        spaced = x.new_empty(min(self.total, _even(16, min(1024 / chains**0.5, 2 * large), 512)), *x.shape[1:])
        batches = _even(8, min(256 / chains**0.5, large), 64) if len(spaced) < self.total else 0
        self.sums = x.new_zeros(batches, *x.shape[1:], dtype=torch.float64)
        self.squares = torch.zeros_like(self.sums[0]) if batches else self.sums
        return spaced

    def update(self, x: Tensor) -> None:
        """Take in draws `(n, chains, *event)`."""
        if not len(x):
            return
        if self.spaced is None:
            self.spaced = self._begin(x)
        room, first = len(self.spaced), self.filled
        places = []
        while self.filled < room and (at := -(-self.filled * self.total // room)) < self.count + len(x):
            places.append(at - self.count)
            self.filled += 1
        if places and len(places) == len(x):
            self.spaced[first : self.filled] = x
        for i, at in enumerate(places if len(places) < len(x) else ()):  # a list as index would wait for a GPU
            self.spaced[first + i] = x[at]
        if len(self.sums):
            self._add(x, self.spaced[0])
        self.count += len(x)

    def _add(self, x: Tensor, shift: Tensor) -> None:
        done, batches = 0, len(self.sums)
        while done < len(x):  # one run of draws that fall into the same batch after the other
            batch = (self.count + done) * batches // self.total
            end = min(len(x), -(-(batch + 1) * self.total // batches) - self.count)
            add = sums_in_one_pass if x.is_cuda else sums_in_two_passes
            total, squares = add(x[done:end], shift)
            self.sums[batch] += total  # few terms: their own precision is enough until they are added up
            self.squares += squares
            done = end

    def beside(self, others: "Sequence[StreamingMoments]") -> "StreamingMoments":
        """The same of more chains: those of other streams of as many draws, next to these."""
        all_of = (self, *others)
        spaced = torch.cat([one.spaced for one in all_of if one.spaced is not None], 1)
        sums = torch.cat([one.sums for one in all_of], 1)
        squares = torch.cat([one.squares for one in all_of], 0 if len(sums) else 1)
        return replace(self, spaced=spaced, sums=sums, squares=squares)

    def summary(self) -> dict[str, Tensor]:
        """The same names as `summarize`."""
        if self.spaced is None or self.count < self.total:
            raise ArgumentError(f"the stream has seen {self.count} of {self.total} draws; give it the rest")
        result = summarize(self.spaced)
        if not len(self.sums):
            return result
        n, (b, chains) = self.total, self.sums.shape[:2]
        shift = self.spaced[0].double()
        total = self.sums.sum(0)
        chain_mean = total / n + shift
        mean = chain_mean.mean(0)
        inside = self.squares - total.square() / n  # sum of squares about the chain's own mean
        apart = n * (chain_mean - mean).square().sum(0)
        sd = ((inside.sum(0) + apart) / (chains * n - 1)).sqrt()
        # n times the variance of a chain's mean, from batch means about the mean of all chains
        lengths = [j - i for i, j in pairwise(-(-k * n // b) for k in range(b + 1))]
        counts = torch.tensor(lengths, dtype=mean.dtype, device=mean.device).reshape(-1, *[1] * (self.sums.dim() - 1))
        batch_means = self.sums / counts + shift
        spread = (counts * (batch_means - mean).square()).sum((0, 1)) / (chains * b - 1)
        mcse = (spread / (chains * n)).sqrt()
        whole = {"mean": mean, "sd": sd, "ess": chains * n * sd.square() / spread, "mcse": mcse}
        return result | {name: value.to("cpu", result["mean"].dtype) for name, value in whole.items()}
