"""Gradient flow that warms up into Langevin dynamics: from noise to data along one potential."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gibbsian.domains import Domain, Real
from gibbsian.errors import ArgumentError, check_choice, check_number
from gibbsian.kernels.base import Info, event_view, masked, positive
from gibbsian.kernels.langevin import Bare, Positions, normal_inputs


class FlowInputs(NamedTuple):
    """Standard normals, and what score and normals are multiplied with."""

    z: Tensor
    drift: Tensor
    scale: Tensor


@dataclass(frozen=True)
class GradientFlow(Bare):
    """dx = -∇V(x) dt + √(2ε(t)) dW with V = ε_max·E: a flow without noise at first, Langevin dynamics of E at the end.

        x ← x + ε_max s(x) dt + √(2ε(t) dt) z,      ε(t) = 0 for t < τ,  then linear to ε_max at t = 1,  then ε_max

    An energy trained by `objectives.EnergyMatching` carries noise to the data in unit time along -∇V; from t = 1 on these are
    Langevin steps of size ε = √(2 ε_max dt) on exp(-E), which correct what the flow left over. A run takes `time/step_size` steps,
    so `sample` need not be told how many; a longer one stays at ε_max. Unadjusted: on E = x²/2v its own law is wider by
    1/(1 - ε_max dt/2v) with "euler".

    Reference: Balcerak et al. 2025.

    Args:
        step_size: dt.
        temperature: ε_max.
        tau: τ, when the noise begins; from 1 on it jumps to ε_max there, so that a run with τ = `time` is the flow alone, to its end.
        time: how long a run is, so that it ends at τ_s = `time` where it begins at 0; 1 to 4 is usual. A potential that knows of no time leads more slowly where ways cross: at t = 1 few have arrived.
        begin: when it begins; a number, or a `(1, chains)` tensor. Chains that start at data begin at 1.
        method: "euler", or "heun", which takes two gradients a step and errs less where the flow bends.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.energies.Gaussian(torch.zeros(2), 0.01 * torch.eye(2))
    >>> kernel = GradientFlow(step_size=0.02, temperature=0.1, time=2.0)
    >>> gb.sample(energy, kernel, torch.randn(8, 2, generator=g), generator=g).steps
    100
    """

    step_size: float = 0.01
    temperature: float = 0.15
    tau: float = 0.8
    time: float = 2.0
    begin: float | Tensor = 0.0
    method: str = "euler"
    domains: ClassVar[tuple[type[Domain], ...]] = (Real,)
    needs_energy: ClassVar[bool] = False
    adjusted: ClassVar[bool] = False
    mixes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("step_size", "temperature", "time"):
            check_number(self, name, getattr(self, name), open_low=True)
        check_number(self, "tau", self.tau)
        positive("begin", self.begin, "GradientFlow", zero=True)
        check_choice(self, "method", self.method, ("euler", "heun"))

    def total_steps(self, energy: Any) -> int:
        return max(1, round(self.time / self.step_size))

    def noise(self, t: Tensor) -> Tensor:
        """ε(t)."""
        return self.temperature * ((t - self.tau) / max(1 - self.tau, 1e-9)).clamp(0, 1)

    def begins(self, x: Tensor) -> float | Tensor:
        """When chains at x begin: a number, or a tensor that has one for each."""
        begin = self.begin
        if isinstance(begin, Tensor) and begin.dim() and begin.shape not in {(1, 1), (1, len(x))}:
            raise ArgumentError(
                f"GradientFlow(begin=...) has shape {tuple(begin.shape)} and met {len(x)} chains; give a number, or a tensor "
                f"of shape (1, {len(x)}), one time for each"
            )
        return begin

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> FlowInputs:
        step = torch.arange(start, start + steps, dtype=torch.float64, device=x.device) + 1e-6  # t = 1 begins at 1
        begin = self.begins(x)
        begin = begin.to(step) if isinstance(begin, Tensor) else begin
        t = self.step_size * (step if isinstance(begin, float | int) or not begin.dim() else step[:, None]) + begin
        scale = (2 * self.step_size * self.noise(t)).sqrt().to(x.dtype)
        drift = torch.full((steps,), self.step_size * self.temperature, dtype=x.dtype, device=x.device)
        return FlowInputs(normal_inputs(x, steps, generator), drift, scale)

    def step(self, energy: Any, state: Positions, inputs: FlowInputs) -> tuple[Positions, Info]:
        x, clamp = state
        noise, score = event_view(inputs.scale, x) * inputs.z, energy.score(x)
        if self.method == "heun":
            score = 0.5 * (score + energy.score(x + masked(inputs.drift * score + noise, clamp)))
        return Positions(x + masked(inputs.drift * score + noise, clamp), clamp), Info()
