"""Exponential families: energies that are linear in their parameters."""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gibbsian.domains import Counts, Domain
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError, as_numbers, check_count
from gibbsian.random import stream
from gibbsian.recorded import Recorded


class ExponentialFamily(Energy):
    """E(x) = -η·f(x): every law whose log-density is linear in given features; the maximum-entropy form.

        log Z(η) is convex, ∇log Z(η) = E_p[f(x)], ∇²log Z(η) = Cov_p[f(x)]

    so maximum likelihood makes the moments of the features agree with those of the data: by any objective, or
    exactly from the moments alone with `gibbsian.maximum_entropy`.

    Reference: Jaynes 1957; Wainwright & Jordan 2008.

    Args:
        features: f, a function or module from `(batch, *event)` to `(batch, m)`, such as `Monomials(2)`. For run
            folders it must be a module, or a function at the top level of one.
        domain: where x lives.
        eta: η `(m,)` to start from; zero where it is left out.

    Attributes:
        eta: η, trainable.

    >>> import gibbsian as gb
    >>> normal = ExponentialFamily(Monomials(1, 2), gb.domains.Real(1), eta=torch.tensor([0.0, -0.5]))
    >>> normal(torch.tensor([[2.0]])).detach()
    tensor([2.])
    """

    def __init__(self, features: Callable[[Tensor], Tensor], domain: Domain, eta: Tensor | None = None) -> None:
        super().__init__(domain)
        if not callable(features):
            raise ArgumentError(
                f"features is a {type(features).__name__}, expected a function from a batch to (batch, m)"
            )
        self.features = features
        open_ended = isinstance(domain, Counts) and domain.total is None
        some = torch.ones(2, *domain.shape) if open_ended else domain.sample(2, generator=stream(0, "probe"))
        seen = features(some)
        if not isinstance(seen, Tensor) or seen.dim() != 2 or len(seen) != 2:
            got = tuple(seen.shape) if isinstance(seen, Tensor) else type(seen).__name__
            raise ShapeError(
                f"the features of 2 events of {domain} came out as {got}, expected (2, m): one row an event"
            )
        start = torch.zeros(seen.shape[1]) if eta is None else as_numbers(self, "eta", eta).detach().clone()
        if start.shape != seen.shape[1:]:
            raise ShapeError(f"eta has shape {tuple(start.shape)}, but there are {seen.shape[1]} features")
        self.eta = nn.Parameter(start)

    def forward(self, x: Tensor) -> Tensor:
        return -(self.features(x).to(x.dtype) @ self.eta)

    def moments(self, x: Tensor) -> Tensor:
        """The means of the features over a batch, `(m,)`: the sufficient statistics of data."""
        self.domain.check(x)
        return self.features(x).mean(0)

    def extra_repr(self) -> str:
        return f"{len(self.eta)} features over {self.domain}"


class Monomials(Recorded):
    """All products of up to `degree` entries of an event: `(batch, *event)` → `(batch, m)`, lower degrees first.

    Args:
        size: numbers in one event.
        degree: of the largest products.
        squares: let an entry occur twice; False for ±1 and {0, 1} units, whose squares say nothing new.

    >>> Monomials(2, 2)(torch.tensor([[3.0, 5.0]]))
    tensor([[ 3.,  5.,  9., 15., 25.]])
    >>> Monomials(3, 2, squares=False)(torch.tensor([[1.0, -1.0, 1.0]]))
    tensor([[ 1., -1.,  1., -1.,  1., -1.]])
    """

    def __init__(self, size: int, degree: int = 1, *, squares: bool = True) -> None:
        super().__init__()
        size, degree = check_count(self, "size", size), check_count(self, "degree", degree)
        pick = itertools.combinations_with_replacement if squares else itertools.combinations
        self.terms = [torch.tensor(list(pick(range(size), k))) for k in range(1, degree + 1) if squares or k <= size]

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return torch.cat([flat[:, term.to(x.device)].prod(2) for term in self.terms], 1)
