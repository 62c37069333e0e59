"""Maximum likelihood of deep Boltzmann machines: mean-field posteriors for the data, persistent chains for log Z."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from gibbsian.capabilities import VariationalModel
from gibbsian.derivatives.known import with_gradients
from gibbsian.errors import ArgumentError, CapabilityError, check_choice, check_count, check_number
from gibbsian.objectives.base import Batch, Loss, Step, SteppedObjective, finish, observed_with
from gibbsian.objectives.chains import chain_metrics, more_steps
from gibbsian.objectives.regularizers import center
from gibbsian.objectives.starts import start_points


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
            check_count(self, name, getattr(self, name))
        check_choice(self, "start", self.start, ("reference", "data"))
        if self.centering is not None:
            check_number(self, "centering", self.centering, 0.0, 1.0, open_low=True)

    def gentler(self, steps_factor: float, penalty: float) -> Self:
        return replace(self, steps=more_steps(self.steps, steps_factor))

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        if not isinstance(energy, VariationalModel):
            raise CapabilityError(
                f"VariationalLikelihood trains models.DBM, or others with layer_contrast(...) and start_layers(...), got "
                f"{type(energy).__name__}; where the free energy is exact use objectives.PersistentContrastiveDivergence"
            )
        if self.centering is not None and not energy.linear_biases():
            raise CapabilityError(
                "centering needs Bernoulli, Spin or Softmax units throughout, whose biases enter linearly; this "
                f"{type(energy).__name__} has others"
            )

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> LayerChains:
        self.check(energy, batch)
        x = observed_with(batch, generator)
        with torch.no_grad():
            v = start_points(self.start, self.chains, energy, x, generator)
            layers = energy.start_layers(v, generator, encode=self.start == "data")
            offsets: tuple[Tensor, ...] = ()
            if self.centering is not None:
                offsets = tuple(s.mean(0) for s in energy.layer_means(x, self.iterations))
        return LayerChains(tuple(layers), offsets)

    def loss(self, energy: Any, batch: Batch, state: LayerChains, generator: torch.Generator, step: Step) -> Loss:
        x = observed_with(batch, generator)
        found = energy.layer_contrast(x, state.layers, self.iterations, self.steps, generator, fused=step.fused)
        value, known, offsets = found.value, None, state.offsets
        if found.weights is not None:
            if self.centering is not None:
                if len(offsets) != len(found.biases):
                    raise ArgumentError("the state has no offsets; make it with init of an objective with centering")
                means = [s.mean(0) for s in found.means]
                offsets = tuple(torch.lerp(a, b, self.centering) for a, b in zip(offsets, means, strict=True))
                center(found.weights, found.biases, offsets)
            parameters = [p for part in energy.layer_parameters() for p in part]
            value, known = with_gradients(value, parameters, [*found.weights, *found.biases])
        moved = chain_metrics(state.layers[0], found.chains[0], step.watched)
        metrics = {"gap": value, "residual": found.residual, **moved}
        return finish(self, value, LayerChains(tuple(found.chains), offsets), metrics, gradients=known)
