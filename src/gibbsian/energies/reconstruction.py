"""The energy of what a network cannot reconstruct."""

from torch import Tensor, nn

from gibbsian.domains import Domain
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError, check_number


class ReconstructionEnergy(Energy):
    """E(x) = ‖x - U(x)‖²/2T: how far a network takes x to be from the data.

        -T∇E(x) = (1 - ∂U/∂x)ᵀ (U(x) - x)

    Bounded from below, and large wherever U, whose outputs stay near the data, is far from x: no confinement is needed. A U-Net
    gives an energy that sees every scale of an image, where a network with one output has to squeeze it through its head. For
    linear U(x) = Wx it is the Gaussian of precision (1 - W)ᵀ(1 - W)/T.

    Reference: Alain & Bengio 2014 and Zhao, Mathieu & LeCun 2017 for reconstruction as an energy; Balcerak et al. 2025 for potentials that
    are trained by `objectives.EnergyMatching`.

    Args:
        net: U, maps `(batch, *event)` to the same shape, such as `nets.UNet`.
        domain: where x lives.
        temperature: T; that of `EnergyMatching`, so that its potential is ½‖x - U(x)‖².

    >>> import torch, gibbsian as gb
    >>> energy = ReconstructionEnergy(torch.nn.Linear(2, 2), gb.domains.Real(2), temperature=0.1)
    >>> energy(torch.zeros(3, 2)).shape
    torch.Size([3])
    """

    def __init__(self, net: nn.Module, domain: Domain, temperature: float = 1.0) -> None:
        super().__init__(domain)
        check_number(self, "temperature", temperature, open_low=True)
        if not callable(net):
            raise ArgumentError(
                f"ReconstructionEnergy(net={net!r}): expected a network that keeps the shape of x, such as nets.UNet"
            )
        self.net, self.temperature = net, float(temperature)

    def forward(self, x: Tensor) -> Tensor:
        again = self.net(x)
        if not isinstance(again, Tensor) or again.shape != x.shape:
            got = tuple(again.shape) if isinstance(again, Tensor) else f"a {type(again).__name__}"
            raise ShapeError(f"the network makes {got} of {tuple(x.shape)}; a reconstruction has the shape of x")
        return (x - again).square().flatten(1).sum(1) / (
            2 * self.temperature
        )  # in the precision of x, whatever the network's
