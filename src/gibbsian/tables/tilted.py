"""A mixture over tables, tilted by a network: p(x) = p₀(x) exp(-f(x)) / Z.

The mixture p₀ knows all its marginals and conditionals, the network learns what it misses. With p₀ at hand everything
is an average over its draws:

    log Z = log E_{p₀}[e^{-f}],      log p(xₒ) = log p₀(xₒ) + log E_{p₀(x_miss | xₒ)}[e^{-f(xₒ, x_miss)}] - log Z

so gaps are marginalized in both phases of the learning, never filled in. f is a function of cells: of the middles of bins, so
the law of whole numbers stays one of masses.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gibbsian.random import isolated, stream
from gibbsian.recorded import Recorded
from gibbsian.tables.codec import Codec
from gibbsian.tables.mixture import Mixture
from gibbsian.tables.rows import Rows

_POOL = 1 << 15  # draws of the mixture that the network learns against
_BOUND = 4.0  # of |f|, so that log Z can be trusted
_JUDGE = 20000  # for log Z
_CLIP = 6.0  # z beyond which the network sees no difference


class Net(Recorded):
    """f(x): numbers and codes of a row to one number, 0 at first.

    Args:
        numbers: how many z.
        states: of every code.
        hidden: widths.
    """

    def __init__(self, numbers: int, states: tuple[int, ...], hidden: tuple[int, ...] = (64, 64)) -> None:
        super().__init__()
        first, *others = hidden
        self.offsets = [0]
        for size in states:
            self.offsets.append(self.offsets[-1] + size + 1)
        self.numbers = nn.Linear(2 * numbers, first)
        self.codes = nn.EmbeddingBag(max(self.offsets[-1], 1), first, mode="sum")
        layers: list[nn.Module] = [nn.SiLU()]
        for a, b in zip(hidden, others, strict=False):
            layers += [nn.Linear(a, b), nn.SiLU()]
        layers.append(nn.Linear(hidden[-1], 1))
        self.rest = nn.Sequential(*layers)
        with torch.no_grad():
            self.codes.weight.mul_(0.3)
            self.rest[-1].weight.zero_()  # type: ignore[operator]
            self.rest[-1].bias.zero_()  # type: ignore[operator]
        self.float()  # as `Batch` is, whatever the default

    def forward(self, z: Tensor, code: Tensor) -> Tensor:
        there = ~z.isnan()
        z = torch.where(there, z, torch.zeros_like(z)).clamp(-_CLIP, _CLIP)
        out = self.numbers(torch.cat([z, there.to(z)], 1))
        if code.shape[1]:
            out = out + self.codes(code + torch.tensor(self.offsets[:-1]))
        return _BOUND * torch.tanh(self.rest(out)[:, 0] / _BOUND)


class Batch(NamedTuple):
    """Cells as the network takes them."""

    z: Tensor
    code: Tensor

    @classmethod
    def of(cls, rows: Rows) -> "Batch":
        return cls(rows.z.float(), rows.code)

    def take(self, index: Tensor | slice) -> "Batch":
        return Batch(self.z[index], self.code[index])


class Estimate(NamedTuple):
    """Values with the ends of an interval of three standard errors."""

    value: Tensor
    lower: Tensor
    upper: Tensor


@dataclass(frozen=True, eq=False)
class Tilted:
    """The tilted law.

    Attributes:
        base: p₀.
        net: f.
        log_z, log_z_stderr: of e^{-f} under p₀.
    """

    base: Mixture
    net: Net
    log_z: float
    log_z_stderr: float

    @torch.no_grad()
    def tilt(self, rows: Rows) -> Tensor:
        """-f of complete rows, in double precision."""
        parts = [-self.net(*Batch.of(rows).take(slice(i, i + 65536))) for i in range(0, rows.n, 65536)]
        return torch.cat(parts).double() if parts else rows.unit.new_zeros(0)


def log_mean(values: Tensor) -> Estimate:
    """log of the mean of e^values along the last axis, with its error."""
    n = values.shape[-1]
    mean = torch.logsumexp(values, -1) - math.log(n)
    if n == 1 or not len(values):
        return Estimate(mean, mean, mean)
    error = 3 * (values - mean[..., None]).exp().std(-1) / math.sqrt(n)
    return Estimate(mean, mean + torch.log((1 - error).clamp(min=1e-12)), mean + torch.log1p(error))


def complete(base: Mixture, codec: Codec, rows: Rows, draws: int, generator: torch.Generator) -> Rows:
    """`draws` completions of every row by the mixture, one after the other, as cells; names that stand for unseen ones too."""
    weight = base.responsibility(rows).repeat_interleave(draws, 0)
    return codec.settled(base.complete(rows.repeat(draws), generator, weight=weight))


def empty(codec: Codec, n: int) -> Rows:
    """Rows of which nothing is known."""
    gone, zero = torch.full((n, codec.m), math.nan, dtype=torch.float64), torch.zeros(n, codec.m, dtype=torch.float64)
    code = torch.full((n, codec.q), -1, dtype=torch.long)
    return Rows(gone, zero, zero, code, torch.zeros(n, len(codec.schema), dtype=torch.float64))


def fit_tilt(
    base: Mixture, codec: Codec, train: Rows, held: Rows | None, *, seed: int = 0, steps: int = 800, hidden: tuple[int, ...] = (64, 64),
    batch: int = 256, lr: float = 3e-3, decay: float = 0.02, draws: int = 4, watch: Callable[[int, float], None] | None = None,
) -> tuple[Tilted, int]:  # fmt: skip
    """Learn f by maximum likelihood, log Z from draws of the mixture; with held-out rows the best of what was seen is kept.

        maximize  mean_i log (1/M) Σ_m e^{-f(x_im)} - log (1/N) Σ_n e^{-f(y_n)},   x_im completions of row i, y_n draws of p₀

    Returns the law and the number of steps that it took.
    """
    generator = stream(seed, "tilt")
    with isolated(stream(seed, "net")):
        net = Net(codec.m, tuple(codec.states), hidden)
    many = min(_POOL, max(4096, 16 * train.n))
    pool = Batch.of(complete(base, codec, empty(codec, many), 1, generator))
    whole = bool((~codec.missing(train)).all())
    data = Batch.of(complete(base, codec, train, 1 if whole else draws, generator))
    each = len(data.z) // max(train.n, 1)
    judge = None
    if held is not None:
        gaps = bool(codec.missing(held).any())
        judge = Batch.of(complete(base, codec, held, 8 if gaps else 1, generator)), held.n
        fresh = Batch.of(complete(base, codec, empty(codec, min(_JUDGE, 2 * many)), 1, generator))
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps, pct_start=0.1)
    best, best_score, best_step, bad = copy.deepcopy(net.state_dict()), 0.0, 0, 0
    size = min(batch, train.n)
    for step in range(1, steps + 1):
        rows = torch.randint(train.n, (size,), generator=generator)
        index = (rows[:, None] * each + torch.arange(each)).flatten()
        noise = torch.randint(many, (4 * batch,), generator=generator)
        f = net(*Batch(torch.cat([data.z[index], pool.z[noise]]), torch.cat([data.code[index], pool.code[noise]])))
        own = torch.logsumexp(-f[: len(index)].view(-1, each), 1).mean()
        loss = torch.logsumexp(-f[len(index) :], 0) - own
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if judge is not None and step % 50 == 0:
            score = _score(net, judge, fresh)
            if watch is not None:
                watch(step, score)
            if score > best_score:
                best, best_score, best_step, bad = copy.deepcopy(net.state_dict()), score, step, 0
            else:
                bad += 1
            if bad >= 4:
                break
    if judge is not None:
        net.load_state_dict(best)
    net.eval().requires_grad_(False)
    return normalized(base, net, codec, seed), best_step if judge is not None else steps


@torch.no_grad()
def _score(net: Net, judge: tuple[Batch, int], pool: Batch) -> float:
    """Gain of held-out log-likelihood a row over the mixture."""
    rows, n = judge
    own = -net(*rows).double().view(n, -1)
    gain = (torch.logsumexp(own, 1) - math.log(own.shape[1])).mean()
    z = -net(*pool).double()
    return float(gain - torch.logsumexp(z, 0) + math.log(len(z)))


def normalized(base: Mixture, net: Net, codec: Codec, seed: int) -> Tilted:
    """The law with its log Z, from fresh draws of the mixture."""
    rows = complete(base, codec, empty(codec, _JUDGE), 1, stream(seed, "log Z"))
    bare = Tilted(base, net, 0.0, 0.0)
    value = log_mean(bare.tilt(rows))
    return Tilted(base, net, float(value.value), float(value.upper - value.value) / 3)
