"""Potts machines: units of several values each, coupled in pairs; what physicists and biologists train.

E(x) = -Σᵢ hᵢ(xᵢ) - Σ_{i<j} Jᵢⱼ(xᵢ, xⱼ)
"""

import copy
from typing import Self

import torch
from torch import Tensor, nn

from gibbsian.capabilities import PairwiseTables, Path
from gibbsian.domains import Categorical
from gibbsian.energies.bases import base_bias, independent_units
from gibbsian.errors import ArgumentError, ShapeError, check_count
from gibbsian.graphs import read_edges
from gibbsian.models.annealing import Machine, PairwisePath, small_weights
from gibbsian.models.pairwise import from_tables
from gibbsian.models.potts_graph import PottsGraph
from gibbsian.random import require_generator, uniforms
from gibbsian.units import pick


class Potts(Machine):
    """Potts machine over one-hot units:

        E(x) = -Σᵢ hᵢ(xᵢ) - Σ_{i<j} Jᵢⱼ(xᵢ, xⱼ),   p(xᵢ = a | rest) ∝ exp gᵢ(a),   gᵢ(a) = hᵢ(a) + Σⱼ Jᵢⱼ(a, xⱼ)

    All conditionals come from one product, so pseudo-likelihood, Gibbs sweeps and gradient-informed moves cost what a
    matrix product costs. Adding a function of xᵢ to Jᵢⱼ and taking it from hᵢ changes nothing: such machines are one law
    in several *gauges*. `zero_sum()` and `lattice_gas()` are the same law in the two usual ones; compare couplings,
    and read contacts off them, in the zero-sum gauge.

    `coupling` is used through its symmetric part, Jⱼᵢ(b, a) = Jᵢⱼ(a, b), without the blocks of a site with itself, so
    gradients are symmetric and training keeps it so; set it with `set_parameters`, which refuses anything else.

    Reference: Potts 1952; Weigt et al. 2009 and Ekeberg et al. 2013 for families of sequences.

    Args:
        sites: number of units.
        states: values of each.
        generator: for the initial couplings, N(0, 0.01²); a fixed seed where it is left out.

    Attributes:
        field: h, `(sites, states)`.
        coupling: J, `(sites, states, sites, states)`.

    >>> potts = Potts(3, states=4)
    >>> x = potts.domain.one_hot(torch.tensor([[0, 3, 1], [2, 2, 2]]))
    >>> potts(x).shape, potts.conditional_fields(x).shape
    (torch.Size([2]), torch.Size([2, 3, 4]))
    """

    between: Tensor

    def __init__(self, sites: int, states: int, *, generator: torch.Generator | None = None) -> None:
        check_count(self, "sites", sites)
        check_count(self, "states", states, 2)
        super().__init__(Categorical(sites, states))
        self.sites, self.states = sites, states
        between = (1 - torch.eye(sites))[:, None, :, None]  # no site acts on itself
        weight = small_weights(sites, states, sites, states, generator=generator)
        self.register_buffer("between", between, persistent=False)
        self.coupling = nn.Parameter((weight + weight.permute(2, 3, 0, 1)).mul_(between / 2))
        self.field = nn.Parameter(weight.new_zeros(sites, states))

    @classmethod
    def on_graph(
        cls,
        edges: object,
        states: int,
        *,
        coupling: float | Tensor | None = None,
        field: float | Tensor = 0.0,
        sites: int | None = None,
        trainable: bool = True,
        generator: torch.Generator | None = None,
    ) -> PottsGraph:
        """A Potts machine with couplings only on the edges of a graph, in memory and time of the edges.

        Args:
            edges: pairs of sites `(m, 2)`, a symmetric scipy sparse matrix, or a networkx graph; every pair once.
            states: values of each site.
            coupling: tables `(m, states, states)`, or K for Jᵢⱼ(a, b) = K·1[a = b], a number or one for each edge; where it is left
                out the weights K that come with a matrix or graph, or tables from N(0, 0.01²).
            field: a number or `(sites, states)`.
            sites: their number; by default as many as the edges name.
            trainable: make both parameters, one of each per entry given.
            generator: for the initial couplings; a fixed seed where it is left out.

        >>> Potts.on_graph([[0, 1], [1, 2]], states=3).coupling.shape
        torch.Size([2, 3, 3])
        """
        pairs, n, weights = read_edges(edges, sites)
        coupling = weights if coupling is None else coupling
        if trainable:
            field = torch.as_tensor(field, dtype=torch.get_default_dtype())
            field = field if field.dim() else field.repeat(n, states)
        return PottsGraph(pairs, states, coupling, field, sites=n, trainable=trainable, generator=generator)

    def set_parameters(self, *, field: Tensor | None = None, coupling: Tensor | None = None) -> None:
        """Copy in fields, and couplings that are symmetric and have no block of a site with itself."""
        if field is not None and field.shape != self.field.shape:
            raise ShapeError(f"field has shape {tuple(field.shape)}, expected {tuple(self.field.shape)}: site, state")
        if coupling is not None:
            if coupling.shape != self.coupling.shape:
                raise ShapeError(
                    f"coupling has shape {tuple(coupling.shape)}, expected {tuple(self.coupling.shape)}: site, state, "
                    "site, state"
                )
            self._check(coupling)
        with torch.no_grad():
            if field is not None:
                self.field.copy_(field)
            if coupling is not None:
                self.coupling.copy_(coupling)

    def _check(self, coupling: Tensor) -> None:
        different = coupling != coupling.permute(2, 3, 0, 1)
        if bool(different.any()):
            i, a, j, b = different.nonzero()[0].tolist()
            raise ArgumentError(
                f"coupling is not symmetric: coupling[{i}, {a}, {j}, {b}] = {float(coupling[i, a, j, b]):g} but "
                f"coupling[{j}, {b}, {i}, {a}] = {float(coupling[j, b, i, a]):g}; a pair of sites has one coupling: pass "
                "(J + J.permute(2, 3, 0, 1)) / 2"
            )
        own = coupling.diagonal(dim1=0, dim2=2).abs().amax((0, 1))
        if bool((own > 0).any()):
            i = int(own.argmax())
            raise ArgumentError(f"coupling[{i}, :, {i}] is not 0: no site acts on itself; put it into the field")

    def symmetric(self) -> Tensor:
        """The part of `coupling` that counts: equal to it, with the right gradient."""
        return self._symmetric(self.coupling)

    def _symmetric(self, j: Tensor) -> Tensor:
        return (j + j.permute(2, 3, 0, 1)).mul_(self.between / 2)

    def _twice(self, j: Tensor) -> Tensor:
        """J + Jᵀ without the blocks of a site with itself, `(n, n)`, outside of autograd."""
        n = self.sites * self.states
        flat = j.reshape(n, n)
        out = torch.add(flat, flat.T)
        out.view(self.coupling.shape).diagonal(dim1=0, dim2=2).zero_()
        return out

    # --- energies and conditionals ------------------------------------------------------------------

    def _pull(self, x: Tensor) -> Tensor:
        """Σⱼ Jᵢⱼ(a, xⱼ), `(batch, sites, states)`."""
        n = self.sites * self.states
        return (x.flatten(1) @ self.symmetric().reshape(n, n)).reshape(x.shape)

    def free_energy(self, x: Tensor, beta: Tensor | None = None) -> Tensor:
        """βE(x); β a number or one per row."""
        energy = -(x * (self.field + self._pull(x) / 2)).flatten(1).sum(1)
        return energy if beta is None else beta * energy

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """E(x) and -∇E(x) = g, from one product."""
        with torch.no_grad():
            pull = self._pull(x)
            return -(x * (self.field + pull / 2)).flatten(1).sum(1), self.field + pull

    def conditional_fields(self, x: Tensor) -> Tensor:
        """gᵢ(a) = hᵢ(a) + Σⱼ Jᵢⱼ(a, xⱼ), of which the softmax over a is p(xᵢ | rest)."""
        if torch.is_grad_enabled():
            return self.field + self._pull(x)
        return torch.addmm(self.field.flatten(), x.flatten(1), self._twice(self.coupling), alpha=0.5).reshape(x.shape)

    def field_gradients(self, x: Tensor, weight: Tensor) -> dict[Tensor, Tensor]:
        """Of Σ weight·g: Σ weight in h, and the symmetric part of weightᵀx in J."""
        n = self.sites * self.states
        flat = self.coupling.detach().reshape(n, n)
        half = torch.addmm(flat, weight.flatten(1).T, x.flatten(1), beta=0, alpha=0.5)  # beta = 0 leaves out the first
        return {self.field: weight.sum(0), self.coupling: self._twice(half).reshape(self.coupling.shape)}

    def site_logits(self, x: Tensor, site: int | Tensor) -> Tensor:
        """gᵢ, `(chains, states)`, at one site, or at one per row."""
        if not isinstance(site, int):
            return self.conditional_fields(x)[torch.arange(len(x), device=x.device), site]
        j = self.coupling
        weight = self.between[:, :, site] * (j[:, :, site] + j[site].permute(1, 2, 0)) / 2
        return self.field[site] + torch.tensordot(x, weight, 2)

    # --- sampling ----------------------------------------------------------------------------------

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """One uniform a site."""
        require_generator(generator, x.device)
        u = uniforms(steps, len(x) * self.sites, generator, dtype=x.dtype, device=x.device)
        return (u.reshape(steps, len(x), self.sites),)

    def gibbs_sweep(
        self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None, beta: Tensor | None = None
    ) -> Tensor:
        """The sites one after the other; a site of which any state is clamped keeps its value.

        A site looks up the rows of J that the others point to and adds them: sites·states numbers a site and chain, where
        a product with one-hot rows would multiply sites·states² of them, nearly all by 0.
        """
        (u,) = noise
        with torch.no_grad():
            table = self.symmetric().permute(2, 0, 1, 3).reshape(self.sites, -1, self.states)
            first = torch.arange(0, self.sites * self.states, self.states, device=x.device)
            rows = x.argmax(-1) + first
            scale = 1.0 if beta is None else beta.reshape(-1, 1)
            held = None if clamp is None else clamp.expand(x.shape).any(-1)
            for i in range(self.sites):
                pull = nn.functional.embedding_bag(rows, table[i], mode="sum")
                g = scale * (self.field[i] + pull)
                new = first[i] + pick((g - g.amax(1, keepdim=True)).exp_(), u[:, i])  # softmax over few states is slow
                rows[:, i] = new if held is None else torch.where(held[:, i], rows[:, i], new)
            return torch.zeros_like(x).scatter_(2, (rows - first)[..., None], 1.0)

    def path(self, bias: Tensor | None = None, *, data: Tensor | None = None) -> Path:
        """The annealing path from independent sites: of this bias, or with the frequencies of the data (the profile)."""
        base = independent_units(self.domain, bias, data, self.field.detach())
        moved = copy.deepcopy(self)
        with torch.no_grad():
            moved.coupling.copy_(self.symmetric())
        return PottsPath(self, base, moved, moved.coupling, moved.field)

    def pairwise_tables(self) -> PairwiseTables:
        """All pairs of sites."""
        with torch.no_grad():
            i, j = torch.triu_indices(self.sites, self.sites, 1, device=self.field.device)
            return from_tables(i, j, self.symmetric()[i, :, j], self.field)

    def initialize_visible_bias(self, data: Tensor) -> None:
        """Set the fields to the log-frequencies of the data: the profile, right where nothing is coupled."""
        with torch.no_grad():
            self.field.copy_(base_bias(self.domain, data.to(self.field)))

    # --- gauges ------------------------------------------------------------------------------------

    def zero_sum(self) -> Self:
        """The same law with Σₐ Jᵢⱼ(a, b) = 0 and Σₐ hᵢ(a) = 0: couplings as small as they can be (Frobenius).

        J' = J - J(·, b) - J(a, ·) + J(·, ·),   h' = h - h(·) + Σⱼ [Jᵢⱼ(a, ·) - Jᵢⱼ(·, ·)],   (·) the mean over states
        """
        return self._gauged(torch.full((self.states,), 1 / self.states))

    def lattice_gas(self, reference: int = 0) -> Self:
        """The same law with J and h zero wherever a site is in the reference state, such as a gap."""
        if not 0 <= reference < self.states:
            raise ArgumentError(f"reference={reference}: expected a state from 0 to {self.states - 1}")
        return self._gauged(nn.functional.one_hot(torch.tensor(reference), self.states))

    def _gauged(self, weight: Tensor) -> Self:
        """A copy in which the average over states with these weights is 0, for every site and pair."""
        out = copy.deepcopy(self)
        with torch.no_grad():
            field, coupling = gauged(self.field, self.symmetric(), weight)
            out.field.copy_(field)
            out.coupling.copy_(self._symmetric(coupling))
        return out

    def extra_repr(self) -> str:
        return f"{self.sites}, states={self.states}"


class PottsPath(PairwisePath):
    """Sweeps of Potts machines never wait for the device: a GPU takes many in one launch."""

    on_device = True


def gauged(h: Tensor, j: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The same conditionals gᵢ(a) = hᵢ(a) + Σⱼ Jᵢⱼ(a, xⱼ), up to a constant, from fields and couplings whose averages over
    states with these weights are 0; J need not be symmetric."""
    w, (sites, q) = weight.to(h), h.shape
    first = (j.reshape(-1, q) @ w).reshape(sites, q, sites)  # Jᵢⱼ(a, ·)
    second = (w @ j.reshape(sites, q, -1)).reshape(sites, 1, sites, q)  # Jᵢⱼ(·, b)
    rest = first - (w @ first)[:, None]  # Jᵢⱼ(a, ·) - Jᵢⱼ(·, ·)
    return h - (h @ w)[:, None] + rest.sum(2), (j - second).sub_(rest[..., None])
