"""What is known exactly of the Ising model on the square lattice without a field, J = 1 in units of the temperature, K = J/T."""

import math

import scipy  # its parts are imported on first use
import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, check_count, check_number

CRITICAL = math.log(1 + math.sqrt(2)) / 2  # sinh 2K = 1: T = 2.269185


def finite_log_z(shape: tuple[int, int], coupling: float | Tensor) -> Tensor:
    """log Z of a periodic lattice of n × m sites, exactly.

        Z = ½ (2 sinh 2K)^{nm/2} [Π 2cosh ½mγ_{2r+1} + Π 2sinh ½mγ_{2r+1} + Π 2cosh ½mγ_{2r} + Π 2sinh ½mγ_{2r}],   r = 0, …, n - 1
        γ₀ = 2K + log tanh K,   cosh γ_l = cosh 2K coth 2K - cos(lπ/n)

    Reference: Kaufman 1949.

    Args:
        shape: sites along both axes, each periodic.
        coupling: K > 0, a number or a tensor that is differentiated.

    >>> round(float(finite_log_z((4, 4), 0.4)), 4)
    14.5611
    """
    n, m = (check_count("finite_log_z", "shape", side, 2) for side in shape)
    k = torch.as_tensor(coupling, dtype=torch.float64)
    if not bool(k > 0):
        raise ArgumentError(f"coupling={float(k):g}: Kaufman's solution is written for ferromagnets, coupling > 0")

    def gamma(index: Tensor) -> Tensor:
        return torch.acosh(torch.cosh(2 * k) / torch.tanh(2 * k) - torch.cos(index * math.pi / n))

    odd, even = m / 2 * gamma(2 * torch.arange(n).double() + 1), m / 2 * gamma(2 * torch.arange(1, n).double())
    zero = m / 2 * (2 * k + torch.log(torch.tanh(k)))  # negative above the critical temperature
    size = zero.abs()
    terms = [
        (_log_2cosh(odd).sum(), torch.ones_like(k)),
        (_log_2sinh(odd).sum(), torch.ones_like(k)),
        (_log_2cosh(even).sum() + size, torch.exp(zero - size) + torch.exp(-zero - size)),
        (_log_2sinh(even).sum() + size, torch.exp(zero - size) - torch.exp(-zero - size)),
    ]
    most = torch.stack([log.detach() for log, _ in terms]).max()
    total = torch.stack([factor * torch.exp(log - most) for log, factor in terms]).sum()
    return n * m / 2 * torch.log(2 * torch.sinh(2 * k)) - math.log(2) + most + torch.log(total)


def _log_2cosh(y: Tensor) -> Tensor:
    return y + torch.log1p(torch.exp(-2 * y))


def _log_2sinh(y: Tensor) -> Tensor:
    return y + torch.log1p(-torch.exp(-2 * y))


def finite_energy(shape: tuple[int, int], coupling: float) -> float:
    """⟨E⟩/J per site of a periodic lattice, -∂ log Z/∂K / nm, exactly.

    >>> round(finite_energy((512, 512), 0.5), 6)
    -1.745565
    """
    k = torch.tensor(float(coupling), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(finite_log_z(shape, k), k)
    return -float(slope) / (shape[0] * shape[1])


def infinite_energy(coupling: float) -> float:
    """⟨E⟩/J per site of the infinite lattice: -coth 2K [1 + (2/π)(2tanh² 2K - 1) K₁(κ)], κ = 2 sinh 2K / cosh² 2K.

    Reference: Onsager 1944.

    >>> round(infinite_energy(CRITICAL), 6)  # -√2
    -1.414214
    """
    check_number("infinite_energy", "coupling", coupling, open_low=True)
    two = 2 * coupling
    kappa = 2 * math.sinh(two) / math.cosh(two) ** 2
    slope = 2 * math.tanh(two) ** 2 - 1
    elliptic = (
        slope * float(scipy.special.ellipk(kappa**2)) if abs(slope) > 1e-12 else 0.0
    )  # at the critical point 0·∞ = 0
    return -(1 + 2 / math.pi * elliptic) / math.tanh(two)


def magnetization(coupling: float) -> float:
    """The spontaneous magnetization of the infinite lattice: (1 - sinh⁻⁴ 2K)^⅛ below the critical temperature, else 0.

    Reference: Onsager 1949; Yang 1952.

    >>> round(magnetization(0.5), 4), magnetization(0.4)
    (0.9113, 0.0)
    """
    check_number("magnetization", "coupling", coupling)
    return (1 - math.sinh(2 * coupling) ** -4) ** 0.125 if coupling > CRITICAL else 0.0
