"""Regularized training: weight decay, sparse weights and sparse hidden units, to be added with `Weighted`; centered gradients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gibbsian.capabilities import HiddenModel, LayeredModel, require
from gibbsian.derivatives.known import gradients_of, trainable, with_gradients
from gibbsian.domains import Binary
from gibbsian.errors import CapabilityError, check_choice, check_count, check_number
from gibbsian.fast.compiled import compiled_copy
from gibbsian.objectives.base import Batch, Loss, Objective, Step, WrappedObjective, finish, observed


@dataclass(frozen=True)
class WeightDecay(Objective):
    """rate·½Σw² or rate·Σ|w| over weights, not over biases.

    Args:
        rate: strength.
        norm: 2 or 1.
        names: parameters with one of these in their dotted name are weights.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> rbm = gb.models.RBM(2, 2)
    >>> WeightDecay(0.1)(rbm, torch.ones(3, 2), (), g).value.backward()
    >>> rbm.visible_bias.grad is None and torch.allclose(rbm.weight.grad, 0.1 * rbm.weight)
    True
    """

    rate: float = 1e-4
    norm: int = 2
    names: tuple[str, ...] = ("weight", "weights")

    def __post_init__(self) -> None:
        check_number(self, "rate", self.rate)
        object.__setattr__(self, "norm", check_count(self, "norm", self.norm, 1, 2))

    def weights(self, energy: Any) -> list[Tensor]:
        """The parameters that decay."""
        found = [p for name, p in energy.named_parameters() if not set(name.split(".")).isdisjoint(self.names)]
        if not found:
            raise CapabilityError(
                f"{type(energy).__name__} has no parameter named {' or '.join(self.names)} to decay; it has "
                f"{', '.join(name for name, _ in energy.named_parameters())}: say which with names="
            )
        return found

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        self.weights(energy)

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        weights = self.weights(energy)
        with torch.no_grad():
            sizes = torch.stack([torch.linalg.vector_norm(w, self.norm) for w in weights])
            value = self.rate * (sizes if self.norm == 1 else 0.5 * sizes.square()).sum()
            slopes = [self.rate * (w.sign() if self.norm == 1 else w) for w in weights]
        value, gradients = with_gradients(value, weights, slopes)
        return finish(self, value, state, {}, gradients=gradients)


@dataclass(frozen=True)
class BlockSparsity(Objective):
    """(rate/2n) Σⱼ (Σᵢ |wᵢⱼ|)² over the columns of a weight matrix with n rows: features that look at few inputs.

    The derivative, (rate/n) sign(wᵢⱼ) Σᵢ |wᵢⱼ|, is that of an L1 penalty whose strength grows with the feature's own size: strong
    features are thinned out, weak ones are left to grow.

    Reference: Tubiana, Cocco & Monasson 2019, where rate is λ₁².

    Args:
        rate: strength.
        names: parameters with one of these in their dotted name are weight matrices.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> rbm = gb.models.RBM(4, 2)
    >>> value = BlockSparsity(2.0)(rbm, torch.ones(3, 4), (), g).value
    >>> torch.allclose(value, rbm.weight.abs().sum(0).square().sum() / 4)
    True
    """

    rate: float = 0.25
    names: tuple[str, ...] = ("weight",)

    def __post_init__(self) -> None:
        check_number(self, "rate", self.rate)

    def weights(self, energy: Any) -> list[Tensor]:
        """The matrices that are thinned out."""
        found = WeightDecay(names=self.names).weights(energy)
        for weight in found:
            if weight.dim() != 2:
                raise CapabilityError(
                    f"BlockSparsity is for matrices, a weight of {type(energy).__name__} has shape {tuple(weight.shape)}; say "
                    "which with names="
                )
        return found

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        self.weights(energy)

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        weights = self.weights(energy)
        with torch.no_grad():
            sizes = [w.abs().sum(0) for w in weights]
            value = sum((self.rate / (2 * len(w))) * s.square().sum() for w, s in zip(weights, sizes, strict=True))
            slopes = [(self.rate / len(w)) * w.sign() * s for w, s in zip(weights, sizes, strict=True)]
        value, gradients = with_gradients(torch.as_tensor(value), weights, slopes)
        return finish(self, value, state, {}, gradients=gradients)


@dataclass(frozen=True)
class Sparsity(Objective):
    """rate·Σⱼ KL(ρ‖qⱼ), qⱼ the mean of p(hⱼ=1|v) over the batch: hidden units on a share ρ of the time.

    Reference: Lee, Ekanadham & Ng 2008; Hinton 2012, section 11.

    Args:
        target: ρ.
        rate: strength.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> rbm = gb.models.RBM(2, 3)
    >>> Sparsity(0.1)(rbm, torch.ones(3, 2), (), g).value.backward()
    """

    target: float = 0.05
    rate: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "target", self.target, 0.0, 1.0, open_low=True, open_high=True)
        check_number(self, "rate", self.rate)

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        hidden = require(energy, HiddenModel, "Sparsity", "use models.RBM, for example").hidden_unit()
        if not isinstance(hidden.domain, Binary):
            raise CapabilityError(
                f"Sparsity needs a model with Bernoulli hidden units, whose means are probabilities; those of "
                f"{type(energy).__name__} are {type(hidden).__name__} units"
            )

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        rho, q = self.target, energy.hidden_mean(observed(batch)).mean(0)
        q_total = torch.special.xlogy(rho, rho / q) + torch.special.xlogy(1 - rho, (1 - rho) / (1 - q))
        return finish(self, self.rate * q_total.sum(), state, {"activity": q.mean()})


class Offsets(NamedTuple):
    """The wrapped objective's state, and the running means of visible and hidden statistics."""

    inner: Any
    visible: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class Centered(WrappedObjective):
    """The centered gradient of an RBM: that of E(v - μ, h - λ), mapped back to the plain parameters.

        ΔW = g_W - μg_cᵀ - g_bλᵀ,   Δb = g_b - ΔWλ,   Δc = g_c - ΔWᵀμ

    Learning no longer depends on whether a pixel is called 0 or 1, and is much faster where units are mostly
    on or mostly off. The minimum is the same; only the direction of the steps changes.

    Reference: Montavon & Müller 2012; Melchior, Fischer & Wiskott 2016.

    Args:
        objective: whose gradient is centered, such as `PersistentContrastiveDivergence`.
        offsets: μ and λ follow the means of the "data", or the "average" of data and model samples (the
            enhanced gradient), read off the gradients of the biases.
        rate: of their running average; 1 uses the current batch alone.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> rbm, data = gb.models.RBM(6, 3), torch.ones(10, 6)
    >>> objective = Centered(gb.objectives.ContrastiveDivergence(gb.kernels.Gibbs()))
    >>> objective(rbm, data, objective.init(rbm, data, g), g).value.backward()
    """

    offsets: str = "data"
    rate: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "offsets", self.offsets, ("data", "average"))
        check_number(self, "rate", self.rate, 0.0, 1.0, open_low=True)

    def inner(self, state: Offsets) -> Any:
        return state.inner

    def redealt(self, states: Sequence[Offsets], rank: int, ranks: int) -> Offsets:
        inner = self.objective.redealt([state.inner for state in states], rank, ranks)
        means = (torch.stack(each).mean(0) for each in zip(*((s.visible, s.hidden) for s in states), strict=True))
        return Offsets(inner, *means)

    def check(self, energy: Any, batch: Batch) -> None:
        self.objective.check(energy, batch)
        model = require(energy, LayeredModel, "Centered", "use models.RBM, for example")
        if len(model.layer_parameters()[1]) != 2:
            raise CapabilityError(
                f"Centered is for two layers, this {type(energy).__name__} has more; use VariationalLikelihood(centering=...)"
            )
        if not model.linear_biases():
            raise CapabilityError(
                "Centered needs layers of Bernoulli, spin or softmax units, so that biases enter linearly; this "
                f"{type(energy).__name__} has others"
            )

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> Offsets:
        self.check(energy, batch)
        with torch.no_grad():
            visible, hidden = (rows.mean(0) for rows in energy.layer_means(observed(batch)))
        return Offsets(self.objective.init(energy, batch, generator), visible, hidden)

    def loss(self, energy: Any, batch: Batch, state: Offsets, generator: torch.Generator, step: Step) -> Loss:
        loss = self.objective.loss(energy, batch, state.inner, generator, step)
        if not loss.value.requires_grad:  # only judged, as in validation: the value is the same
            return loss._replace(state=Offsets(loss.state, state.visible, state.hidden))
        gradients = loss.gradients
        if gradients is None:
            parameters = trainable(energy)
            gradients = dict(zip(parameters, gradients_of(loss.value, parameters), strict=True))
        ((weight,), biases) = energy.layer_parameters()
        mine = weight, *biases
        w, b, c = (gradients[p] if p in gradients else torch.zeros_like(p) for p in mine)
        with torch.no_grad():
            v, h = energy.layer_means(observed(batch))
        direction = (
            compiled_copy(_centered_step, *w.shape, len(v), self.rate, self.offsets) if step.fused else _centered_step
        )
        moved, mu, nu = direction(w, b, c, v, h, state.visible, state.hidden, self.rate, self.offsets)
        gradients = gradients | dict(zip(mine, moved, strict=True))
        value, known = with_gradients(loss.value.detach(), list(gradients), list(gradients.values()))
        state = Offsets(loss.state, mu, nu)
        return Loss(value, state, loss.metrics, loss.other, known if loss.other is None else None)


def _centered_step(
    w: Tensor, b: Tensor, c: Tensor, v: Tensor, h: Tensor, mu: Tensor, nu: Tensor, rate: float, offsets: str
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor, Tensor]:
    """The centered direction of plain gradients, and the offsets after a step towards the statistics of a batch."""
    visible, hidden = v.mean(0), h.mean(0)
    if offsets == "average":  # g_b = E_model[v] - E_data[v]
        visible, hidden = visible + 0.5 * b, hidden + 0.5 * c
    mu, nu = torch.lerp(mu, visible, rate), torch.lerp(nu, hidden, rate)
    biases = [b, c]
    center([w], biases, (mu, nu))
    return (w, biases[0], biases[1]), mu, nu


def center(weights: list[Tensor], biases: list[Tensor], offsets: Sequence[Tensor]) -> None:
    """Plain gradients of a machine of layers, from the visible one up, become centered ones, in place."""
    plain = list(biases)
    for i, w in enumerate(weights):
        w.addr_(offsets[i], plain[i + 1], alpha=-1).addr_(plain[i], offsets[i + 1], alpha=-1)
    for i, w in enumerate(weights):
        biases[i] = biases[i] - w @ offsets[i + 1]
        biases[i + 1] = biases[i + 1] - offsets[i] @ w
