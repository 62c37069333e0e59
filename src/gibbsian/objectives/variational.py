"""Maximum likelihood of models with latent variables: deep Boltzmann machines by mean-field posteriors and persistent chains,
deep belief networks by wake and sleep, decoders with an energy prior by short runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from gibbsian.capabilities import LatentModel, VariationalModel, WakeSleepModel, require
from gibbsian.derivatives.known import with_gradients
from gibbsian.errors import ArgumentError, CapabilityError, DataError, check_choice, check_number, hold_counts
from gibbsian.kernels.base import Kernel
from gibbsian.objectives.base import Batch, Loss, Step, SteppedObjective, dealt, finish, labels, observed, observed_with
from gibbsian.objectives.chains import chain_metrics, check_kernel, more_steps, walk
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
            hold_counts(self, name)
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

    def redealt(self, states: Sequence[LayerChains], rank: int, ranks: int) -> LayerChains:
        layers = (dealt(list(each), rank, ranks) for each in zip(*(s.layers for s in states), strict=True))
        offsets = (torch.stack(each).mean(0) for each in zip(*(s.offsets for s in states), strict=True))
        return LayerChains(tuple(layers), tuple(offsets))

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> LayerChains:
        self.check(energy, batch)
        x = observed_with(batch, generator)
        with torch.no_grad():
            v = start_points(self.start, self.chains, energy, x, generator)
            layers = energy.start_layers(v, generator, encode=self.start == "data")
            means = () if self.centering is None else energy.layer_means(x, self.iterations)
        return LayerChains(tuple(layers), tuple(mean.mean(0) for mean in means))

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


@dataclass(frozen=True)
class UpDown(SteppedObjective):
    """Contrastive wake-sleep: fine-tunes all layers of a `models.DBN` at once, recognition apart from generation.

        up    x^l ~ q(x^l | x^{l-1}),   -log p(x^{l-1} | x^l) for the generative weights
        top   contrastive divergence of k sweeps from x^{L-1} (and the label) in the RBM
        down  y^{l-1} ~ p(y^{l-1} | y^l) from the last state of those chains,   -log q(y^l | y^{l-1}) for recognition

    For Bernoulli layers the gradients are (x^{l-1} - σ(g + G x^l)) x^{lᵀ} and y^{l-1} (y^l - σ(r + y^{l-1} R))ᵀ with
    the signs of a descent. Sleep starts near the data and not at a free fantasy, so recognition is trained where it
    is used, and the modes of the data are not averaged over.

    Start from a network trained with `gibbsian.pretrain`; small rates, k rising from about 3 to 10. A network with
    labels takes pairs (x, y). As a classifier the result is judged by `class_log_prob`.

    Reference: Hinton, Osindero & Teh 2006, appendix B.

    Args:
        steps: k, Gibbs sweeps in the top RBM.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> dbn, batch = gb.models.DBN(6, 4, 5, labels=2), (torch.ones(8, 6), torch.arange(8) % 2)
    >>> UpDown(steps=3)(dbn, batch, (), g).value.backward()
    >>> dbn.layers[0].recognition_weight.grad.shape
    torch.Size([6, 4])
    """

    steps: int = 3

    def __post_init__(self) -> None:
        hold_counts(self, "steps")

    def gentler(self, steps_factor: float, penalty: float) -> Self:
        return replace(self, steps=more_steps(self.steps, steps_factor))

    def check(self, energy: Any, batch: Batch) -> None:
        if not isinstance(energy, WakeSleepModel):
            raise CapabilityError(
                f"UpDown trains models.DBN, or others with wake_sleep(x, y, steps, generator), got {type(energy).__name__}; "
                "for an RBM use ContrastiveDivergence"
            )
        super().check(energy, batch)
        if energy.classes is not None:
            energy.check_labels(labels(batch, "UpDown on a network with labels"))
        elif not isinstance(batch, Tensor) and len(batch) > 2:
            raise DataError(f"UpDown takes x or pairs (x, y), got {len(batch)} parts")

    def loss(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> Loss:
        x = observed_with(batch, generator)
        y = None if energy.classes is None else labels(batch, "UpDown on a network with labels")
        value, wake, gap, sleep, gradients = energy.wake_sleep(x, y, self.steps, generator, fused=step.fused)
        return finish(self, value, state, {"wake": wake, "gap": gap, "sleep": sleep}, gradients=gradients)


@dataclass(frozen=True)
class LatentLikelihood(SteppedObjective):
    """-log p(x) of a `LatentEnergy`, by samples of its posterior and of its prior:

        ∇ = E_{z~p(z|x)}[∇E(z) - ∇log p(x | z)] - E_{z~p(z)}[∇E(z)]

    The prior's energy falls where posteriors are and rises where the prior alone is; the decoder reconstructs.
    Both chains start anew from N(0, I) at every step and run briefly (short-run inference): biased towards the
    starting law where they are too short to forget it, and then the learned pair of sampler and model still
    generates. The value is the part whose gradient is taken, not a likelihood.

    Reference: Pang et al. 2020; Nijkamp et al. 2020 for short runs.

    Args:
        prior, posterior: kernels for z, such as `kernels.Langevin(0.4)` and `kernels.Langevin(0.1)`.
        prior_steps, posterior_steps: their steps.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> model = gb.energies.LatentEnergy(
    ...     gb.energies.MLP(2, outputs=5), gb.energies.MLP(2), latent=2, domain=gb.domains.Real(5)
    ... )
    >>> objective = LatentLikelihood(gb.kernels.Langevin(0.4), gb.kernels.Langevin(0.1), 10, 10)
    >>> objective(model, torch.zeros(8, 5), (), g).value.backward()
    """

    prior: Kernel
    posterior: Kernel
    prior_steps: int = 60
    posterior_steps: int = 20

    def __post_init__(self) -> None:
        check_kernel(self, self.prior)
        check_kernel(self, self.posterior)
        hold_counts(self, "prior_steps")
        hold_counts(self, "posterior_steps")

    def check(self, energy: Any, batch: Batch) -> None:
        model = require(energy, LatentModel, "LatentLikelihood", "use energies.LatentEnergy, a prior with a decoder")
        model.observed.check(observed(batch), "batch")
        self.prior.check(energy)
        self.posterior.check(energy)

    def loss(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> Loss:
        x = observed_with(batch, generator)
        start = energy.start(2 * len(x), generator=generator)
        look, at_x = step.watched, energy.given(x)
        high, chain = walk(energy, self.prior, start[: len(x)], self.prior_steps, generator, watched=look)
        low, posterior = walk(at_x, self.posterior, start[len(x) :], self.posterior_steps, generator, watched=look)
        gap = energy(low).mean() - energy(high).mean()
        fit = energy.log_prob_given(low, x).mean()
        metrics = {"gap": gap, "log_p_given": fit, "divergent": chain["divergent"] + posterior["divergent"]}
        for name, found in (("movement", chain), ("posterior_movement", posterior)):
            if "movement" in found:  # somebody looks at this step
                metrics[name] = found["movement"]
        return finish(self, gap - fit, state, metrics)
