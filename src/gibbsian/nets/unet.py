"""Images to images: a U-Net whose answer is the mean of the data until it has learned better."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gibbsian.nets.score import ScoreUNet
from gibbsian.recorded import Recorded


class UNet(Recorded):
    """A U-Net from images to images of the same shape, such as for `energies.ReconstructionEnergy`.

        U(x) = m + τ√(1 + τ²) · F((x - m)/√(1 + τ²))

    F is the inner network of `ScoreUNet` at noise level 1, which is zero at the start. Inputs of F have unit size where x is data with mean m and
    spread τ plus unit noise, and so have its outputs where U(x) is the data.

    Reference: Ronneberger, Fischer & Brox 2015.

    Args:
        shape, widths, blocks, center, spread, activation, generator: as for `ScoreUNet`.

    >>> net = UNet((1, 28, 28), widths=(8, 16), center=-0.5)
    >>> net(torch.zeros(2, 1, 28, 28)).mean()
    tensor(-0.5000, grad_fn=<MeanBackward0>)
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        widths: Sequence[int] = (32, 64, 128),
        blocks: int = 2,
        *,
        center: float = 0.0,
        spread: float = 1.0,
        activation: str = "silu",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.net = ScoreUNet(
            shape, widths, blocks, center=center, spread=spread, activation=activation, generator=generator
        )

    def forward(self, x: Tensor) -> Tensor:
        one = torch.ones_like(x[:, 0, 0, 0])
        return x + (1 + self.net.spread**2) * self.net(x, one)
