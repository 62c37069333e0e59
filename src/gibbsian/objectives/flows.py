"""Normalizing flows (zuko) as noise with a density and as samplers with an exact entropy."""

import math

import torch
from torch import Tensor, nn

from gibbsian.errors import CapabilityError
from gibbsian.random import isolated, require_generator


class Flow(nn.Module):
    """A neural spline flow in standardized coordinates: x = loc + scale·f(z), z ~ N(0, I).

    Args:
        shape: the event shape; events are flattened inside.
        fast: which direction costs one pass: "density" (x → z, for noise and maximum likelihood) or "sample"
            (z → x, for samplers); the other costs d passes.
        loc, scale: `(*shape)`, location and spread of the data.
        transforms, hidden, bins: autoregressive layers, widths of their networks, spline bins.
        generator: for the initial weights.

    >>> g = torch.Generator().manual_seed(0)
    >>> flow = Flow((2,), "sample", torch.zeros(2), torch.ones(2), generator=g)
    >>> x, log_prob = flow.draw(5, generator=g)
    >>> x.shape, torch.allclose(flow.log_prob(x), log_prob, atol=1e-4)
    (torch.Size([5, 2]), True)
    """

    loc: Tensor
    scale: Tensor

    def __init__(
        self,
        shape: tuple[int, ...],
        fast: str,
        loc: Tensor,
        scale: Tensor,
        *,
        transforms: int = 3,
        hidden: tuple[int, ...] = (64, 64),
        bins: int = 8,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        try:
            from zuko.flows import NSF
        except ImportError as error:
            raise CapabilityError(
                "flows come from zuko, which is not installed; pip install 'gibbsian[flows]', or choose "
                "another noise or sampler"
            ) from error
        self.shape, self.fast, self.features = tuple(shape), fast, math.prod(shape)
        with isolated(generator):
            self.spline = NSF(self.features, transforms=transforms, hidden_features=hidden, bins=bins)
        self.spline.to(device=loc.device, dtype=loc.dtype)
        self.register_buffer("loc", loc.detach().clone())
        self.register_buffer("scale", scale.detach().clone())

    def _base(self, z: Tensor) -> Tensor:
        return -0.5 * (z.square().sum(1) + self.features * math.log(2 * math.pi))

    def log_prob(self, x: Tensor) -> Tensor:
        """log q(x), `(batch,)`."""
        u = ((x - self.loc) / self.scale).flatten(1)
        transform = self.spline().transform
        z, slope = (transform if self.fast == "density" else transform.inv).call_and_ladj(u)
        return self._base(z) + slope - self.scale.log().sum()

    def draw(self, n: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """n draws and their log-density, both differentiable in the flow's parameters."""
        require_generator(generator, self.loc.device)
        z = torch.randn(n, self.features, generator=generator, dtype=self.loc.dtype, device=self.loc.device)
        transform = self.spline().transform
        u, slope = (transform.inv if self.fast == "density" else transform).call_and_ladj(z)
        x = self.loc + self.scale * u.reshape(n, *self.shape)
        return x, self._base(z) - slope - self.scale.log().sum()

    def push(self, z: Tensor) -> Tensor:
        """x from standard normal z `(n, features)`: `(n, *shape)`."""
        transform = self.spline().transform
        u = (transform.inv if self.fast == "density" else transform)(z)
        return self.loc + self.scale * u.reshape(-1, *self.shape)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n draws `(n, *shape)`, detached."""
        with torch.no_grad():
            return self.draw(n, generator=generator)[0]


def spread(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every entry of a batch; entries that do not vary count as spread 1."""
    loc, scale = x.mean(0), x.std(0, correction=0)
    return loc, torch.where(scale > 0, scale, torch.ones_like(scale))
