"""The No-U-Turn sampler, every chain a machine of its own.

A micro-step is one leapfrog step of every chain, each at its own leaf of its own tree in its own iteration: a chain whose
trajectory has ended begins its next iteration at once and waits for nobody. A tree is never built: the leaves of a
doubling come one after the other, and leaf n (from 0) closes as many subtrees as the binary number n has trailing ones.
The momenta at the starts of the subtrees that are open are kept in as many slots as the tree is deep,

i_max = popcount(n >> 1),   i_min = i_max - (trailing ones of n) + 1:

an even leaf is stored in slot i_max, an odd leaf n closes the subtrees that began at slots i_max, ..., i_min.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gibbsian.domains import Bounded
from gibbsian.energy import Energy
from gibbsian.errors import check_count
from gibbsian.kernels.base import ChainState, FreeRunning, masked, roomy, schedule_values
from gibbsian.kernels.hmc import DIVERGENCE, Massive
from gibbsian.kernels.integrators import Metric, reflect
from gibbsian.random import normals

_WORD = 0xFFFFFFFF


def scrambled(seed: Tensor, counter: Tensor) -> Tensor:
    """32 random bits for every seed (62 bits) and counter, the same on every device: what a tree draws depends on its
    shape, so that it cannot be drawn before. Two rounds of a mixer of good avalanche, keyed by the halves of the seed.

    >>> bits = scrambled(torch.tensor(2**40 + 3), torch.arange(4096))
    >>> bool((bits.double().mean() / 2**32 - 0.5).abs() < 4 / 12**0.5 / 64), int(bits.unique().numel())
    (True, 4096)
    """
    word = (seed + counter * 0x1E3779B9) & _WORD
    for key in (seed >> 32, 0):
        word = word ^ (word >> 16)
        word = (word * 0x21F0AAAD) & _WORD  # below 2⁶³: nothing overflows
        word = word ^ (word >> 15)
        word = (word * 0x735A2D97) & _WORD
        word = ((word ^ (word >> 15)) + key) & _WORD
    return word


def unit(bits: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Uniforms in (0, 1] from whole numbers of so many bits: never 0, so that no leaf of weight 0 is chosen."""
    return (bits.to(dtype) + 0.5) * 2.0**-count


def popcount(n: Tensor) -> Tensor:
    """Ones among the lowest 20 binary digits.

    >>> popcount(torch.tensor([0, 1, 6, 1023])).tolist()
    [0, 1, 2, 10]
    """
    n = n - ((n >> 1) & 0x55555)
    n = (n & 0x33333) + ((n >> 2) & 0x33333)
    n = (n + (n >> 4)) & 0xF0F0F
    return (n + (n >> 8) + (n >> 16)) & 0x1F


class NutsInputs(NamedTuple):
    """Normals for the momenta, the seeds of directions and choices, step sizes."""

    z: Tensor
    seed: Tensor
    step_size: Tensor


class NutsInfo(NamedTuple):
    """What a person wants to see of a transition, per chain (and iteration)."""

    acceptance: Tensor  # mean of min(1, exp(H₀ - H)) over the leaves
    diverged: Tensor  # bool: an energy error beyond 1000, or a non-finite energy
    depth: Tensor  # doublings that were completed
    leapfrogs: Tensor  # leapfrog steps, those of an abandoned last doubling counted in
    hamiltonian: Tensor  # H where the transition ended
    potential: Tensor  # E there
    step_size: Tensor

    def stats(self) -> dict[str, Tensor]:
        """Under the names that ArviZ and others know them by."""
        return {
            "tree_depth": self.depth,
            "n_steps": self.leapfrogs,
            "energy": self.hamiltonian,
            "lp": -self.potential,
            "step_size": self.step_size,
        }


class Ground(NamedTuple):
    """What stays the same during some iterations: their inputs, the metric, the entries that are held."""

    inputs: NutsInputs  # z is (iterations, chains, numel)
    wanted: Tensor  # (): iterations, which may be less than there is room for
    half: Tensor | None  # A = R⁻¹ of the metric M = R Rᵀ: momenta are p = A v, of unit variance
    dense: bool
    clamp: Tensor | None

    def pull(self, s: Tensor) -> Tensor:
        """A s, what a force does to p."""
        return self._times(s, "cij,rcj->rci")

    def push(self, p: Tensor) -> Tensor:
        """Aᵀ p = M⁻¹ v, the velocity."""
        return self._times(p, "cji,rcj->rci")

    def _times(self, t: Tensor, each: str) -> Tensor:
        if self.half is None:
            return t
        if not self.dense:
            return self.half * t
        if self.half.dim() == 2:
            return t @ (self.half.T if each == "cij,rcj->rci" else self.half)
        rows = t.reshape(-1, len(self.half), t.shape[1])  # several replicas of the chains may share their matrices
        return torch.einsum(each, self.half, rows).reshape(t.shape)


class Trees(NamedTuple):
    """Where every chain is, `(chains,)` or `(chains, numel)`: everything that a micro-step makes anew."""

    x: Tensor  # the end of the trajectory that grows: position, momentum, score
    p: Tensor
    s: Tensor
    far_x: Tensor  # the other end
    far_p: Tensor
    far_s: Tensor
    rho: Tensor  # Σp over the trajectory, the doubling at work left out
    total: Tensor  # Σp over the leaves of that doubling
    next_x: Tensor  # the next state as chosen so far: position, score, E and H
    next_s: Tensor
    next_e: Tensor
    next_h: Tensor
    new_x: Tensor  # the same, among the leaves of the doubling
    new_s: Tensor
    new_e: Tensor
    new_h: Tensor
    start: Tensor  # H₀
    log_weight: Tensor  # log Σ exp(H₀ - H) over the trajectory
    new_weight: Tensor  # and over the doubling
    sign: Tensor  # of time
    accepted: Tensor  # Σ min(1, exp(H₀ - H))
    leapfrogs: Tensor
    leaf: Tensor  # its number in the doubling
    depth: Tensor
    iteration: Tensor
    deepest: Tensor  # (): depth of the deepest tree, -1 when every chain has done its iterations


class Slots(NamedTuple):
    """What a micro-step writes into: starts of open subtrees `(depth, chains, numel)`, and what every iteration gave; the
    last place of each belongs to nobody."""

    p: Tensor  # momentum of the leaf
    ahead: Tensor  # Σp up to it, itself left out
    before: Tensor  # momentum of the leaf before
    draws: Tensor  # (iterations + 1, chains, numel)
    infos: Tensor  # (iterations + 1, chains, 6)


def chosen(u: Tensor, log_share: Tensor) -> Tensor:
    """Whether what is new is chosen, with a probability of exp(log share), or 1 if that is more."""
    return u <= log_share.exp()


def spread(mask: Tensor, x: Tensor) -> Tensor:
    """A mask of chains for `(chains, numel)`; written out it is several times faster, unless it is compiled."""
    rows = mask[:, None].expand_as(x)
    return rows if torch.compiler.is_compiling() else rows.contiguous()


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Row by row."""
    return (a * b).sum(-1)


def closes_straight(slots: Slots, levels: int, leaf: Tensor, p: Tensor, total: Tensor) -> Tensor:
    """Whether none of the subtrees that this leaf closes turns back: ρ·p > 0 at both ends, of the whole and of each half
    prolonged by the first leaf of the other, or turns that fall between the halves would be missed."""
    i_max = popcount(leaf >> 1)
    i_min = i_max - popcount(leaf & ~(leaf + 1)) + 1
    first, ahead = slots.p[:levels], slots.ahead[:levels]
    level = torch.arange(levels, dtype=leaf.dtype, device=p.device)[:, None]
    rho = total - ahead
    closed = (level >= i_min) & (level <= i_max)
    least = torch.where(closed, torch.minimum(dot(rho, first), dot(rho, p)), 1.0).amin(0)  # NaN stays NaN
    if levels > 1:  # the right half of the subtree from slot i begins at slot i + 1; two leaves have no halves
        half, before = first[1:], slots.before[1:levels]
        left = ahead[1:] - ahead[:-1] + half
        right = total - ahead[1:] + before
        ends = torch.minimum(dot(left, first[:-1]), dot(left, half))
        ends = torch.minimum(ends, torch.minimum(dot(right, before), dot(right, p)))
        closed = (level[:-1] >= i_min) & (level[:-1] < i_max)
        least = torch.minimum(least, torch.where(closed, ends, 1.0).amin(0))
    return least > 0


@dataclass(frozen=True)
class NUTS(Massive, FreeRunning):
    """The No-U-Turn sampler: Hamiltonian Monte Carlo that chooses its own trajectory length.

    Trajectories double until they turn back (generalized criterion, with the checks across subtrees) or reach
    2^max_depth - 1 leapfrog steps. The next state is drawn from the whole trajectory with weights exp(-H) and
    a preference for the newer half (biased progressive sampling). Exact for any step size.

    The kernel of choice where nobody wants to tune: let `gibbsian.warm_up` find step size and mass. Chains do not
    wait for each other; compiled, a leapfrog step of a small model costs less than a microsecond. In a box
    trajectories are reflected at the walls, exactly, and tend to stop there.

    Depth, leapfrog steps, Hamiltonian and step size of every draw are in `trace.stats` and among the sample statistics of
    `trace.to_arviz()`.

    Reference: Hoffman & Gelman 2014; Betancourt 2017 (multinomial choice, criterion); the iterative form is
    that of Phan, Pradhan & Jankowiak 2019 and Lao et al. 2020.

    Args:
        step_size, mass: ε and M, as in `HMC`.
        max_depth: most doublings of a trajectory.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> target = gb.energies.Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.9], [0.9, 1.0]]))
    >>> trace = gb.sample(target, NUTS(step_size=0.3), torch.zeros(8, 2), steps=50, generator=g)
    >>> bool(trace.acceptance > 0.8), trace.stats["n_steps"].shape
    (True, torch.Size([50, 8]))
    """

    step_size: float | Tensor
    max_depth: int = 10
    mass: float | Tensor | None = None
    metric: Metric = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "max_depth", check_count(self, "max_depth", self.max_depth, 1, 20))

    def draw(self, energy: Any, x: Tensor, steps: int, generator: torch.Generator, start: int = 0) -> NutsInputs:
        chains, event = len(x), x[0].numel()
        block = normals(steps, chains * (event + 2), generator, dtype=x.dtype, device=x.device)
        a, b = block[:, chains * event :].double().view(torch.int64).split(chains, 1)  # the bits of two normals
        bits = [scrambled(t >> 2 & (1 << 62) - 1, torch.zeros_like(t)) for t in (a, b)]
        sizes = schedule_values(self.step_size, steps, start, x, "step_size")
        return NutsInputs(
            block[:, : chains * event].reshape(steps, *x.shape), (bits[0] << 30) ^ bits[1] & (1 << 62) - 1, sizes
        )

    @property
    def reaches(self) -> tuple[int, ...]:
        """The deeper a subtree may be, the more a micro-step compares: shallow ones first."""
        deepest = self.max_depth - 1
        return (min(4, deepest), deepest) if deepest > 4 else (deepest,)

    def begin(
        self, energy: Energy, state: ChainState, inputs: NutsInputs, room: int = 0
    ) -> tuple[Ground, Trees, Slots]:
        x, e, s = state.x.flatten(1), state.energy, state.score.flatten(1)
        (chains, n), steps, depth = x.shape, max(room, len(inputs.z)), max(1, self.max_depth - 1)
        clamp = state.clamp
        if clamp is not None:
            clamp = clamp.reshape(-1, n) if clamp.dim() == state.x.dim() else clamp.reshape(n)
        half = self.metric.to(state.x).half
        if half is not None and half.dim() and not self.metric.dense:
            half = half.reshape(n)
        wanted = torch.full((), len(inputs.z), dtype=torch.int32, device=x.device)
        given = NutsInputs(*(roomy(part, steps) for part in inputs._replace(z=inputs.z.flatten(2))))
        ground = Ground(given, wanted, half, self.metric.dense, clamp)
        zero, none = torch.zeros_like(x), torch.zeros_like(e)
        start = torch.zeros_like(e, dtype=torch.int32)  # as wide as single precision: masks of them are made at once
        ends, sums, tallies = (zero,) * 6, (zero,) * 2, (none,) * 5
        trees = Trees(
            *ends, *sums, x, s, e, none, zero, zero, none, none, *tallies, start, start, start, start, start[0].long()
        )
        starts = [x.new_zeros(depth + 1, chains, n) for _ in range(3)]
        gives = x.new_empty(steps + 1, chains, n), x.new_empty(steps + 1, chains, 6)
        slots = Slots(starts[0], starts[1], starts[2], *gives)
        return ground, trees, slots

    def micro_step(self, energy: Energy, ground: Ground, trees: Trees, slots: Slots, reach: int) -> Trees:
        t, inputs, wanted = trees, ground.inputs, ground.wanted
        chain = torch.arange(len(t.x), device=t.x.device)
        active = t.iteration < wanted
        at = torch.minimum(t.iteration, wanted - 1)
        seed = inputs.seed[at, chain]
        step_size = inputs.step_size[at] if inputs.step_size.dim() == 1 else inputs.step_size[at, chain]

        # a new iteration: momenta are drawn, the trajectory is one point
        first = t.leaf == 0
        fresh = first & (t.depth == 0)
        rows = spread(fresh, t.x)
        z = masked(inputs.z[at, chain], ground.clamp)
        start = torch.where(fresh, t.next_e + 0.5 * dot(z, z), t.start)
        next_h = torch.where(fresh, start, t.next_h)
        log_weight, accepted = (torch.where(fresh, 0.0, v) for v in (t.log_weight, t.accepted))
        rho = torch.where(rows, z, t.rho)
        begun = (t.next_x, z, t.next_s)
        near = [torch.where(rows, a, b) for a, b in zip(begun, (t.x, t.p, t.s), strict=True)]
        far = [torch.where(rows, a, b) for a, b in zip(begun, (t.far_x, t.far_p, t.far_s), strict=True)]

        # a new doubling, forward or back in time: the ends change places
        coin = scrambled(seed, t.depth.long())
        turn = first & ((coin & 1).int() == 1)
        sign = torch.where(fresh, 1.0, t.sign)
        sign = torch.where(turn, -sign, sign)
        turn = spread(turn, t.x)
        (x, before, s), far = (
            [torch.where(turn, b, a) for a, b in zip(near, far, strict=True)],
            [torch.where(turn, a, b) for a, b in zip(near, far, strict=True)],
        )

        x, p, e, s = self._leapfrog(energy, ground, x, before, s, (sign * step_size)[:, None])
        h = e + 0.5 * dot(p, p)
        weight = start - h
        fine = (weight > -DIVERGENCE) & (weight < torch.inf)  # False for NaN
        accepted = accepted + torch.where(fine, weight.clamp(max=0).exp(), 0.0)
        leapfrogs = torch.where(fresh, 0, t.leapfrogs) + 1

        # the leaf joins the doubling, and is chosen with its share of the weight
        size = torch.ones_like(t.depth) << t.depth
        ahead = torch.where(spread(first, p), 0.0, t.total)
        total = ahead + p
        new_weight = torch.where(first, weight, torch.logaddexp(t.new_weight, weight))
        u = unit(scrambled(seed, (32 + size + t.leaf).long()), 32, x.dtype)
        take = first | chosen(u, weight - new_weight)
        rows = spread(take, x)
        new_x, new_s = torch.where(rows, x, t.new_x), torch.where(rows, s, t.new_s)
        new_e, new_h = torch.where(take, e, t.new_e), torch.where(take, h, t.new_h)
        slot = torch.where((t.leaf & 1) == 0, popcount(t.leaf >> 1), len(slots.p) - 1)
        for place, value in ((slots.p, p), (slots.ahead, ahead), (slots.before, before)):
            place[slot, chain] = value
        sound = fine
        if reach:
            sound = sound & closes_straight(slots, reach, t.leaf, p, total)

        # the doubling is complete: it joins the trajectory, is chosen by its weight, and the whole may turn
        complete = sound & (t.leaf + 1 == size)
        take = complete & active & chosen(unit(coin >> 1, 31, x.dtype), new_weight - log_weight)
        rows = spread(take, x)
        next_x, next_s = torch.where(rows, new_x, t.next_x), torch.where(rows, new_s, t.next_s)
        next_e, next_h = torch.where(take, new_e, t.next_e), torch.where(take, new_h, next_h)
        whole, left, right = rho + total, rho + slots.p[0], total + slots.before[0]
        ends = [(whole, far[1]), (whole, p), (left, far[1])]
        ends += [(left, slots.p[0]), (right, slots.before[0]), (right, p)]
        straight = torch.stack([dot(a, b) for a, b in ends]).amin(0) > 0
        rho = torch.where(spread(complete, x), whole, rho)
        log_weight = torch.where(complete, torch.logaddexp(log_weight, new_weight), log_weight)
        depth = t.depth + complete.int()
        over = ~sound | (complete & (~straight | (depth == self.max_depth)))

        place = torch.where(active, t.iteration, len(inputs.z))
        slots.draws[place, chain] = next_x
        told = (accepted / leapfrogs, (~fine).to(e), depth.to(e), leapfrogs.to(e), next_h, next_e)
        slots.infos[place, chain] = torch.stack(told, 1)
        iteration = t.iteration + (over & active).int()
        leaf = torch.where(over | complete, 0, t.leaf + 1)
        depth = torch.where(over, 0, depth)
        deepest = torch.where(iteration < wanted, depth, -1).amax().long()
        return Trees(
            x, p, s, far[0], far[1], far[2], rho, total, next_x, next_s, next_e, next_h, new_x, new_s, new_e, new_h, start,
            log_weight, new_weight, sign, accepted, leapfrogs, leaf, depth, iteration, deepest,
        )  # fmt: skip

    def _leapfrog(
        self, energy: Energy, ground: Ground, x: Tensor, p: Tensor, s: Tensor, eps: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One leapfrog step in momenta of unit variance."""
        p = torch.addcmul(p, eps, ground.pull(s), value=0.5)
        x = torch.addcmul(x, eps, ground.push(p))
        event = (len(x), *energy.domain.shape)
        if isinstance(energy.domain, Bounded):
            x, p = (t.flatten(1) for t in reflect(x.reshape(event), p.reshape(event), energy.domain))
        e, s = energy.energy_and_score(x.reshape(event))
        s = masked(s.flatten(1), ground.clamp)
        return x, torch.addcmul(p, eps, ground.pull(s), value=0.5), e, s

    def finish(self, state: ChainState, ground: Ground, trees: Trees, slots: Slots) -> tuple[Any, Tensor, NutsInfo]:
        count = int(ground.wanted)
        acceptance, diverged, depth, leapfrogs, hamiltonian, potential = slots.infos[:count].unbind(-1)
        sizes = ground.inputs.step_size[:count]
        sizes = (sizes[:, None] if sizes.dim() == 1 else sizes).expand_as(acceptance)
        info = NutsInfo(acceptance, diverged != 0, depth.long(), leapfrogs.long(), hamiltonian, potential, sizes)
        event = state.x.shape
        end = ChainState(trees.next_x.reshape(event), trees.next_e, trees.next_s.reshape(event), state.clamp)
        return end, slots.draws[:count].reshape(-1, *event), info
