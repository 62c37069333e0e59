"""Ising models on rectangular lattices of any dimension, with colored block Gibbs sampling.

E(s) = -Σ_<ij> J_ij sᵢsⱼ - Σᵢ hᵢsᵢ,   s = ±1
"""

import copy

import torch
from torch import Tensor

from gibbsian.capabilities import Bonds, Pairwise, Path
from gibbsian.domains import Spin
from gibbsian.energies.bases import independent_units
from gibbsian.errors import ArgumentError, ShapeError, as_numbers
from gibbsian.graphs import read_edges
from gibbsian.models import checkerboard
from gibbsian.models.annealing import Machine, PairwisePath
from gibbsian.models.boltzmann import BoltzmannMachine
from gibbsian.models.graph import BoltzmannGraph
from gibbsian.models.pairwise import from_edges, two_valued_bonds
from gibbsian.placement import explained
from gibbsian.random import quick_uniforms, require_generator


class Ising(Machine):
    """Ising lattice: neighbors along each axis are coupled, and sites of one color are resampled together.

    Only couplings to the next site along each axis are stored, so a lattice of a million sites is fine. Two
    colors (a checkerboard) do wherever no periodic axis has odd length, three otherwise. Near the critical
    point single-site moves are slow: use tempering, or long runs. At inverse temperature β write
    `Ising(shape, coupling=β)`, or `.annealed(β)`.

    Reference: Ising 1925; Onsager 1944.

    Args:
        shape: sites along each axis, such as `(100,)` for a chain or `(32, 32)`.
        coupling: J, a number, one number per axis, or `(axes, *shape)`: `coupling[a][i]` joins site i with the
            next one along axis a. On an open axis the last entry joins nothing and must be 0.
        field: h, a number or a tensor of the shape.
        periodic: whether the last site of an axis is joined with the first; a flag, or one per axis. Periodic
            axes need three sites or more.
        trainable: make coupling and field parameters (one of each per entry given); otherwise they are buffers.

    >>> lattice = Ising((4, 4), coupling=1.0)
    >>> lattice(torch.ones(1, 4, 4))  # 32 bonds
    tensor([-32.])
    >>> lattice.colors
    2
    """

    coupling: Tensor
    field: Tensor
    bonds: Tensor
    color: Tensor
    first: Tensor

    def __init__(
        self,
        shape: int | tuple[int, ...],
        coupling: float | Tensor = 1.0,
        field: float | Tensor = 0.0,
        *,
        periodic: bool | tuple[bool, ...] = True,
        trainable: bool = False,
    ) -> None:
        super().__init__(Spin(shape))
        shape = self.domain.shape
        around = _around(shape, periodic)
        self.shape, self.periodic = shape, around
        dtype = torch.get_default_dtype()
        coupling = _finite(self, "coupling", coupling)
        field = _finite(self, "field", field)
        axes = len(shape)
        if coupling.shape not in {(), (axes,), (axes, *shape)}:
            raise ShapeError(
                f"coupling has shape {tuple(coupling.shape)}, expected a number, ({axes},) or {(axes, *shape)}"
            )
        if field.shape not in {(), shape}:
            raise ShapeError(f"field has shape {tuple(field.shape)}, expected a number or {shape}")
        self.register_buffer("bonds", _bonds(shape, around, dtype))
        if coupling.dim() > 1 and bool((coupling * (1 - self.bonds) != 0).any()):
            raise ArgumentError(
                "coupling is not 0 at the end of an open axis, where there is no next site; set it to 0 there"
            )
        self.hold(trainable, coupling=coupling.clone(), field=field.clone())
        color = _coloring(shape, around)
        self.colors = int(color.max()) + 1
        self.register_buffer("color", color)
        self.packed = checkerboard.packs(shape, self.colors)
        self.register_buffer("first", checkerboard.begins(shape) if self.packed else None, persistent=False)

    @classmethod
    def on_graph(
        cls,
        edges: object,
        *,
        coupling: float | Tensor | None = None,
        field: float | Tensor = 0.0,
        sites: int | None = None,
        trainable: bool = False,
    ) -> BoltzmannGraph:
        """An Ising model on any graph, in memory and time of its edges.

        Args:
            edges: pairs of sites `(m, 2)`, a symmetric scipy sparse matrix, or a networkx graph; every pair once.
            coupling: J, a number or one for each edge; where it is left out the weights that come with a matrix or graph,
                else 1.
            field: h, a number or one for each site.
            sites: their number; by default as many as the edges name.
            trainable: make both parameters, one of each per entry given.

        >>> square = Ising.on_graph([[0, 1], [1, 2], [2, 3], [3, 0]], coupling=0.3)
        >>> square(torch.ones(1, 4))
        tensor([-1.2000])
        """
        pairs, n, weights = read_edges(edges, sites)
        if coupling is None:
            coupling = 1.0 if weights is None else weights
        return BoltzmannGraph(pairs, coupling, field, sites=n, spin=True, trainable=trainable)

    def axis_couplings(self) -> Tensor:
        """J to the next site along each axis, `(axes, *shape)`, 0 where there is none."""
        coupling = self.coupling
        if coupling.dim() == 1:
            coupling = coupling.reshape(-1, *[1] * len(self.shape))
        return coupling * self.bonds

    @explained
    def free_energy(self, x: Tensor, beta: Tensor | None = None) -> Tensor:
        """βE(x); β a number or one per row."""
        ahead = x * self.field
        for axis, coupling in enumerate(self.axis_couplings()):
            ahead = ahead + coupling * x * x.roll(-1, axis + 1)
        energy = -ahead.flatten(1).sum(1)
        return energy if beta is None else beta * energy

    @explained
    def local_field(self, x: Tensor) -> Tensor:
        """h + Σ over neighbors of J s, at every site."""
        total = self.field.expand_as(x)
        for axis, coupling in enumerate(self.axis_couplings()):
            total = total + coupling * x.roll(-1, axis + 1) + (coupling * x).roll(1, axis + 1)
        return total

    def conditional_fields(self, x: Tensor) -> Tensor:
        """The local field at every site."""
        return self.local_field(x)

    def field_gradients(self, x: Tensor, weight: Tensor) -> dict[Tensor, Tensor]:
        """Of Σ weight × local field: Σ weight in h, Σ (weightᵢxⱼ + weightⱼxᵢ) in the J of neighbors i, j."""
        found: dict[Tensor, Tensor] = {}
        if self.coupling.requires_grad:
            axes = range(1, x.dim())
            pairs = torch.stack([(weight * x.roll(-1, k)).add_(weight.roll(-1, k) * x).sum(0) for k in axes])
            pairs.mul_(self.bonds)
            dims = self.coupling.dim()
            found[self.coupling] = pairs.flatten(dims).sum(-1) if dims < 2 else pairs
        if self.field.requires_grad:
            found[self.field] = weight.sum(0) if self.field.dim() else weight.sum()
        return found

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """E(x) and -∇E(x), the local field."""
        with torch.no_grad():
            field = self.local_field(x)
            return -(x * (field + self.field) / 2).flatten(1).sum(1), field

    def site_logits(self, x: Tensor, site: int | Tensor) -> Tensor:
        """log p(sᵢ = 1 | rest) - log p(sᵢ = -1 | rest) at one flat site, or one per row: 2 × local field."""
        field = self.local_field(x).flatten(1)
        if isinstance(site, int):
            return 2 * field[:, site]
        return 2 * field.gather(1, site[:, None]).squeeze(1)

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """One uniform a site: each is resampled once a sweep. Every sweep has a call of its own, so that no cut matters."""
        require_generator(generator, x.device)
        rows = [quick_uniforms(x.numel(), generator, dtype=x.dtype, device=x.device) for _ in range(steps)]
        return ((torch.stack(rows) if steps > 1 else rows[0]).reshape(steps, *x.shape),)

    def gibbs_sweep(
        self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None, beta: Tensor | None = None
    ) -> Tensor:
        """Every color in turn: sites of one color are no neighbors, so they are drawn together. Two colors are packed,
        where they can be (`models.checkerboard`)."""
        (u,) = noise
        with torch.no_grad():
            scale = -2.0 if beta is None else -2 * (beta.reshape(-1, *[1] * len(self.shape)) if beta.dim() else beta)
            if self.packed:
                return self._packed_sweep(x, u, clamp, scale)
            for color in range(self.colors):
                new = _drawn(self.local_field(x).mul_(scale), u)
                moves = self.color == color
                if clamp is not None:
                    moves = moves & ~clamp
                x = torch.where(moves, new, x)
            return x

    def _packed_sweep(self, x: Tensor, u: Tensor, clamp: Tensor | None, scale: float | Tensor) -> Tensor:
        """The same, each color a lattice of half the size; its uniforms are the first and second half of each row of u."""
        colors = list(checkerboard.split(x, self.first))
        held = (None, None) if clamp is None else checkerboard.split(clamp.expand(x.shape), self.first)
        fields = checkerboard.split(self.field, self.first) if self.field.dim() else (self.field, self.field)
        couplings = self._packed_couplings()
        for color, draws in enumerate(u.chunk(2, -1)):
            first, other = self.first if color == 0 else 1 - self.first, colors[1 - color]
            if couplings is None:
                total = checkerboard.uniform_pull(other, first, self.coupling, len(self.shape))
            else:
                total = checkerboard.pull(other, first, couplings[color], couplings[1 - color])
            new = _drawn(total.add_(fields[color]).mul_(scale), draws)
            still = held[color]
            colors[color] = new if still is None else torch.where(still, colors[color], new)
        return checkerboard.join(colors[0], colors[1], self.first)

    def _packed_couplings(self) -> list[list[Tensor]] | None:
        """J to the next site along each axis for either color; None where one number an axis says it all."""
        if self.coupling.dim() < 2 and all(self.periodic):
            return None
        parts = [checkerboard.split(coupling, self.first) for coupling in self.axis_couplings()]
        return [[part[color] for part in parts] for color in (0, 1)]

    def path(self, base_bias: Tensor | None = None, *, data: Tensor | None = None) -> Path:
        """The annealing path from independent spins, of this bias or fitted to data."""
        base = independent_units(self.domain, base_bias, data, self.coupling.detach())
        moved = copy.deepcopy(self)
        with torch.no_grad():
            parts = {"coupling": self.axis_couplings(), "field": self.field.expand(self.shape)}
        for name, value in parts.items():
            delattr(moved, name)  # a parameter or a buffer, perhaps one number for all sites
            moved.register_buffer(name, value.detach().clone())
        return PairwisePath(self, base, moved, moved.coupling, moved.field)

    def _edges(self) -> tuple[Tensor, Tensor, Tensor]:
        """Every site and the next one along every axis, as flat indices, with their couplings."""
        index = torch.arange(self.domain.numel, device=self.coupling.device).reshape(self.shape)
        ahead = [index.roll(-1, axis).flatten() for axis in range(len(self.shape))]
        return index.flatten().repeat(len(ahead)), torch.cat(ahead), self.axis_couplings().flatten()

    def pairwise(self) -> Pairwise:
        """The sites as {0, 1} units."""
        with torch.no_grad():
            here, ahead, couplings = self._edges()
            bias = self.field.expand(self.shape).flatten()
            return from_edges(here, ahead, couplings, bias, torch.full_like(bias, -1.0))

    def cluster_bonds(self) -> Bonds:
        """Neighbors that like to be equal: J sᵢsⱼ = 2J·1[sᵢ = sⱼ] - J."""
        with torch.no_grad():
            here, ahead, couplings = self._edges()
            if not all(self.periodic):
                real = (self.bonds != 0).flatten()
                here, ahead, couplings = here[real], ahead[real], couplings[real]
            return two_valued_bonds(
                torch.stack([here, ahead]), couplings, self.field.expand(self.shape).flatten(), -1.0
            )

    def to_boltzmann(self) -> BoltzmannMachine:
        """The same law as a Boltzmann machine over flattened sites, with a dense weight matrix; for small ones."""
        n = self.domain.numel
        machine = BoltzmannMachine(n, spin=True).to(self.coupling)
        weight = self.coupling.new_zeros(n, n)
        here, ahead, couplings = self._edges()
        weight[here, ahead] += couplings.detach()
        machine.set_parameters(weight=weight + weight.T, bias=self.field.detach().expand(self.shape).flatten())
        return machine

    @explained
    def magnetization(self, x: Tensor) -> Tensor:
        """The mean spin of every row."""
        return x.flatten(1).mean(1)

    def extra_repr(self) -> str:
        return f"{self.shape}, periodic={self.periodic}"


def _drawn(logits: Tensor, u: Tensor) -> Tensor:
    """±1 with these log-odds of -1, from uniforms u: -1 where u < p. The place of the log-odds is used."""
    return torch.copysign(torch.ones((), dtype=u.dtype, device=u.device), torch.sub(u, logits.sigmoid_(), out=logits))


def _finite(ising: object, name: str, value: float | Tensor) -> Tensor:
    numbers: Tensor = as_numbers(ising, name, value, torch.get_default_dtype())
    if not bool(torch.isfinite(numbers).all()):
        raise ArgumentError(f"Ising({name}={value}): couplings and fields must be finite")
    return numbers


def _around(shape: tuple[int, ...], periodic: bool | tuple[bool, ...]) -> tuple[bool, ...]:
    """Whether each axis is periodic."""
    around = (periodic,) * len(shape) if isinstance(periodic, bool) else tuple(bool(p) for p in periodic)
    if len(around) != len(shape):
        raise ArgumentError(f"periodic has {len(around)} entries for {len(shape)} axes; give one per axis")
    for length, wrap in zip(shape, around, strict=True):
        if wrap and length < 3:
            raise ArgumentError(
                f"a periodic axis of {length} sites joins a pair twice (or a site with itself); "
                "use three sites or more, or periodic=False on that axis"
            )
    return around


def _bonds(shape: tuple[int, ...], periodic: tuple[bool, ...], dtype: torch.dtype) -> Tensor:
    """1 where a site has a next one along an axis, `(axes, *shape)`."""
    bonds = torch.ones(len(shape), *shape, dtype=dtype)
    for axis, wrap in enumerate(periodic):
        if not wrap:
            bonds[axis].select(axis, shape[axis] - 1).zero_()
    return bonds


def _coloring(shape: tuple[int, ...], periodic: tuple[bool, ...]) -> Tensor:
    """A color for every site, different from its neighbors'.

    Along one axis sites alternate between 0 and 1; a periodic axis of odd length ends on a 2. The sum over axes,
    modulo the number of colors, is again proper, because a step along one axis changes one term alone.
    """
    odd = any(wrap and length % 2 for length, wrap in zip(shape, periodic, strict=True))
    colors = 3 if odd else 2
    total = torch.zeros(shape, dtype=torch.long)
    for axis, (length, wrap) in enumerate(zip(shape, periodic, strict=True)):
        line = torch.arange(length) % 2
        if wrap and length % 2:
            line[-1] = 2
        total = total + line.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return total % colors
