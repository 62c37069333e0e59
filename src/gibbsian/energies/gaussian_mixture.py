"""Mixtures of Gaussians, and the two-hump density of lecture notes."""

import math

import torch
from torch import Tensor, nn

from gibbsian.domains import Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError
from gibbsian.random import normals_like, require_generator


def _roots(covariance: Tensor, k: int, d: int) -> Tensor:
    """Cholesky factors `(k, d, d)` of one covariance for all components, or one for each; a number stands for its
    multiple of the identity."""
    if covariance.dim() == 0:
        covariance = covariance * torch.eye(d, dtype=covariance.dtype, device=covariance.device)
    if tuple(covariance.shape) not in {(d, d), (k, d, d)}:
        raise ShapeError(
            f"the covariances have shape {tuple(covariance.shape)}, expected a number, {(d, d)} or {(k, d, d)}"
        )
    if not torch.allclose(covariance, covariance.mT):
        raise ArgumentError("a covariance is not symmetric; symmetrize it with (S + S.mT) / 2")
    root, info = torch.linalg.cholesky_ex(covariance.expand(k, d, d))
    if bool((info != 0).any()):
        raise ArgumentError("a covariance is not positive definite; add a multiple of the identity")
    return root


class GaussianMixture(Energy):
    """A mixture of k Gaussians: E(x) = -log Σᵢ wᵢ N(x; μᵢ, Σᵢ), so log Z = 0 whatever the parameters.

    Parametrized by the logits of the weights, the means and the lower Cholesky factors of the precisions with
    the logarithm of their diagonals, so that any parameter values give a proper density: the mean energy of
    data is its exact negative log-likelihood. For mixtures of other energies see `gibbsian.mixture`.

    Args:
        means: `(k, d)`.
        covariances: `(k, d, d)`, one `(d, d)` for all, or a number: that variance in all directions.
        weights: `(k,)` probabilities; equal when left out.
        trainable: make everything trainable parameters; otherwise they are buffers.

    >>> two = GaussianMixture(torch.tensor([[-2.0], [2.0]]), 0.25, [0.3, 0.7])
    >>> two.sample(3, generator=torch.Generator().manual_seed(0)).shape, two.weights
    (torch.Size([3, 1]), tensor([0.3000, 0.7000]))
    """

    means: Tensor
    logits: Tensor
    log_diagonals: Tensor
    off_diagonals: Tensor

    def __init__(
        self,
        means: Tensor,
        covariances: Tensor | float = 1.0,
        weights: Tensor | list[float] | None = None,
        *,
        trainable: bool = False,
    ) -> None:
        means = torch.as_tensor(means)
        if means.dim() != 2 or means.numel() == 0 or not means.is_floating_point():
            raise ShapeError(
                f"the means are {means.dtype} of shape {tuple(means.shape)}, expected floats (components, d)"
            )
        k, d = means.shape
        root = _roots(torch.as_tensor(covariances, dtype=means.dtype, device=means.device), k, d)
        w = torch.full((k,), 1 / k) if weights is None else torch.as_tensor(weights)
        w = w.to(means)
        if w.shape != (k,) or not bool((w > 0).all()) or abs(float(w.sum()) - 1) > 1e-5:
            raise ArgumentError(
                f"the weights of {k} components must be {k} positive numbers that add up to 1, got {weights}"
            )
        super().__init__(Real(d))
        factor = torch.linalg.cholesky(torch.cholesky_inverse(root))  # Σ⁻¹ = L Lᵀ
        parts = {
            "means": means.clone(),
            "logits": w.log(),
            "log_diagonals": factor.diagonal(dim1=1, dim2=2).log(),
            "off_diagonals": factor.tril(-1),
        }
        for name, value in parts.items():
            if trainable:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value)

    @property
    def weights(self) -> Tensor:
        """w, probabilities."""
        return torch.softmax(self.logits, 0)

    @property
    def factors(self) -> Tensor:
        """L with Σᵢ⁻¹ = LᵢLᵢᵀ, lower triangular, `(k, d, d)`."""
        return self.off_diagonals.tril(-1) + torch.diag_embed(self.log_diagonals.exp())

    @property
    def covariances(self) -> Tensor:
        """Σ, `(k, d, d)`."""
        return torch.cholesky_inverse(self.factors)

    def _log_parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log wᵢN(x; μᵢ, Σᵢ) of shape (batch, k), and Lᵢᵀ(x - μᵢ) of shape (batch, k, d)."""
        white = torch.einsum("nkd,kde->nke", x[:, None] - self.means, self.factors)
        constant = (
            torch.log_softmax(self.logits, 0) + self.log_diagonals.sum(1) - 0.5 * x.shape[1] * math.log(2 * math.pi)
        )
        return constant - 0.5 * white.square().sum(2), white

    def forward(self, x: Tensor) -> Tensor:
        return -torch.logsumexp(self._log_parts(x)[0], 1)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            log_parts, white = self._log_parts(x)
            share = torch.softmax(log_parts, 1)
            score = -torch.einsum("nke,kde->nd", share[:, :, None] * white, self.factors)
            return -torch.logsumexp(log_parts, 1), score

    def responsibilities(self, x: Tensor) -> Tensor:
        """p(component | x), `(batch, k)`."""
        return torch.softmax(self._log_parts(x)[0], 1)

    def log_z(self) -> Tensor:
        """0."""
        return torch.zeros((), dtype=self.means.dtype, device=self.means.device)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`: a component, then a Gaussian."""
        require_generator(generator, self.means.device)
        with torch.no_grad():
            which = torch.multinomial(self.weights, n, replacement=True, generator=generator)
            z = normals_like(self.means, n, self.means.shape[1], generator=generator)
            spread = torch.linalg.solve_triangular(self.factors.mT, torch.eye(z.shape[1]).to(z), upper=True)  # L⁻ᵀ
            return self.means[which] + torch.einsum("nde,ne->nd", spread[which], z)


class Bimodal(Energy):
    """The one-dimensional density of lecture notes on Metropolis sampling.

        exp(-E(x)) = 3·exp(-(x+2)²/2) + exp(-(x-4)²/8),   Z = 5√(2π)

    That is 0.6 N(-2, 1) + 0.4 N(4, 4), unnormalized: two humps of different width, mean 0.4, variance 10.84.

    >>> Bimodal().log_z().exp()
    tensor(12.5331)
    """

    anchor: Tensor

    def __init__(self) -> None:
        super().__init__(Real(1))
        self.register_buffer("anchor", torch.zeros(()), persistent=False)  # knows dtype and device

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, 0]
        return -torch.logaddexp(math.log(3) - (x + 2).square() / 2, -(x - 4).square() / 8)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            left, right = math.log(3) - (x + 2).square() / 2, -(x - 4).square() / 8
            share = torch.sigmoid(left - right)
            score = -share * (x + 2) - (1 - share) * (x - 4) / 4
            return -torch.logaddexp(left, right)[:, 0], score

    def log_z(self) -> Tensor:
        """log 5 + ½ log 2π."""
        return self.anchor.new_tensor(math.log(5) + 0.5 * math.log(2 * math.pi))

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, 1)`."""
        z = normals_like(self.anchor, n, 1, generator=generator)
        u = torch.rand(n, 1, generator=generator, dtype=z.dtype, device=z.device)
        return torch.where(u < 0.6, z - 2, 2 * z + 4)
