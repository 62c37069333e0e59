"""Objectives on data that are drawn anew at every step: blurred by noise, moved, or binary from gray values."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gibbsian.domains import Box, Categorical, partly_discrete
from gibbsian.errors import CapabilityError, ShapeError, check_number, hold_counts
from gibbsian.objectives.base import Batch, Loss, Step, WrappedObjective, observed, observed_with, within
from gibbsian.objectives.conditional import Conditional
from gibbsian.random import quick_uniforms


@dataclass(frozen=True)
class Redrawn(WrappedObjective):
    """An objective on a random function of the batch; subclasses say which."""

    @abstractmethod
    def redraw(self, energy: Any, x: Tensor, generator: torch.Generator) -> Tensor:
        """What the objective sees instead of x."""

    def drawn(self, energy: Any, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch with x drawn."""
        x = observed_with(batch, generator)
        return _with(batch, self.redraw(energy, x, generator))

    def check(self, energy: Any, batch: Batch) -> None:
        if isinstance(batch, Sequence) and any(isinstance(part, Conditional) for part in within(self.objective)):
            raise CapabilityError(
                f"{type(self).__name__} draws the first of a pair anew, which Conditional takes for the input and not for the data; "
                f"give Conditional({type(self).__name__}(...))"
            )
        self.objective.check(energy, batch)

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> Any:
        self.check(energy, batch)
        return self.objective.init(energy, self.drawn(energy, batch, generator), generator)

    def loss(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> Loss:
        return self.objective.loss(energy, self.drawn(energy, batch, generator), state, generator, step)


@dataclass(frozen=True)
class Binarized(Redrawn):
    """An objective for {0, 1} data on gray values in [0, 1]: every step draws x ~ Bernoulli(gray) anew.

    The same as `fit(transform=...)` with `data.binarize`, inside the step: data are checked once, and with
    `fit(engine=Engine(compile=True))` many steps go into one CUDA graph. No two epochs see the same pixels, which keeps a machine
    from learning one binarization by heart. For digits; where gray values are amounts and not probabilities use
    Gaussian units.

    Reference: Salakhutdinov & Murray 2008, who trained this way.

    Args:
        objective: what is trained on the draws.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> objective = Binarized(gb.objectives.ContrastiveDivergence(gb.kernels.Gibbs()))
    >>> gray = torch.rand(10, 6, generator=g)
    >>> objective(gb.models.RBM(6, 3), gray, (), g).value.backward()
    """

    def redraw(self, energy: Any, x: Tensor, generator: torch.Generator) -> Tensor:
        u = quick_uniforms(x.numel(), generator, dtype=x.dtype, device=x.device).view_as(x)
        return (u < x).to(x.dtype)

    def check(self, energy: Any, batch: Batch) -> None:
        x = observed(batch)
        Box(tuple(x.shape[1:])).check(x, "batch")
        super().check(energy, _with(batch, (x > 0.5).to(x.dtype)))


@dataclass(frozen=True)
class Blurred(Redrawn):
    """An objective on x + σn, n ~ N(0, I) anew at every step: it learns the density of the data blurred by σ.

    Data that lie on surfaces, as images do, have no density, and energies that are taught them grow wells as steep
    as they can, until chains of a fixed step fall out of them; blurred data have wells as wide as σ. Inside
    `Weighted` only this part sees the noise: a joint energy classifies clean images. In a box the noise stops at the
    walls.

    Args:
        objective: what is trained on the blurred data.
        sigma: σ.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> chains = gb.objectives.PersistentContrastiveDivergence(gb.kernels.MALA(0.3), steps=5, chains=16)
    >>> energy, x = gb.energies.MLPEnergy(2, (8,), confine=0.1), torch.zeros(10, 2)
    >>> objective = Blurred(chains, sigma=0.1)
    >>> objective(energy, x, objective.init(energy, x, g), g).value.backward()
    """

    sigma: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "sigma", self.sigma, open_low=True)

    def redraw(self, energy: Any, x: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        return energy.domain.within_walls(torch.add(x, noise, alpha=self.sigma))

    def check(self, energy: Any, batch: Batch) -> None:
        if partly_discrete(energy.domain):
            raise CapabilityError(f"Blurred adds Gaussian noise to the data, but they are {energy.domain}")
        super().check(energy, batch)


def shifted(x: Tensor, pixels: int, generator: torch.Generator, *, flip: bool = False) -> Tensor:
    """Images `(rows, ..., height, width)`, each moved by up to `pixels` both ways, its edge repeated where it leaves a gap,
    and mirrored half of the time where `flip`; nothing waits for the device.

    >>> x = torch.arange(9.0).view(1, 1, 3, 3)
    >>> shifted(x, 1, torch.Generator().manual_seed(1)).shape
    torch.Size([1, 1, 3, 3])
    """
    n, height, width = len(x), x.shape[-2], x.shape[-1]
    planes = x.reshape(n, -1, height, width)
    if flip:
        mirror = torch.rand(n, 1, 1, 1, generator=generator, device=x.device) < 0.5
        planes = torch.where(mirror, planes.flip(3), planes)
    moves = torch.randint(2 * pixels + 1, (2, n, 1), generator=generator, device=x.device) - pixels
    rows = (torch.arange(height, device=x.device) + moves[0]).clamp(0, height - 1)
    columns = (torch.arange(width, device=x.device) + moves[1]).clamp(0, width - 1)
    index = torch.arange(n, device=x.device)[:, None, None]
    return planes.transpose(0, 1)[:, index, rows[:, :, None], columns[:, None, :]].transpose(0, 1).reshape(x.shape)


def cut_out(x: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """Images `(rows, ..., height, width)`, each without a square of `side` pixels around a place of its own, drawn evenly: the mean of
    the batch is there instead. Squares are cut at the edges.

    >>> x = torch.arange(2.0).view(2, 1, 1, 1).expand(2, 1, 4, 4)
    >>> sorted(cut_out(x, 1, torch.Generator().manual_seed(0))[0].unique().tolist())
    [0.0, 0.5]
    """
    n, height, width = len(x), x.shape[-2], x.shape[-1]
    planes = x.reshape(n, -1, height, width)

    def inside(length: int) -> Tensor:
        middle = torch.randint(length, (n, 1), generator=generator, device=x.device)
        at = torch.arange(length, device=x.device) - middle + side // 2
        return (at >= 0) & (at < side)

    hole = inside(height)[:, None, :, None] & inside(width)[:, None, None, :]
    return torch.where(hole, planes.mean((0, 2, 3), keepdim=True), planes).reshape(x.shape)


@dataclass(frozen=True)
class Shifted(Redrawn):
    """An objective on images that are moved and mirrored anew at every step, and may lose a square.

    Inside `Weighted` only this part sees them so: a joint energy learns classes from moved images, and its density from the
    images as they are, since a density of moved ones would draw their repeated edges.

    Reference: Yang, Su & Ji 2023 (SADA-JEM), who leave augmentation out of the density; DeVries & Taylor 2017 (cutout).

    Args:
        objective: what is trained on the moved images.
        pixels: how far they move at most, both ways.
        flip: mirror every second one, left to right.
        cutout: side of a square in pixels, at a place of its own in every image, that becomes the mean of the batch: what is
            learned must not rest on one part of an image. 0 for none; 8 to 16 of 32 are usual.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> net = gb.nets.ConvNet((1, 8, 8), (4, 4), outputs=3)
    >>> joint, batch = gb.models.JointEnergy(net, gb.domains.Real((1, 8, 8))), (torch.zeros(4, 1, 8, 8), torch.zeros(4).long())
    >>> Shifted(gb.objectives.CrossEntropy(), pixels=2)(joint, batch, (), g).value.backward()
    """

    pixels: int = 4
    flip: bool = False
    cutout: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        hold_counts(self, "pixels", "cutout", least=0)

    def redraw(self, energy: Any, x: Tensor, generator: torch.Generator) -> Tensor:
        moved = shifted(x, self.pixels, generator, flip=self.flip)
        return cut_out(moved, self.cutout, generator) if self.cutout else moved

    def check(self, energy: Any, batch: Batch) -> None:
        if len(energy.domain.shape) < 2:
            raise ShapeError(f"Shifted moves images (..., height, width), but x is of {energy.domain}")
        if isinstance(energy.domain, Categorical):
            raise CapabilityError(
                f"Shifted moves the last two axes of x, one of which in {energy.domain} runs through classes"
            )
        if self.cutout and energy.domain.discrete:
            raise CapabilityError(
                f"Shifted(cutout={self.cutout}) puts the mean of the batch in the place of a square, which is no value of "
                f"{energy.domain}; leave cutout out"
            )
        super().check(energy, batch)


def _with(batch: Batch, x: Tensor) -> Batch:
    return (x, *batch[1:]) if isinstance(batch, Sequence) else x
