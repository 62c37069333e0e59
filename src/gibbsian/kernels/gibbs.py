"""Gibbs sampling: by blocks and colours where a model knows its conditionals, by sites for any discrete energy."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gibbsian.domains import Discrete, Domain
from gibbsian.energy import GibbsModel
from gibbsian.errors import CapabilityError
from gibbsian.kernels.base import Info, Kernel
from gibbsian.kernels.langevin import Positions

__all__ = ["Gibbs"]


@dataclass(frozen=True)
class Gibbs(Kernel):
    """Gibbs sampling with the model's own exact conditionals: every block is resampled once a step.

    Two alternating blocks for an RBM, even and odd layers for a deep machine, colours for a lattice, one site
    after the other for a general Boltzmann machine. Always accepts. Entries that are clamped keep their value
    and everything else is drawn from its conditional: this completes partial examples. For energies without
    known conditionals use `SiteGibbs`, `GibbsWithGradients` or `DiscreteLangevin`.

    Reference: Geman & Geman 1984.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> trace = gb.sample(gb.models.RBM(6, 3), Gibbs(), torch.zeros(8, 6), steps=20, generator=g)
    >>> trace.samples.shape
    torch.Size([20, 8, 6])
    """

    domains: ClassVar[tuple[type[Domain], ...]] = (Domain,)

    def check(self, energy: Any) -> None:
        super().check(energy)
        if not isinstance(energy, GibbsModel):
            other = (
                "kernels.SiteGibbs for any discrete energy"
                if isinstance(energy.domain, Discrete)
                else "kernels.MALA, HMC or NUTS for continuous states"
            )
            raise CapabilityError(
                f"Gibbs needs exact conditionals, which {type(energy).__name__} does not know; use {other}"
            )

    def init(self, energy: Any, x: Tensor, free: Tensor | None = None) -> Positions:
        return Positions(x, free)

    def inputs(self, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> Any:
        raise CapabilityError(
            "the random numbers of a Gibbs sweep depend on the model; call draw(energy, x, ...)"
        )

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> Any:
        return energy.gibbs_noise(x, steps, generator)

    def step(self, energy: Any, state: Positions, inputs: Any) -> tuple[Positions, Info]:
        x = energy.gibbs_sweep(state.x, inputs, state.free)
        finite = torch.isfinite(x).flatten(1).all(1)
        return Positions(x, state.free), Info(torch.ones_like(finite, dtype=x.dtype), ~finite)
