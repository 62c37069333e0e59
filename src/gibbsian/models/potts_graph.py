"""Potts machines over a sparse graph: memory and time in the number of edges, sweeps a color at a time.

E(x) = -Σᵢ hᵢ(xᵢ) - Σ_{edges (i, j)} Jᵢⱼ(xᵢ, xⱼ)
"""

from typing import Self

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Bonds, PairwiseTables, Path
from gibbsian.domains import Categorical
from gibbsian.energies.bases import base_bias, independent_units
from gibbsian.errors import ArgumentError, CapabilityError, check_count
from gibbsian.fast.sparse import SparseMatrix
from gibbsian.graphs import coloring, read_edges
from gibbsian.models.annealing import Machine, small_weights
from gibbsian.models.graph import checked, path_on_edges
from gibbsian.models.pairwise import from_tables
from gibbsian.placement import explained
from gibbsian.random import require_generator, uniforms
from gibbsian.units import pick


class PottsGraph(Machine):
    """A Potts machine over the edges of a graph; made by `Potts.on_graph`.

        E(x) = -Σᵢ hᵢ(xᵢ) - Σ_{edges (i, j)} Jᵢⱼ(xᵢ, xⱼ),   gᵢ(a) = hᵢ(a) + Σⱼ Jᵢⱼ(a, xⱼ)

    Couplings are tables, or numbers K: then Jᵢⱼ(a, b) = K·1[a = b], the Potts model of physics, for which a product costs a
    share 1/states of that with tables.

    Args:
        edges: pairs of sites `(m, 2)`.
        states: values of each site.
        coupling: a number for all edges, one each `(m,)`, or tables `(m, states, states)` with the value of the first site of
            the pair first; where it is left out tables from N(0, 0.01²).
        field: h, a number or `(sites, states)`.
        sites: their number; by default as many as the edges name.
        trainable: make coupling and field parameters, one of each per entry given; otherwise they are buffers.
        generator: for the initial couplings; a fixed seed where it is left out.

    >>> square = PottsGraph([[0, 1], [1, 2], [2, 3], [3, 0]], states=3, coupling=1.0)
    >>> x = square.domain.one_hot(torch.tensor([[0, 0, 0, 0], [0, 0, 1, 2]]))
    >>> square(x)
    tensor([-4., -1.])
    """

    coupling: Tensor
    field: Tensor
    edges: Tensor

    def __init__(
        self,
        edges: object,
        states: int,
        coupling: float | Tensor | None = None,
        field: float | Tensor = 0.0,
        *,
        sites: int | None = None,
        trainable: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        check_count(self, "states", states, 2)
        pairs, n, _ = read_edges(edges, sites)
        super().__init__(Categorical(n, states))
        self.sites, self.states, m = n, states, len(pairs)
        self.register_buffer("edges", pairs, persistent=False)
        if coupling is None:
            coupling = small_weights(m, states, states, generator=generator)
        self.hold(
            trainable,
            coupling=checked(self, "coupling", coupling, {(), (m,), (m, states, states)}),
            field=checked(self, "field", field, {(), (n, states)}),
        )
        color = coloring(pairs.T, n)
        self.colors = int(color.max()) + 1
        if self.coupling.dim() == 3:  # an entry of a table joins a state of one site with a state of another
            k = torch.arange(states)
            first = (pairs[:, 0, None, None] * states + k[:, None]).expand(m, states, states)
            second = (pairs[:, 1, None, None] * states + k).expand(m, states, states)
            pairs = torch.stack([first.flatten(), second.flatten()], 1)
            color = color.repeat_interleave(states)
        self.structure = SparseMatrix(pairs, color)

    def tables(self) -> Tensor:
        """J of every edge, `(m, states, states)`."""
        if self.coupling.dim() == 3:
            return self.coupling
        same = torch.eye(self.states, dtype=self.coupling.dtype, device=self.coupling.device)
        return self.coupling.expand(len(self.edges))[:, None, None] * same

    def fields(self) -> Tensor:
        """h of every site."""
        return self.field.expand(self.sites, self.states)

    # --- energies and conditionals ------------------------------------------------------------------

    def _weights(self) -> Tensor:
        """One number for every edge of the structure."""
        return self.coupling.flatten() if self.coupling.dim() == 3 else self.coupling.expand(len(self.edges))

    def _flat(self, x: Tensor) -> Tensor:
        """Events as rows of the structure: sites and states with tables, else a row of sites for every state."""
        return x.flatten(1) if self.coupling.dim() == 3 else x.transpose(1, 2).reshape(-1, self.sites)

    def _pull(self, x: Tensor) -> Tensor:
        """Σⱼ Jᵢⱼ(a, xⱼ), `(batch, sites, states)`."""
        out = self.structure.product(self._flat(x), self._weights())
        if self.coupling.dim() == 3:
            return out.reshape(x.shape)
        return out.reshape(len(x), self.states, self.sites).transpose(1, 2)

    @explained
    def free_energy(self, x: Tensor, beta: Tensor | None = None) -> Tensor:
        """βE(x); β a number or one per row."""
        energy = -(x * (self.field + self._pull(x) / 2)).flatten(1).sum(1)
        return energy if beta is None else beta * energy

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """E(x) and -∇E(x) = g, from one product."""
        with torch.no_grad():
            pull = self._pull(x)
            return -(x * (self.field + pull / 2)).flatten(1).sum(1), self.field + pull

    @explained
    def conditional_fields(self, x: Tensor) -> Tensor:
        """g, of which the softmax over states is p(xᵢ | rest)."""
        return self.field + self._pull(x)

    def field_gradients(self, x: Tensor, weight: Tensor) -> dict[Tensor, Tensor]:
        """Of Σ weight·g: Σ weight in h, Σ (weightᵢ(a)xⱼ(b) + xᵢ(a)weightⱼ(b)) in J."""
        found = {}
        if self.coupling.requires_grad:
            pairs = self.structure.sampled(self._flat(x), self._flat(weight))
            found[self.coupling] = pairs.reshape(self.coupling.shape) if self.coupling.dim() else pairs.sum()
        if self.field.requires_grad:
            found[self.field] = weight.sum(0) if self.field.dim() else weight.sum()
        return found

    def site_logits(self, x: Tensor, site: int | Tensor) -> Tensor:
        """gᵢ, `(chains, states)`, at one site, or at one per row."""
        if not isinstance(site, int):
            return self.conditional_fields(x)[torch.arange(len(x), device=x.device), site]
        own = self.fields()[site]
        if self.coupling.dim() < 3:
            near, edge = self.structure.row(site)
            return own + torch.einsum("nsa,s->na", x[:, near], self._weights()[edge])
        flat, weights, out = x.flatten(1), self._weights(), []
        for state in range(self.states):
            near, edge = self.structure.row(site * self.states + state)
            out.append(flat[:, near] @ weights[edge])
        return own + torch.stack(out, 1)

    # --- sampling -----------------------------------------------------------------------------------

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """One uniform a site and row: `(steps, sites, rows)`, sites in the order of the colors."""
        require_generator(generator, x.device)
        u = uniforms(steps, len(x) * self.sites, generator, dtype=x.dtype, device=x.device)
        return (u.reshape(steps, self.sites, len(x)),)

    def gibbs_sweep(
        self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None, beta: Tensor | None = None
    ) -> Tensor:
        """Every color in turn; a site of which any state is clamped keeps its value."""
        (u,) = noise
        tables, q = self.coupling.dim() == 3, self.states
        per_site = q if tables else 1  # rows of the structure
        with torch.no_grad():
            turn = (lambda t: t.transpose(1, 2)) if tables else (lambda t: t)  # (sites, states, rows), or states last
            cells = turn(x.transpose(0, 1)).clone(memory_format=torch.contiguous_format)
            rows = cells.view(self.sites * per_site, -1)
            held = None if clamp is None else clamp.expand(x.shape).any(-1).T
            scale = 1.0 if beta is None else beta.reshape(-1, 1)
            fields, values = self.fields()[:, None], torch.eye(q, dtype=x.dtype, device=x.device)
            blocks = zip(self.structure.blocks, self.structure.block_matrices(self._weights()), strict=True)
            for (first, last, *_), (nodes, matrix) in blocks:
                sites = nodes[::per_site] // per_site
                pull = turn((matrix @ rows).reshape(len(sites), *cells.shape[1:]))
                p = torch.softmax(scale * (fields[sites] + pull), 2)
                new = values[pick(p, u[first // per_site : last // per_site])]
                if held is not None:
                    new = torch.where(held[sites, :, None], turn(cells[sites]), new)
                cells.index_copy_(0, sites, turn(new))
            return turn(cells).transpose(0, 1).contiguous()

    def path(self, bias: Tensor | None = None, *, data: Tensor | None = None) -> Path:
        """The annealing path from independent sites: of this bias, or with the frequencies of the data (the profile)."""
        base = independent_units(self.domain, bias, data, self.coupling.detach())
        coupling = self.coupling if self.coupling.dim() else self._weights()
        return path_on_edges(self, base, coupling, self.fields())

    def pairwise_tables(self) -> PairwiseTables:
        """The edges, with the smaller site first."""
        with torch.no_grad():
            i, j = self.edges.T
            table = torch.where((i < j)[:, None, None], self.tables(), self.tables().mT)
            return from_tables(torch.minimum(i, j), torch.maximum(i, j), table, self.fields())

    def cluster_bonds(self) -> Bonds:
        """Neighbors that like to be equal; tables say more than that."""
        if self.coupling.dim() == 3:
            raise CapabilityError(
                "pairs of this PottsGraph have tables of couplings, so more counts than whether they are equal; clusters "
                "need one number an edge, coupling=K; use kernels.Gibbs"
            )
        with torch.no_grad():
            field = self.fields() if bool((self.field != 0).any()) else None
            return Bonds(self.edges.T, self._weights(), field)

    def initialize_visible_bias(self, data: Tensor) -> None:
        """Set the fields to the log-frequencies of the data: the profile, right where nothing is coupled."""
        if not self.field.dim():
            raise ArgumentError(
                "one field for all sites cannot take the profile of the data; give field=torch.zeros(sites, states)"
            )
        with torch.no_grad():
            self.field.copy_(base_bias(self.domain, data.to(self.field)))

    # --- gauges -------------------------------------------------------------------------------------

    def zero_sum(self) -> Self:
        """The same law, with tables, where Σₐ Jᵢⱼ(a, b) = 0 and Σₐ hᵢ(a) = 0 (see `Potts.zero_sum`)."""
        return self._gauged(torch.full((self.states,), 1 / self.states))

    def lattice_gas(self, reference: int = 0) -> Self:
        """The same law, with tables, where J and h are zero wherever a site is in the reference state."""
        if not 0 <= reference < self.states:
            raise ArgumentError(f"reference={reference}: expected a state from 0 to {self.states - 1}")
        return self._gauged(nn.functional.one_hot(torch.tensor(reference), self.states))

    def _gauged(self, weight: Tensor) -> Self:
        with torch.no_grad():
            j, h = self.tables(), self.fields()
            w = weight.to(h)
            first, second = j @ w, w @ j  # Jᵢⱼ(a, ·) and Jᵢⱼ(·, b)
            both = (first @ w)[:, None]
            i, k = self.edges.T
            h = (h - (h @ w)[:, None]).index_add(0, i, first - both).index_add(0, k, second - both)
            j = j - first[:, :, None] - second[:, None] + both[:, None]
        trainable = isinstance(self.coupling, nn.Parameter)
        return type(self)(self.edges.cpu(), self.states, j, h, sites=self.sites, trainable=trainable).to(h)

    def extra_repr(self) -> str:
        return f"{self.sites} sites, {len(self.edges)} edges, states={self.states}, {self.colors} colors"
