"""An energy as the prior of a decoder's latent space: p(z) ∝ N(z; 0, I) exp(-f(z)), x = g(z) + noise."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from gibbsian.domains import Binary, Domain, Real
from gibbsian.energies.conditional import rows_for
from gibbsian.energies.tilted import standard_energy, standard_normals
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError


class LatentEnergy(Energy):
    """A latent-variable model whose prior is an energy; as an energy it is that prior's.

        p(z) ∝ N(z; 0, I) exp(-f(z)),   p(x | z) = N(x; g(z), σ²I), or Bernoulli with logits g(z)
        p(x) = ∫ p(x | z) p(z) dz,      E(z | x) = -log p(x | z) + E(z)

    The decoder makes the shape of images, the energy says which codes occur: a few lines of network in a space
    of few dimensions, where chains are short and mix. `given(x)` is the posterior of z, for inference and
    reconstruction. Train prior and decoder together with `objectives.LatentLikelihood`. For a decoder that is
    fixed (a trained generator) use `PushedEnergy`.

    Reference: Pang et al. 2020.

    Args:
        decoder: g, from `(batch, latent)` to `(batch, *event)`.
        tilt: f, from `(batch, latent)` to `(batch,)` or `(batch, 1)`.
        latent: numbers in z.
        domain: where x lives: `Real` for Gaussian noise, `Binary` for Bernoulli pixels.
        sigma: σ of the Gaussian noise.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> model = LatentEnergy(gb.energies.MLP(2, outputs=5), gb.energies.MLP(2), latent=2, domain=gb.domains.Real(5))
    >>> model(torch.zeros(3, 2)).shape, model.given(torch.zeros(3, 5))(torch.zeros(3, 2)).shape
    (torch.Size([3]), torch.Size([3]))
    """

    def __init__(
        self,
        decoder: Callable[[Tensor], Tensor],
        tilt: Callable[[Tensor], Tensor],
        latent: int,
        domain: Domain,
        *,
        sigma: float = 0.3,
    ) -> None:
        for name, part in (("decoder", decoder), ("tilt", tilt)):
            if not callable(part):
                raise ArgumentError(f"{name} is a {type(part).__name__}, expected a module or a callable of a batch")
        if not isinstance(domain, Real | Binary):
            raise ArgumentError(f"x lives on {domain}; a decoder has Gaussian noise (domains.Real) or Bernoulli pixels "
                                "(domains.Binary)")  # fmt: skip
        if not 0 < sigma < math.inf:
            raise ArgumentError(f"LatentEnergy(sigma={sigma}): the noise of x must be positive and finite")
        super().__init__(Real(latent))
        self.decoder, self.tilt, self.observed, self.sigma = decoder, tilt, domain, float(sigma)

    def forward(self, x: Tensor) -> Tensor:
        """-log N(z; 0, I) + f(z)."""
        f = self.tilt(x)
        return standard_energy(x) + (f.squeeze(1) if f.dim() == 2 else f)

    def decode(self, z: Tensor) -> Tensor:
        """E[x | z]."""
        g = self.decoder(z)
        return torch.sigmoid(g) if isinstance(self.observed, Binary) else g

    def log_prob_given(self, z: Tensor, x: Tensor) -> Tensor:
        """log p(x | z), `(batch,)`."""
        g = self.decoder(z)
        if g.shape != x.shape:
            raise ShapeError(f"the decoder gave {tuple(g.shape)} for x of shape {tuple(x.shape)}; they must agree")
        if isinstance(self.observed, Binary):
            return -F.binary_cross_entropy_with_logits(g, x, reduction="none").flatten(1).sum(1)
        squares = ((x - g) / self.sigma).flatten(1).square().sum(1)
        return -0.5 * squares - x[0].numel() * (math.log(self.sigma) + 0.5 * math.log(2 * math.pi))

    def given(self, x: Tensor) -> "PosteriorEnergy":
        """The posterior of z, one x for each row of z: E(z | x) = E(z) - log p(x | z)."""
        return PosteriorEnergy(self, x)

    def start(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n draws of N(0, I), where chains begin."""
        return standard_normals(self, n, generator)

    def extra_repr(self) -> str:
        return f"latent={self.domain.numel}, observed={self.observed}, sigma={self.sigma:g}"


class PosteriorEnergy(Energy):
    """-log p(x | z) + E(z) as an energy of z: the unnormalized posterior, log Z = log p(x) + log Z of the prior."""

    x: Tensor

    def __init__(self, model: LatentEnergy, x: Tensor) -> None:
        super().__init__(model.domain)
        model.observed.check(x, "x")
        self.model = model
        self.register_buffer("x", x, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) - self.model.log_prob_given(x, rows_for(self.x, len(x), "observations"))
