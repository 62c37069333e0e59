"""Networks for noise-conditional models: scores of vectors and images, and energies, at every noise level.

All are written around the law N(m, τ²I) of data with mean m and spread τ, whose blurred score they have exactly when
the inner network F is zero:

    s(x, σ) = -(x - m)/(σ² + τ²) + τ/(σ√(σ² + τ²)) · F((x - m)/√(σ² + τ²), log σ)

so that F sees inputs of unit size and has outputs of unit size to learn, whatever the level.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gibbsian.errors import check_number
from gibbsian.nets.conv import evened
from gibbsian.nets.layers import Layers, sizes_of
from gibbsian.nets.mlp import MLP
from gibbsian.recorded import Recorded


def level_features(sigma: Tensor, count: int) -> Tensor:
    """sin and cos of log σ at frequencies from ¼ to 4, `(batch, count)`."""
    logs = torch.linspace(-math.log(4), math.log(4), count // 2, dtype=sigma.dtype, device=sigma.device)
    angles = sigma.log()[:, None] * logs.exp()
    return torch.cat([angles.sin(), angles.cos()], 1)


class AroundGaussian(Recorded):
    """Keeps m and τ, and puts a network around them."""

    def __init__(self, center: float, spread: float) -> None:
        super().__init__()
        check_number(self, "center", center, -math.inf)  # float(data.mean())
        check_number(self, "spread", spread, open_low=True)  # float(data.std())
        self.center, self.spread = float(center), float(spread)

    def scaled(self, x: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """u = (x - m)/√(σ² + τ²); √(σ² + τ²) and σ, shaped to go with x."""
        level = sigma.reshape(-1, *[1] * (x.dim() - 1))
        total = torch.sqrt(level.square() + self.spread**2)
        return (x - self.center) / total, total, level

    def around(self, u: Tensor, total: Tensor, level: Tensor, inner: Tensor) -> Tensor:
        """The score that belongs to an output of the inner network."""
        return (self.spread / level * inner.to(u.dtype) - u) / total


class ScoreMLP(AroundGaussian):
    """A noise-conditional score of vectors by a multi-layer perceptron: (x, σ) → s(x, σ).

    Args:
        inputs: numbers in one event.
        hidden: widths.
        center, spread: m and τ, mean and standard deviation of the data.
        features: numbers in which the level is told to the network.
        activation, generator: as for `Layers`.

    >>> import gibbsian as gb
    >>> family = gb.models.NoiseConditionalScore(ScoreMLP(2), gb.domains.Real(2), gb.schedules.geometric(5.0, 0.1, 10))
    >>> family.given(1.0).score(torch.ones(3, 2)).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int] = (128, 128, 128),
        *,
        center: float = 0.0,
        spread: float = 1.0,
        features: int = 16,
        activation: str = "silu",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(center, spread)
        sizes_of("inputs, features", (inputs, features), 2)
        self.features = features
        self.net = MLP(inputs + features, hidden, inputs, activation=activation, generator=generator)
        _still(self.net.layers[-1])

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        u, total, level = self.scaled(x, sigma)
        inner = self.net(torch.cat([u.flatten(1), level_features(sigma, self.features)], 1))
        return self.around(u, total, level, inner.reshape(x.shape))


def _still(layer: nn.Module) -> None:
    """Zero outputs at the start: training begins from the Gaussian."""
    nn.init.zeros_(layer.weight)  # type: ignore[arg-type]
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]


class _Block(nn.Module):
    """conv φ norm, plus the level, conv φ norm, beside a shortcut."""

    def __init__(self, a: int, b: int, wide: int, make: Layers) -> None:
        super().__init__()
        self.first_norm, self.second_norm = (nn.GroupNorm(math.gcd(8, n), n) for n in (a, b))
        self.first = make.conv(a, b, 3)
        self.level = make.linear(wide, b)
        self.second = make.conv(b, b, 3)
        self.shortcut = nn.Identity() if a == b else make.conv(a, b, 1)
        self.activation = make.activation()

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        h = self.first(self.activation(self.first_norm(x))) + self.level(level)[:, :, None, None]
        return self.shortcut(x) + self.second(self.activation(self.second_norm(h)))


class ScoreUNet(AroundGaussian):
    """A noise-conditional score of images by a U-Net: down to a small image and up again, with the details passed across.

    Any height and width will do; 28×28 and 32×32 with three widths go down to 7×7 and 8×8.

    Reference: Ronneberger, Fischer & Brox 2015; Song & Ermon 2020 and Ho, Jain & Abbeel 2020 for scores.

    Args:
        shape: (channels, height, width) of an image.
        widths: of the stages; the image is halved between them.
        blocks: residual blocks per stage, on each way.
        center, spread: m and τ, mean and standard deviation of the pixels.
        features, activation, generator: as for `ScoreMLP`.

    >>> net = ScoreUNet((1, 28, 28), widths=(8, 16))
    >>> net(torch.zeros(2, 1, 28, 28), torch.tensor([1.0, 0.1])).shape
    torch.Size([2, 1, 28, 28])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        widths: Sequence[int] = (32, 64, 128),
        blocks: int = 2,
        *,
        center: float = 0.0,
        spread: float = 1.0,
        features: int = 16,
        activation: str = "silu",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(center, spread)
        wide = sizes_of("widths", widths)
        sizes_of("shape, blocks, features", (*shape, blocks, features), 5)
        self.features = features
        make = Layers(activation, generator=generator)
        size = 4 * wide[0]

        def stage(first: int, width: int) -> nn.ModuleList:
            return nn.ModuleList(_Block(before, width, size, make) for before in [first] + [width] * (blocks - 1))

        with make.drawn():
            self.level = nn.Sequential(make.linear(features, size), make.activation(), make.linear(size, size))
            self.stem = make.conv(shape[0], wide[0], 3)
            at = wide[0]
            down, up = [], []
            for width in wide:
                down.append(stage(at, width))
                at = width
            for width in reversed(wide):
                # the first block of the way up sees what comes from below beside what was passed across
                up.append(stage(at + width, width))
                at = width
            self.down, self.up = nn.ModuleList(down), nn.ModuleList(up)
            self.norm, self.activation = nn.GroupNorm(math.gcd(8, at), at), make.activation()
            self.last = make.conv(at, shape[0], 3)
        _still(self.last)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        u, total, noise = self.scaled(x, sigma)
        level = self.activation(self.level(level_features(sigma, self.features)))
        h = self.stem(u)
        across = []
        for i, stage in enumerate(self.down):
            h = F.avg_pool2d(evened(h), 2) if i else h
            for block in stage:  # type: ignore[attr-defined]
                h = block(h, level)
            across.append(h)
        for stage in self.up:
            passed = across.pop()
            h = h if h.shape == passed.shape else F.interpolate(h, size=passed.shape[2:], mode="nearest")
            h = torch.cat([h, passed], 1)
            for block in stage:  # type: ignore[attr-defined]
                h = block(h, level)
        inner = self.last(self.activation(self.norm(h)))
        return self.around(u, total, noise, inner)


class LevelEnergy(AroundGaussian):
    """A noise-conditional energy around a network with one output: (x, σ) → E(x, σ).

        E(x, σ) = ‖x - m‖²/2(σ² + τ²) + (τ/σ) · G((x - m)/√(σ² + τ²), ¼ log σ)

    The level is one more input of vectors, one more channel of images: G is `MLP(d + 1)`, or `ConvNet` or
    `ResidualNet` of c + 1 channels, with smooth activations.

    Args:
        net: maps `(batch, d + 1)` or `(batch, c + 1, height, width)` to `(batch, 1)`.
        center, spread: m and τ.

    >>> import gibbsian as gb
    >>> net = LevelEnergy(gb.nets.MLP(3))
    >>> family = gb.models.NoiseConditionalEnergy(net, gb.domains.Real(2), gb.schedules.geometric(5.0, 0.1, 10))
    >>> family.given(1.0).score(torch.ones(3, 2)).shape
    torch.Size([3, 2])
    """

    def __init__(self, net: nn.Module, *, center: float = 0.0, spread: float = 1.0) -> None:
        super().__init__(center, spread)
        self.net = net

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        u, _, level = self.scaled(x, sigma)
        told = (0.25 * level.log()).expand(len(x), 1, *x.shape[2:])
        inner = self.net(torch.cat([u, told], 1)).to(u.dtype).flatten()
        return 0.5 * u.square().flatten(1).sum(1) + self.spread / sigma * inner
