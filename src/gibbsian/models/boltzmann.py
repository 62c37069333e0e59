"""General Boltzmann machines over {0, 1} or ±1 units, with and without hidden units."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Contrast, Filters, Pairwise, Path
from gibbsian.domains import Binary, Discrete, Spin
from gibbsian.energies.bases import Factorized, base_bias, independent_units
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, ShapeError, check_count
from gibbsian.graphs import read_edges
from gibbsian.models.annealing import Machine, PairwisePath, small_weights
from gibbsian.models.boltzmann_native import native_neighbors, serves
from gibbsian.models.graph import BoltzmannGraph
from gibbsian.models.pairwise import from_edges
from gibbsian.placement import explained
from gibbsian.random import require_generator, uniforms
from gibbsian.units import pick

_MOST_HIDDEN = 16  # hidden states are enumerated: 65536 of them


class BoltzmannMachine(Machine):
    """Boltzmann machine: E = -½ xᵀWx - b·x, p(xᵢ = 1 | rest) = σ(Σⱼ wᵢⱼxⱼ + bᵢ) for {0, 1}, σ(2(·)) for ±1 units.

    With hidden units the energy is the free energy of the visible ones,

        F(v) = -log Σ_h exp(½vᵀRv + vᵀWh + ½hᵀSh + b·v + c·h),

    by enumeration of at most 16 hidden units; R, W and S are blocks of one symmetric matrix, visible units
    first. Beyond that use `complete()`, the machine over all units, with the visible part clamped. For many hidden
    units that are not connected among themselves use an RBM.

    `weight` is a full matrix. Everything here uses its symmetric part without diagonal, `coupling()`: gradients are symmetric with
    zero diagonal, so training keeps it exactly so, and any matrix that is assigned or loaded has one law. `set_parameters` refuses
    what is not symmetric.

    Reference: Ackley, Hinton & Sejnowski 1985.

    Args:
        n: number of visible units.
        spin: ±1 units instead of {0, 1}.
        hidden: number of hidden units.
        generator: for the initial weights, N(0, 0.01²); a fixed seed where it is left out.

    >>> machine = BoltzmannMachine(2, spin=True)
    >>> machine.set_parameters(weight=torch.tensor([[0.0, 1.0], [1.0, 0.0]]), bias=torch.zeros(2))
    >>> machine(torch.tensor([[1.0, 1.0], [1.0, -1.0]])).detach()
    tensor([-1.,  1.])
    """

    def __init__(
        self, n: int, spin: bool = False, hidden: int = 0, *, generator: torch.Generator | None = None
    ) -> None:
        check_count(self, "n", n)
        check_count(self, "hidden", hidden, 0)
        super().__init__(Spin(n) if spin else Binary(n))
        self.n, self.spin, self.hidden = n, bool(spin), hidden
        upper = small_weights(n + hidden, n + hidden, generator=generator).triu(1)
        self.weight = nn.Parameter(upper + upper.T)
        self.bias = nn.Parameter(upper.new_zeros(n + hidden))

    @classmethod
    def on_graph(
        cls,
        edges: object,
        *,
        coupling: float | Tensor | None = None,
        field: float | Tensor = 0.0,
        sites: int | None = None,
        spin: bool = False,
        trainable: bool = True,
        generator: torch.Generator | None = None,
    ) -> BoltzmannGraph:
        """A machine with weights only on the edges of a graph, in memory and time of the edges.

        Args:
            edges: pairs of sites `(m, 2)`, a symmetric scipy sparse matrix, or a networkx graph; every pair once.
            coupling: a number, or one for each edge; where it is left out the weights that come with a matrix or graph, or
                N(0, 0.01²).
            field: the bias, a number or one for each site.
            sites: their number; by default as many as the edges name.
            spin: ±1 units instead of {0, 1}.
            trainable: make both parameters, one for every edge and site.
            generator: for the initial weights; a fixed seed where it is left out.

        >>> path = BoltzmannMachine.on_graph([[0, 1], [1, 2]], coupling=1.0)
        >>> path(torch.ones(1, 3)).detach()
        tensor([-2.])
        """
        pairs, n, weights = read_edges(edges, sites)
        coupling = weights if coupling is None else coupling
        if trainable and coupling is not None:
            coupling = torch.as_tensor(coupling, dtype=torch.get_default_dtype())
            coupling = coupling if coupling.dim() else coupling.repeat(len(pairs))
        if trainable:
            field = torch.as_tensor(field, dtype=torch.get_default_dtype())
            field = field if field.dim() else field.repeat(n)
        return BoltzmannGraph(pairs, coupling, field, sites=n, spin=spin, trainable=trainable, generator=generator)

    def set_parameters(self, *, weight: Tensor | None = None, bias: Tensor | None = None) -> None:
        """Copy in weights, symmetric with zero diagonal over all units, and biases."""
        units = self.n + self.hidden
        if weight is not None:
            if tuple(weight.shape) != (units, units):
                raise ShapeError(
                    f"weight has shape {tuple(weight.shape)}, expected {(units, units)}: all units, visible first"
                )
            if not torch.equal(weight, weight.T):
                i, j = (weight != weight.T).nonzero()[0].tolist()
                raise ArgumentError(
                    f"weight is not symmetric: weight[{i}, {j}] = {float(weight[i, j]):g} but weight[{j}, {i}] = "
                    f"{float(weight[j, i]):g}; a Boltzmann machine has one weight per pair; pass (W + W.T) / 2"
                )
            if bool((weight.diagonal() != 0).any()):
                i = int(weight.diagonal().nonzero()[0])
                raise ArgumentError(
                    f"weight has a diagonal: weight[{i}, {i}] = {float(weight[i, i]):g}; no unit acts on itself, "
                    "put constants into the bias and pass weight.fill_diagonal_(0)"
                )
        if bias is not None and tuple(bias.shape) != (units,):
            raise ShapeError(f"bias has shape {tuple(bias.shape)}, expected ({units},)")
        with torch.no_grad():
            if weight is not None:
                self.weight.copy_(weight)
            if bias is not None:
                self.bias.copy_(bias)

    def coupling(self) -> Tensor:
        """The symmetric part of `weight` without its diagonal: equal to `weight`, with the right gradient."""
        if not torch.is_grad_enabled():  # the same numbers in fewer steps
            return torch.add(self.weight, self.weight.T).div_(2).fill_diagonal_(0)
        upper = ((self.weight + self.weight.T) / 2).triu(1)
        return upper + upper.T

    # --- energies -----------------------------------------------------------------------------------

    def joint(self, v: Tensor, h: Tensor) -> Tensor:
        """E(v, h), `(batch,)`."""
        z = torch.cat([v, h], 1)
        return -((0.5 * (z @ self.coupling()) + self.bias) * z).sum(1)

    @explained
    def free_energy(self, x: Tensor, beta: Tensor | None = None) -> Tensor:
        """The energy of the visible units of the machine with joint energy βE; β a number or one per row."""
        weight, bias = self.coupling(), self.bias
        own = -((0.5 * (x @ weight[: self.n, : self.n]) + bias[: self.n]) * x).sum(1)
        if beta is not None:
            own = beta * own
        if not self.hidden:
            return own
        return own - torch.logsumexp(self._hidden_logits(x, weight, beta), 1)

    @property
    def hidden_domain(self) -> Discrete:
        """Where the hidden units live."""
        return Spin(self.hidden) if self.spin else Binary(self.hidden)

    def sums_exactly(self) -> bool:
        """Whether the hidden units are few enough for `forward`."""
        return self.hidden <= _MOST_HIDDEN

    def _hidden_states(self, like: Tensor) -> Tensor:
        if not self.sums_exactly():
            raise CapabilityError(
                f"the free energy of a machine with {self.hidden} hidden units sums 2^{self.hidden} terms, at most "
                f"2^{_MOST_HIDDEN} are done; sample machine.complete() with the visible units clamped, train with "
                "contrastive divergence, or use an RBM"
            )
        return self.hidden_domain.states(dtype=like.dtype, device=like.device)

    def _hidden_logits(self, x: Tensor, weight: Tensor, beta: Tensor | None) -> Tensor:
        """log p(h | v) up to a constant for every h: `(batch, 2^hidden)`."""
        n, h = self.n, self._hidden_states(x)
        own = ((0.5 * (h @ weight[n:, n:]) + self.bias[n:]) * h).sum(1)
        logits = x @ (weight[:n, n:] @ h.T) + own
        return logits if beta is None else (beta[:, None] if beta.dim() else beta) * logits

    def draw_hidden(self, x: Tensor, u: Tensor, beta: Tensor | None = None) -> Tensor:
        """h ~ p(h | v) of the machine with joint energy βE, `(batch, hidden)`, from one uniform a row."""
        p = torch.softmax(self._hidden_logits(x, self.coupling(), beta), 1)
        return self._hidden_states(x)[pick(p, u)]

    def complete(self) -> "BoltzmannMachine":
        """The machine over visible and hidden units together, with the same parameters (not copies)."""
        whole = BoltzmannMachine(self.n + self.hidden, self.spin)
        whole.weight, whole.bias = self.weight, self.bias
        return whole

    def draw(
        self,
        n: int,
        *,
        steps: int = 1000,
        start: Tensor | None = None,
        clamp: Tensor | None = None,
        label: int | Tensor | None = None,
        generator: torch.Generator,
    ) -> Tensor | None:
        """n visible states after `steps` sweeps over all units, where the hidden ones are too many to be summed out."""
        if self.sums_exactly() or label is not None:
            return None
        whole = self.complete()
        z = whole.domain.sample(n, generator=generator, dtype=self.bias.dtype)
        if start is not None:
            z = torch.cat([start, z[:, self.n :]], 1)
        held = None if clamp is None else torch.nn.functional.pad(clamp.expand(n, self.n), (0, self.hidden))
        return whole.swept(z, steps, generator, held)[:, : self.n]

    # --- partition functions ------------------------------------------------------------------------

    def marginals(self) -> Sequence[Energy]:
        """The machine over all units: hidden ones are summed with the others."""
        return [self.complete() if self.hidden else self]

    def pairwise(self) -> Pairwise:
        """All units, hidden ones too, as {0, 1} units."""
        with torch.no_grad():
            low = torch.full_like(self.bias, -1.0 if self.spin else 0.0)
            weight = self.coupling()
            i, j = weight.triu(1).nonzero().T
            return from_edges(i, j, weight[i, j], self.bias, low)

    def path(self, base_bias: Tensor | None = None, *, data: Tensor | None = None) -> Path:
        """The annealing path from independent visible units, of this bias or fitted to data, and uniform hidden ones,
        which are annealed too."""
        base = independent_units(self.domain, base_bias, data, self.bias.detach())
        return PairwisePath(self, base, *_moved(self)) if not self.hidden else CompletePath(self, base)

    def hidden_path(self, x: Tensor) -> Path:
        """The path from uniform hidden units to p(h | x), the rows of x held."""
        if not self.hidden:
            raise CapabilityError("this BoltzmannMachine has no hidden units to anneal; use -energy(v), which is exact")
        return HiddenPath(self, x)

    def initialize_visible_bias(self, data: Tensor) -> None:
        """Set the visible biases to what independent units with the means of the data have."""
        with torch.no_grad():
            self.bias[: self.n] = base_bias(self.domain, data.to(self.bias))

    def filters(self) -> Filters:
        """The weights of every hidden unit; where there are none, those of every unit."""
        weight = self.coupling()
        return Filters(weight[: self.n, self.n :] if self.hidden else weight)

    # --- conditionals and Gibbs sampling ------------------------------------------------------------

    def conditional_fields(self, x: Tensor) -> Tensor | None:
        """u = Wx + b; None with hidden units."""
        if self.hidden:
            return None
        if torch.is_grad_enabled():
            return torch.addmm(self.bias, x, self.coupling())
        twice = torch.add(self.weight, self.weight.T).fill_diagonal_(0)  # the same numbers in fewer steps
        return torch.addmm(self.bias, x, twice, alpha=0.5)

    def field_gradients(self, x: Tensor, weight: Tensor) -> dict[Tensor, Tensor]:
        """Of Σ weight·u: Σ weight in b, and the symmetric part of weightᵀx without diagonal in W."""
        half = torch.addmm(self.weight.detach(), weight.T, x, beta=0, alpha=0.5)  # beta = 0 leaves out the first
        return {self.weight: torch.add(half, half.T).fill_diagonal_(0), self.bias: weight.sum(0)}

    def neighbor_sums(self, x: Tensor, function: str) -> tuple[Tensor, dict[Tensor, Tensor]] | None:
        """Pseudo-likelihood, ratio matching or probability flow with gradients, in one C function; None where it cannot."""
        weight, bias = self.weight, self.bias
        if self.hidden or not serves(weight, bias, x):
            return None
        value, g_weight, g_bias = native_neighbors(weight, bias, x, self.spin, function)
        return value, {weight: g_weight, bias: g_bias}

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """E(x) and -∇E(x) = Wx + b; with hidden units by autograd."""
        if self.hidden:
            return super().energy_and_score(x)
        with torch.no_grad():
            pull = x @ self.coupling()
            return -((pull / 2 + self.bias) * x).sum(1), pull + self.bias

    def site_logits(self, x: Tensor, site: "int | Tensor") -> Tensor:
        """log p(xᵢ = 1 | rest) - log p(xᵢ = other | rest) at one site, or at one site per row: `(batch,)`."""
        if self.hidden:  # summed out: from two free energies
            low, high = x.clone(), x.clone()
            at = (slice(None), site) if isinstance(site, int) else (torch.arange(len(x), device=x.device), site)
            low[at], high[at] = (-1.0 if self.spin else 0.0), 1.0
            return self.free_energy(low) - self.free_energy(high)
        weight = (self.weight[site] + self.weight.T[site]) / 2  # rows of the coupling
        itself = torch.arange(self.n, device=x.device) == (site if isinstance(site, int) else site[:, None])
        weight = weight.masked_fill(itself, 0.0)
        field = (x @ weight if isinstance(site, int) else (x * weight).sum(1)) + self.bias[site]
        return 2 * field if self.spin else field

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """One uniform a site, and one for the hidden units where there are any."""
        require_generator(generator, x.device)
        width = self.n + (1 if self.hidden else 0)
        u = uniforms(steps, len(x) * width, generator, dtype=x.dtype, device=x.device)
        return (u.reshape(steps, len(x), width),)

    def gibbs_sweep(
        self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None, beta: Tensor | None = None
    ) -> Tensor:
        """h ~ p(h | v) where there are hidden units, then the visible units one after the other."""
        (u,) = noise
        with torch.no_grad():
            n, weight = self.n, self.coupling()
            rest = self.bias[:n].expand(len(x), n)
            if self.hidden:
                rest = rest + self.draw_hidden(x, u[:, n], beta) @ weight[n:, :n]
            scale = (2.0 if self.spin else 1.0) * (1.0 if beta is None else beta)
            x = x.clone()
            low = -1.0 if self.spin else 0.0
            for i in range(n):
                p = torch.sigmoid(scale * (x @ weight[:n, i] + rest[:, i]))
                new = low + (1 - low) * (u[:, i] < p).to(x.dtype)
                if clamp is not None:
                    new = torch.where(clamp[..., i], x[:, i], new)
                x[:, i] = new
            return x

    def contrast(
        self, batch: Tensor, chains: Tensor | None, steps: int, generator: torch.Generator, *, fused: bool = False
    ) -> Contrast:
        """E(batch).mean() - E(samples).mean() and the samples, `steps` sweeps from `chains` or from the batch.

        With more hidden units than can be enumerated both energies are joint ones, with hidden units drawn by
        `steps` clamped sweeps: an estimate whose gradient tends to the same as the sweeps grow.
        """
        require_generator(generator, batch.device)
        x = batch if chains is None else chains
        if self.sums_exactly():
            x = self.swept(x, steps, generator)
            return Contrast(self(batch).mean() - self(x).mean(), x)
        whole = self.complete()
        clamp = torch.arange(self.n + self.hidden, device=batch.device) < self.n

        def completed(v: Tensor) -> Tensor:
            h = torch.rand(len(v), self.hidden, generator=generator, dtype=v.dtype, device=v.device).round()
            return whole.swept(torch.cat([v, 2 * h - 1 if self.spin else h], 1), steps, generator, clamp)

        positive = completed(batch)
        negative = whole.swept(positive if chains is None else completed(chains), steps, generator)
        return Contrast(whole(positive).mean() - whole(negative).mean(), negative[:, : self.n])

    def extra_repr(self) -> str:
        return f"{self.n}, spin={self.spin}, hidden={self.hidden}"


def _moved(machine: BoltzmannMachine) -> tuple[BoltzmannMachine, Tensor, Tensor]:
    """A copy to move states with, and its weights and biases."""
    moved = copy.deepcopy(machine)
    with torch.no_grad():
        moved.weight.copy_(machine.coupling())
    return moved, moved.weight, moved.bias


class CompletePath(PairwisePath):
    """The path of a machine over all its units: states are visible and hidden ones together."""

    def __init__(self, machine: BoltzmannMachine, base: Factorized) -> None:
        self.observed, whole = machine, machine.complete()
        bias = torch.zeros_like(whole.bias.detach())
        bias[: machine.n] = base.bias
        super().__init__(whole, Factorized(whole.domain, bias), *_moved(whole))

    def complete(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Visible states with hidden units drawn from p(h | v)."""
        machine = self.observed
        with torch.no_grad():
            u = torch.rand(len(x), generator=generator, dtype=x.dtype, device=x.device)
            return torch.cat([x, machine.draw_hidden(x, u)], 1)


class HiddenPath(Path):
    """From uniform hidden units to p(h | v): the machine over all units at β with its visible ones held."""

    def __init__(self, machine: BoltzmannMachine, v: Tensor) -> None:
        self.machine, self.v, self.whole = machine, v, machine.complete()
        self.clamp = torch.arange(len(machine.bias), device=machine.bias.device) < machine.n

    def log_z0(self) -> Tensor:
        """log of the number of hidden states."""
        return torch.tensor(self.machine.hidden * math.log(2), dtype=torch.float64, device=self.v.device)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """The first n rows of v with uniform hidden units."""
        hidden = self.machine.hidden_domain.sample(n, generator=generator, dtype=self.v.dtype)
        return torch.cat([self.v[:n], hidden], 1)

    def noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        return self.whole.gibbs_noise(x, steps, generator)

    def anneal(self, x: Tensor, beta: Tensor, next_beta: Tensor, noise: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Weight, then sweep over the hidden units."""
        with torch.no_grad():
            increment = (beta - next_beta) * self.whole(x)
            return self.whole.gibbs_sweep(x, noise, self.clamp, next_beta.to(x)), increment
