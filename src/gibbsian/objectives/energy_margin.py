"""Pushing energies of data and of known outsiders apart, to tell others from data."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Sampleable
from gibbsian.errors import ArgumentError
from gibbsian.objectives.base import Batch, Loss, Objective, finish, observed, observed_with
from gibbsian.objectives.noise import FittedNoise, given_noise


class MarginState(NamedTuple):
    """The noise that was fitted to the data, where outsiders are drawn from one."""

    noise: nn.Module | None


@dataclass(frozen=True)
class EnergyMargin(Objective):
    """E_in[max(0, E(x) - m_in)²] + E_out[max(0, m_out - E(x))²]: data below one margin, outsiders above another.

    Fine-tunes a trained classifier or energy for detecting what lies outside its data: add it to the
    objective that keeps the model what it is, `Weighted([CrossEntropy(), EnergyMargin(...)], [1, 0.1])`. A
    hinge, not a likelihood: alone it gives energies that separate, with no density between the margins.
    Look at the energies of both sets before choosing: m_in about the median of the data's, m_out about that
    of the outsiders' or above.

    Reference: Liu, Wang, Owens & Li 2020.

    Args:
        outliers: rows `(n, *event)` to draw from (on the device of training, or they are copied every step),
            a fitted noise such as `objectives.UniformNoise()`, or anything with `sample(n, generator=)`.
        margin_in: m_in, above which the energy of data costs.
        margin_out: m_out, below which the energy of outsiders costs; above m_in.
        ratio: outsiders per row of data.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> joint = gb.models.JointEnergy(gb.energies.MLP(2, outputs=3), gb.domains.Real(2))
    >>> batch = torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])
    >>> objective = gb.objectives.Weighted([
    ...     gb.objectives.CrossEntropy(), EnergyMargin(5 + torch.randn(50, 2, generator=g), -5.0, -1.0)])
    >>> objective(joint, batch, objective.init(joint, batch, g), g).value.backward()
    """

    needs_energy: ClassVar[bool] = True

    outliers: Any = field(compare=False, repr=False)
    margin_in: float
    margin_out: float
    ratio: float = 1.0

    def __post_init__(self) -> None:
        if not self.margin_in < self.margin_out:
            raise ArgumentError(
                f"EnergyMargin(margin_in={self.margin_in}, margin_out={self.margin_out}): outsiders belong above "
                "the data, so margin_in must be below margin_out"
            )
        if not 0 < self.ratio < float("inf"):
            raise ArgumentError(f"EnergyMargin(ratio={self.ratio}): outsiders per row of data, a positive number")
        if not isinstance(self.outliers, Tensor | FittedNoise | Sampleable):
            raise ArgumentError(
                f"EnergyMargin(outliers={type(self.outliers).__name__}): give a tensor of rows, a noise such as "
                "objectives.UniformNoise(), or an energy with sample()"
            )

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> MarginState:
        self.check(energy, batch)
        if isinstance(self.outliers, Tensor):
            energy.domain.check(self.outliers, "outliers")
        if isinstance(self.outliers, FittedNoise):
            return MarginState(self.outliers.fit(energy.domain, observed(batch), generator))
        return MarginState(None)

    def draw(self, energy: Any, x: Tensor, state: MarginState, generator: torch.Generator) -> Tensor:
        """Outsiders for a batch."""
        count = max(1, round(self.ratio * len(x)))
        if isinstance(self.outliers, Tensor):
            rows = torch.randint(len(self.outliers), (count,), generator=generator, device=x.device)
            return self.outliers[rows.to(self.outliers.device)].to(x)
        noise = given_noise(self.outliers, energy.domain) if state.noise is None else state.noise
        with torch.no_grad():
            return noise.sample(count, generator=generator).to(x)  # type: ignore[operator]

    def __call__(self, energy: Any, batch: Batch, state: MarginState, generator: torch.Generator) -> Loss:
        x = observed_with(batch, generator)
        y = self.draw(energy, x, state, generator)
        inside, outside = energy(torch.cat([x, y])).split([len(x), len(y)])
        value = (inside - self.margin_in).relu().square().mean() + (self.margin_out - outside).relu().square().mean()
        metrics = {
            "energy_in": inside.mean(),
            "energy_out": outside.mean(),
            "kept_in": (inside < self.margin_in).to(x.dtype).mean(),
            "kept_out": (outside > self.margin_out).to(x.dtype).mean(),
        }
        return finish(self, value, state, metrics)
