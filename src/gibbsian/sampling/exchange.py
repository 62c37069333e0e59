"""Parallel tempering over processes: replicas stay where they are, and temperatures travel.

`kernels.ParallelTempering` holds the whole ladder of every chain in one process. Here each process holds some replicas of all
chains, so that a long ladder of large states is shared; a swap costs two numbers a replica instead of two states.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gibbsian.capabilities import Multiple
from gibbsian.distributed.shards import Streams, streams_of
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError
from gibbsian.kernels.base import Kernel, metropolis_test
from gibbsian.kernels.tempering import ParallelTempering
from gibbsian.progress import progress_bar
from gibbsian.sampling.checks import check_counts, check_kernel, check_start
from gibbsian.sampling.chunks import run_steps


class Exchanged(NamedTuple):
    """What `replica_exchange` returns.

    Attributes:
        samples: draws of the coldest replicas `(draws, chains, *event)`, on every process.
        swap_acceptance: mean swap probability of every pair of neighbors `(replicas - 1,)`.
        temperature: which of the betas every replica has at the end, `(replicas, chains)`.
        replicas: the positions of this process's replicas `(own, chains, *event)`, in the order in which they began.
    """

    samples: Tensor
    swap_acceptance: Tensor
    temperature: Tensor
    replicas: Tensor


def replica_exchange(
    energy: Energy,
    kernel: ParallelTempering,
    x0: Tensor,
    steps: int,
    *,
    burn_in: int = 0,
    thin: int = 1,
    generator: "torch.Generator | Streams",
    progress: bool | None = None,
) -> Exchanged:
    """Parallel tempering whose replicas are spread over the processes of a job; the law is that of `kernel`.

        accept with probability min(1, exp(Eᵢ(xₐ) + Eⱼ(x_b) - Eⱼ(xₐ) - Eᵢ(x_b))),   a at temperature i, b at j = i ± 1

    Every process computes Eᵢ and Eⱼ of its own replicas, gathers those of the others, and all take the same decisions. With
    enough chains for all processes, `gibbsian.sample` with `Shards` is cheaper: it spreads chains, ladders and all, and needs no
    word between two steps.

    Reference: Swendsen & Wang 1986; Geyer 1991; even and odd pairs in turn: Syed et al. 2022.

    Args:
        energy: the target.
        kernel: the ladder, and the kernel that moves each replica.
        x0: where all replicas begin `(chains, *event)`, or each of them `(replicas, chains, *event)`, coldest first.
        steps, burn_in, thin: as in `gibbsian.sample`.
        generator: `distributed.Shards(seed)`; a plain generator runs all replicas here.
        progress: show a bar.

    >>> import gibbsian as gb
    >>> far = [gb.energies.Gaussian(torch.tensor([m]), torch.eye(1)) for m in (-8.0, 8.0)]
    >>> target = gb.mixture(far, weights=[0.5, 0.5])
    >>> ladder = gb.kernels.ParallelTempering(gb.kernels.HMC(step_size=0.5), betas=gb.schedules.geometric(1.0, 0.02, 6))
    >>> shards = gb.distributed.Shards(0)
    >>> run = replica_exchange(target, ladder, torch.full((20, 1), 8.0), 300, burn_in=100, generator=shards)
    >>> run.samples.shape, bool((run.samples < 0).any())
    (torch.Size([200, 20, 1]), True)
    """
    if not isinstance(kernel, ParallelTempering):
        raise ArgumentError(
            f"replica_exchange takes a kernels.ParallelTempering, got {kernel!r}; else use gibbsian.sample"
        )
    check_kernel(kernel, energy)
    steps, burn_in, thin = check_counts(steps, burn_in, thin)
    betas = torch.as_tensor(kernel.betas)
    x = _started(energy, x0, len(betas))
    streams = streams_of(generator, x.device)
    ladder = _Ladder(energy, kernel.kernel, betas.to(x), x.shape[1], streams)
    draws = -(-(steps - burn_in) // thin)
    samples = x.new_zeros(draws, *x.shape[1:])
    shown = progress if streams.world.first else False
    with torch.no_grad(), progress_bar(steps, "replica exchange", shown) as tick:
        ladder.begin(x)
        for step in range(steps):
            ladder.move(step)
            ladder.swap()
            if step >= burn_in and (step - burn_in) % thin == 0:
                ladder.put_coldest(samples[(step - burn_in) // thin])
            tick(1)
    streams.world.sum(samples)  # every entry is known to one process, and zero elsewhere
    return Exchanged(samples, ladder.swaps / ladder.tries.clamp(min=1), ladder.index, ladder.positions())


def _started(energy: Energy, x0: Tensor, replicas: int) -> Tensor:
    event = len(energy.domain.shape)
    if x0.dim() == event + 2 and len(x0) != replicas:
        raise ShapeError(
            f"x0 holds {len(x0)} replicas, and there are {replicas} betas; give one start for each, or one for all"
        )
    x = x0 if x0.dim() == event + 2 else x0.expand(replicas, *x0.shape)
    check_start(energy, x.flatten(0, 1))
    return x


@dataclass
class _Group:
    """Some replicas of this process, which move together: their places among all, their stream, and the kernel's state."""

    rows: slice
    generator: torch.Generator
    state: Any = None


class _Ladder:
    """Replicas of all chains, and which temperature each has, known to all processes."""

    def __init__(self, energy: Energy, kernel: Kernel, betas: Tensor, chains: int, streams: Streams) -> None:
        self.energy, self.kernel, self.betas, self.streams, self.chains = energy, kernel, betas, streams, chains
        self.groups = [_Group(part.rows, part.generator) for part in streams.parts(len(betas), 1)]
        ladder = torch.arange(len(betas), device=betas.device)
        self.index = ladder[:, None].repeat(1, chains)  # (replicas, chains)
        self.swaps, self.tries = betas.new_zeros(len(betas) - 1), betas.new_zeros(len(betas) - 1)
        self.turn = 0

    def _model(self, group: _Group, index: Tensor) -> Any:
        return self.energy.annealed(self.betas[index[group.rows]].flatten())

    def begin(self, x: Tensor) -> None:
        """Put the replicas of this process in their places."""
        for group in self.groups:
            own = x[group.rows].flatten(0, 1).clone()
            group.state = self.kernel.init(self._model(group, self.index), own, None)

    def move(self, step: int) -> None:
        """One step of every replica at its temperature."""
        for group in self.groups:
            model, x = self._model(group, self.index), self.kernel.position(group.state)
            inputs = self.kernel.draw(model, x, 1, group.generator, step)
            group.state, _, _ = run_steps(model, self.kernel, group.state, inputs)

    def swap(self) -> None:
        """Neighbors exchange their temperatures, even and odd pairs in turn."""
        replicas, steps = len(self.betas), torch.arange(len(self.betas), device=self.betas.device)
        other = steps + 1 - 2 * ((steps + self.turn) % 2)
        other = torch.where((other < 0) | (other >= replicas), steps, other)
        wanted = other[self.index]  # the temperature that each replica would take
        cost = self.streams.gather(torch.cat([self._costs(group, wanted) for group in self.groups]))
        at = self.index.argsort(0)  # the replica at every temperature
        paid = cost.gather(0, at)
        log_ratio = (paid + paid[other])[:-1]
        noise = torch.rand(self.index.shape, generator=self.streams.common, dtype=cost.dtype, device=cost.device)
        pairs = (other[:-1] == steps[1:])[:, None]
        accepted = metropolis_test(log_ratio, noise[:-1].log()) & pairs
        rate = torch.where(log_ratio.isnan(), 0.0, log_ratio.clamp(max=0).exp()) * pairs
        self.swaps, self.tries = self.swaps + rate.mean(1), self.tries + pairs[:, 0]
        moved = torch.zeros_like(self.index, dtype=torch.bool)  # by temperature
        moved[:-1] |= accepted
        moved[1:] |= accepted
        before, exchanged = self.index, moved.gather(0, self.index)
        self.index = torch.where(exchanged, wanted, self.index)
        self.turn = 1 - self.turn
        for group in self.groups:
            self._follow(group, before)

    def _costs(self, group: _Group, wanted: Tensor) -> Tensor:
        """What it would cost each replica to take another temperature, with its sign: E(x) at its own less that at the other,
        `(own, chains)`."""
        x, here = self.kernel.position(group.state), self.kernel.energies(group.state)
        model, other = self._model(group, self.index), self._model(group, wanted)
        here = model(x) if here is None else here
        there = here * self._ratio(group, self.index, wanted) if isinstance(model, Multiple) else other(x)
        return (here - there).unflatten(0, (-1, self.chains))

    def _ratio(self, group: _Group, before: Tensor, after: Tensor) -> Tensor:
        return (self.betas[after[group.rows]] / self.betas[before[group.rows]]).flatten()

    def _follow(self, group: _Group, before: Tensor) -> None:
        """What the kernel knows of its replicas, at their new temperatures."""
        model, state, x = self._model(group, self.index), None, self.kernel.position(group.state)
        if isinstance(model, Multiple):
            stay = torch.arange(len(x), device=x.device)
            state = self.kernel.exchanged(group.state, stay, self._ratio(group, before, self.index))
        group.state = self.kernel.relocate(model, group.state, x) if state is None else state

    def put_coldest(self, place: Tensor) -> None:
        """Write the replicas that are coldest now, of this process, into the draws of a step."""
        for group in self.groups:
            cold = self.index[group.rows] == 0  # (own, chains)
            here, chain = cold.nonzero(as_tuple=True)
            place[chain] = self.kernel.position(group.state).unflatten(0, cold.shape)[here, chain]

    def positions(self) -> Tensor:
        """All replicas of this process."""
        return torch.cat([self.kernel.position(g.state).unflatten(0, (-1, self.chains)) for g in self.groups])
