"""How well chains have mixed: R-hat and effective sample sizes as ArviZ defines them, for all entries of an event at once.

Of m chains of n draws, each split in halves, with variance W inside them and B/n between their means:

    R̂ = √((W(n-1)/n + B/n) / W),   ESS = mn / (-1 + 2 Σ_t ρ_t),   ρ_t = 1 - (W - mean autocovariance at lag t) / V₊

The draws are replaced by normal scores of their ranks first (bulk), those of |x - median| (folded), or by whether they lie
below a quantile (tail); the sum over t is Geyer's initial monotone sequence.

Reference: Vehtari, Gelman, Simpson, Carpenter & Bürkner 2021; Geyer 1992.
"""

import torch
from torch import Tensor

from gibbsian.kernels.autocorrelation import effective

_BLOCK = 1 << 19  # numbers that are worked on at a time
_TAIL = (0.05, 0.95)
SUMMARY = ("mean", "sd", "r_hat", "ess", "ess_tail", "mcse")  # what is told of every entry


def summarize(samples: Tensor) -> dict[str, Tensor]:
    """Mean, standard deviation, R-hat (rank-normalized, split), bulk and tail ESS and Monte-Carlo error.

    `samples` is `(draws, chains, *event)`; every value has the event shape. The numbers are ArviZ's (`rhat`, `ess` with
    the methods "bulk" and "tail", `mcse` of the mean), computed for all entries at once. Needs at least four draws,
    and for R-hat two chains; NaN elsewhere, and for entries that hold one.

    >>> g = torch.Generator().manual_seed(0)
    >>> s = summarize(torch.randn(500, 4, 2, generator=g))
    >>> bool((s["r_hat"] < 1.01).all()), s["ess"].shape
    (True, torch.Size([2]))
    """
    event = samples.shape[2:]
    flat = samples.detach().flatten(2)
    size = max(1, _BLOCK // max(1, flat[..., :1].numel()))
    parts = [_of_entries(part.permute(2, 1, 0).double().contiguous()) for part in flat.split(size, 2)]
    kind = torch.promote_types(
        samples.dtype, torch.float32
    )  # whole numbers hold no mean, half precision no R-hat of 1.01
    return {name: torch.cat([p[name] for p in parts]).to("cpu", kind).reshape(event) for name in parts[0]}


def _of_entries(x: Tensor) -> dict[str, Tensor]:
    """The summary of `(entries, chains, draws)` in double precision, one number for every entry."""
    entries, chains, draws = x.shape
    nan = x.new_full((entries,), torch.nan)
    sd = x.flatten(1).std(1) if chains * draws > 1 else nan
    result = {"mean": x.mean((1, 2)), "sd": sd}
    if draws < 4:
        return {**result, "r_hat": nan, "ess": nan, "ess_tail": nan, "mcse": nan}
    halves = split(x)
    ordered, order = halves.flatten(1).sort(1)
    normal = _scores(ordered, order, ordered).reshape(halves.shape)
    whole = ordered if draws % 2 == 0 else x.flatten(1).sort(1).values
    r_hat = nan
    if chains > 1:
        n = ordered.shape[1]
        middle = (ordered[:, (n - 1) // 2] + ordered[:, n // 2]) / 2
        folded = (ordered - middle[:, None]).abs()  # two runs that are sorted already, which a stable sort merges
        up, places = folded.sort(dim=1, stable=True)
        normal_folded = _scores(up, order.gather(1, places), up).reshape(halves.shape)
        bulk, tail = potential_scale(normal), potential_scale(normal_folded)
        r_hat = torch.where(tail > bulk, tail, bulk)  # two values folded are one, of which there is none
    tails = [effective(split((x <= _quantile(whole, p)[:, None, None]).double())) for p in _TAIL]
    result |= {
        "r_hat": r_hat,
        "ess": effective(normal),
        "ess_tail": torch.minimum(*tails),
        "mcse": sd / effective(halves).sqrt(),
    }
    known = ~x.flatten(1).isnan().any(1)
    return {name: value if name in {"mean", "sd"} else torch.where(known, value, nan) for name, value in result.items()}


def split(x: Tensor) -> Tensor:
    """Chains `(entries, chains, draws)` as twice as many of half the length; the draw in the middle of an odd number is
    left out."""
    half = x.shape[2] // 2
    return torch.cat([x[..., :half], x[..., -half:]], 1)


def _scores(ordered: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """Φ⁻¹((r - 3/8)/(n + 1/4)) of the ranks r of sorted rows, ties sharing the average of theirs, put in their places."""
    n = ordered.shape[1]
    ranks = torch.arange(n, device=ordered.device)
    doubled = 2 * ranks + 2
    apart = values[:, 1:] != values[:, :-1]
    if not bool(apart.all()):
        edge = torch.ones_like(apart[:, :1])
        first = torch.where(torch.cat([edge, apart], 1), ranks, 0).cummax(1).values
        last = torch.where(torch.cat([apart, edge], 1), ranks, n - 1).flip(1).cummin(1).values.flip(1)
        doubled = first + last + 2
    halves = torch.arange(2 * n + 1, dtype=ordered.dtype, device=ordered.device) / 2
    table = torch.special.ndtri((halves - 3 / 8) / (n + 1 / 4))  # of all ranks that there can be
    scores = table[doubled].expand_as(ordered)
    return torch.empty_like(ordered).scatter_(1, places, scores)


def _quantile(ordered: Tensor, p: float) -> Tensor:
    """The p-quantile of sorted rows, interpolated between neighbors."""
    at = p * (ordered.shape[1] - 1)
    low = int(at)
    return torch.lerp(ordered[:, low], ordered[:, min(low + 1, ordered.shape[1] - 1)], at - low)


def potential_scale(x: Tensor) -> Tensor:
    """R̂ of `(entries, chains, draws)`, from their means and variances as they are.

    >>> potential_scale(torch.tensor([[[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]]]))
    tensor([0.8660])
    """
    n = x.shape[2]
    within, between = x.var(2).mean(1), n * x.mean(2).var(1)
    return ((between / within + n - 1) / n).sqrt()
