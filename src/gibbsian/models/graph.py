"""Pairwise machines over a sparse graph: memory and time in the number of edges, sweeps a color at a time.

E(x) = -Σ_{edges (i, j)} w_ij xᵢxⱼ - Σᵢ bᵢxᵢ
"""

import copy

import torch
from torch import Tensor

from gibbsian.capabilities import Bonds, Pairwise, Path
from gibbsian.domains import Binary, Spin
from gibbsian.energies.bases import Factorized, base_bias, independent_units
from gibbsian.errors import ArgumentError, ShapeError, as_numbers
from gibbsian.fast.sparse import SparseMatrix
from gibbsian.graphs import coloring, read_edges
from gibbsian.models.annealing import Machine, PairwisePath, small_weights
from gibbsian.models.pairwise import from_edges, two_valued_bonds
from gibbsian.placement import explained
from gibbsian.random import require_generator, uniforms


class BoltzmannGraph(Machine):
    """A Boltzmann machine (or Ising model) over the edges of a graph; made by `BoltzmannMachine.on_graph` and `Ising.on_graph`.

        E(x) = -Σ_{edges (i, j)} w_ij xᵢxⱼ - b·x,   uᵢ = Σⱼ w_ij xⱼ + bᵢ

    The same law as the dense machine with these weights, in memory and time of the edges: a Gibbs sweep resamples one
    color of a coloring of the graph after the other, and reads every edge twice. Nothing is ever a full matrix.

    Args:
        edges: pairs of sites `(m, 2)`, a symmetric scipy sparse matrix, or a networkx graph.
        coupling: w, a number for all edges, or one each, in the order of the edges; where it is left out the weights that a
            matrix or graph brings along, or N(0, 0.01²).
        field: b, a number or one for each site.
        sites: their number; by default as many as the edges name.
        spin: ±1 units instead of {0, 1}.
        trainable: make coupling and field parameters, one of each per entry given; otherwise they are buffers.
        generator: for the initial weights; a fixed seed where it is left out.

    Attributes:
        coupling: `(m,)`, or one number for all.
        field: `(sites,)`, or one number for all.

    >>> ring = BoltzmannGraph([[0, 1], [1, 2], [2, 0]], coupling=1.0, spin=True)
    >>> ring(torch.ones(1, 3)), ring.colors
    (tensor([-3.]), 3)
    """

    coupling: Tensor
    field: Tensor
    edges: Tensor

    def __init__(
        self,
        edges: object,
        coupling: float | Tensor | None = None,
        field: float | Tensor = 0.0,
        *,
        sites: int | None = None,
        spin: bool = False,
        trainable: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        pairs, n, weights = read_edges(edges, sites)
        super().__init__(Spin(n) if spin else Binary(n))
        self.sites, self.spin = n, bool(spin)
        self.register_buffer("edges", pairs, persistent=False)
        if coupling is None:
            coupling = small_weights(len(pairs), generator=generator) if weights is None else weights
        self.hold(
            trainable,
            coupling=checked(self, "coupling", coupling, {(), (len(pairs),)}),
            field=checked(self, "field", field, {(), (n,)}),
        )
        color = coloring(pairs.T, n)
        self.colors = int(color.max()) + 1
        self.structure = SparseMatrix(pairs, color)

    def weights(self) -> Tensor:
        """w of every edge."""
        return self.coupling.expand(len(self.edges))

    def fields(self) -> Tensor:
        """b of every site."""
        return self.field.expand(self.sites)

    # --- energies and conditionals ------------------------------------------------------------------

    def _pull(self, x: Tensor) -> Tensor:
        return self.structure.product(x, self.weights())

    @explained
    def free_energy(self, x: Tensor, beta: Tensor | None = None) -> Tensor:
        """βE(x); β a number or one per row."""
        energy = -((self._pull(x) / 2 + self.field) * x).sum(1)
        return energy if beta is None else beta * energy

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """E(x) and -∇E(x) = u, from one product."""
        with torch.no_grad():
            pull = self._pull(x)
            return -((pull / 2 + self.field) * x).sum(1), pull + self.field

    @explained
    def conditional_fields(self, x: Tensor) -> Tensor:
        """u, at every site."""
        return self._pull(x) + self.field

    def field_gradients(self, x: Tensor, weight: Tensor) -> dict[Tensor, Tensor]:
        """Of Σ weight·u: Σ weight in b, Σ (weightᵢxⱼ + weightⱼxᵢ) in w."""
        found = {}
        if self.coupling.requires_grad:
            pairs = self.structure.sampled(x, weight)
            found[self.coupling] = pairs if self.coupling.dim() else pairs.sum()
        if self.field.requires_grad:
            found[self.field] = weight.sum(0) if self.field.dim() else weight.sum()
        return found

    def site_logits(self, x: Tensor, site: int | Tensor) -> Tensor:
        """log p(xᵢ = 1 | rest) - log p(xᵢ = other | rest) at one site, or at one site per row: `(batch,)`."""
        if isinstance(site, int):
            near, edge = self.structure.row(site)
            field = x[:, near] @ self.weights()[edge] + self.fields()[site]
        else:
            field = self.conditional_fields(x).gather(1, site[:, None]).squeeze(1)
        return 2 * field if self.spin else field

    # --- sampling -----------------------------------------------------------------------------------

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """One uniform a site and row: `(steps, sites, rows)`, sites in the order of the colors."""
        require_generator(generator, x.device)
        u = uniforms(steps, x.numel(), generator, dtype=x.dtype, device=x.device)
        return (u.reshape(steps, self.sites, len(x)),)

    def gibbs_sweep(
        self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None, beta: Tensor | None = None
    ) -> Tensor:
        """Every color in turn: sites of one color are no neighbors, so they are drawn together."""
        (u,) = noise
        low = -1.0 if self.spin else 0.0
        with torch.no_grad():
            columns = x.T.clone(memory_format=torch.contiguous_format)  # a site a row
            held = None if clamp is None else clamp.expand(x.shape).T
            scale = (1 - low) * (1.0 if beta is None else beta)
            fields = self.fields()[:, None]
            for (first, last, *_), (sites, rows) in zip(
                self.structure.blocks, self.structure.block_matrices(self.weights()), strict=True
            ):
                p = torch.sigmoid(scale * (rows @ columns + fields[sites]))
                new = (u[first:last] < p).to(x.dtype).mul_(1 - low).add_(low)
                if held is not None:
                    new = torch.where(held[sites], columns[sites], new)
                columns.index_copy_(0, sites, new)
            return columns.T.contiguous()

    def path(self, base_bias: Tensor | None = None, *, data: Tensor | None = None) -> Path:
        """The annealing path from independent units, of this bias or fitted to data."""
        base = independent_units(self.domain, base_bias, data, self.coupling.detach())
        return path_on_edges(self, base, self.weights(), self.fields())

    def initialize_visible_bias(self, data: Tensor) -> None:
        """Set the fields to what independent units with the means of the data have."""
        if not self.field.dim():
            raise ArgumentError(
                "one field for all sites cannot take the means of the data; give field=torch.zeros(sites)"
            )
        with torch.no_grad():
            self.field.copy_(base_bias(self.domain, data.to(self.field)))

    def pairwise(self) -> Pairwise:
        """The sites as {0, 1} units."""
        with torch.no_grad():
            low = torch.full_like(self.fields(), -1.0 if self.spin else 0.0)
            return from_edges(self.edges[:, 0], self.edges[:, 1], self.weights(), self.fields(), low)

    def cluster_bonds(self) -> Bonds:
        """Neighbors that like to be equal."""
        with torch.no_grad():
            return two_valued_bonds(self.edges.T, self.weights(), self.fields(), -1.0 if self.spin else 0.0)

    def extra_repr(self) -> str:
        return f"{self.sites} sites, {len(self.edges)} edges, {self.colors} colors, spin={self.spin}"


def path_on_edges(machine: Machine, base: Factorized, coupling: Tensor, field: Tensor) -> PairwisePath:
    """The annealing path of a machine on a graph, moved along by a copy whose coupling and field are tensors of their own."""
    moved = copy.deepcopy(machine)
    for name, value in (("coupling", coupling), ("field", field)):
        delattr(moved, name)  # a parameter or a buffer, perhaps one number for all
        moved.register_buffer(name, value.detach().clone())
    return PairwisePath(machine, base, moved, moved.coupling, moved.field)  # type: ignore[arg-type]


def checked(machine: object, name: str, value: float | Tensor, shapes: set[tuple[int, ...]]) -> Tensor:
    """A parameter as a tensor of its own, finite and of one of these shapes."""
    numbers: Tensor = as_numbers(machine, name, value, torch.get_default_dtype())
    if tuple(numbers.shape) not in shapes:
        wanted = " or ".join("a number" if not shape else str(shape) for shape in sorted(shapes))
        raise ShapeError(f"{name} has shape {tuple(numbers.shape)}, expected {wanted}")
    if not bool(torch.isfinite(numbers).all()):
        raise ArgumentError(f"{name} is not finite: couplings and fields must be")
    return numbers.clone()
