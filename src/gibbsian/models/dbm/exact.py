"""Exact sums over the hidden units of small deep Boltzmann machines: half of the layers enumerated, the rest in closed form.

log Σ_h exp(-E(v, h)) = log Σ_{h¹, h³, ...} exp(log Σ_{h², ...} exp(-E)),   or the other way round, whichever is smaller
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gibbsian.errors import CapabilityError
from gibbsian.models.dbm.layers import LayeredMachine
from gibbsian.random import require_generator
from gibbsian.units import Bernoulli, layer_noise, pick

_MOST_STATES = 16 * math.log(2)  # hidden states that are enumerated: 65536
_MOST_NUMBERS = 1 << 22  # held at a time while they are


def _log_states(dbm: LayeredMachine, half: list[int]) -> float:
    return sum(dbm.layers[i].domain.log_size for i in half)  # type: ignore[attr-defined]


def _half(dbm: LayeredMachine) -> list[int]:
    """Those of the odd or of the even hidden layers that have fewer states."""
    halves = [list(range(start, len(dbm.layers), 2)) for start in (1, 2)]
    return min((half for half in halves if half), key=lambda half: _log_states(dbm, half))


def few_states(dbm: LayeredMachine) -> bool:
    """Whether the sums are within reach."""
    return _log_states(dbm, _half(dbm)) <= _MOST_STATES + 1e-9


class _Enumerated:
    """Every state of the smaller half of the hidden layers; None for the other layers."""

    def __init__(self, dbm: LayeredMachine, like: Tensor) -> None:
        if not few_states(dbm):
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


def exact_mass(dbm: LayeredMachine, v: Tensor) -> Tensor:
    """log Σ_h exp(-E(v, h)), `(batch,)`."""
    every = _Enumerated(dbm, v)
    return torch.cat([torch.logsumexp(every.masses(part), 1) for part in every.parts(v)])


def exact_noise(dbm: LayeredMachine, v: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """The random numbers of exact draws: a uniform to pick the state of the enumerated half, and what layers need."""
    require_generator(generator, v.device)
    return layer_noise([Bernoulli(1), *dbm.layers], v, steps, generator, dbm.layers[0])


def exact_hidden(dbm: LayeredMachine, v: Tensor, noise: tuple[Tensor, ...]) -> list[Tensor]:
    """Exact draws of all hidden layers given v, from the numbers of `exact_noise`."""
    every, rows, start = _Enumerated(dbm, v), [], 0
    for part in every.parts(v):
        u = noise[0][start : start + len(part), 0]
        rows.append(pick(torch.softmax(every.masses(part), 1), u))
        start += len(part)
    index = torch.cat(rows)
    values = [v, *(None if s is None else s[index] for s in every.states[1:])]
    other = 1 if values[1] is None else 0
    return dbm.resample(values, other, dict(enumerate(noise[1:])), visible=False)[1:]  # type: ignore[return-value]
