"""Layers of machines with everything else summed out: log Z is the same, and one of them is small enough to sum.

Σ_v Σ_h exp(-E(v, h)) = Σ_h exp(-E_h(h)),   E_h(h) = -log Σ_v exp(-E(v, h))
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gibbsian.domains import Binary, Categorical, Discrete, Domain
from gibbsian.energy import Energy
from gibbsian.errors import CapabilityError, DomainError
from gibbsian.models.boltzmann import BoltzmannMachine
from gibbsian.models.classification import ClassificationRBM, LabeledRBM
from gibbsian.models.conditional import ConditionedMachine
from gibbsian.models.dbm.machine import DBM
from gibbsian.models.dbn.machine import DBN
from gibbsian.models.rbm.machine import RBM
from gibbsian.models.spike_slab import SpikeSlabRBM
from gibbsian.models.subspace import SubspaceRBM

__all__ = ["ClassificationSide", "HiddenSide", "SubspaceSide", "summed_side"]


class HiddenSide(Energy):
    """The hidden layer of an RBM; `total` is the length of the documents for counts."""

    def __init__(self, rbm: RBM, domain: Domain, total: int | None = None) -> None:
        super().__init__(domain)
        self.rbm = rbm
        self.total = None if total is None else torch.tensor(float(total))

    def forward(self, x: Tensor) -> Tensor:
        return self.rbm.hidden_energy(x, total=self.total)


class OtherLayer(Energy):
    """The hidden layer of a machine that has an energy for it alone."""

    def __init__(self, machine: ConditionedMachine | SpikeSlabRBM, domain: Domain) -> None:
        super().__init__(domain)
        self.machine = machine

    def forward(self, x: Tensor) -> Tensor:
        return self.machine.hidden_energy(x)


class ClassificationSide(Energy):
    """The hidden layer of a classification RBM, input and label summed out, or the input under a given label."""

    def __init__(self, model: ClassificationRBM, domain: Domain, label: Tensor | None = None) -> None:
        super().__init__(domain)
        self.model, self.label = model, label

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        h = model.hidden.statistic(x)
        natural = model.visible.natural(model.visible_bias, h @ model.weight.T)
        cumulant = model.visible.log_partition(natural) - model.visible.constant(model.visible_bias)
        labels = model.label_bias + h @ model.label_weight.T
        seen = torch.logsumexp(labels, 1) if self.label is None else labels[:, self.label]
        return model.hidden.energy(x, model.hidden_bias) - cumulant - seen


class SubspaceSide(Energy):
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
        return -(own + free + softplus(field).sum(1))


def summed_side(energy: Energy, total: int | None = None) -> tuple[Energy, Discrete]:
    """The energy whose enumeration gives log Z, and the domain to enumerate: the smaller layer where there are two."""
    if isinstance(energy, DBN):  # its directed layers are normalized
        return summed_side(energy.top)
    sides = [energy]
    if isinstance(energy, BoltzmannMachine) and energy.hidden:
        sides = [energy.complete()]
    elif isinstance(energy, DBM):
        sides = [energy.side(0), energy.side(1)]
    elif isinstance(energy, RBM):
        sides.append(HiddenSide(energy, energy.hidden.domain, total))
    elif isinstance(energy, ClassificationRBM):
        sides.append(ClassificationSide(energy, energy.hidden.domain))
    elif isinstance(energy, LabeledRBM) and energy.y.dim() == 0:
        sides.append(ClassificationSide(energy.model, energy.model.hidden.domain, energy.y))
    elif isinstance(energy, SubspaceRBM) and energy.subspace <= 10:
        sides.append(SubspaceSide(energy))
    elif isinstance(energy, ConditionedMachine):
        if len(energy.condition) > 1:
            raise CapabilityError(
                f"there are {len(energy.condition)} inputs and one log Z for each: use partition.exact_each or ais_each, "
                "or given() with one input"
            )
        sides.append(OtherLayer(energy, energy.hidden.domain))
    elif isinstance(energy, SpikeSlabRBM):
        sides.append(OtherLayer(energy, Binary(len(energy.hidden_bias))))
    finite = [(side, side.domain) for side in sides if isinstance(side.domain, Discrete)]
    if not finite:
        small = energy.domain.numel <= 3
        raise DomainError(
            f"an exact sum needs finitely many states, this energy lives on {energy.domain}; "
            + ("use partition.quadrature" if small else "use partition.ais, or quadrature in up to three dimensions")
        )
    return min(finite, key=lambda side: side[1].log_size)
