"""Parallel tempering: replicas at several temperatures that exchange their positions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Multiple
from gibbsian.domains import Domain
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, as_numbers
from gibbsian.kernels.base import FreeRunning, Info, Kernel, metropolis_test, where_chain
from gibbsian.random import uniforms
from gibbsian.trees import like_tuple


class TemperingState(NamedTuple):
    """The inner kernel's state of all replicas (rows replica by replica), whose turn it is to swap, even or odd pairs,
    and for every pair of neighbors the sum of its swap probabilities and the number of its tries."""

    inner: Any
    turn: Tensor  # (1,) 0 or 1
    swaps: Tensor  # (replicas - 1,)
    tries: Tensor  # (replicas - 1,)


class Replicas(nn.Module):
    """The energy at the temperature of every row, and who swaps with whom, for a given number of rows."""

    model: Energy
    beta: Tensor  # (rows,)
    partner: Tensor  # (2, rows): in even and odd turns the row to swap with; itself for those that sit out
    ratio: Tensor  # (2, rows): β over the partner's
    tried: Tensor  # (2, replicas - 1)

    def __init__(self, energy: Energy, betas: Tensor) -> None:
        super().__init__()
        self.energy, self.betas, self.domain = energy, betas, energy.domain
        self.like: tuple[Any, ...] = ()
        self.scales = False  # whether temperatures multiply one energy

    def fit(self, x: Tensor) -> None:
        """Make ready for these rows; called before steps, never inside one."""
        if self.like == (len(x), x.dtype, x.device):
            return
        replicas, chains = len(self.betas), len(x) // len(self.betas)
        index = torch.arange(replicas)
        other = torch.stack([index + 1 - 2 * ((index + turn) % 2) for turn in (0, 1)])
        other = torch.where((other < 0) | (other >= replicas), index, other)
        self.beta = self.betas.to(x).repeat_interleave(chains)
        rows = (other[:, :, None] * chains + torch.arange(chains)).flatten(1)
        self.partner = rows.to(x.device)
        self.ratio = self.beta / self.beta[self.partner]
        self.tried = (other[:, :-1] == index[1:]).to(x)
        self.model = self.energy.annealed(self.beta)
        self.scales = isinstance(self.model, Multiple)
        self.like = (len(x), x.dtype, x.device)


class TemperingInputs(NamedTuple):
    """Inputs of the inner kernel, and the thresholds of swaps."""

    inner: Any
    threshold: Tensor  # (rows,) log of a uniform number


@dataclass(frozen=True)
class ParallelTempering(Kernel):
    """Parallel tempering (replica exchange) over any kernel: replica k follows exp(-E) at inverse temperature
    βₖ, and after every step neighbors try to exchange positions, even and odd pairs in turn:

        accept with probability min(1, exp(Eᵢ(xᵢ) + Eⱼ(xⱼ) - Eᵢ(xⱼ) - Eⱼ(xᵢ))),

    which is exp((βᵢ-βⱼ)(E(xᵢ)-E(xⱼ))) where tempering is plain scaling; models with latent variables temper
    their joint energy (`energy.annealed`). Hot replicas cross barriers that the inner kernel cannot, and pass
    what they find down to the cold chain, β = 1, whose positions are returned. Choose βs so that every pair
    swaps in a quarter to a half of its tries: `trace.kernel.swap_acceptance(trace.state)`.

    All replicas start at x0, so even an exact start needs a burn-in. Each step costs as much as one of
    `len(betas)` times as many chains.

    Reference: Swendsen & Wang 1986; Geyer 1991; even and odd pairs in turn: Syed et al. 2022.

    Args:
        kernel: moves each replica; its step size may be a `(1, replicas)` tensor, one for each temperature.
        betas: inverse temperatures, descending from 1 to something above 0, such as
            `schedules.geometric(1.0, 0.05, 6)`.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> far = [gb.energies.Gaussian(torch.tensor([m]), torch.eye(1)) for m in (-8.0, 8.0)]
    >>> target = gb.mixture(far, weights=[0.5, 0.5])
    >>> kernel = ParallelTempering(gb.kernels.HMC(step_size=0.5), betas=gb.schedules.geometric(1.0, 0.02, 6))
    >>> trace = gb.sample(target, kernel, torch.full((20, 1), 8.0), steps=300, burn_in=100, generator=g)
    >>> bool((trace.samples < 0).any()), trace.kernel.swap_acceptance(trace.state).shape
    (True, torch.Size([5]))
    """

    kernel: Kernel
    betas: Tensor | Sequence[float]
    domains: ClassVar[tuple[type[Domain], ...]] = (Domain,)

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, Kernel) or isinstance(self.kernel, ParallelTempering):
            raise ArgumentError(
                f"ParallelTempering runs another kernel, such as HMC, on its replicas, got {self.kernel!r}"
            )
        betas = as_numbers(self, "betas", self.betas, torch.float64)
        ladder = betas.dim() == 1 and len(betas) > 1 and bool((betas.diff() < 0).all())
        if not ladder or float(betas[0]) != 1 or not float(betas[-1]) > 0:
            raise ArgumentError(
                f"betas={self.betas}: two or more inverse temperatures that descend from exactly 1 and stay "
                "above 0 are expected; try schedules.geometric(1.0, 0.05, 6)"
            )
        object.__setattr__(self, "betas", betas)

    # --- what the inner kernel says ---------------------------------------------------------------

    @property
    def adjusted(self) -> bool:  # type: ignore[override]
        """Exact if the inner kernel is."""
        return self.kernel.adjusted

    @property
    def unroll(self) -> int:  # type: ignore[override]
        """Steps compiled into one graph: fewer, as each is larger by the swap."""
        return max(1, self.kernel.unroll // 4)

    @property
    def draws_in_steps(self) -> str:  # type: ignore[override]
        """As the inner kernel; one whose chains run freely must wait for all of them before a swap."""
        free = isinstance(self.kernel, FreeRunning)
        return (
            f"tempered chains of {type(self.kernel).__name__} wait for each other"
            if free
            else self.kernel.draws_in_steps
        )

    def schedules(self) -> tuple[Any, ...]:
        return self.kernel.schedules()

    @property
    def period(self) -> int:
        return self.kernel.period

    def check(self, energy: Any) -> None:
        super().check(energy)
        self.kernel.check(energy.annealed(torch.ones(())))

    def clamped(self, clamp: Tensor) -> Self:
        return replace(self, kernel=self.kernel.clamped(clamp))

    def resumes(self, other: Kernel) -> bool:
        return (
            isinstance(other, ParallelTempering)
            and torch.equal(torch.as_tensor(self.betas), torch.as_tensor(other.betas))
            and self.kernel.resumes(other.kernel)
        )

    def outdated(self, energy: Replicas, state: TemperingState, clamp: Tensor | None = None) -> bool:
        x = self.kernel.position(state.inner)
        energy.fit(x)
        return self.kernel.outdated(energy.model, state.inner, self._clamp_of_rows(clamp, x))

    # --- what a person asks -----------------------------------------------------------------------

    def replicas(self, state: TemperingState) -> Tensor:
        """The positions of all replicas `(replicas, chains, *event)`, coldest first."""
        return self.kernel.position(state.inner).unflatten(0, (len(self.betas), -1))

    def swap_acceptance(self, state: TemperingState) -> Tensor:
        """Mean swap probability of every pair of neighbors `(replicas - 1,)` since the start."""
        return state.swaps / state.tries

    # --- the kernel ---------------------------------------------------------------------------------

    def target(self, energy: Energy) -> Replicas:
        return Replicas(energy, torch.as_tensor(self.betas))

    def position(self, state: TemperingState) -> Tensor:
        x = self.kernel.position(state.inner)
        return x[: len(x) // len(self.betas)]

    def energies(self, state: TemperingState) -> Tensor | None:
        return self.kernel.energies(state.inner)

    def _rows(self, x: Tensor) -> Tensor:
        return x.repeat(len(self.betas), *[1] * (x.dim() - 1))

    def _clamp_of_rows(self, clamp: Tensor | None, x: Tensor) -> Tensor | None:
        return clamp if clamp is None or clamp.dim() < x.dim() else self._rows(clamp)

    def init(self, energy: Replicas, x: Tensor, clamp: Tensor | None = None) -> TemperingState:
        return self.init_replicas(energy, self._rows(x), clamp=self._clamp_of_rows(clamp, x))

    def init_replicas(
        self, energy: Replicas, x: Tensor, turn: Tensor | None = None, clamp: Tensor | None = None
    ) -> TemperingState:
        """The state with replicas at x `(replicas·chains, *event)`, replica by replica, coldest first. Whoever
        continues chains whose energies have changed gives the `turn` too, or the same pairs would always swap first."""
        energy.fit(x)
        turn = torch.zeros(1, dtype=torch.long, device=x.device) if turn is None else turn
        swaps, tries = (x.new_zeros(len(self.betas) - 1) for _ in range(2))
        return TemperingState(self.kernel.init(energy.model, x, clamp), turn, swaps, tries)

    def draw(
        self, energy: Replicas, x: Tensor, steps: int, generator: torch.Generator, start: int = 0
    ) -> TemperingInputs:
        """Step by step, so that the numbers do not depend on how a run is cut."""
        x = self._rows(x)
        energy.fit(x)
        inner, swaps = [], []
        for i in range(steps):
            inner.append(self.kernel.draw(energy.model, x, 1, generator, start + i))
            swaps.append(uniforms(1, len(x), generator, dtype=x.dtype, device=x.device).log())
        joined = [self._joined(parts, len(x)) for parts in zip(*inner, strict=True)]
        return TemperingInputs(like_tuple(type(inner[0]), joined), torch.cat(swaps))

    def _joined(self, parts: Sequence[Any], rows: int) -> Any:
        """One part of the inputs of all steps; what is given for every temperature is repeated for its chains."""
        if not isinstance(parts[0], Tensor):
            return [one for part in parts for one in part]
        whole, replicas = torch.cat(list(parts)), len(self.betas)
        each = any(isinstance(value, Tensor) and value.dim() == 2 for value in self.kernel.schedules())
        if each and whole.dim() == 2 and whole.shape[1] == replicas != rows:  # a bias of a machine may be as long
            whole = whole.repeat_interleave(rows // replicas, 1)
        return whole

    def step(self, energy: Replicas, state: TemperingState, inputs: Any) -> tuple[TemperingState, Info]:
        inner, info = self.kernel.step(energy.model, state.inner, inputs.inner)
        inner, log_ratio = self._swap(energy, inner, state.turn, inputs.threshold)
        replicas = len(self.betas)
        rate = torch.where(log_ratio.isnan(), 0.0, log_ratio.clamp(max=0).exp())
        tried = energy.tried.index_select(0, state.turn)[0]
        swaps = state.swaps + tried * rate.unflatten(0, (replicas, -1)).mean(1)[:-1]
        state = TemperingState(inner, 1 - state.turn, swaps, state.tries + tried)
        if info.acceptance is None:
            return state, Info()
        cold, diverged = info.acceptance, info.diverged
        return state, Info(cold[: len(cold) // replicas], diverged.unflatten(0, (replicas, -1)).any(0))

    def _swap(self, energy: Replicas, inner: Any, turn: Tensor, threshold: Tensor) -> tuple[Any, Tensor]:
        """Exchange the positions of neighbors, and the log of the ratio of every row's try."""
        x = self.kernel.position(inner)
        partner = energy.partner.index_select(0, turn)[0]
        other = None
        if energy.scales:
            other = self.kernel.exchanged(inner, partner, energy.ratio.index_select(0, turn)[0])
        if other is None:
            other = self.kernel.relocate(energy.model, inner, x.index_select(0, partner))
        here, there = self.kernel.energies(inner), self.kernel.energies(other)
        if here is None or there is None:
            here, there = energy.model(x), energy.model(self.kernel.position(other))
        gain = here - there  # Eᵢ(xᵢ) - Eᵢ(xⱼ)
        log_ratio = gain + gain.index_select(0, partner)
        first = torch.minimum(partner, torch.arange(len(x), device=x.device))  # a pair has one threshold
        accepted = metropolis_test(log_ratio, threshold.index_select(0, first))
        return type(inner)(*(_pick(accepted, b, a) for a, b in zip(inner, other, strict=True))), log_ratio


def _pick(accepted: Tensor, new: Any, old: Any) -> Any:
    """Row by row the new or the old; what does not belong to rows stays."""
    per_row = isinstance(old, Tensor) and old.dim() > 0 and len(old) == len(accepted)
    return where_chain(accepted, new, old) if per_row and new is not old else old
