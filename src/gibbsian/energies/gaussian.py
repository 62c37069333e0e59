"""The Gaussian energy: the oracle of nearly everything else."""

import math

import torch
from torch import Tensor, nn

from gibbsian.domains import Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError
from gibbsian.random import normals_like


class Gaussian(Energy):
    """N(μ, Σ) on R^d: E(x) = ½ (x - μ)ᵀ Σ⁻¹ (x - μ), log Z = (d/2) log 2π + ½ log det Σ.

    Parametrized by the mean and the lower Cholesky factor of the precision, whose diagonal is kept as a
    logarithm, so that any parameter values give a proper density.

    Args:
        mean: `(d,)`.
        covariance: `(d, d)`, symmetric positive definite.
        trainable: make both trainable parameters; otherwise they are buffers.

    >>> g = torch.Generator().manual_seed(0)
    >>> energy = Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.9], [0.9, 1.0]]))
    >>> energy.sample(3, generator=g).shape, energy.score(torch.ones(1, 2))
    (torch.Size([3, 2]), tensor([[-0.5263, -0.5263]]))
    """

    mean: Tensor
    log_diagonal: Tensor
    off_diagonal: Tensor

    def __init__(self, mean: Tensor, covariance: Tensor, *, trainable: bool = False) -> None:
        mean, covariance = torch.as_tensor(mean), torch.as_tensor(covariance)
        if mean.dim() != 1 or len(mean) < 1:
            raise ShapeError(f"the mean has shape {tuple(mean.shape)}, expected (d,); flatten it first")
        if covariance.shape != (len(mean), len(mean)):
            raise ShapeError(
                f"the covariance has shape {tuple(covariance.shape)}, expected {(len(mean),) * 2} to fit the "
                "mean; for independent entries pass torch.diag(variances)"
            )
        super().__init__(Real(len(mean)))
        if not torch.allclose(covariance, covariance.T):
            raise ArgumentError("the covariance is not symmetric; symmetrize it with (S + S.T) / 2")
        root, info = torch.linalg.cholesky_ex(covariance)
        if int(info) != 0:
            raise ArgumentError("the covariance is not positive definite; add a multiple of the identity")
        factor = torch.linalg.cholesky(torch.cholesky_inverse(root))  # Σ⁻¹ = L Lᵀ
        parts = {"mean": mean.clone(), "log_diagonal": factor.diagonal().log(), "off_diagonal": factor.tril(-1)}
        for name, value in parts.items():
            if trainable:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)
        if not trainable:
            self.register_buffer("_precision", factor @ factor.T)
        self.trainable = trainable

    @property
    def factor(self) -> Tensor:
        """L with Σ⁻¹ = L Lᵀ, lower triangular."""
        return self.off_diagonal.tril(-1) + torch.diag(self.log_diagonal.exp())

    @property
    def precision(self) -> Tensor:
        """Σ⁻¹."""
        if not self.trainable:
            return self._precision  # type: ignore[return-value]
        factor = self.factor
        return factor @ factor.T

    @property
    def covariance(self) -> Tensor:
        """Σ."""
        return torch.cholesky_inverse(self.factor)

    def forward(self, x: Tensor) -> Tensor:
        centered = x - self.mean
        return 0.5 * (centered @ self.precision * centered).sum(1)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            centered = x - self.mean
            pull = centered @ self.precision
            return 0.5 * (pull * centered).sum(1), -pull

    def log_z(self) -> Tensor:
        """(d/2) log 2π + ½ log det Σ."""
        return 0.5 * len(self.mean) * math.log(2 * math.pi) - self.log_diagonal.sum()

    def push(self, z: Tensor) -> Tensor:
        """x = μ + L⁻ᵀ z: draws `(n, d)` out of standard normal ones."""
        return self.mean + torch.linalg.solve_triangular(self.factor.T, z.T, upper=True).T

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`."""
        with torch.no_grad():
            return self.push(normals_like(self.mean, n, len(self.mean), generator=generator))

    def masses(self) -> Tensor:
        """Σ⁻¹; one number on a line."""
        return self.precision if len(self.mean) > 1 else self.precision.flatten()

    def sample_conditional(self, x: Tensor, clamp: Tensor, *, generator: torch.Generator) -> Tensor:
        """Draw the entries that `clamp` does not hold given those it does:
        N(μ_f - P_ff⁻¹P_fc(x_c - μ_c), P_ff⁻¹)."""
        with torch.no_grad():
            f = (~clamp).to(x).expand_as(x)
            precision = self.precision.to(x)
            both = f[:, :, None] * f[:, None, :]
            block = precision * both + torch.diag_embed(1 - f)  # clamped entries decoupled
            root = torch.linalg.cholesky(block)
            pull = f * (((1 - f) * (x - self.mean)) @ precision)
            shift = torch.cholesky_solve(pull[:, :, None], root)[:, :, 0]
            z = normals_like(x, *x.shape, generator=generator)
            noise = torch.linalg.solve_triangular(root.mT, z[:, :, None], upper=True)[:, :, 0]
            return torch.where(clamp, x, self.mean - shift + noise)
