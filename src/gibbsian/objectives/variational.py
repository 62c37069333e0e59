"""Maximum likelihood of deep Boltzmann machines: mean-field posteriors for the data, persistent chains for log Z."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from gibbsian.derivatives.known import with_gradients
from gibbsian.errors import ArgumentError, CapabilityError
from gibbsian.fast.compiled import compiled_copy
from gibbsian.models.dbm.fused import Learned, fused_phases
from gibbsian.models.dbm.machine import DBM
from gibbsian.models.dbm.phases import linear_layers, negative_phase, phase_contrast, positive_phase
from gibbsian.objectives.base import Batch, Loss, Step, SteppedObjective, observed
from gibbsian.objectives.chains import chain_metrics, more_steps
from gibbsian.objectives.common import finish, number, one_of, trainable, whole
from gibbsian.objectives.starts import start_points
from gibbsian.random import quick_uniforms, require_generator
from gibbsian.units import Bernoulli

__all__ = ["VariationalLikelihood"]


class LayerChains(NamedTuple):
    """The persistent chains layer by layer, visible units first; with centering the offsets μ of every layer."""

    layers: tuple[Tensor, ...]
    offsets: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class VariationalLikelihood(SteppedObjective):
    """-(variational bound on log p(v)) for a `DBM`: mean field over the data, persistent chains for log Z.

        ∇ = -⟨φ(μ^{l-1})φ(μˡ)ᵀ⟩_data + ⟨φ(h^{l-1})φ(hˡ)ᵀ⟩_chains

    μ after a fixed number of mean-field iterations from an upward pass with doubled inputs, the chains by even/odd
    block Gibbs sweeps that go on from update to update. Start from pre-trained layers (`pretrain`), or with `centering`
    from small random weights. Chains must follow the model: use small rates that fall, and more `steps` where
    `movement` is low.

    Centering takes the gradient of E(v - μ⁰, h¹ - μ¹, ...), mapped back to plain weights and biases,

        ΔWˡ = gˡ_W - μ^{l-1}gˡᵀ - g^{l-1}μˡᵀ,   Δbˡ = gˡ - ΔW^{l+1}μ^{l+1} - (ΔWˡ)ᵀμ^{l-1},

    which decouples the mean activity of layers from what they code and makes joint training from scratch work.

    Reference: Salakhutdinov & Hinton 2009; Montavon & Müller 2012 (centering).

    Args:
        iterations: of mean field, for every batch; a fixed number, so that nothing waits for the device.
        steps: Gibbs sweeps of the chains per update.
        chains: how many there are.
        start: where they begin: "reference" (uniform layers) or "data" (rows of the batch, hidden layers drawn upwards).
        centering: rate of the running averages of μ, such as 0.01; None for no centering.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> dbm, data = gb.models.DBM(6, 4, 3), torch.ones(10, 6)
    >>> objective = VariationalLikelihood(iterations=5, chains=20)
    >>> state = objective.init(dbm, data, g)
    >>> loss = objective(dbm, data, state, g)
    >>> loss.value.backward(); [layer.shape[1] for layer in loss.state.layers]
    [6, 4, 3]
    """

    iterations: int = 10
    steps: int = 5
    chains: int = 100
    start: str = "reference"
    centering: float | None = None

    def __post_init__(self) -> None:
        for name in ("iterations", "steps", "chains"):
            whole(self, name, getattr(self, name))
        one_of(self, "start", self.start, ("reference", "data"))
        if self.centering is not None:
            number(self, "centering", self.centering, 0.0, 1.0, open_low=True)

    def gentler(self, steps_factor: float, penalty: float) -> Self:
        return replace(self, steps=more_steps(self.steps, steps_factor))

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        if not isinstance(energy, DBM):
            raise CapabilityError(
                f"VariationalLikelihood trains models.DBM, got {type(energy).__name__}; where the free energy is exact use "
                "objectives.PersistentContrastiveDivergence"
            )
        if self.centering is not None and not linear_layers(energy):
            kinds = ", ".join(type(unit).__name__ for unit in energy.layers)
            raise CapabilityError(
                f"centering needs Bernoulli, Spin or Softmax units throughout, whose biases enter linearly; got {kinds}"
            )

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> LayerChains:
        self.check(energy, batch)
        x = observed(batch)
        require_generator(generator, x.device)
        with torch.no_grad():
            v = start_points(self.start, self.chains, energy, x, generator)
            layers = [v]
            for i, unit in enumerate(energy.layers[1:], start=1):
                if self.start == "data":
                    layers.append(energy.encode(i, v, generator))
                else:
                    layers.append(unit.domain.sample(self.chains, generator=generator, dtype=x.dtype))
            offsets: tuple[Tensor, ...] = ()
            if self.centering is not None:
                offsets = tuple(s.mean(0) for s in positive_phase(energy, x, self.iterations)[0].seen)
        return LayerChains(tuple(layers), offsets)

    def loss(self, energy: Any, batch: Batch, state: LayerChains, generator: torch.Generator, step: Step) -> Loss:
        x = observed(batch)
        require_generator(generator, x.device)
        if not linear_layers(energy):
            return self._through_energies(energy, x, state, generator, step)
        with torch.no_grad():
            learned = self._fused(energy, x, state, generator) if step.fused else None
            if learned is None:
                positive, residual = positive_phase(energy, x, self.iterations)
                negative, layers = negative_phase(energy, state.layers, self.steps, generator)
                gradients = phase_contrast(positive, negative)
                gap = positive.energy - negative.energy
                learned = Learned(gap, *gradients, positive.seen, list(layers), residual)
            weights, biases, offsets = learned.weights, learned.biases, state.offsets
            if self.centering is not None:
                if len(offsets) != len(biases):
                    raise ArgumentError("the state has no offsets; make it with init of an objective with centering")
                means = [s.mean(0) for s in learned.means]
                offsets = tuple(torch.lerp(a, b, self.centering) for a, b in zip(offsets, means, strict=True))
                _center(weights, biases, offsets)
            gradient = {id(p): g for p, g in zip((*energy.weights, *energy.biases), (*weights, *biases), strict=True)}
        parameters = trainable(energy)
        value, known = with_gradients(learned.gap, parameters, [gradient[id(p)] for p in parameters])
        layers = tuple(learned.layers)
        metrics = _metrics(value, learned.residual, state.layers, layers, step)
        return finish(self, value, LayerChains(layers, offsets), metrics, gradients=known)

    def _fused(self, energy: DBM, x: Tensor, state: LayerChains, generator: torch.Generator) -> Learned | None:
        """Both phases compiled, where a captured step asks for that."""
        units = list(energy.layers)
        if self.steps >= self.iterations or not all(type(unit) is Bernoulli for unit in units):
            return None
        sizes = tuple(unit.size for unit in units)
        whole = compiled_copy(fused_phases, len(x), self.chains, self.iterations, self.steps, *sizes)
        count = self.chains * sum(sizes)
        coins = [quick_uniforms(count, generator, dtype=x.dtype, device=x.device) for _ in range(self.steps)]
        weights, biases = ([p.detach() for p in part] for part in (energy.weights, energy.biases))
        return whole(weights, biases, x, list(state.layers), coins, self.iterations)

    def _through_energies(
        self, energy: DBM, x: Tensor, state: LayerChains, generator: torch.Generator, step: Step
    ) -> Loss:
        """The same for visible units whose parameters enter in other ways, by differentiation of the energies."""
        with torch.no_grad():
            positive, residual = positive_phase(energy, x, self.iterations)
            negative, layers = negative_phase(energy, state.layers, self.steps, generator)
            gap = positive.energy - negative.energy
        means = [m.view(len(x), *u.domain.shape) for m, u in zip(positive.seen[1:], energy.layers[1:], strict=True)]
        even = [None if i % 2 else layer for i, layer in enumerate(layers)]
        value = energy.joint(x, *means).mean() + energy.mass(even).mean()
        value = value + (gap - value.detach())  # the entropy of the posterior is held fixed, but counted
        return finish(self, value, LayerChains(layers), _metrics(gap, residual, state.layers, layers, step))


def _metrics(
    gap: Tensor, residual: Tensor, before: tuple[Tensor, ...], after: tuple[Tensor, ...], step: Step
) -> dict[str, Tensor]:
    return {"gap": gap, "residual": residual, **chain_metrics(before[0], after[0], step.watched)}


def _center(weights: list[Tensor], biases: list[Tensor], offsets: tuple[Tensor, ...]) -> None:
    """The centered gradient, in place."""
    plain = list(biases)
    for i, w in enumerate(weights):
        w.addr_(offsets[i], plain[i + 1], alpha=-1).addr_(plain[i], offsets[i + 1], alpha=-1)
    for i, w in enumerate(weights):
        biases[i] = biases[i] - w @ offsets[i + 1]
        biases[i + 1] = biases[i + 1] - offsets[i] @ w
