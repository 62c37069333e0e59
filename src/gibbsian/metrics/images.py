"""Distances between sets of images in the features of a given network: FID and KID, labeled by that network.

A figure means nothing without its features: "FID" in papers is that of one Inception checkpoint. Every result
here carries the name of the extractor, and figures of different extractors do not compare.

Several processes share the batches where they are told of each other (`world=distributed.join()[0]`, for `kid`
`generator=distributed.Shards(seed)`): all make the same call, each computes the features of its batches, or of its own rows
given as a `distributed.Share`, and all get the figure of all rows.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gibbsian.distributed.shards import Share, Streams, streams_of
from gibbsian.distributed.world import World
from gibbsian.errors import DataError, ShapeError, check_count, check_tensor

Images = Tensor | Share | Iterable[Any]  # a tensor (n, *event), this process's share of one, or an iterable of batches
Extractor = Callable[[Tensor], Tensor]


class FeatureDistance(NamedTuple):
    """A distance, its standard error over subsets (0 where it has none), and what the features were."""

    value: Tensor
    standard_error: Tensor
    extractor: str
    rows: tuple[int, int]

    def __repr__(self) -> str:
        error = f" ± {float(self.standard_error):.2g}" if float(self.standard_error) else ""
        return f"{float(self.value):.4g}{error} (features: {self.extractor}; {self.rows[0]} and {self.rows[1]} rows)"


class FeatureMoments(NamedTuple):
    """Mean and covariance of features, and the number of rows they come from."""

    mean: Tensor
    covariance: Tensor
    rows: int


def frechet_distance(mean_x: Tensor, covariance_x: Tensor, mean_y: Tensor, covariance_y: Tensor) -> Tensor:
    """Squared Fréchet (2-Wasserstein) distance of two Gaussians.

        d² = ‖μ - ν‖² + tr(A + B - 2 (A^½ B A^½)^½)

    The trace of the root is the sum of the roots of the eigenvalues of the symmetric A^½ B A^½: no complex
    square root of a product, and singular covariances are fine.

    Reference: Dowson & Landau 1982.

    Args:
        mean_x, mean_y: μ and ν, `(d,)`.
        covariance_x, covariance_y: A and B, `(d, d)`.

    >>> one, two = torch.eye(2), 4 * torch.eye(2)
    >>> frechet_distance(torch.zeros(2), one, torch.ones(2), two)
    tensor(4., dtype=torch.float64)
    """
    named = {"mean_x": mean_x, "covariance_x": covariance_x, "mean_y": mean_y, "covariance_y": covariance_y}
    for name, given in named.items():
        check_tensor(given, name, "(d,)" if name.startswith("mean") else "(d, d)")
    a, b = covariance_x.double(), covariance_y.double()
    if a.shape != b.shape or mean_x.dim() != 1 or mean_y.dim() != 1 or a.shape != (len(mean_x), len(mean_y)):
        m, n, s, t = (tuple(given.shape) for given in (mean_x, mean_y, a, b))
        raise ShapeError(f"means {m}, {n} and covariances {s}, {t} do not fit; expected (d,) and (d, d)")
    values, vectors = torch.linalg.eigh(a)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    cross = torch.linalg.eigvalsh(root @ b @ root).clamp(min=0).sqrt().sum()
    distance = (mean_x.double() - mean_y.double()).square().sum() + a.trace() + b.trace() - 2 * cross
    return distance.clamp(min=0)  # rounding below 0


def _batches(images: Any, size: int, name: str) -> Iterable[Any]:
    """The batches of a set that is given as one tensor, or batch by batch."""
    if not isinstance(images, Tensor) and isinstance(images, Iterable) and not isinstance(images, str):
        return images
    check_tensor(images, name, "(n, *event)")
    if images.dim() < 2:
        raise ShapeError(f"{name} has shape {tuple(images.shape)}, expected (n, *event)")
    return images.split(size)


def _own(images: Images, size: int, name: str, world: World) -> Iterable[tuple[int, Any]]:
    """The batches that are this process's, with their numbers among all."""
    if isinstance(images, Share):  # those of process 0 come first
        return enumerate(_batches(images.rows, size, name), world.rank << 32)
    return (one for one in enumerate(_batches(images, size, name)) if one[0] % world.size == world.rank)


def _features(
    images: Images, extractor: Extractor, batch_size: int, name: str, world: World
) -> Iterable[tuple[int, Tensor]]:
    """Features of the batches that are this process's, with their numbers among all."""
    given = _own(images, check_count("images", "batch_size", batch_size), name, world)
    training = extractor if isinstance(extractor, nn.Module) and extractor.training else None
    if training is not None:
        training.eval()
    try:
        with torch.no_grad():
            for number, one in given:
                yield number, _extracted(one[0] if isinstance(one, tuple | list) else one, extractor, name)
    finally:
        if training is not None:
            training.train()


def _extracted(batch: Any, extractor: Extractor, name: str) -> Tensor:
    check_tensor(batch, f"a batch of {name}")
    if not batch.dim() or not len(batch):
        raise ShapeError(f"a batch of {name} has shape {tuple(batch.shape)}; give at least one image")
    f: Any = extractor(batch)
    if not isinstance(f, Tensor) or f.dim() < 2:
        gave = f"a tensor of shape {tuple(f.shape)}" if isinstance(f, Tensor) else f"a {type(f).__name__}"
        raise ShapeError(
            f"the extractor gave {gave} for a batch of {name}, expected a tensor (images, features); of several outputs name one, such as "
            "lambda x: extractor(x)[0]"
        )
    f = f.flatten(1).double()
    if len(f) != len(batch):
        raise ShapeError(f"the extractor gave {len(f)} rows of features for {len(batch)} images")
    if not bool(torch.isfinite(f).all()):
        raise DataError(f"features of {name} are not finite; check its images and the extractor")
    return f


def _name(extractor: Extractor, label: str | None) -> str:
    own = extractor.__name__ if inspect.isroutine(extractor) else type(extractor).__name__
    return own if label is None else label


class _Sums(NamedTuple):
    """Rows, their mean μ, and their scatter Σ (f - μ)(f - μ)ᵀ."""

    rows: int
    mean: Tensor
    scatter: Tensor

    def with_more(self, other: "_Sums") -> "_Sums":
        """Those of all rows of both (Chan, Golub & LeVeque 1979)."""
        gap, total = other.mean - self.mean, self.rows + other.rows
        between = torch.outer(gap, gap) * (self.rows * other.rows / total)
        return _Sums(total, self.mean + gap * (other.rows / total), self.scatter + other.scatter + between)


def _gathered(own: _Sums | None, world: World) -> _Sums | None:
    """The sums over all processes, added in their order on each of them; None where nobody has any."""
    if world.alone:
        return own
    sizes = world.gather_rows(torch.tensor([[0, 0] if own is None else [own.rows, len(own.mean)]])).tolist()
    home, everything = torch.device("cpu") if own is None else own.mean.device, None
    for rank, (rows, d) in enumerate(sizes):
        if not rows:
            continue
        packed = torch.empty(1 + d, d, dtype=torch.float64)
        if own is not None and rank == world.rank:
            packed[0], packed[1:] = own.mean, own.scatter
        packed = world.copy_from(packed, rank).to(home)
        one = _Sums(rows, packed[0], packed[1:])
        everything = one if everything is None else everything.with_more(one)
    return everything


def feature_moments(
    images: Images, extractor: Extractor, *, batch_size: int = 256, name: str = "images", world: World | None = None
) -> FeatureMoments:
    """Mean and covariance of features in one pass, in double precision, without keeping the features.

    Compute them once for a data set and give them to `fid` instead of its images.
    """
    world, sums = world or World(), None
    for _, f in _features(images, extractor, batch_size, name, world):
        own = f.mean(0)
        one = _Sums(len(f), own, (f - own).T @ (f - own))
        sums = one if sums is None else sums.with_more(one)
    found = _gathered(sums, world)
    if isinstance(images, Share):
        images.check(0 if found is None else found.rows)
    if found is None or found.rows < 2:
        raise DataError(f"{name} holds {0 if found is None else found.rows} images; a covariance needs at least two")
    return FeatureMoments(found.mean, found.scatter / (found.rows - 1), found.rows)


def fid(
    real: Images | FeatureMoments,
    fake: Images | FeatureMoments,
    extractor: Extractor,
    *,
    label: str | None = None,
    batch_size: int = 256,
    world: World | None = None,
) -> FeatureDistance:
    """Fréchet distance of the features of two sets of images, each taken for Gaussian.

    Biased upwards by a term of order d/n: use as many images as the figure you compare with, and more than
    there are features. `kid` is unbiased and better for small sets.

    Reference: Heusel et al. 2017.

    Args:
        real, fake: tensors `(n, *event)`, iterables of batches, or the `feature_moments` of a set; `distributed.Share` of rows that
            every process has for itself.
        extractor: maps a batch of images to features; called in evaluation mode, without gradients.
        label: name of the extractor in the result; its own where left out.
        batch_size: images at a time.
        world: processes that share the work; their order of adding rounds otherwise than that of one.

    >>> g = torch.Generator().manual_seed(0)
    >>> a, b = torch.randn(500, 1, 2, 2, generator=g), 1 + torch.randn(500, 1, 2, 2, generator=g)
    >>> fid(a, b, torch.nn.Flatten(), label="pixels")
    3.71 (features: pixels; 500 and 500 rows)
    """
    x, y = (
        s
        if isinstance(s, FeatureMoments)
        else feature_moments(s, extractor, batch_size=batch_size, name=name, world=world)
        for s, name in ((real, "real"), (fake, "fake"))
    )
    value = frechet_distance(x.mean, x.covariance, y.mean, y.covariance)
    return FeatureDistance(value, value.new_zeros(()), _name(extractor, label), (x.rows, y.rows))


def kid(
    real: Images,
    fake: Images,
    extractor: Extractor,
    *,
    label: str | None = None,
    subsets: int = 100,
    subset_size: int = 1000,
    batch_size: int = 256,
    generator: "torch.Generator | Streams",
) -> FeatureDistance:
    """Kernel distance of features: unbiased MMD² with k(x, y) = (x·y/d + 1)³, averaged over random subsets.

    Unbiased at any number of images, and may be negative. The standard error is that of the average over
    subsets, as is usual; sets of few images vary more from draw to draw than it says. There is none (0) where every
    subset is all rows of both sets.

    Reference: Bińkowski et al. 2018.

    Args:
        real, fake, extractor, label, batch_size: as in `fid`; features are kept in memory.
        subsets, subset_size: how many random subsets, and of how many rows (fewer where a set is smaller).
        generator: required; `distributed.Shards(seed)` lets processes share batches and subsets.

    >>> g = torch.Generator().manual_seed(0)
    >>> a, b = torch.randn(500, 1, 2, 2, generator=g), 1 + torch.randn(500, 1, 2, 2, generator=g)
    >>> bool(kid(a, b, torch.nn.Flatten(), subset_size=100, generator=g).value > 1)
    True
    """
    subsets, subset_size = check_count("kid", "subsets", subsets, 2), check_count("kid", "subset_size", subset_size, 2)
    world = generator.world if isinstance(generator, Streams) else World()
    x, y = (_kept(s, extractor, batch_size, name, world) for s, name in ((real, "real"), (fake, "fake")))
    common = streams_of(generator, x.device).common
    if len(x) < 2 or len(y) < 2:
        raise DataError(f"{len(x)} and {len(y)} images; an unbiased estimate needs at least two of each")
    if x.shape[1] != y.shape[1]:
        raise ShapeError(f"real images have {x.shape[1]} features, fake ones {y.shape[1]}; they must agree")
    n, m = min(subset_size, len(x)), min(subset_size, len(y))
    chosen = [
        tuple(torch.randperm(len(f), generator=common, device=f.device)[:k] for f, k in ((x, n), (y, m)))
        for _ in range(subsets)
    ]

    def distance(rows: tuple[Tensor, ...]) -> Tensor:
        a, b = x[rows[0]], y[rows[1]]
        k = [(u @ v.T / x.shape[1] + 1) ** 3 for u, v in ((a, a), (b, b), (a, b))]
        within = (k[0].sum() - k[0].trace()) / (n * (n - 1)) + (k[1].sum() - k[1].trace()) / (m * (m - 1))
        return (within - 2 * k[2].mean())[None]

    value = world.collect(chosen, distance)
    whole = n == len(x) and m == len(y)  # then subsets differ by the order of their rows, and values by rounding
    error = value.new_zeros(()) if whole else value.std() / subsets**0.5
    return FeatureDistance(value.mean(), error, _name(extractor, label), (len(x), len(y)))


def _kept(images: Images, extractor: Extractor, batch_size: int, name: str, world: World) -> Tensor:
    """Features of all batches of all processes, in their order."""
    found = list(_features(images, extractor, batch_size, name, world))
    own = torch.cat([f for _, f in found]) if found else torch.empty(0, 0, dtype=torch.float64)
    numbers = torch.cat([torch.full((len(f),), number) for number, f in found] or [torch.empty(0).long()])
    width = int(world.gather_rows(torch.tensor([own.shape[1]])).max())  # a process without a batch does not know
    rows = world.gather_rows((own if world.alone else own.cpu()).reshape(len(own), width))
    order = world.gather_rows(numbers).argsort(stable=True).to(rows.device)
    if isinstance(images, Share):
        images.check(len(rows))
    return rows[order].to(own.device)
