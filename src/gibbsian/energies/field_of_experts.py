"""Fields of experts: the same Student-t experts at every place of an image."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d

from gibbsian.capabilities import Filters
from gibbsian.domains import Box, Domain, Real
from gibbsian.energies.experts import StudentExperts
from gibbsian.errors import ArgumentError, DivergenceError, ShapeError, check_count, check_number
from gibbsian.random import stream


def cosines(size: int) -> Tensor:
    """The orthonormal cosine basis of size × size patches, `(size², size, size)`; the first is constant."""
    k = torch.arange(size, dtype=torch.float64)
    rows = torch.cos(math.pi / size * (k + 0.5) * k[:, None]) * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return torch.einsum("ai,bj->abij", rows, rows).reshape(size * size, size, size)


class FieldOfExperts(StudentExperts):
    """Field of experts over gray images: E(x) = Σᵢ αᵢ Σ_c log(1 + ½(wᵢ ∗ x)_c²) + ½ε‖x‖².

    One filter serves every place c, so a field learned from patches is a prior of images of any size: `resized`.
    Filters have mean zero, which leaves the constant image free; the confinement ε or a box holds it. Learn it by
    score matching or denoising, or by contrastive divergence with `kernels.Gibbs`; restore images with
    `gibbsian.denoise` and `gibbsian.inpaint`.

    Reference: Roth & Black 2005, 2009; Schmidt, Gao & Roth 2010 (Gibbs sampling, posterior means).

    Args:
        shape: height and width of an image.
        filters: how many.
        size: of the filters, size × size.
        alpha: starting value of every αᵢ.
        confine: ε; not zero on R^d, or nothing is normalizable.
        box: low and high, to live in `domains.Box` instead of all of R^d.
        scale: typical size of the initial filters; about the inverse of the image's contrast.
        generator: for the initial filters, random mixtures of cosines; a fixed seed where it is left out.

    Attributes:
        coefficients: the filters in the cosine basis without its constant, `(filters, size² - 1)`;
            `weight` `(filters, size, size)` are the filters themselves.

    >>> field = FieldOfExperts((8, 8), filters=4, size=3)
    >>> field(torch.full((2, 8, 8), 0.5)).shape, field.resized((6, 9))(torch.zeros(1, 6, 9)).shape
    (torch.Size([2]), torch.Size([1]))
    """

    basis: Tensor

    def __init__(
        self,
        shape: tuple[int, int],
        filters: int = 24,
        size: int = 5,
        *,
        alpha: float = 0.5,
        confine: float = 1e-3,
        box: tuple[float, float] | None = None,
        scale: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        domain: Domain = Real(tuple(shape)) if box is None else Box(tuple(shape), *box)
        filters, size = check_count(self, "filters", filters), check_count(self, "size", size, 2)
        check_number(self, "confine", confine)
        check_number(self, "scale", scale, open_low=True)
        if len(domain.shape) != 2 or not 2 <= size <= min(domain.shape):
            raise ArgumentError(
                f"FieldOfExperts({shape}, filters={filters}, size={size}): give height and width of an image, and "
                "filters of two pixels at least that fit into it"
            )
        if box is None and not confine > 0:
            raise ArgumentError(
                "FieldOfExperts(confine=0): filters of mean zero leave the constant image free, so nothing is "
                "normalizable; give a small confine, such as 1e-3, or a box=(low, high)"
            )
        super().__init__(domain, filters, alpha, confine)
        generator = stream(0, "init") if generator is None else generator
        free = torch.randn(filters, size * size - 1, generator=generator, device=generator.device)
        self.coefficients = nn.Parameter(scale * free / size)
        self.register_buffer("basis", cosines(size)[1:].to(free.dtype).to(free.device), persistent=False)

    @property
    def weight(self) -> Tensor:
        """The filters `(filters, size, size)`, each of mean zero."""
        return torch.einsum("fk,kij->fij", self.coefficients, self.basis)

    def responses(self, x: Tensor) -> Tensor:
        return conv2d(x[:, None], self.weight[:, None])

    def adjoint(self, z: Tensor) -> Tensor:
        return conv_transpose2d(z, self.weight[:, None])[:, 0]

    def resized(self, shape: tuple[int, int]) -> "FieldOfExperts":
        """The same field over images of another size, with the same parameters (not copies)."""
        other = copy.copy(self)
        box = None if isinstance(self.domain, Real) else (self.domain.low, self.domain.high)  # type: ignore[attr-defined]
        size = self.basis.shape[-1]
        if len(shape) != 2 or min(shape) < size:
            raise ShapeError(f"images of shape {shape} are smaller than the filters, {size} × {size}")
        other.domain = Real(tuple(shape)) if box is None else Box(tuple(shape), *box)
        (_, *rest), named = self._arguments
        object.__setattr__(other, "_arguments", ((tuple(shape), *rest), {**named}))
        return other

    def filters(self) -> Filters:
        """What is slid over images."""
        return Filters(self.weight, about="The filters that are slid over images.", slid=True)

    def solve(self, u: Tensor, own: Tensor, right: Tensor, clamp: Tensor | None) -> Tensor:
        """Conjugate gradients with a diagonal preconditioner, to well below the noise that the solution carries."""
        weight = self.weight[:, None]
        diagonal = conv_transpose2d(u, weight.square())[:, 0] + own
        move = None if clamp is None else (~clamp).to(right)
        if clamp is not None and move is not None:
            right, diagonal = right * move, torch.where(clamp, 1.0, diagonal)

        def product(v: Tensor) -> Tensor:
            out = conv_transpose2d(u * conv2d(v[:, None], weight), weight)[:, 0] + own * v
            return out if move is None else out * move

        x, r = torch.zeros_like(right), right
        p = s = r / diagonal
        rho = (r * s).sum((1, 2), keepdim=True)
        first, most = rho, 20 * right[0].numel()
        goal = torch.finfo(right.dtype).eps ** 1.2  # of squares: residuals of 7e-5 in single precision, 4e-10 in double
        for step in range(most):
            q = product(p)
            a = rho / (p * q).sum((1, 2), keepdim=True).clamp(min=torch.finfo(right.dtype).tiny)
            x, r = x + a * p, r - a * q
            s = r / diagonal
            new = (r * s).sum((1, 2), keepdim=True)
            if step % 10 == 9 and bool((new <= goal * first).all()):  # one wait for the device in ten steps
                return x
            p = s + new / rho.clamp(min=torch.finfo(right.dtype).tiny) * p
            rho = new
        raise DivergenceError(
            f"conjugate gradients did not converge in {most} steps: the field is badly conditioned; use float64, "
            "smaller filters' weights or a larger confine"
        )

    def extra_repr(self) -> str:
        return f"{tuple(self.domain.shape)}, filters={len(self.log_alpha)}, size={self.basis.shape[-1]}"
