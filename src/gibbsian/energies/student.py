"""The multivariate Student-t: heavy tails."""

import math

import torch
from torch import Tensor

from gibbsian.domains import Real
from gibbsian.energies.gaussian import Gaussian
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError


class StudentT(Energy):
    """Multivariate Student-t with ν degrees of freedom: tails that fall as ‖x‖^-(ν+d).

        E(x) = ((ν+d)/2) log(1 + (x - μ)ᵀΣ⁻¹(x - μ)/ν)
        log Z = log Γ(ν/2) - log Γ((ν+d)/2) + (d/2) log νπ + ½ log det Σ

    The covariance is Σν/(ν - 2) for ν > 2; there is none for ν ≤ 2. A good proposal for
    `kernels.Independence`, and a test for kernels: the score goes to zero far out, so gradients do not bring
    chains back.

    Args:
        df: ν.
        mean: μ `(d,)`; zero in the dimensions of `scale`, or in two, when left out.
        scale: Σ `(d, d)`; the identity when left out.
        trainable: make mean and scale trainable parameters.

    >>> StudentT(df=1.0)(torch.zeros(1, 2))
    tensor([0.])
    """

    df: Tensor

    def __init__(
        self, df: float = 3.0, mean: Tensor | None = None, scale: Tensor | None = None, *, trainable: bool = False
    ) -> None:
        if not 0 < df < math.inf:
            raise ArgumentError(f"StudentT(df={df}): df must be positive and finite; its limit is energies.Gaussian")
        if mean is None:
            mean = torch.zeros(2) if scale is None else torch.zeros(len(scale)).to(scale)
        if scale is None:
            scale = torch.eye(len(mean)).to(mean)
        super().__init__(Real(len(mean)))
        self.gaussian = Gaussian(mean, scale, trainable=trainable)
        self.register_buffer("df", torch.tensor(float(df)).to(self.gaussian.mean))

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * (self.df + x.shape[1]) * torch.log1p(2 * self.gaussian(x) / self.df)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            half, score = self.gaussian.energy_and_score(x)
            power = self.df + x.shape[1]
            return 0.5 * power * torch.log1p(2 * half / self.df), (power / (self.df + 2 * half))[:, None] * score

    def log_z(self) -> Tensor:
        """log Γ(ν/2) - log Γ((ν+d)/2) + (d/2) log νπ + ½ log det Σ."""
        half, d = self.df / 2, self.domain.numel
        return self.gaussian.log_z() + 0.5 * d * half.log() + torch.lgamma(half) - torch.lgamma(half + d / 2)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`: a Gaussian divided by the root of an independent χ²_ν/ν."""
        z = self.gaussian.sample(n, generator=generator)
        with torch.no_grad():
            chi2 = 2 * torch._standard_gamma((self.df / 2).expand(n), generator=generator)
            return self.gaussian.mean + (z - self.gaussian.mean) * (self.df / chi2).sqrt()[:, None]
