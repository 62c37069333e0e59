"""The subspace RBM: gates that switch groups of subspace units, a third-order machine."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gibbsian.capabilities import Filters, Path
from gibbsian.domains import Binary, Categorical
from gibbsian.energy import Energy
from gibbsian.errors import check_count
from gibbsian.models.annealing import Machine, VisiblePath, small_weights
from gibbsian.placement import explained
from gibbsian.random import require_generator, uniforms

_LARGEST = 10  # subspace units whose patterns are enumerated behind a gate


class SubspaceRBM(Machine):
    """Subspace RBM: every gate hⱼ switches K subspace units sⱼₖ that model one feature's variation.

        E(x, h, s) = -Σ Wᵢⱼₖ xᵢhⱼsⱼₖ - b·x - c·h - Σ hⱼDⱼₖsⱼₖ
        F(x) = -b·x - Σⱼ [K log 2 + softplus(cⱼ - K log 2 + Σₖ softplus(aⱼₖ))],   aⱼₖ = Σᵢ Wᵢⱼₖxᵢ + Dⱼₖ
        p(hⱼ = 1 | x) = σ(cⱼ - K log 2 + Σₖ softplus(aⱼₖ))

    K log 2 counts the states of the subspace units behind a closed gate. Features that are invariant to
    where in its subspace a pattern lies; for plain binary features use an RBM.

    Reference: Tomczak & Gonczarek 2017.

    Args:
        visible: number of {0, 1} visible units.
        gates: number of gates.
        subspace: K, subspace units per gate.
        generator: for the initial weights, N(0, 0.01²); a fixed seed where it is left out.

    Attributes:
        weight: `(visible, gates, subspace)`; visible_bias b, gate_bias c, subspace_bias D `(gates, subspace)`.

    >>> model = SubspaceRBM(visible=4, gates=2, subspace=3)
    >>> model(torch.zeros(5, 4)).shape, model.gate_mean(torch.zeros(5, 4)).shape
    (torch.Size([5]), torch.Size([5, 2]))
    """

    def __init__(self, visible: int, gates: int, subspace: int, *, generator: torch.Generator | None = None) -> None:
        for name, size in (("visible", visible), ("gates", gates), ("subspace", subspace)):
            check_count(self, name, size)
        super().__init__(Binary(visible))
        self.gates, self.subspace = gates, subspace
        weight = small_weights(visible, gates, subspace, generator=generator)
        self.weight = nn.Parameter(weight)
        self.visible_bias = nn.Parameter(weight.new_zeros(visible))
        self.gate_bias = nn.Parameter(weight.new_zeros(gates))
        self.subspace_bias = nn.Parameter(weight.new_zeros(gates, subspace))

    def joint(self, x: Tensor, h: Tensor, s: Tensor) -> Tensor:
        """E(x, h, s), `(batch,)`; s is `(batch, gates, subspace)`."""
        opened = h * (self.subspace_input(x) * s).sum(2)
        return -(opened.sum(1) + x @ self.visible_bias + h @ self.gate_bias)

    def subspace_input(self, x: Tensor) -> Tensor:
        """aⱼₖ = Σᵢ Wᵢⱼₖxᵢ + Dⱼₖ, `(batch, gates, subspace)`."""
        return (x @ self.weight.flatten(1)).unflatten(1, (self.gates, self.subspace)) + self.subspace_bias

    def _gate_logits(self, a: Tensor, beta: Tensor | None) -> Tensor:
        bias: Tensor = self.gate_bias
        if beta is not None:
            a, bias = _rows(beta, 3) * a, _rows(beta, 2) * bias
        return bias - self.subspace * math.log(2) + F.softplus(a).sum(2)

    @explained
    def free_energy(self, x: Tensor, beta: Tensor | None = None) -> Tensor:
        """The free energy of the machine with joint energy βE; β a number or one per row."""
        own = x @ self.visible_bias
        gates = F.softplus(self._gate_logits(self.subspace_input(x), beta))
        closed = self.gates * self.subspace * math.log(2)
        return -(own if beta is None else beta * own) - gates.sum(1) - closed

    @explained
    def gate_mean(self, x: Tensor) -> Tensor:
        """p(hⱼ = 1 | x)."""
        return torch.sigmoid(self._gate_logits(self.subspace_input(x), None))

    def subspace_mean(self, x: Tensor, h: Tensor) -> Tensor:
        """p(sⱼₖ = 1 | x, h): one half behind a closed gate."""
        return torch.sigmoid(h[:, :, None] * self.subspace_input(x))

    def visible_mean(self, h: Tensor, s: Tensor) -> Tensor:
        """p(xᵢ = 1 | h, s)."""
        return torch.sigmoid(self._visible_logits(h, s))

    def _visible_logits(self, h: Tensor, s: Tensor) -> Tensor:
        return (h[:, :, None] * s).flatten(1) @ self.weight.flatten(1).T + self.visible_bias

    def filters(self) -> Filters:
        """What each subspace unit looks for."""
        return Filters(self.weight.flatten(1))

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """One uniform for every gate, subspace unit and visible unit."""
        require_generator(generator, x.device)
        sizes = [self.gates, self.gates * self.subspace, x.shape[1]]
        u = uniforms(steps, len(x) * sum(sizes), generator, dtype=x.dtype, device=x.device)
        return (u.reshape(steps, len(x), sum(sizes)),)

    def gibbs_sweep(
        self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None, beta: Tensor | None = None
    ) -> Tensor:
        """Gates given x with the subspace summed out, subspace units given both, then x where not `clamp`."""
        (u,) = noise
        with torch.no_grad():
            gate, inner, outer = u.split([self.gates, self.gates * self.subspace, x.shape[1]], 1)
            a = self.subspace_input(x)
            h = (gate < torch.sigmoid(self._gate_logits(a, beta))).to(x.dtype)
            scale = 1.0 if beta is None else _rows(beta, 3)
            s = (inner.reshape(a.shape) < torch.sigmoid(scale * a)).to(x.dtype)  # behind a closed gate it is not seen
            scale = 1.0 if beta is None else _rows(beta, 2)
            new = (outer < torch.sigmoid(scale * self._visible_logits(h, s))).to(x.dtype)
            return new if clamp is None else torch.where(clamp, x, new)

    def path(self, base_bias: Tensor | None = None, *, data: Tensor | None = None) -> Path:
        """The annealing path from independent visible units, of this bias or fitted to data."""
        return VisiblePath(self, base_bias, data)

    def marginals(self) -> Sequence[Energy]:
        """The visible units, and the gates with their subspaces where these are small."""
        return [self, SubspaceGates(self)] if self.subspace <= _LARGEST else [self]

    def extra_repr(self) -> str:
        return f"visible={len(self.visible_bias)}, gates={self.gates}, subspace={self.subspace}"


def _rows(beta: Tensor, dim: int) -> Tensor:
    """β shaped to broadcast along the batch of a tensor of `dim` axes."""
    return beta.reshape(-1, *[1] * (dim - 1)) if beta.dim() else beta


class SubspaceGates(Energy):
    """Gates with their subspaces: each is closed (its K units are free) or open in one of 2^K patterns, one-hot."""

    patterns: Tensor

    def __init__(self, model: SubspaceRBM) -> None:
        super().__init__(Categorical(model.gates, 2**model.subspace + 1))
        self.model = model
        patterns = Binary(model.subspace).states(dtype=model.weight.dtype, device=model.weight.device)
        self.register_buffer("patterns", patterns, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        closed, opened = x[..., 0], x[..., 1:]
        units = opened @ self.patterns  # (batch, gates, subspace), 0 behind closed gates
        own = (opened.sum(2) * model.gate_bias).sum(1) + (units * model.subspace_bias).flatten(1).sum(1)
        free = closed.sum(1) * model.subspace * math.log(2)
        field = model.visible_bias + units.flatten(1) @ model.weight.flatten(1).T
        return -(own + free + F.softplus(field).sum(1))
