"""Exact sums over the hidden units of small deep Boltzmann machines: half of the layers enumerated, the rest in closed form.

log Σ_h exp(-E(v, h)) = log Σ_{h¹, h³, ...} exp(log Σ_{h², ...} exp(-E)),   or the other way round, whichever is smaller
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gibbsian.errors import CapabilityError
from gibbsian.models.dbm.layers import LayeredMachine
from gibbsian.units import Bernoulli, layer_noise, pick

_MOST_STATES = 16 * math.log(2)  # hidden states that are enumerated: 65536
_MOST_NUMBERS = 1 << 22  # held at a time while they are


def _log_states(dbm: LayeredMachine, half: list[int]) -> float:
    return sum(dbm.layers[i].domain.log_size for i in half)  # type: ignore[attr-defined]


def _half(dbm: LayeredMachine) -> list[int]:
    """Those of the odd or of the even hidden layers that have fewer states."""
    halves = [list(range(start, len(dbm.layers), 2)) for start in (1, 2)]
    return min((half for half in halves if half), key=lambda half: _log_states(dbm, half))


class _Enumerated:
    """Every state of the smaller half of the hidden layers; None for the other layers."""

    def __init__(self, dbm: "EnumerableMachine", like: Tensor) -> None:
        if not dbm.sums_exactly():
            name = f"DBM({', '.join(str(unit.n) for unit in dbm.layers)})"
            raise CapabilityError(
                f"the free energy of {name} sums more than 2^16 hidden states; log_mass_bound(v) bounds it, marginal(0) "
                "(v, h², ...) and marginal(1) (h¹, h³, ...) are laws that kernels.Gibbs samples, and "
                "objectives.VariationalLikelihood trains the machine"
            )
        self.dbm, self.count = dbm, 1
        self.states: list[Tensor | None] = [None] * len(dbm.layers)
        for i in _half(dbm):
            own = dbm.layers[i].domain.states(dtype=like.dtype, device=like.device)  # type: ignore[attr-defined]
            self.states = [None if s is None else s.repeat_interleave(len(own), 0) for s in self.states]
            self.states[i] = own.repeat(self.count, *[1] * (own.dim() - 1))
            self.count *= len(own)

    def parts(self, v: Tensor) -> Sequence[Tensor]:
        """Rows few enough for a sum over all states."""
        return v.split(max(1, _MOST_NUMBERS // (self.count * max(unit.size for unit in self.dbm.layers))))

    def masses(self, v: Tensor) -> Tensor:
        """log Σ exp(-E) over the other half for every row and state: `(batch, states)`."""
        above = [None if s is None else s.repeat(len(v), *[1] * (s.dim() - 1)) for s in self.states[1:]]
        return self.dbm.mass([v.repeat_interleave(self.count, 0), *above]).reshape(len(v), self.count)


class EnumerableMachine(LayeredMachine):
    """Layers in a row whose hidden ones are summed, and drawn exactly, where they have few states."""

    def sums_exactly(self) -> bool:
        """Whether `forward` is within reach."""
        return _log_states(self, _half(self)) <= _MOST_STATES + 1e-9

    def forward(self, x: Tensor) -> Tensor:
        """The free energy F(v) = -log Σ_h exp(-E(v, h)), by enumeration of the smaller half of the hidden layers."""
        every = _Enumerated(self, x)
        return -torch.cat([torch.logsumexp(every.masses(part), 1) for part in every.parts(x)])

    def exact_hidden(self, v: Tensor, noise: tuple[Tensor, ...]) -> list[Tensor]:
        """Exact draws of all hidden layers given v, from the numbers of `gibbs_noise`."""
        every, rows, start = _Enumerated(self, v), [], 0
        for part in every.parts(v):
            u = noise[0][start : start + len(part), 0]
            rows.append(pick(torch.softmax(every.masses(part), 1), u))
            start += len(part)
        index = torch.cat(rows)
        values = [v, *(None if s is None else s[index] for s in every.states[1:])]
        other = 1 if values[1] is None else 0
        return self.resample(values, other, dict(enumerate(noise[1:])), visible=False)[1:]  # type: ignore[return-value]

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """One uniform to pick the state of the enumerated half, and what the other layers need."""
        return layer_noise([Bernoulli(1), *self.layers], x, steps, generator, self.layers[0])

    def gibbs_sweep(self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None) -> Tensor:
        """h ~ p(h | v) exactly, then v ~ p(v | h¹) where not clamped; for machines of few hidden units, else use `marginal(0)`."""
        with torch.no_grad():
            values: list[Tensor | None] = [x, *self.exact_hidden(x, noise)]
            natural = self.natural(0, self.statistics(values))
            return self.layers[0].resample(natural, noise[1], x, clamp)
