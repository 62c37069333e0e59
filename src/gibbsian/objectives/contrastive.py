"""Maximum likelihood with the exact partition function or by samples, and contrastive divergence: chains from the data.

-log p(x) = E(x) + log Z,   ∇(-log p) = ∇E(x) - E_model[∇E]
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gibbsian.capabilities import Sampleable
from gibbsian.domains import Discrete
from gibbsian.energy import ScoreField
from gibbsian.errors import ArgumentError, CapabilityError, ShapeError, hold_counts
from gibbsian.kernels.base import Kernel
from gibbsian.objectives.base import Batch, Loss, Objective, Step, finish, need_third_order, observed, observed_with
from gibbsian.objectives.chains import SampledObjective, chain_metrics, energy_gap, plain_gibbs, walk
from gibbsian.partition.exact import exact_log_z
from gibbsian.sampling.chunks import run_steps


@dataclass(frozen=True)
class ExactLikelihood(Objective):
    """E_data[E(x)] + log Z, with log Z summed over every state or known in closed form.

    The loss is the negative log-likelihood itself, in nats. For models that know their `log_z()`, and for
    discrete ones of up to some 20 units (an RBM: on its smaller side). Every step sums over all states.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.energies.Gaussian(torch.zeros(1), torch.eye(1), trainable=True)
    >>> ExactLikelihood()(energy, torch.zeros(5, 1), (), g).value.item()  # ½ log 2π
    0.918938...
    """

    needs_energy: ClassVar[bool] = True

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        low = energy(observed(batch)).mean()
        log_z = exact_log_z(energy).mean()  # of conditional machines one for every input
        return finish(self, low + log_z, state, {"energy_data": low, "log_z": log_z})


@dataclass(frozen=True)
class MonteCarloLikelihood(SampledObjective):
    """E_data[E] - E_model[E] with fresh chains at every step: the likelihood's gradient, but for burn-in.

    Chains start at reference draws of the domain and run `steps` steps, so the bias falls with the mixing of
    the kernel and not with the training so far; `PersistentContrastiveDivergence` keeps its chains and needs
    fewer steps. Without a kernel the model's exact draws are used and the gradient is unbiased.
    The value is a difference of energies: its gradient means something, its size does not.

    Args:
        kernel: one of `gibbsian.kernels`; None for models with an exact `sample`.
        steps: steps from the start to the sample.
        chains: how many; by default as many as the batch has rows.
        penalty: times the mean squared energies of data and samples, added to keep them near zero.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    >>> objective = MonteCarloLikelihood(gb.kernels.HMC(step_size=0.5), steps=20, chains=64)
    >>> objective(energy, torch.randn(32, 2, generator=g), (), g).value.backward()
    """

    kernel_optional: ClassVar[bool] = True

    kernel: Kernel | None = None
    steps: int = 100
    chains: int | None = None
    penalty: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chains is not None:
            hold_counts(self, "chains")

    def loss(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> Loss:
        x = observed_with(batch, generator)
        n = self.chains or len(x)
        chain: dict[str, Tensor] = {}
        if self.kernel is None:
            if not isinstance(energy, Sampleable):
                name = type(energy).__name__
                raise CapabilityError(f"{name} cannot be drawn from exactly; give MonteCarloLikelihood a kernel")
            with torch.no_grad():
                samples = energy.sample(n, generator=generator)
        else:
            start = energy.domain.sample(n, generator=generator, dtype=x.dtype)
            samples, chain = walk(energy, self.kernel, start, self.steps, generator, watched=step.watched)
        value, metrics = energy_gap(energy, x, samples, self.penalty, watched=step.watched)
        return finish(self, value, state, metrics | chain)


class ReparametrizedScore(ScoreField):
    """The score of an energy with its graph, so that a sample is a function of the parameters."""

    def __init__(self, energy: Any) -> None:
        super().__init__(energy.domain)
        self.energy = energy

    def score(self, x: Tensor, *, create_graph: bool = False) -> Tensor:
        return self.energy.score(x, create_graph=True)


@dataclass(frozen=True)
class ContrastiveDivergence(SampledObjective):
    """CD-k: E_data[E] - E_q[E], q the law of chains that ran k steps of a kernel from the data.

        ∇ ≈ E_data[∇E] - E_q[∇E]            the usual rule; biased for finite k, exact as k → ∞
        ∇CD_k = E_data[∇E] - E_q[∇E] - K    with `entropy`, the gradient of KL(p_data‖p) - KL(q‖p) itself

    K = ∇(E_q[E_stop] - H(q)) is the gradient through q alone: q is reparametrized through the last steps of
    an unadjusted kernel and its entropy H estimated from the k-th nearest neighbors within the batch of n rows. Code
    in circulation adds K; the divergence that is to be minimized has it with a minus. The noise of K's estimate has
    the variance (n/k)^(2/d)/n in d dimensions, so that in few of them it grows with the batch unless k does.

    Cheap and steady, but chains never leave the data's neighborhood, so modes that the data do not have stay
    unseen: `PersistentContrastiveDivergence` finds them.

    Reference: Hinton 2002; Du, Li, Tenenbaum & Mordatch 2021 for the entropy term.

    Args:
        kernel: one of `gibbsian.kernels`.
        steps: k.
        entropy: add the term -K; needs a kernel that moves by the score alone (`Langevin`) and several rows: a last
            batch of an epoch with fewer rows than neighbors goes by the usual rule.
        entropy_steps: how many of the last steps are differentiated through; all of them make K exact.
        neighbor: which neighbor's distance estimates the entropy; the gradient has a finite variance where
            it times the dimension is above 2. By default n^(1 - d/3), at least 3: the variance falls as n^(-1/3),
            and so does the distance over which the entropy is smoothed.
        penalty: times the mean squared energies of data and samples, added to keep them near zero.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> rbm = gb.models.RBM(6, 3)
    >>> objective = ContrastiveDivergence(gb.kernels.Gibbs(), steps=1)
    >>> objective(rbm, torch.ones(10, 6), (), g).value.backward()
    """

    kernel: Kernel
    steps: int = 1
    entropy: bool = False
    entropy_steps: int = 1
    neighbor: int | None = None
    penalty: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        hold_counts(self, "entropy_steps")
        if self.neighbor is not None:
            hold_counts(self, "neighbor")
        if self.entropy and self.kernel.needs_energy:
            raise CapabilityError(
                f"ContrastiveDivergence(entropy=True) differentiates through the moves of the kernel, which "
                f"{type(self.kernel).__name__} does not allow: it accepts and rejects, or jumps; use "
                "kernels.Langevin or ShortRunLangevin"
            )
        if self.entropy and self.entropy_steps > self.steps:
            raise ArgumentError(
                f"ContrastiveDivergence(entropy_steps={self.entropy_steps}): there are {self.steps} steps"
            )

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        if not self.entropy:
            return
        x = observed(batch)
        if self.neighbor_of(x) is None:
            least = 3 if self.neighbor is None else self.neighbor
            raise ShapeError(f"the entropy term needs more than {least} rows, got {len(x)}; use larger batches")
        if self.entropy_steps > 1:
            need_third_order(self, energy)
        if isinstance(energy.domain, Discrete):
            raise CapabilityError(f"the entropy term needs continuous states, and this energy lives on {energy.domain}")

    def loss(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> Loss:
        x = observed_with(batch, generator)
        neighbor = self.neighbor_of(x) if self.entropy else None
        if neighbor is not None:
            return self._with_entropy(energy, x, state, generator, step, neighbor)
        if plain_gibbs(self.kernel, energy) and not self.penalty:
            value, samples, gradients = energy.contrast(x, None, self.steps, generator, fused=step.fused)
            metrics = {"gap": value, **chain_metrics(x, samples, step.watched)}
            return finish(self, value, state, metrics, gradients=gradients)
        samples, chain = walk(energy, self.kernel, x, self.steps, generator, watched=step.watched)
        value, metrics = energy_gap(energy, x, samples, self.penalty, watched=step.watched)
        return finish(self, value, state, metrics | chain)

    def neighbor_of(self, x: Tensor) -> int | None:
        """Which neighbor's distance estimates the entropy of rows; None where they are too few to have it."""
        n, d = len(x), x[0].numel()
        k = max(3, round(n ** (1 - d / 3))) if self.neighbor is None else self.neighbor
        return k if k < n else None

    def _with_entropy(
        self, energy: Any, x: Tensor, state: Any, generator: torch.Generator, step: Step, neighbor: int
    ) -> Loss:
        first = self.steps - self.entropy_steps
        start = walk(energy, self.kernel, x, first, generator)[0] if first else x
        # E(samples) with its graph carries both E_q[∇E] and the gradient through q, so that the value is
        # KL(p_data‖p) - KL(q‖p) but for the entropy of the data, and its gradient follows by itself
        field = ReparametrizedScore(energy)
        chain = self.kernel.init(field, start.detach())
        inputs = self.kernel.draw(field, start, self.entropy_steps, generator, first)
        chain, _, _ = run_steps(field, self.kernel, chain, inputs)
        samples = self.kernel.position(chain)
        value, metrics = energy_gap(energy, x, samples, self.penalty, watched=step.watched)
        entropy = nearest_neighbor_entropy(samples, neighbor)
        metrics |= {"entropy": entropy, **chain_metrics(x, samples, step.watched)}
        return finish(self, value + entropy, state, metrics)


def nearest_neighbor_entropy(x: Tensor, neighbor: int = 1) -> Tensor:
    """H ≈ d·mean log ρᵢ + log V_d + log(n-1) - ψ(k), ρᵢ the distance from xᵢ to its k-th nearest neighbor.

    V_d is the volume of the unit ball, and -ψ(1) = 0.5772. Gradients flow to both ends of every pair. The
    bias falls as n^(-1/d): an estimate in few dimensions, a guide in many. Where points are moved by noise
    besides the parameters, gradients have a finite variance only for k·d > 2.

    Reference: Kozachenko & Leonenko 1987; Kraskov, Stögbauer & Grassberger 2004 for k > 1.

    >>> g = torch.Generator().manual_seed(0)
    >>> x = torch.randn(4000, 1, generator=g)
    >>> abs(float(nearest_neighbor_entropy(x)) - 0.5 * math.log(2 * math.pi * math.e)) < 0.06
    True
    """
    n, flat = len(x), x.flatten(1)
    if n <= neighbor:
        raise ArgumentError(f"{n} points do not have {neighbor} neighbors each; give more rows")
    d = flat.shape[1]
    with torch.no_grad():
        gaps = torch.cdist(flat, flat).fill_diagonal_(math.inf)
        nearest = gaps.topk(neighbor, dim=1, largest=False).indices[:, -1]
    rho = (flat - flat[nearest]).norm(dim=1)
    log_ball = 0.5 * d * math.log(math.pi) - math.lgamma(0.5 * d + 1)
    digamma = float(torch.special.digamma(torch.tensor(float(neighbor), dtype=torch.float64)))
    return d * rho.log().mean() + log_ball + math.log(n - 1) - digamma
