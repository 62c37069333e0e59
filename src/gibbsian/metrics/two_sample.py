"""How far apart two samples are: maximum mean discrepancy, energy distance, sliced Wasserstein distance.

All take `(n, *event)` and `(m, *event)` of any numbers, work in double precision and in blocks, so that memory stays
flat for tens of thousands of rows, and return detached numbers in the precision of the samples (the default one for
whole numbers and flags).

Several processes share the blocks where they are told of each other: `world=distributed.join()[0]`, or
`generator=distributed.Shards(seed)` where numbers are drawn. All make the same call and get the value of one process, to
the bit. Each has all rows, or its own of them as a `distributed.Share`; all pairs are compared, so those are gathered.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.distributed.shards import Share, Streams, streams_of
from gibbsian.distributed.world import World
from gibbsian.errors import ArgumentError, DataError, ShapeError, as_numbers, check_count, check_number, check_tensor

_TILE = 512  # rows and columns of a block of the kernel matrix: its temporaries stay in the cache
_MEDIAN_ROWS = 2000
_SUMS = 64  # parts of the kernel matrix that are added up apart from each other, whoever does it
Sample = Tensor | Share

Similarity = Callable[[Tensor], Tensor]  # of squared distances


class TwoSampleTest(NamedTuple):
    """A statistic, its permutation p-value, and its values for permuted labels."""

    value: Tensor
    p_value: float
    permuted: Tensor


def as_rows(x: Tensor, name: str) -> Tensor:
    """Rows of numbers in double precision, checked."""
    check_tensor(x, name, "(n, *event)")
    if x.dim() < 2 or len(x) < 2:
        raise ShapeError(
            f"{name} is {tuple(x.shape)}, expected a tensor (n, *event), n at least 2; for numbers use x[:, None]"
        )
    if not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x)).flatten(1).any(1).sum())
        raise DataError(f"{bad} of {len(x)} rows of {name} are not finite; remove them first and say so")
    return x.detach().flatten(1).double()


def precision(*given: Tensor) -> torch.dtype:
    """The precision of a result: that of the tensors together; the default one where they hold whole numbers or flags.

    >>> precision(torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.bool))
    torch.float32
    """
    kind = reduce(torch.promote_types, (one.dtype for one in given))
    return kind if kind.is_floating_point else torch.get_default_dtype()


def whole(x: Sample, world: World | None) -> Tensor:
    """All rows of a sample, from those of every process where it is given as shares."""
    if not isinstance(x, Share):
        return x
    rows = (world or World()).gather_rows(x.rows)
    x.check(len(rows))
    return rows


def _pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a, b = as_rows(x, "x"), as_rows(y, "y")
    if x.shape[1:] != y.shape[1:]:
        raise ShapeError(f"x has events of shape {tuple(x.shape[1:])}, y of {tuple(y.shape[1:])}; they must agree")
    if x.device != y.device:
        raise ArgumentError(f"x is on {x.device} and y on {y.device}; move one of them")
    center = a.mean(0)  # distances do not change, cancellation does
    return a - center, b - center


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖aᵢ - bⱼ‖² for rows; without cancellation where there are few columns."""
    if a.shape[1] <= 4:
        q = (a[:, :1] - b[:, 0]).square_()
        for i in range(1, a.shape[1]):
            q += (a[:, i : i + 1] - b[:, i]).square_()
        return q
    return torch.addmm(b.square().sum(1), a, b.T, alpha=-2).add_(a.square().sum(1, keepdim=True)).clamp_(min=0)


def tiles(n: int) -> Iterator[tuple[slice, slice]]:
    """Cut a symmetric n × n matrix: the tiles on and above its diagonal, as rows and columns."""
    cuts = [slice(i, min(i + _TILE, n)) for i in range(0, n, _TILE)]
    for i, rows in enumerate(cuts):
        for columns in cuts[i:]:
            yield rows, columns


def sum_over_tiles(n: int, of_tile: Callable[[slice, slice], Tensor], world: World | None) -> Tensor:
    """Σ of_tile(rows, columns) over the tiles of a symmetric n × n matrix, which processes share; in an order that does not
    depend on how many they are."""
    every = list(tiles(n))
    parts = min(_SUMS, len(every))
    cut = [every[len(every) * k // parts : len(every) * (k + 1) // parts] for k in range(parts)]
    return (
        (world or World()).collect(cut, lambda part: reduce(Tensor.add, (of_tile(*one) for one in part))[None]).sum(0)
    )


def median_distance(x: Tensor) -> float:
    """The median distance between two rows, of at most 2000 of them: the usual bandwidth of a kernel.

    >>> median_distance(torch.tensor([[0.0], [1.0], [3.0]]))
    2.0
    """
    rows = as_rows(x, "x")[:: math.ceil(len(x) / _MEDIAN_ROWS)]
    middle = float(torch.pdist(rows).median())
    if middle == 0:
        raise ArgumentError("more than half of the rows are equal, so there is no median distance; give a bandwidth")
    return middle


def _bandwidths(bandwidth: float | Sequence[float] | None, pool: Tensor) -> list[float]:
    if bandwidth is None:
        return [median_distance(pool)]
    widths = as_numbers("mmd", "bandwidth", bandwidth, torch.float64).flatten().tolist()
    if not widths or not all(0 < b < math.inf for b in widths):
        raise ArgumentError(f"bandwidth={bandwidth}: it must be positive and finite; leave it out for the median")
    return widths


def _rbf(widths: list[float]) -> Similarity:
    return lambda q: reduce(Tensor.add_, (torch.exp(q * (-0.5 / b**2)) for b in widths))


def _negative_distance(q: Tensor) -> Tensor:
    return -q.sqrt()


def _contrast(
    pool: Tensor, member: Tensor, similarity: Similarity, diagonal: float, unbiased: bool, world: World | None
) -> Tensor:
    """E k(x, x') + E k(y, y') - 2 E k(x, y) for each column of `member` `(n + m, columns)`, 1 for x, 0 for y.

    One pass over the kernel matrix K serves all columns: with a the indicator of x, aᵀKa, 1ᵀKa and 1ᵀK1 give
    all three sums.
    """

    def sums(rows: slice, columns: slice) -> Tensor:
        k = similarity(squared_distances(pool[rows], pool[columns]))
        inner = (member[rows] * (k @ member[columns])).sum(0)
        down, across = k.sum(0), k.sum(1)
        touching, total = down @ member[columns], down.sum()
        if rows != columns:  # and its mirror image
            inner, touching, total = 2 * inner, touching + across @ member[rows], 2 * total
        return torch.stack([inner, touching, total.expand_as(inner)])

    within, touching, total = sum_over_tiles(len(pool), sums, world)
    n, m = member.sum(0), (1 - member).sum(0)
    xx, xy, yy = within, touching - within, total - 2 * touching + within
    if unbiased:
        return (xx - n * diagonal) / (n * (n - 1)) + (yy - m * diagonal) / (m * (m - 1)) - 2 * xy / (n * m)
    return xx / n**2 + yy / m**2 - 2 * xy / (n * m)


def _pooled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of both samples, and which of them are of x, as 1 and 0 `(n + m, 1)`."""
    pool = torch.cat(_pair(x, y))
    return pool, (torch.arange(len(pool), device=pool.device) < len(x)).to(pool.dtype)[:, None]


def mmd(
    x: Sample,
    y: Sample,
    *,
    bandwidth: float | Sequence[float] | None = None,
    unbiased: bool = True,
    world: World | None = None,
) -> Tensor:
    """Squared maximum mean discrepancy with Gaussian kernels.

        MMD² = E k(x, x') + E k(y, y') - 2 E k(x, y),   k(x, y) = Σ_b exp(-‖x - y‖²/2b²)

    Zero only for equal laws; sees differences at the scale of the bandwidth. The unbiased U-statistic
    averages to MMD² and may be negative; the biased V-statistic is MMD² of the two samples themselves and is
    never negative. For a p-value use `two_sample_test`.

    Reference: Gretton et al. 2012.

    Args:
        x, y: samples `(n, *event)` and `(m, *event)`.
        bandwidth: b, or several whose kernels are added; by default the median distance of the pooled sample.
        unbiased: U-statistic, else V-statistic.
        world: processes that share the work.

    >>> g = torch.Generator().manual_seed(0)
    >>> a, b = torch.randn(500, 2, generator=g), torch.randn(400, 2, generator=g)
    >>> bool(mmd(a, b) < 0.005 < mmd(a, b + 1))
    True
    """
    x, y = whole(x, world), whole(y, world)
    pool, member = _pooled(x, y)
    widths = _bandwidths(bandwidth, pool)
    return _contrast(pool, member, _rbf(widths), float(len(widths)), unbiased, world)[0].to(precision(x, y))


def energy_distance(x: Sample, y: Sample, *, unbiased: bool = False, world: World | None = None) -> Tensor:
    """Energy distance, squared: D² = 2 E‖x - y‖ - E‖x - x'‖ - E‖y - y'‖.

    Zero only for equal laws, with no bandwidth to choose; needs finite first moments. In one dimension it is
    2∫(F - G)², the square of `scipy.stats.energy_distance`. The default is the V-statistic, which is never
    negative; the U-statistic averages to D².

    Reference: Székely & Rizzo 2013.

    Args:
        x, y: samples `(n, *event)` and `(m, *event)`.
        unbiased: U-statistic, else V-statistic.
        world: processes that share the work.

    >>> energy_distance(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]]))
    tensor(0.)
    """
    x, y = whole(x, world), whole(y, world)
    value = _contrast(*_pooled(x, y), _negative_distance, 0.0, unbiased, world)[0]
    return (value if unbiased else value.clamp(min=0)).to(precision(x, y))  # rounding below 0


def two_sample_test(
    x: Sample,
    y: Sample,
    *,
    method: str = "mmd",
    permutations: int = 500,
    bandwidth: float | Sequence[float] | None = None,
    generator: "torch.Generator | Streams",
) -> TwoSampleTest:
    """Do two samples come from one law? A permutation test with the MMD or the energy distance.

        p = (1 + #{permuted statistics ≥ the observed one}) / (1 + permutations)

    Ties count, as they do where rows have few values, those among them that only rounding tells apart. Under one law p is valid at any sample size: P(p ≤ α) ≤ α. Rows must be independent: thin chains first.

    Args:
        x, y: samples `(n, *event)` and `(m, *event)`.
        method: "mmd" or "energy".
        permutations: how many; all of them share one pass over the kernel matrix.
        bandwidth: of `mmd`.
        generator: required; `distributed.Shards(seed)` lets processes share the work.

    >>> g = torch.Generator().manual_seed(0)
    >>> a, b = torch.randn(200, 2, generator=g), torch.randn(200, 2, generator=g)
    >>> two_sample_test(a, b + 1, generator=g).p_value
    0.001996007984031936
    """
    world = generator.world if isinstance(generator, Streams) else None
    x, y = whole(x, world), whole(y, world)
    check_tensor(x, "x", "(n, *event)")
    common = streams_of(generator, x.device).common
    permutations = check_count("two_sample_test", "permutations", permutations)
    if method not in {"mmd", "energy"}:
        raise ArgumentError(f"method={method!r}: expected 'mmd' or 'energy'")
    pool, member = _pooled(x, y)
    member = member.expand(-1, 1 + permutations).clone()
    for i in range(1, 1 + permutations):
        member[:, i] = member[torch.randperm(len(pool), generator=common, device=pool.device), 0]
    widths = _bandwidths(bandwidth, pool) if method == "mmd" else []
    similarity = _rbf(widths) if method == "mmd" else _negative_distance
    values = _contrast(pool, member, similarity, float(len(widths)), True, world)
    largest = len(widths) or max(
        float(part.double().abs().max()) for part in (x, y)
    )  # of the numbers that are added up
    rounding = 1e-5 * values.std() + 1e-12 * largest  # more than sums in another order differ, less than anyone sees
    p = (1 + int((values[1:] >= values[0] - rounding).sum())) / (1 + permutations)
    values = values.to(precision(x, y))
    return TwoSampleTest(values[0], p, values[1:])


def sliced_wasserstein(
    x: Sample,
    y: Sample,
    *,
    p: float = 2.0,
    projections: int = 200,
    generator: "torch.Generator | Streams | None" = None,
) -> Tensor:
    """Sliced Wasserstein distance: the p-Wasserstein distance of projections on random directions θ.

        SW_p = (E_θ W_p(θ·x, θ·y)^p)^{1/p},   W_p^p of numbers = ∫₀¹ |F⁻¹(u) - G⁻¹(u)|^p du

    Each projection is solved exactly by sorting, also for samples of different sizes; one-dimensional events
    need no projection and no generator. Not zero for two samples of one law: compare with two samples of the
    data.

    Reference: Bonneel et al. 2015.

    Args:
        x, y: samples `(n, *event)` and `(m, *event)`.
        p: order, 1 or more.
        projections: number of directions.
        generator: required for more than one dimension; `distributed.Shards(seed)` lets processes share the directions.

    >>> sliced_wasserstein(torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [4.0]]), p=1)
    tensor(2.5000)
    """
    world = generator.world if isinstance(generator, Streams) else World()
    x, y = whole(x, world), whole(y, world)
    a, b = _pair(x, y)
    check_number("sliced_wasserstein", "p", p, 1.0)
    projections = check_count("sliced_wasserstein", "projections", projections)
    if a.shape[1] == 1:
        directions = a.new_ones(1, 1)
    else:
        common = streams_of(generator, x.device).common
        directions = torch.randn(a.shape[1], projections, generator=common, dtype=a.dtype, device=a.device)
        directions /= torch.linalg.vector_norm(directions, dim=0)
    n, m = len(a), len(b)
    # quantile functions are constant between multiples of 1/n and 1/m: whole numbers in units of 1/nm
    ends = torch.cat([torch.arange(m, n * m + 1, m), torch.arange(n, n * m + 1, n)]).to(a.device).unique()
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    weight = (ends - starts).to(a.dtype) / (n * m)

    def distances(theta: Tensor) -> Tensor:
        gap = (a @ theta).sort(0).values[starts // m] - (b @ theta).sort(0).values[starts // n]
        return weight @ gap.abs().pow(p)

    return (
        (world.collect(directions.split(32, 1), distances).sum() / directions.shape[1]).pow(1 / p).to(precision(x, y))
    )
