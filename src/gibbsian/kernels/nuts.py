"""The No-U-Turn sampler, all chains in lockstep.

Trees of all chains grow leaf by leaf together: a doubling adds the same number of leaves to every chain that
is still growing, so the place in the tree is a plain number and only a flag per chain says who goes on.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gibbsian.energy import Energy
from gibbsian.errors import check_count
from gibbsian.kernels.base import ChainState, event_view, masked, schedule_values
from gibbsian.kernels.hmc import DIVERGENCE, Massive
from gibbsian.kernels.integrators import Metric, Point, leapfrog
from gibbsian.kernels.langevin import normal_inputs

BLOCK = 16  # leaves between two looks at whether any chain still grows, which on CUDA waits for the device


class NutsInputs(NamedTuple):
    """Normals for the momenta, step sizes, and each step's own generator for directions and choices."""

    z: Tensor
    step_size: Tensor
    generator: Any


class NutsInfo(NamedTuple):
    """What a person wants to see of one transition, per chain."""

    acceptance: Tensor  # mean of min(1, exp(H₀ - H)) over the leaves
    diverged: Tensor  # bool: an energy error beyond 1000, or a non-finite energy
    depth: Tensor  # doublings that were completed
    leapfrogs: Tensor  # leapfrog steps, those of an abandoned last doubling counted in


class Branch(NamedTuple):
    """Consecutive leaves in order of integration: momenta v and velocities w = M⁻¹v at both ends, and ρ = Σv, all
    `(chains, numel)`."""

    first_v: Tensor
    first_w: Tensor
    last_v: Tensor
    last_w: Tensor
    rho: Tensor
    leaves: int


def join(a: Branch, b: Branch, ones: Tensor) -> tuple[Branch, Tensor]:
    """Two neighboring branches as one, and for each chain whether it still runs straight: ρ·w > 0 at both of its ends,
    and of each half prolonged by the first leaf of the other, or turns that fall between the halves would be missed."""
    rho = a.rho + b.rho
    pairs = [(rho, a.first_w), (rho, b.last_w)]
    if a.leaves > 1:  # else the prolonged halves are the whole
        left, right = a.rho + b.first_v, b.rho + a.last_v
        pairs += [(left, a.first_w), (left, b.first_w), (right, a.last_w), (right, b.last_w)]
    straight = torch.stack([(r * w) @ ones for r, w in pairs]).amin(0) > 0  # False for NaN
    return Branch(a.first_v, a.first_w, b.last_v, b.last_w, rho, a.leaves + b.leaves), straight


def spread(t: Tensor, x: Tensor) -> Tensor:
    """A per-chain tensor written out to the shape of x: short events broadcast four times slower."""
    return event_view(t, x).expand_as(x).contiguous()


class Choice(NamedTuple):
    """A point chosen from some leaves with probabilities ∝ exp(H₀ - H), and log Σ exp(H₀ - H) over them."""

    x: Tensor
    energy: Tensor
    score: Tensor
    log_weight: Tensor

    def or_else(self, other: "Choice", take: Tensor) -> "Choice":
        """The other's point for chains that take it; the weights add up."""
        mask = spread(take, self.x)
        return Choice(
            torch.where(mask, other.x, self.x),
            torch.where(take, other.energy, self.energy),
            torch.where(mask, other.score, self.score),
            torch.logaddexp(self.log_weight, other.log_weight),
        )


def choose(leaves: list[Point], log_weight: Tensor, u: Tensor) -> Choice:
    """One of the leaves for each chain, by inversion; u is uniform on (0, 1]."""
    if len(leaves) == 1:
        return Choice(leaves[0].x, leaves[0].energy, leaves[0].score, log_weight[0])
    top = log_weight.amax(0)
    cumulative = (log_weight - top).exp_().cumsum(0)
    total = cumulative[-1]
    index = (cumulative < u * total).sum(0), torch.arange(len(u), device=u.device)
    x, _, energy, score = zip(*leaves, strict=True)
    pick = [torch.stack(part)[index] for part in (x, energy, score)]
    return Choice(pick[0], pick[1], pick[2], top + total.log())


class Tally(NamedTuple):
    """What the leaves of a transition add up to, per chain."""

    acceptance: Tensor  # Σ min(1, exp(H₀ - H))
    leapfrogs: Tensor
    diverged: Tensor

    def add(self, log_weight: Tensor, growing: Tensor) -> tuple["Tally", Tensor]:
        """Count leaves `(leaves, chains)` up to the first that diverges; also says who has met none such."""
        fine = (log_weight > -DIVERGENCE) & (log_weight < torch.inf)  # False for NaN
        sound = fine.cumprod(0) != 0
        counted = growing
        if len(fine) > 1:
            counted = torch.cat([growing[:1], growing[1:] & sound[:-1]])
        probability = torch.where(fine & counted, log_weight.clamp(max=0).exp(), 0.0)
        tally = Tally(
            self.acceptance + probability.sum(0),
            self.leapfrogs + counted.sum(0),
            self.diverged | (counted & ~fine).any(0),
        )
        return tally, sound[-1]


class Ground(NamedTuple):
    """What stays the same during a transition."""

    energy: Energy
    metric: Metric
    clamp: Tensor | None
    start: Tensor  # H₀
    ones: Tensor  # (numel,): on short rows a product with ones is several times faster than a sum
    generator: torch.Generator

    def uniforms(self, rows: int) -> Tensor:
        """Uniforms on (0, 1], `(rows, chains)`: never 0, so that no leaf of weight 0 is chosen."""
        h = self.start
        return 1 - torch.rand(rows, len(h), generator=self.generator, dtype=h.dtype, device=h.device)


class Tree(NamedTuple):
    """A doubling: its leaves as one branch, the point chosen from them, its last leaf, and who grows on."""

    branch: Branch
    choice: Choice
    end: Point
    growing: Tensor


def grow(ground: Ground, level: int, p: Point, eps: Tensor, growing: Tensor, tally: Tally) -> tuple[Tree | None, Tally]:
    """2^level more leaves from p on; no tree when every chain stopped half-way."""
    energy, metric, clamp, start, ones, _ = ground
    stack: list[Branch] = []
    chosen: Choice | None = None
    for first in range(0, 1 << level, BLOCK):
        leaves, log_weights, ran = [], [], []
        for count in range(first, min(first + BLOCK, 1 << level)):
            p = leapfrog(energy, p, eps, metric, clamp)
            v = p.v.flatten(1)
            w = metric.velocity(p.v).flatten(1)
            leaves.append(p)
            log_weights.append(torch.sub(start - p.energy, (v * w) @ ones, alpha=0.5))
            ran.append(growing)
            branch = Branch(v, w, v, w, v, 1)
            while count & 1:  # a subtree is complete: join its halves, as a binary counter carries
                branch, straight = join(stack.pop(), branch, ones)
                growing = growing & straight
                count >>= 1
            stack.append(branch)
        log_weight = torch.stack(log_weights)
        tally, sound = tally.add(log_weight, torch.stack(ran))
        growing = growing & sound
        u = ground.uniforms(2) if level else log_weight
        choice = choose(leaves, log_weight, u[0])
        if chosen is None:
            chosen = choice
        else:
            total = torch.logaddexp(chosen.log_weight, choice.log_weight)
            chosen = chosen.or_else(choice, u[1].log() < choice.log_weight - total)
        if len(stack) == 1 and stack[0].leaves == 1 << level:
            return Tree(stack[0], chosen, p, growing), tally
        if not bool(growing.any()):
            break
    return None, tally


def exchange(a: Point, b: Point, turn: Tensor) -> tuple[Point, Point]:
    """The two points, exchanged where `turn`; their energies are not needed and stay."""

    def pick(p: Point, q: Point) -> Point:
        x, v, score = (torch.where(turn, b, a) for a, b in ((p.x, q.x), (p.v, q.v), (p.score, q.score)))
        return Point(x, v, p.energy, score)

    return pick(a, b), pick(b, a)


@dataclass(frozen=True)
class NUTS(Massive):
    """The No-U-Turn sampler: Hamiltonian Monte Carlo that chooses its own trajectory length.

    Trajectories double until they turn back (generalized criterion, with the checks across subtrees) or reach
    2^max_depth - 1 leapfrog steps. The next state is drawn from the whole trajectory with weights exp(-H) and
    a preference for the newer half (biased progressive sampling). Exact for any step size.

    The kernel of choice where nobody wants to tune: let `gibbsian.warm_up` find step size and mass. All
    chains wait for the longest trajectory among them, so with thousands of chains a well-tuned HMC is faster.
    In a box trajectories are reflected at the walls, exactly, and tend to stop there.

    Reference: Hoffman & Gelman 2014; Betancourt 2017 (multinomial choice, criterion); the iterative form is
    that of Phan, Pradhan & Jankowiak 2019 and Lao et al. 2020.

    Args:
        step_size, mass: ε and M, as in `HMC`.
        max_depth: most doublings of a trajectory.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> target = gb.energies.Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.9], [0.9, 1.0]]))
    >>> trace = gb.sample(target, NUTS(step_size=0.3), torch.zeros(8, 2), steps=50, generator=g)
    >>> bool(trace.acceptance > 0.8)
    True
    """

    step_size: float | Tensor
    max_depth: int = 10
    mass: float | Tensor | None = None
    metric: Metric = field(init=False, repr=False, compare=False)
    draws_in_steps: ClassVar[str] = "NUTS grows trajectories whose length depends on the chains; HMC compiles"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "max_depth", check_count(self, "max_depth", self.max_depth, 1, 20))

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> NutsInputs:
        z = normal_inputs(x, steps, generator)
        sizes = schedule_values(self.step_size, steps, start, x, "step_size")
        # a generator for each step: how much a step draws depends on the longest trajectory, and no chain may
        # shift the numbers of its neighbors' next step
        seeds = torch.randint(1 << 62, (steps,), generator=generator, device=x.device).tolist()
        return NutsInputs(z, sizes, [torch.Generator(x.device).manual_seed(seed) for seed in seeds])

    def step(self, energy: Energy, state: ChainState, inputs: NutsInputs) -> tuple[ChainState, NutsInfo]:
        x, e, s, clamp = state
        metric = self.metric.to(x)
        v = masked(metric.momentum(inputs.z), clamp)
        start = e + metric.kinetic(v)
        ground = Ground(energy, metric, clamp, start, x.new_ones(x[0].numel()), inputs.generator)
        near = far = Point(x, v, e, s)  # the two ends of the trajectory; the next doubling starts at `near`
        rho = v.flatten(1)
        chosen = Choice(x, e, s, torch.zeros_like(e))
        step_size = inputs.step_size.expand(len(x))  # negative for chains that go back in time
        alive = torch.ones_like(e, dtype=torch.bool)
        depth = torch.zeros_like(e, dtype=torch.long)
        tally = Tally(torch.zeros_like(e), depth, ~alive)
        for level in range(self.max_depth):
            u = ground.uniforms(2)
            turn = u[0] <= 0.5
            step_size = torch.where(turn, -step_size, step_size)
            if level:
                near, far = exchange(near, far, spread(turn, x))
            eps = spread(torch.where(alive, step_size, 0.0), x)  # chains that are done stand still
            tree, tally = grow(ground, level, near, eps, alive, tally)
            if tree is None:
                break
            odds = tree.choice.log_weight - chosen.log_weight
            chosen = chosen.or_else(tree.choice, tree.growing & (u[1].log() < odds))
            depth = depth + tree.growing
            first_w, last_w = (metric.velocity(p.v).flatten(1) for p in (far, near))
            old = Branch(far.v.flatten(1), first_w, near.v.flatten(1), last_w, rho, 1 << level)
            whole, straight = join(old, tree.branch, ground.ones)
            near, rho, alive = tree.end, whole.rho, tree.growing & straight
            if level + 1 < self.max_depth and not bool(alive.any()):
                break
        info = NutsInfo(tally.acceptance / tally.leapfrogs, tally.diverged, depth, tally.leapfrogs)
        return ChainState(chosen.x, chosen.energy, chosen.score, clamp), info
