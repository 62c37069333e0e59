"""Products of Student-t experts: what they share, the product over vectors, and when it has a finite integral."""

import copy
import math
from abc import abstractmethod

import numpy as np
import scipy  # its parts are imported on first use
import torch
from torch import Tensor, nn

from gibbsian.capabilities import Filters
from gibbsian.domains import Domain, Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, check_count, check_number
from gibbsian.random import check_draws, normals, normals_like, require_generator, stream


class StudentExperts(Energy):
    """Student-t experts on linear responses z = Wx: subclasses say what W is, and how to solve with WᵀUW + C.

        E(x) = Σᵢ αᵢ log(1 + ½zᵢ²) + ½ε‖x‖²,   exp(-α log(1 + ½z²)) = ∫ Gamma(u; α, 1) exp(-½uz²) du

    Each expert is a scale mixture of Gaussians. Given one scale u for every expert x is Gaussian, so both blocks are drawn exactly:
    u | x ~ Gamma(α, rate 1 + ½z²), and x | u ~ N(0, (WᵀUW + εI)⁻¹) by perturbing and solving.

    Reference: Welling, Hinton & Osindero 2003; Papandreou & Yuille 2010 (perturb and solve).
    """

    log_alpha: nn.Parameter

    def __init__(self, domain: Domain, experts: int, alpha: float, confine: float) -> None:
        super().__init__(domain)
        check_number(self, "alpha", alpha, open_low=True)
        check_number(self, "confine", confine)
        self.confine = float(confine)
        self.log_alpha = nn.Parameter(torch.full((experts,), math.log(alpha)))

    @abstractmethod
    def responses(self, x: Tensor) -> Tensor:
        """z = Wx, `(batch, experts, ...)`."""

    @abstractmethod
    def adjoint(self, z: Tensor) -> Tensor:
        """Wᵀz, the shape of x."""

    @abstractmethod
    def solve(self, u: Tensor, own: Tensor, right: Tensor, clamp: Tensor | None) -> Tensor:
        """The solution of (WᵀUW + diag(own)) x = right, over the entries that `clamp` does not hold (0 elsewhere)."""

    @property
    def alpha(self) -> Tensor:
        """α, positive."""
        return self.log_alpha.exp()

    def _alpha_of(self, z: Tensor) -> Tensor:
        """α shaped to meet responses."""
        return self.alpha.reshape(-1, *[1] * (z.dim() - 2))

    def forward(self, x: Tensor) -> Tensor:
        return self._energy(x, self.responses(x))

    def _energy(self, x: Tensor, z: Tensor) -> Tensor:
        energy = (self._alpha_of(z) * torch.log1p(0.5 * z.square())).flatten(1).sum(1)
        return energy + 0.5 * self.confine * x.flatten(1).square().sum(1) if self.confine else energy

    def _score(self, x: Tensor, z: Tensor) -> Tensor:
        pull = self.adjoint(self._alpha_of(z) * z / (1 + 0.5 * z.square()))
        return -(pull + self.confine * x) if self.confine else -pull

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            z = self.responses(x)
            return self._energy(x, z), self._score(x, z)

    def score(self, x: Tensor, *, create_graph: bool = False) -> Tensor:
        """s(x) in closed form; with `create_graph` it is differentiated once, not twice."""
        if not create_graph:
            return self.energy_and_score(x)[1]
        with torch.enable_grad():
            return self._score(x, self.responses(x))

    def tempered(self, beta: Tensor | float) -> Energy:
        """βE: exponents βα and confinement βε, so that the conditionals stay exact; one β for each row is plain βE."""
        beta = torch.as_tensor(beta)
        if beta.dim() or not bool(beta > 0):
            return super().tempered(beta)
        other = copy.copy(self)
        other._parameters = dict(self._parameters)
        other.log_alpha = nn.Parameter((self.log_alpha + beta.log()).detach(), requires_grad=False)
        other.confine = self.confine * float(beta)
        return other

    # --- Gibbs sampling -----------------------------------------------------------------------------

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Gamma draws for the scales; normals for the experts, for the confinement and for observations."""
        require_generator(generator, x.device)
        if not isinstance(self.domain, Real):
            raise CapabilityError(
                f"given its scales this energy is a Gaussian, but on {self.domain} a truncated one, which is not "
                "drawn exactly; use kernels.HMC or MALA, which reflect at the walls"
            )
        with torch.no_grad():
            z = self.responses(x[:1])
            alpha = self._alpha_of(z).detach().to(x.dtype).expand(len(x), *z.shape[1:]).contiguous()
        rows: list[tuple[Tensor, ...]] = []
        sizes = [len(x) * z[0].numel(), x.numel(), x.numel()]
        for _ in range(steps):  # step by step, so that the numbers do not depend on the cut
            gamma = torch._standard_gamma(alpha, generator)
            each = normals(1, sum(sizes), generator, dtype=x.dtype, device=x.device)[0].split(sizes)
            rows.append((gamma, each[0].reshape(gamma.shape), each[1].reshape(x.shape), each[2].reshape(x.shape)))
        return tuple(torch.stack(part) for part in zip(*rows, strict=True))

    def gibbs_sweep(
        self,
        x: Tensor,
        noise: tuple[Tensor, ...],
        clamp: Tensor | None = None,
        observed: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Scales given x, then what is not held of x given scales; `observed` is a precision and a target of
        Gaussian observations of every entry (see `energies.Observed`)."""
        gamma, at_experts, at_origin, at_data = noise
        with torch.no_grad():
            u = gamma / (1 + 0.5 * self.responses(x).square())
            own = torch.full_like(x, self.confine)
            right = self.adjoint(u.sqrt() * at_experts) + math.sqrt(self.confine) * at_origin
            if observed is not None:
                precision, target = observed
                own = own + precision
                right = right + precision * target + precision.sqrt() * at_data
            if clamp is None:
                return self.solve(u, own, right, None)
            held = torch.where(clamp, x, 0.0)
            right = right - self.adjoint(u * self.responses(held))
            return torch.where(clamp, x, self.solve(u, own, right, clamp))


class ProductOfExperts(StudentExperts):
    """Product of Student-t experts over vectors: E(x) = Σᵢ αᵢ log(1 + ½(wᵢ·x)²) + ½ε‖x‖².

    Sparse, over-complete features of whitened data. Without confinement it is normalizable iff for every
    proper subspace V the experts outside it satisfy Σ_{wᵢ∉V} αᵢ > (d - dim V)/2, that is iff `strength()`
    exceeds 1; a square W is an ICA model with

        log Z = -log|det W| + Σᵢ log[√(2π) Γ(αᵢ - ½)/Γ(αᵢ)],   every αᵢ > ½,

    and exact draws. Train it by score matching, denoising or contrastive divergence with `kernels.Gibbs`,
    which alternates between scales and x and always accepts.

    Reference: Hinton 1999; Welling, Hinton & Osindero 2003; Teh, Welling, Osindero & Hinton 2003.

    Args:
        dim: d, numbers in one event.
        experts: how many; as many as dimensions where it is left out.
        alpha: starting value of every αᵢ; the default keeps a square product normalizable.
        confine: ε of the quadratic confinement.
        generator: for the initial weights, N(0, 1/d); a fixed seed where it is left out.

    Attributes:
        weight: W `(experts, dim)`; log_alpha: log αᵢ `(experts,)`.

    >>> product = ProductOfExperts(2, experts=3)
    >>> product(torch.zeros(1, 2)).detach(), product.strength() > 1
    (tensor([0.]), True)
    """

    def __init__(
        self,
        dim: int,
        experts: int | None = None,
        *,
        alpha: float = 1.5,
        confine: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        experts = dim if experts is None else experts
        dim, experts = check_count(self, "dim", dim), check_count(self, "experts", experts)
        super().__init__(Real(dim), experts, alpha, confine)
        generator = stream(0, "init") if generator is None else generator
        weight = torch.randn(experts, dim, generator=generator, device=generator.device) / math.sqrt(dim)
        self.weight = nn.Parameter(weight)

    def responses(self, x: Tensor) -> Tensor:
        return x @ self.weight.T

    def adjoint(self, z: Tensor) -> Tensor:
        return z @ self.weight

    def solve(self, u: Tensor, own: Tensor, right: Tensor, clamp: Tensor | None) -> Tensor:
        matrix = torch.einsum("ei,ne,ej->nij", self.weight, u, self.weight) + torch.diag_embed(own)
        if clamp is not None:
            f = (~clamp).to(right).expand_as(right)
            matrix = matrix * f[:, :, None] * f[:, None, :] + torch.diag_embed(1 - f)
            right = right * f
        return torch.cholesky_solve(right[:, :, None], torch.linalg.cholesky(matrix))[:, :, 0]

    def filters(self) -> Filters:
        """What each expert looks for."""
        return Filters(self.weight.T)

    def strength(self) -> float:
        """min over proper subspaces V of 2Σ_{wᵢ∉V} αᵢ/(d - dim V): without confinement, normalizable iff above 1."""
        return strength(self.weight.detach().double().cpu().numpy(), 2 * self.alpha.detach().double().cpu().numpy())

    def require_normalizable(self) -> None:
        """Raise unless exp(-E) has a finite integral."""
        if self.confine == 0 and not self.strength() > 1:
            raise ArgumentError(
                f"this product of experts is not normalizable: its strength is {self.strength():.4g}, and it must "
                "exceed 1; use larger alpha, more experts that span all directions, or confine=1e-3"
            )

    def _require_square(self, what: str) -> None:
        if self.weight.shape[0] != self.weight.shape[1] or self.confine:
            raise CapabilityError(
                f"{what} of a product of experts is known for square weights without confinement, these are "
                f"{tuple(self.weight.shape)} with confine={self.confine:g}; use partition.ais and kernels.Gibbs"
            )
        self.require_normalizable()

    def log_z(self) -> Tensor:
        """-log|det W| + Σ log[√(2π) Γ(α - ½)/Γ(α)] for a square W."""
        self._require_square("log Z")
        alpha = self.alpha
        each = 0.5 * math.log(2 * math.pi) + torch.lgamma(alpha - 0.5) - torch.lgamma(alpha)
        return each.sum() - torch.linalg.slogdet(self.weight).logabsdet

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws for a square W: independent Student-t responses, unmixed."""
        self._require_square("an exact draw")
        with torch.no_grad():
            n = check_draws(n, generator, self.weight.device)
            normal = normals_like(self.weight, n, len(self.weight), generator=generator)
            scale = torch._standard_gamma((self.alpha - 0.5).expand(n, -1).contiguous(), generator)
            return torch.linalg.solve(self.weight, (normal / scale.sqrt()).T).T

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, experts={len(self.weight)}, confine={self.confine:g}"


# --- when a product of experts has a finite integral: the strength of a weighted set of vectors ---------


def _basis(vectors: np.ndarray, order: np.ndarray, tolerance: float) -> np.ndarray:
    """The greedy basis: vectors in the given order, each taken where it is independent of those before."""
    d = vectors.shape[1]
    taken: list[int] = []
    frame = np.zeros((d, d))
    for i in order:
        v = vectors[i]
        k = len(taken)
        rest = v - frame[:k].T @ (frame[:k] @ v)
        rest = rest - frame[:k].T @ (frame[:k] @ rest)  # twice is enough
        size = np.linalg.norm(rest)
        if size > tolerance:
            frame[k] = rest / size
            taken.append(i)
            if len(taken) == d:
                break
    return np.array(taken, dtype=int)


def strength(vectors: np.ndarray, capacity: np.ndarray, *, tolerance: float = 1e-9) -> float:
    """min over proper subspaces V of Σ_{wᵢ∉V} cᵢ / (d - dim V); 0 where the vectors do not span.

    A product Π (1 + ½(wᵢ·x)²)^(-cᵢ/2) falls along V⊥ as ‖x‖ to the power -Σ_{wᵢ∉V} cᵢ and is integrable there
    iff that exceeds the dimension of V⊥: in all directions iff the strength exceeds 1. By Edmonds' theorem on
    packing bases it is also the largest Σ_B λ_B over fractional packings of bases B with Σ_{B∋i} λ_B ≤ cᵢ, whose
    dual is a linear programme with one row for each basis; rows are added while a greedy basis violates one.

    Args:
        vectors: wᵢ `(n, d)`.
        capacity: cᵢ `(n,)`, positive.

    >>> strength(np.eye(2), np.array([3.0, 1.5]))  # the smaller of the two
    1.5
    >>> round(strength(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), np.array([1.0, 1.0, 1.0])), 6)
    1.5
    """
    if vectors.ndim != 2 or capacity.shape != vectors.shape[:1] or not (capacity > 0).all():
        raise ArgumentError(f"{vectors.shape} vectors need as many positive capacities, got {capacity}")
    size = np.linalg.norm(vectors, axis=1)
    unit = vectors / np.where(size > 0, size, 1.0)[:, None]
    first = _basis(unit, np.argsort(-capacity), tolerance)
    if len(first) < vectors.shape[1]:
        return 0.0
    rows = [first]
    while True:
        cover = np.zeros((len(rows), len(vectors)))
        for row, basis in zip(cover, rows, strict=True):
            row[basis] = -1.0
        found = scipy.optimize.linprog(capacity, A_ub=cover, b_ub=-np.ones(len(rows)), bounds=(0, None), method="highs")
        lightest = _basis(unit, np.argsort(found.x, kind="stable"), tolerance)
        if found.x[lightest].sum() >= 1 - 1e-9:
            return float(found.fun)
        rows.append(lightest)
