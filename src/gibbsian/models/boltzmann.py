"""General Boltzmann machines over {0, 1} or ±1 units, with and without hidden units.

E(z) = -½ zᵀWz - b·z,   W symmetric with zero diagonal,   z = (v, h)
"""

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Contrast
from gibbsian.domains import Binary, Spin
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, ShapeError
from gibbsian.models.tempered import TemperedMachine
from gibbsian.random import require_generator, stream, uniforms
from gibbsian.units import pick

__all__ = ["BoltzmannMachine"]

_MOST_HIDDEN = 16  # hidden states are enumerated: 65536 of them


class BoltzmannMachine(Energy):
    """Boltzmann machine: E = -½ xᵀWx - b·x, p(xᵢ = 1 | rest) = σ(Σⱼ wᵢⱼxⱼ + bᵢ) for {0, 1}, σ(2(·)) for ±1 units.

    With hidden units the energy is the free energy of the visible ones,

        F(v) = -log Σ_h exp(½vᵀRv + vᵀWh + ½hᵀSh + b·v + c·h),

    by enumeration of at most 16 hidden units; R, W and S are blocks of one symmetric matrix, visible units
    first. Beyond that use `complete()`, the machine over all units, with the visible part clamped. For many hidden
    units that are not connected among themselves use an RBM.

    `weight` is a full matrix that the energy uses through its symmetric part without diagonal, so gradients are
    symmetric with zero diagonal and training keeps it exactly so; set it with `set_parameters`, which
    refuses anything else.

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
        if isinstance(n, bool) or not isinstance(n, int) or n < 1 or not isinstance(hidden, int) or hidden < 0:
            raise ArgumentError(
                f"BoltzmannMachine(n={n!r}, hidden={hidden!r}): whole numbers, at least one visible unit"
            )
        super().__init__(Spin(n) if spin else Binary(n))
        self.n, self.spin, self.hidden = n, bool(spin), hidden
        generator = stream(0, "init") if generator is None else generator
        upper = 0.01 * torch.randn(n + hidden, n + hidden, generator=generator, device=generator.device).triu(1)
        self.weight = nn.Parameter(upper + upper.T)
        self.bias = nn.Parameter(upper.new_zeros(n + hidden))

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
        upper = ((self.weight + self.weight.T) / 2).triu(1)
        return upper + upper.T

    # --- energies -----------------------------------------------------------------------------------

    def joint(self, v: Tensor, h: Tensor) -> Tensor:
        """E(v, h), `(batch,)`."""
        z = torch.cat([v, h], 1)
        return -((0.5 * (z @ self.coupling()) + self.bias) * z).sum(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.free_energy(x)

    def free_energy(self, x: Tensor, beta: Tensor | None = None) -> Tensor:
        """The energy of the visible units of the machine with joint energy βE; β a number or one per row."""
        weight, bias = self.coupling(), self.bias
        own = -((0.5 * (x @ weight[: self.n, : self.n]) + bias[: self.n]) * x).sum(1)
        if beta is not None:
            own = beta * own
        if not self.hidden:
            return own
        return own - torch.logsumexp(self._hidden_logits(x, weight, beta), 1)

    def _hidden_states(self, like: Tensor) -> Tensor:
        if self.hidden > _MOST_HIDDEN:
            raise CapabilityError(
                f"the free energy of a machine with {self.hidden} hidden units sums 2^{self.hidden} terms, at most "
                f"2^{_MOST_HIDDEN} are done; sample machine.complete() with the visible units clamped, train with "
                "contrastive divergence, or use an RBM"
            )
        domain = Spin(self.hidden) if self.spin else Binary(self.hidden)
        return domain.states(dtype=like.dtype, device=like.device)

    def _hidden_logits(self, x: Tensor, weight: Tensor, beta: Tensor | None) -> Tensor:
        """log p(h | v) up to a constant for every h: `(batch, 2^hidden)`."""
        n, h = self.n, self._hidden_states(x)
        own = ((0.5 * (h @ weight[n:, n:]) + self.bias[n:]) * h).sum(1)
        logits = x @ (weight[:n, n:] @ h.T) + own
        return logits if beta is None else (beta[:, None] if beta.dim() else beta) * logits

    def complete(self) -> "BoltzmannMachine":
        """The machine over visible and hidden units together, with the same parameters (not copies)."""
        whole = BoltzmannMachine(self.n + self.hidden, self.spin)
        whole.weight, whole.bias = self.weight, self.bias
        return whole

    def tempered(self, beta: Tensor) -> Energy:
        """The machine with joint energy βE, β a number or one per row."""
        return TemperedMachine(self, beta)

    # --- conditionals and Gibbs sampling ------------------------------------------------------------

    def site_logits(self, x: Tensor, site: "int | Tensor") -> Tensor:
        """log p(xᵢ = 1 | rest) - log p(xᵢ = other | rest) at one site, or at one site per row: `(batch,)`."""
        if self.hidden:  # summed out: from two free energies
            low, high = x.clone(), x.clone()
            at = (slice(None), site) if isinstance(site, int) else (torch.arange(len(x), device=x.device), site)
            low[at], high[at] = (-1.0 if self.spin else 0.0), 1.0
            return self.free_energy(low) - self.free_energy(high)
        weight = self.weight
        field = x @ weight[:, site] if isinstance(site, int) else (x * weight[site]).sum(1)
        field = field + self.bias[site]
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
            n, weight = self.n, self.weight
            rest = self.bias[:n].expand(len(x), n)
            if self.hidden:
                logits = self._hidden_logits(x, weight, beta)
                states = self._hidden_states(x)
                h = states[pick(torch.softmax(logits, 1), u[:, n])]
                rest = rest + h @ weight[n:, :n]
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
        if self.hidden <= _MOST_HIDDEN:
            for _ in range(steps):
                x = self.gibbs_sweep(x, tuple(part[0] for part in self.gibbs_noise(x, 1, generator)))
            return Contrast(self(batch).mean() - self(x).mean(), x)
        whole = self.complete()
        clamp = torch.arange(self.n + self.hidden, device=batch.device) < self.n

        def sweep(z: Tensor, held: Tensor | None) -> Tensor:
            for _ in range(steps):
                z = whole.gibbs_sweep(z, tuple(part[0] for part in whole.gibbs_noise(z, 1, generator)), held)
            return z

        def started(v: Tensor) -> Tensor:
            h = torch.rand(len(v), self.hidden, generator=generator, dtype=v.dtype, device=v.device).round()
            return torch.cat([v, 2 * h - 1 if self.spin else h], 1)

        positive = sweep(started(batch), clamp)
        negative = sweep(positive if chains is None else sweep(started(chains), clamp), None)
        return Contrast(whole(positive).mean() - whole(negative).mean(), negative[:, : self.n])

    def extra_repr(self) -> str:
        return f"{self.n}, spin={self.spin}, hidden={self.hidden}"
