"""Conditional energies: an output y scored together with an input x, normalized over y alone."""

import math
from collections.abc import Callable
from functools import partial
from typing import Self

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gibbsian.domains import Discrete, Domain
from gibbsian.energy import Energy, rows_for
from gibbsian.errors import ArgumentError, CapabilityError, DomainError, ShapeError, check_number
from gibbsian.quadrature import log_integrals

_ROWS = 1 << 15  # pairs evaluated at a time in sums over y
_MOST_STATES = 1 << 20


class ConditionalEnergy(Energy):
    """E(x, y) with p(y | x) = exp(-E(x, y))/Z(x): classification, regression and structured outputs.

    `given(x)` is an energy of y, one input a row, on which everything works that works on energies: kernels,
    `gibbsian.minimize`, and every objective for y through `objectives.Conditional`, on batches (x, y):
    `ExactLikelihood` where y can be enumerated or integrated (`log_partition`), `RankingContrastive` anywhere.
    Predict with `gibbsian.predict` (lowest energy) or `gibbsian.predict_interval` (samples).

    Reference: LeCun et al. 2006; Gustafsson et al. 2020 (regression).

    Args:
        net: (h, y) → energies `(batch,)` or `(batch, 1)`, h the encoded input, such as `nets.PairMLP(3, 1)`. Subclasses
            that write `encoded_energy` themselves pass None.
        domain: where y lives.
        encoder: x → h, computed once for all outputs that are tried with an input; none when left out.
        confine: c of a quadratic confinement ½c‖y‖², for real y.

    >>> import gibbsian as gb
    >>> model = ConditionalEnergy(gb.nets.PairMLP(3, 1), gb.domains.Real(1), confine=1.0)
    >>> x, y = torch.zeros(5, 3), torch.zeros(5, 1)
    >>> model.given(x)(y).shape, model.log_prob(x, y).shape
    (torch.Size([5]), torch.Size([5]))
    """

    def __init__(
        self,
        net: Callable[[Tensor, Tensor], Tensor] | None,
        domain: Domain,
        *,
        encoder: Callable[[Tensor], Tensor] | None = None,
        confine: float = 0.0,
    ) -> None:
        super().__init__(domain)
        own = type(self).encoded_energy is not ConditionalEnergy.encoded_energy
        if not (callable(net) or own) or (encoder is not None and not callable(encoder)):
            raise ArgumentError("net takes an input and an output, encoder an input: both must be callable")
        check_number(self, "confine", confine)
        self.net, self.encoder, self.confine = net, encoder, float(confine)

    def encode(self, x: Tensor) -> Tensor:
        """h, what the energy needs of inputs `(n, ...)`; first axis n."""
        return x if self.encoder is None else self.encoder(x)

    def encoded_energy(self, h: Tensor, y: Tensor) -> Tensor:
        """The energies of outputs with encoded inputs, row by row: `(batch,)`."""
        energy = self.net(h, y)  # type: ignore[misc]
        energy = energy.squeeze(1) if energy.dim() == 2 else energy
        return energy + 0.5 * self.confine * y.flatten(1).square().sum(1) if self.confine else energy

    def pair_energy(self, x: Tensor, y: Tensor) -> Tensor:
        """E(x, y), row by row."""
        return self.given(x)(y)

    def given(self, index: Tensor) -> "GivenEnergy":
        """The energy of y under inputs: one for each row of y, or one for all."""
        return GivenEnergy(self, index)

    def forward(self, x: Tensor) -> Tensor:
        raise CapabilityError(
            f"{type(self).__name__} has an energy only given its input: call model.given(x)(y), and train it with "
            "objectives.Conditional(objective)"
        )

    # --- normalization ------------------------------------------------------------------------------

    def log_partition(self, x: Tensor) -> Tensor:
        """log Z(x), `(n,)`, differentiable: every y enumerated, or integrated in one or two dimensions."""
        return self._log_partition(self.encode(x))

    def _log_partition(self, h: Tensor) -> Tensor:
        domain, n = self.domain, len(h)
        if not isinstance(domain, Discrete):
            return log_integrals(domain, partial(self.tiled_energy, h), n, h)
        if domain.size > _MOST_STATES:
            raise DomainError(
                f"log Z(x) sums over every y, and {domain} has 2^{domain.log_size / math.log(2):.0f} of them; use "
                "partition.ais(model.given(x[:1])), or train with objectives.RankingContrastive"
            )
        each = max(1, _ROWS // n)

        def block(start: int, h: Tensor) -> Tensor:
            index = torch.arange(start, min(start + each, domain.size), device=h.device)
            states = domain.decode(index, h.dtype if h.is_floating_point() else torch.get_default_dtype())
            energies = self.tiled_energy(h, states.repeat_interleave(n, 0))
            return torch.logsumexp(-energies.reshape(-1, n), 0)

        starts = range(0, domain.size, each)
        if len(starts) == 1:
            return block(0, h)
        parts = [checkpoint(block, start, h, use_reentrant=False, preserve_rng_state=False) for start in starts]
        return torch.logsumexp(torch.stack(parts), 0)

    def log_prob(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
        """log p(y | x), row by row."""
        h = self.encode(x)
        return -self.tiled_energy(h, y) - self._log_partition(h)

    def tiled_energy(self, h: Tensor, y: Tensor) -> Tensor:
        """Energies of outputs with encoded inputs; more rows go through the inputs again."""
        return self.encoded_energy(rows_for(h, len(y), "inputs"), y)


class GivenEnergy(Energy):
    """E(x, ·) for given inputs, one for all rows of y or one for each: an energy of y.

    Row i of y belongs to input i; as many rows again (candidates, neighbors, further chains) go through the
    inputs once more.
    """

    condition: Tensor

    def __init__(self, model: ConditionalEnergy, condition: Tensor) -> None:
        super().__init__(model.domain)
        if not isinstance(condition, Tensor) or condition.dim() < 1 or len(condition) < 1:
            raise ShapeError("inputs are a tensor (rows, ...) with at least one row; for a single one give x[None]")
        self.model = model
        self.register_buffer("condition", condition, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.model.tiled_energy(self.model.encode(self.condition), x)

    def log_z(self) -> Tensor:
        """log Z(x): `()` for one input, `(n,)` for several."""
        value = self.model.log_partition(self.condition)
        return value[0] if len(value) == 1 else value

    def inputs(self) -> Tensor:
        """Those it is under, `(inputs, ...)`."""
        return self.condition

    def repeated(self, times: int) -> Self:
        """The energy for `times` rows of every input: rows 0, n, 2n, ... belong to the first of n inputs."""
        return type(self)(self.model, self.condition.repeat(times, *[1] * (self.condition.dim() - 1)))
