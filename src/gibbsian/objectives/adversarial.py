"""Adversarial training: the energy against a sampler that follows it, a network with an entropy."""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from gibbsian.derivatives.known import frozen
from gibbsian.domains import Domain, Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError, check_number, hold_counts
from gibbsian.kernels.base import Kernel
from gibbsian.kernels.hmc import HMC
from gibbsian.nets.layers import sizes_of
from gibbsian.objectives.base import Batch, Loss, Step, SteppedObjective, finish, observed_with
from gibbsian.objectives.chains import check_kernel, energy_gap, walk
from gibbsian.objectives.flows import Flow, spread
from gibbsian.placement import STUMBLES
from gibbsian.random import isolated, require_generator


@dataclass(frozen=True)
class SamplerKind(ABC):
    """A kind of sampler, built when training starts."""

    @abstractmethod
    def build(self, domain: Domain, x: Tensor, generator: torch.Generator) -> nn.Module:
        """A module with `sample(n, generator=)`, and with `draw(n, generator)`: differentiable samples, a term whose
        gradient in the module's parameters is that of -H(q), and metrics."""


class FlowNetwork(nn.Module):
    """A flow whose samples cost one pass: H(q) = -E[log q] exactly."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self.flow = flow

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        x, log_q = self.flow.draw(n, generator=generator)
        negative_entropy = log_q.mean()
        return x, negative_entropy, {"entropy": -negative_entropy.detach()}

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        return self.flow.sample(n, generator=generator)


@dataclass(frozen=True)
class FlowSampler(SamplerKind):
    """A neural spline flow (zuko): density and entropy are exact.

    Args:
        transforms, hidden, bins: autoregressive layers, widths of their networks, spline bins.

    >>> g = torch.Generator().manual_seed(0)
    >>> sampler = FlowSampler().build(Real(2), torch.randn(9, 2, generator=g), g)
    >>> sampler.sample(4, generator=g).shape
    torch.Size([4, 2])
    """

    transforms: int = 3
    hidden: tuple[int, ...] = (64, 64)
    bins: int = 8

    def __post_init__(self) -> None:
        hold_counts(self, "transforms")
        hold_counts(self, "bins", least=2)
        object.__setattr__(self, "hidden", sizes_of("hidden", self.hidden))

    def build(self, domain: Domain, x: Tensor, generator: torch.Generator) -> FlowNetwork:
        size: dict[str, Any] = {"transforms": self.transforms, "hidden": self.hidden, "bins": self.bins}
        return FlowNetwork(Flow(domain.shape, "sample", *spread(x), **size, generator=generator))


class LatentPosterior(Energy):
    """E(z) = ½‖z‖² + ‖x - G(z)‖²/2σ²: which latents may have made x."""

    def __init__(self, network: Any, x: Tensor, sigma: float, latent: int) -> None:
        super().__init__(Real(latent))
        self.network, self.x, self.sigma = network, x, sigma

    def forward(self, z: Tensor) -> Tensor:
        miss = (self.x - self.network(z)).flatten(1).square().sum(1)
        return 0.5 * z.square().sum(1) + miss / (2 * self.sigma**2)


class ImplicitNetwork(nn.Module):
    """x = G(z) + σε, with s_q(x) fitted by denoising or averaged over posterior latents."""

    anchor: Tensor

    def __init__(self, kind: "ImplicitSampler", network: nn.Module, score: nn.Module | None, like: Tensor) -> None:
        super().__init__()
        self.network, self.score, self.latent, self.sigma = network, score, kind.latent, kind.sigma
        self.kernel, self.steps = kind.kernel or HMC(step_size=kind.sigma, leapfrog_steps=10), kind.steps
        self.register_buffer("anchor", like.new_zeros(()), persistent=False)

    def forward(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """z ~ N(0, I), ε, and x = G(z) + σε."""
        like = self.anchor
        require_generator(generator, like.device)
        z = torch.randn(n, self.latent, generator=generator, dtype=like.dtype, device=like.device)
        clean = self.network(z)
        noise = torch.randn(clean.shape, generator=generator, dtype=clean.dtype, device=clean.device)
        return z, noise, clean + self.sigma * noise

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        z, noise, x = self(n, generator)
        if self.score is not None:
            s_q = self.score(x.detach())
            fit = 0.5 * (self.sigma * s_q + noise).square().flatten(1).sum(1).mean()
            # ∇(-H) = E[s_qᵀ ∂x]; the fit of s_q has no other place to be minimized
            term = (s_q.detach() * x).flatten(1).sum(1).mean() + fit - fit.detach()
            return x, term, {"score_fit": fit.detach()}
        posterior = LatentPosterior(self.network, x.detach(), self.sigma, self.latent)
        again, metrics = walk(posterior, self.kernel, z, self.steps, generator)
        with torch.no_grad():
            s_q = (self.network(again) - x) / self.sigma**2
        term = (s_q * x).flatten(1).sum(1).mean()
        kept = {f"posterior_{name}": metric for name, metric in metrics.items() if name != "divergent"}
        return x, term, kept

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        with torch.no_grad():
            return self(n, generator)[2]


class _Affine(nn.Module):
    """loc + scale·net(z), reshaped to events; or its inverse in front of a network."""

    loc: Tensor
    scale: Tensor

    def __init__(self, net: nn.Module, loc: Tensor, scale: Tensor, *, front: bool = False) -> None:
        super().__init__()
        self.net, self.front = net, front
        self.register_buffer("loc", loc.clone())
        self.register_buffer("scale", scale.clone())

    def forward(self, x: Tensor) -> Tensor:
        if self.front:
            y = self.net(((x - self.loc) / self.scale).flatten(1))
            return y.reshape(x.shape) / self.scale
        return self.loc + self.scale * self.net(x).reshape(len(x), *self.loc.shape)


def _perceptron(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    sizes = (inputs, *hidden)
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


@dataclass(frozen=True)
class ImplicitSampler(SamplerKind):
    """x = G(z) + σε: any network as a sampler; the gradient of its entropy is estimated.

        ∇H = -E[s_q(x)ᵀ ∂x],   s_q(x) = E_{z'|x}[(G(z') - x)/σ²]

    z' comes from the posterior: the z that made x would give zero. Either s_q is a network fitted by
    denoising along the way (`entropy="score"`), or z' is drawn by a Markov chain that starts at z and must
    run long enough to forget it (`entropy="posterior"`).

    Reference: Dieng et al. 2019; Grathwohl et al. 2021.

    Args:
        latent: dimension of z.
        sigma: σ, relative to nothing: in units of the data.
        hidden: widths of the default networks.
        network: G, from `(n, latent)` to `(n, *event)`; a copy of it is trained.
        score_network: for s_q, from events to events; a copy is trained.
        entropy: "score" or "posterior".
        kernel: for the posterior; by default HMC with step size σ and ten leapfrog steps.
        steps: of that kernel.

    >>> g = torch.Generator().manual_seed(0)
    >>> sampler = ImplicitSampler(latent=3).build(Real(2), torch.randn(9, 2, generator=g), g)
    >>> sampler.sample(4, generator=g).shape
    torch.Size([4, 2])
    """

    latent: int = 16
    sigma: float = 0.1
    hidden: tuple[int, ...] = (128, 128)
    network: nn.Module | None = None
    score_network: nn.Module | None = None
    entropy: str = "score"
    kernel: Kernel | None = None
    steps: int = 10

    def __post_init__(self) -> None:
        hold_counts(self, "latent", "steps")
        check_number(self, "sigma", self.sigma, open_low=True)
        if self.entropy not in ("score", "posterior"):
            raise ArgumentError(f"ImplicitSampler(entropy={self.entropy!r}): use 'score' or 'posterior'")
        object.__setattr__(self, "hidden", sizes_of("hidden", self.hidden, 0))
        if self.kernel is not None:
            check_kernel(self, self.kernel)
        for name in ("network", "score_network"):
            net = getattr(self, name)
            if net is not None and not isinstance(net, nn.Module):
                raise ArgumentError(f"ImplicitSampler({name}={net!r}): expected an nn.Module, or None for a perceptron")

    def build(self, domain: Domain, x: Tensor, generator: torch.Generator) -> ImplicitNetwork:
        loc, scale = spread(x)
        with isolated(generator):
            network = self.network or _Affine(_perceptron(self.latent, self.hidden, domain.numel), loc, scale)
            own = self.score_network
            if own is None:
                own = _Affine(_perceptron(domain.numel, self.hidden, domain.numel), loc, scale, front=True)
        score = None if self.entropy == "posterior" else own
        sampler = ImplicitNetwork(self, copy.deepcopy(network), copy.deepcopy(score), x).to(x)
        like = x.new_zeros(2, self.latent)
        shape = _shape_of(sampler.network, like, "generator network", f"2 latents of {self.latent} numbers")
        if shape != (2, *domain.shape):
            raise ShapeError(f"the generator network makes {shape} from 2 latents, expected {(2, *domain.shape)}")
        if sampler.score is None:
            sampler.kernel.check(LatentPosterior(sampler.network, x[:1], self.sigma, self.latent))
        elif (found := _shape_of(sampler.score, x[:1], "score network", f"one row of {domain}")) != (1, *domain.shape):
            raise ShapeError(
                f"the score network makes {found} from one row, expected {(1, *domain.shape)}, as the row itself"
            )
        return sampler


def _shape_of(network: nn.Module, x: Tensor, name: str, what: str) -> tuple[int, ...]:
    """The shape of what a network makes of x."""
    try:
        with torch.no_grad():
            return tuple(network(x).shape)
    except STUMBLES as error:
        raise ShapeError(f"the {name} does not take {what}, a tensor of shape {tuple(x.shape)}: {error}") from error


NAMED: dict[str, SamplerKind] = {"flow": FlowSampler(), "implicit": ImplicitSampler()}


class AdversarialState(NamedTuple):
    """The sampler q; `sampler.sample(n, generator=)` draws from it."""

    sampler: nn.Module


@dataclass(frozen=True)
class Adversarial(SteppedObjective):
    """θ minimizes E_data[E] - E_q[E] while φ minimizes E_q[E] - H(q): q stands in for the model's samples.

    For a fixed energy the second is KL(q‖p) but for log Z, so q follows p, and for q = p the first has the
    gradient of the likelihood. No Markov chain, and a fast sampler at the end; but a game, which can circle:
    give the energy a learning rate several times below the sampler's, `fit(lr=(1e-3, 5e-3))`, or use a penalty.

    Reference: Kim & Bengio 2016; Dai et al. 2019; Grathwohl et al. 2021.

    Args:
        sampler: "flow" (exact entropy), "implicit" (any network, estimated entropy gradient), or one of these
            with options: `FlowSampler(...)`, `ImplicitSampler(...)`.
        penalty: times the mean squared energies of data and samples.
        gradient_penalty: times ½E_data‖∇E‖², which smooths the energy (and biases it).

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    >>> data = torch.randn(50, 2, generator=g)
    >>> objective = Adversarial("flow")
    >>> loss = objective(energy, data, objective.init(energy, data, g), g)
    >>> loss.value.backward(); loss.other.backward()
    """

    needs_energy: ClassVar[bool] = True
    domains: ClassVar[tuple[type[Domain], ...]] = (Real,)
    elsewhere: ClassVar[str] = "samplers here live on R^d; train gibbsian.unconstrained(energy)"
    one_law: ClassVar[str] = "trains one sampler of one law"

    sampler: str | SamplerKind = "flow"
    penalty: float = 0.0
    gradient_penalty: float = 0.0

    def descends(self) -> bool:
        """It does not: its loss is the contrast of data with the sampler's draws."""
        return False

    def __post_init__(self) -> None:
        if self.sampler not in NAMED if isinstance(self.sampler, str) else not isinstance(self.sampler, SamplerKind):
            raise ArgumentError(
                f"Adversarial(sampler={self.sampler!r}): use 'flow', 'implicit', FlowSampler(...) or "
                "ImplicitSampler(...)"
            )
        check_number(self, "penalty", self.penalty)
        check_number(self, "gradient_penalty", self.gradient_penalty)

    def gentler(self, steps_factor: float, penalty: float) -> Self:
        return replace(self, penalty=max(self.penalty, penalty))

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> AdversarialState:
        self.check(energy, batch)
        x = observed_with(batch, generator)
        kind = NAMED[self.sampler] if isinstance(self.sampler, str) else self.sampler
        return AdversarialState(kind.build(energy.domain, x, generator))

    def loss(self, energy: Any, batch: Batch, state: AdversarialState, generator: torch.Generator, step: Step) -> Loss:
        x = observed_with(batch, generator)
        samples, negative_entropy, sampler_metrics = state.sampler.draw(len(x), generator)  # type: ignore[operator]
        value, metrics = energy_gap(energy, x, samples.detach(), self.penalty, watched=step.watched)
        if self.gradient_penalty:
            score = energy.score(x, create_graph=True)
            value = value + 0.5 * self.gradient_penalty * score.square().flatten(1).sum(1).mean()
        with frozen(energy):
            other = energy(samples).mean() + negative_entropy
        return finish(self, value, state, metrics | sampler_metrics, other)
