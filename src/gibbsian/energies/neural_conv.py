"""Energies of images: plain convolutions, and residual blocks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gibbsian.domains import Domain
from gibbsian.energies.neural import (
    NeuralEnergy,
    activation_of,
    domain_of,
    layer,
    need_axes,
    seeded,
    sizes_of,
)
from gibbsian.errors import ArgumentError
from gibbsian.random import isolated
from gibbsian.recorded import Recorded

__all__ = ["ConvEnergy", "ConvNet", "ResidualEnergy", "ResidualNet", "WideResidualNet"]


class ConvNet(Recorded):
    """Convolutions of stride two and a dense head: `(batch, channels, height, width)` → `(batch, outputs)`.

    Args:
        shape: (channels, height, width) of an image.
        channels: of every convolution; each halves the image.
        head: width of the dense layer before the outputs.
        outputs, activation, spectral_norm, generator: as for `MLP`.

    >>> ConvNet((1, 28, 28), outputs=10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        channels: Sequence[int] = (16, 32, 64, 64),
        head: int = 64,
        outputs: int = 1,
        *,
        activation: str = "silu",
        spectral_norm: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        widths = sizes_of("channels", channels)
        sizes_of("shape, head, outputs", (*shape, head, outputs), 5)
        at, height, width = shape
        layers: list[nn.Module] = []
        with isolated(seeded(generator)):
            for i, wide in enumerate(widths):
                size = 5 if i == 0 else 3
                layers.append(layer(nn.Conv2d(at, wide, size, stride=2, padding=size // 2), spectral_norm))
                layers.append(activation_of(activation))
                at, height, width = wide, (height + 1) // 2, (width + 1) // 2
            layers += [nn.Flatten(), layer(nn.Linear(at * height * width, head), spectral_norm)]
            layers += [activation_of(activation), layer(nn.Linear(head, outputs), spectral_norm)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class ConvEnergy(NeuralEnergy):
    """Four convolutions of stride two and a dense head as an energy of images.

    Small and quick; the size that course notes train on digits. For color images `ResidualEnergy`.

    Args:
        domain: a domain of shape (channels, height, width), or that shape for R^d.
        channels, head, activation, spectral_norm, generator: as for `ConvNet`.
        confine: c of ½c‖x‖²; a box needs none.

    >>> ConvEnergy((1, 8, 8), channels=(8, 8))(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2])
    """

    def __init__(
        self,
        domain: Domain | tuple[int, int, int],
        channels: Sequence[int] = (16, 32, 64, 64),
        head: int = 64,
        *,
        activation: str = "silu",
        spectral_norm: bool = False,
        confine: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        domain = domain_of(domain)
        c, h, w = need_axes(domain, 3, "ConvEnergy")
        options = {"activation": activation, "spectral_norm": spectral_norm, "generator": generator}
        super().__init__(ConvNet((c, h, w), channels, head, **options), domain, confine=confine)  # type: ignore[arg-type]


class _Halve(torch.autograd.Function):
    """Means of 2×2 pixels. Their gradient is the outer one, enlarged: torch's own kernel for it takes ten times as long
    as the memory does, on CUDA with channels last an eighth of all time."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Tensor:
        last = (0.25 * outer[0]).permute(0, 2, 3, 1)  # not F.interpolate: autocast would have it in f32
        n, h, w, c = last.shape
        return last[:, :, None, :, None].expand(n, h, 2, w, 2, c).reshape(n, 2 * h, 2 * w, c).permute(0, 3, 1, 2)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return F.avg_pool2d(tangents[0], 2)


def halve(x: Tensor) -> Tensor:
    """Images of half the size, by means of 2×2 pixels; odd ones keep half a pixel at the end."""
    if x.is_cuda and x.shape[2] % 2 == x.shape[3] % 2 == 0 and not torch.compiler.is_compiling():
        return _Halve.apply(x)
    return F.avg_pool2d(x, 2, ceil_mode=True)


class ResidualBlock(nn.Module):
    """x + conv(φ(conv(φ(x)))), with a linear shortcut where the width changes."""

    def __init__(self, a: int, b: int, activation: str, spectral_norm: bool) -> None:
        super().__init__()
        self.first = layer(nn.Conv2d(a, b, 3, padding=1), spectral_norm)
        self.second = layer(nn.Conv2d(b, b, 3, padding=1), spectral_norm)
        self.shortcut = nn.Identity() if a == b else layer(nn.Conv2d(a, b, 1), spectral_norm)
        self.activation = activation_of(activation)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.second(self.activation(self.first(self.activation(x))))
        return self.shortcut(x) + inner


class ResidualNet(Recorded):
    """A residual network without batch norm: `(batch, channels, height, width)` → `(batch, outputs)`.

    Args:
        shape: (channels, height, width) of an image.
        widths: of the stages; the image is halved between them.
        blocks: residual blocks per stage.
        stride: of the first convolution. 2 halves the image before the first stage: a quarter of the work, but images
            that are drawn from such a network show its grid.
        pool: average over positions before the outputs. Without, they see where things are: centered images such as
            digits are learned many times faster.
        outputs, activation, spectral_norm, generator: as for `MLP`.

    >>> ResidualNet((3, 8, 8), widths=(8, 16), outputs=10)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        widths: Sequence[int] = (64, 128, 128),
        blocks: int = 2,
        outputs: int = 1,
        *,
        stride: int = 1,
        pool: bool = True,
        activation: str = "silu",
        spectral_norm: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        wide = sizes_of("widths", widths)
        sizes_of("shape, blocks, outputs", (*shape, blocks, outputs), 5)
        if stride not in (1, 2):
            raise ArgumentError(f"ResidualNet(stride={stride!r}): 1 or 2")
        at = wide[0]
        stages: list[nn.Module] = []
        with isolated(seeded(generator)):
            near = 3 if stride == 1 else 5
            self.stem = layer(nn.Conv2d(shape[0], at, near, stride=stride, padding=near // 2), spectral_norm)
            size = ((shape[1] - 1) // stride + 1, (shape[2] - 1) // stride + 1)
            for i, width in enumerate(wide):
                stage = []
                if i and min(size) > 1:
                    size = ((size[0] + 1) // 2, (size[1] + 1) // 2)
                for _ in range(blocks):
                    stage.append(ResidualBlock(at, width, activation, spectral_norm))
                    at = width
                stages.append(nn.Sequential(*stage))
            self.head = layer(nn.Linear(at if pool else at * size[0] * size[1], outputs), spectral_norm)
        self.stages = nn.ModuleList(stages)
        self.activation, self.pool = activation_of(activation), pool

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for i, stage in enumerate(self.stages):
            x = stage(halve(x) if i and min(x.shape[2:]) > 1 else x)
        x = self.activation(x).flatten(2)
        return self.head(x.mean(2) if self.pool else x.flatten(1))


class WideResidualNet(ResidualNet):
    """A wide residual network without batch norm: three stages of widths 16k, 32k and 64k, (depth - 4)/6 blocks each.

    WRN-28-10 is the classifier that joint energy models were first shown with; WRN-10-2 or WRN-16-2 suit 28×28
    images. Without batch norm, because an energy belongs to one x.

    Reference: Zagoruyko & Komodakis 2016.

    Args:
        shape: (channels, height, width) of an image.
        depth: 6n + 4, n blocks a stage (the 4 are the stem and the shortcuts).
        factor: k, how much wider than the thin network.
        pool: as for `ResidualNet`.
        outputs, activation, spectral_norm, generator: as for `MLP`.

    >>> WideResidualNet((1, 8, 8), depth=10, factor=1, outputs=10)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        depth: int = 16,
        factor: int = 2,
        outputs: int = 1,
        *,
        pool: bool = True,
        activation: str = "silu",
        spectral_norm: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        sizes_of("factor", (factor,))
        if not isinstance(depth, int) or depth < 10 or (depth - 4) % 6:
            raise ArgumentError(f"WideResidualNet(depth={depth!r}): the depth is 6n + 4: 10, 16, 22, 28, ...")
        widths = (16 * factor, 32 * factor, 64 * factor)
        options = {"pool": pool, "activation": activation, "spectral_norm": spectral_norm, "generator": generator}
        super().__init__(shape, widths, (depth - 4) // 6, outputs, **options)  # type: ignore[arg-type]


class ResidualEnergy(NeuralEnergy):
    """A residual network as an energy of images: no batch normalization, smooth activations.

    Args:
        domain: a domain of shape (channels, height, width), or that shape for R^d.
        widths, blocks, activation, spectral_norm, generator: as for `ResidualNet`.
        confine: c of ½c‖x‖²; a box needs none.

    >>> ResidualEnergy((3, 8, 8), widths=(8, 16), blocks=1)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2])
    """

    def __init__(
        self,
        domain: Domain | tuple[int, int, int],
        widths: Sequence[int] = (64, 128, 128),
        blocks: int = 2,
        *,
        activation: str = "silu",
        spectral_norm: bool = False,
        confine: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        domain = domain_of(domain)
        c, h, w = need_axes(domain, 3, "ResidualEnergy")
        options = {"activation": activation, "spectral_norm": spectral_norm, "generator": generator}
        super().__init__(ResidualNet((c, h, w), widths, blocks, **options), domain, confine=confine)  # type: ignore[arg-type]
