"""Boltzmann learning of families: statistics of the sequences against those of persistent chains."""

import math
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, TrainingWarning
from gibbsian.fast.graphs import CaptureError, capture, on_side_stream, renewed
from gibbsian.models import Potts
from gibbsian.progress import progress_bar
from gibbsian.sequences.family import Family


class BoltzmannLearning:
    """J += η(⟨(xᵢ - fᵢ)(xⱼ - fⱼ)⟩ of the family less that of the chains), h += η(fᵢ - pᵢ) - ΣⱼΔJᵢⱼfⱼ, over persistent chains that
    sweep on between updates.

    This is bmDCA's update J += η(fᵢⱼ - pᵢⱼ), h += η(fᵢ - pᵢ) with centered letters: the fixed point is the same, but couplings no
    longer act as fields of all other sites, so that steps can be ten times larger and far fewer are needed (Montavon &
    Müller 2012).

    Args:
        family: f, with a pseudocount.
        potts: where to start; it is changed.
        pseudocount: of f.
        chains, sweeps, lr: how many chains, sweeps of each between updates, and η.
        generator: of the chains, on their device.
    """

    def __init__(
        self,
        family: Family,
        potts: Potts,
        pseudocount: float,
        *,
        chains: int,
        sweeps: int,
        lr: float,
        generator: torch.Generator,
    ) -> None:
        self.potts, self.sweeps, self.lr, self.generator = potts, sweeps, lr, generator
        self.single, self.pairs = (
            f.to(potts.field) for f in family.frequencies(pseudocount, device=potts.field.device)
        )
        rows = torch.randint(len(family), (chains,), generator=generator, device=generator.device).cpu()
        self.x = family.select(rows).x.to(potts.field)
        self.upper = tuple(torch.triu_indices(potts.sites, potts.sites, 1, device=self.single.device))
        self.wanted = self._connected(self.single, self.pairs)

    def learn(self, steps: int, target: float, progress: bool | None) -> Potts:
        """Update until the connected correlations agree."""
        move, pearson = self._moves(), math.nan
        with progress_bar(steps, "Boltzmann learning", progress) as tick:
            for step in range(steps):
                move()
                single, pairs = self._update()
                if step % 10 == 9:
                    pearson = self._pearson(single, pairs)
                    tick(10, pearson=pearson)
                    if not math.isfinite(pearson):
                        raise ArgumentError(
                            f"Boltzmann learning diverged at update {step + 1}; use a smaller lr than {self.lr}"
                        )
                    if pearson >= target:
                        return self.potts
        warnings.warn(
            f"Boltzmann learning ended after {steps} updates at a Pearson correlation of {pearson:.3f}, below {target}; "
            "raise steps= or lr=",
            TrainingWarning,
            stacklevel=3,
        )
        return self.potts

    def _update(self) -> tuple[Tensor, Tensor]:
        flat, potts = self.x.flatten(1), self.potts
        single, pairs = self.x.mean(0), (flat.T @ flat / len(flat)).reshape(self.pairs.shape)
        g = self.single - single
        outer = g[:, :, None, None] * self.single
        step = potts.between * (self.pairs - pairs - outer - outer.permute(2, 3, 0, 1))
        potts.coupling.add_(step, alpha=self.lr)
        potts.field.add_(g - torch.einsum("iajb,jb->ia", step, self.single), alpha=self.lr)
        return single, pairs

    def _sweep(self) -> None:
        self.x.copy_(self.potts.swept(self.x, self.sweeps, self.generator))

    def _moves(self) -> Callable[[], None]:
        """The sweeps between two updates; on a GPU their thousands of small kernels are launched as one."""
        if not self.x.is_cuda:
            return self._sweep
        before = self.generator.get_state()
        try:
            on_side_stream(self._sweep)
            graph, _ = capture(self._sweep, generators=[self.generator])
        except CaptureError:
            self.generator = renewed([before], self.x.device)[0]
            return self._sweep
        return graph.replay

    def _connected(self, single: Tensor, pairs: Tensor) -> Tensor:
        return (pairs - single[:, :, None, None] * single).permute(0, 2, 1, 3)[self.upper].flatten()

    def _pearson(self, single: Tensor, pairs: Tensor) -> float:
        """Of fᵢⱼ - fᵢfⱼ, i < j, between chains and family."""
        return float(torch.corrcoef(torch.stack([self.wanted, self._connected(single, pairs)]))[0, 1])
