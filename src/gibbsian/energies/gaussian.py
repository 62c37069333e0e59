"""Gaussians, the oracle of nearly everything else, and what is made of them: Student-t laws and mixtures."""

import math

import torch
from torch import Tensor

from gibbsian.domains import Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, PrecisionError, ShapeError, as_numbers, check_number
from gibbsian.placement import explained
from gibbsian.random import check_draws, normals_like


def _precision_factor(covariance: Tensor) -> Tensor:
    """L with Σ⁻¹ = L Lᵀ of a covariance `(..., d, d)`, lower triangular."""
    if not torch.allclose(covariance, covariance.mT):
        raise ArgumentError("the covariance is not symmetric; symmetrize it with (S + S.mT) / 2")
    root, info = torch.linalg.cholesky_ex(covariance)
    if bool((info != 0).any()):
        raise ArgumentError("the covariance is not positive definite; add a multiple of the identity")
    return torch.linalg.cholesky(torch.cholesky_inverse(root))


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
        mean, covariance = as_numbers(self, "mean", mean), as_numbers(self, "covariance", covariance)
        if torch.float16 in {mean.dtype, covariance.dtype} or torch.bfloat16 in {mean.dtype, covariance.dtype}:
            raise PrecisionError("a covariance has no factor in half precision; call .float() on mean and covariance")
        if not bool(torch.isfinite(mean).all()):
            raise ArgumentError(f"the mean of a Gaussian must be finite, got {mean}")
        if mean.dim() != 1 or len(mean) < 1:
            raise ShapeError(f"the mean has shape {tuple(mean.shape)}, expected (d,); flatten it first")
        if covariance.shape != (len(mean), len(mean)):
            raise ShapeError(
                f"the covariance has shape {tuple(covariance.shape)}, expected {(len(mean),) * 2} to fit the "
                "mean; for independent entries pass torch.diag(variances)"
            )
        super().__init__(Real(len(mean)))
        factor = _precision_factor(covariance)
        self.hold(trainable, mean=mean.clone(), log_diagonal=factor.diagonal().log(), off_diagonal=factor.tril(-1))
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
            n = check_draws(n, generator, self.mean.device)
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
        check_number(self, "df", df, open_low=True)  # its limit is energies.Gaussian
        mean = None if mean is None else as_numbers(self, "mean", mean)
        scale = None if scale is None else as_numbers(self, "scale", scale)
        if mean is None:
            mean = torch.zeros(2) if scale is None else torch.zeros(len(scale)).to(scale)
        if scale is None:
            scale = torch.eye(mean.numel()).to(mean)
        gaussian = Gaussian(mean, scale, trainable=trainable)
        super().__init__(gaussian.domain)
        self.gaussian = gaussian
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
        n = len(z)
        with torch.no_grad():
            chi2 = 2 * torch._standard_gamma((self.df / 2).expand(n), generator=generator)
            return self.gaussian.mean + (z - self.gaussian.mean) * (self.df / chi2).sqrt()[:, None]


class GaussianMixture(Energy):
    """A mixture of k Gaussians: E(x) = -log Σᵢ wᵢ N(x; μᵢ, Σᵢ), so log Z = 0 whatever the parameters.

    Parametrized by the logits of the weights and as `Gaussian`, so that the mean energy of data is its exact
    negative log-likelihood. For mixtures of other energies see `gibbsian.mixture`.

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
        means = as_numbers(self, "means", means)
        if means.dim() != 2 or means.numel() == 0 or not means.is_floating_point():
            raise ShapeError(
                f"the means are {means.dtype} of shape {tuple(means.shape)}, expected floats (components, d)"
            )
        k, d = means.shape
        covariance = as_numbers(self, "covariances", covariances, means.dtype).to(means.device)
        if covariance.dim() == 0:
            covariance = covariance * torch.eye(d).to(means)
        if tuple(covariance.shape) not in {(d, d), (k, d, d)}:
            raise ShapeError(
                f"the covariances have shape {tuple(covariance.shape)}, expected a number, {(d, d)} or {(k, d, d)}"
            )
        factor = _precision_factor(covariance.expand(k, d, d))
        w = (torch.full((k,), 1 / k) if weights is None else as_numbers(self, "weights", weights)).to(means)
        if w.shape != (k,) or not bool((w > 0).all()) or abs(float(w.sum()) - 1) > 1e-5:
            raise ArgumentError(
                f"the weights of {k} components must be {k} positive numbers that add up to 1, got {weights}"
            )
        super().__init__(Real(d))
        self.hold(trainable, means=means.clone(), logits=w.log())
        self.hold(trainable, log_diagonals=factor.diagonal(dim1=1, dim2=2).log(), off_diagonals=factor.tril(-1))

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

    @explained
    def responsibilities(self, x: Tensor) -> Tensor:
        """p(component | x), `(batch, k)`."""
        return torch.softmax(self._log_parts(x)[0], 1)

    def log_z(self) -> Tensor:
        """0."""
        return self.means.new_zeros(())

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, d)`: a component, then a Gaussian."""
        n = check_draws(n, generator, self.means.device)
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
        n = check_draws(n, generator, self.anchor.device)
        z = normals_like(self.anchor, n, 1, generator=generator)
        u = torch.rand(n, 1, generator=generator, dtype=z.dtype, device=z.device)
        return torch.where(u < 0.6, z - 2, 2 * z + 4)
