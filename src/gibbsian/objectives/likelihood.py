"""Maximum likelihood: with the exact partition function, or with the model's own samples.

-log p(x) = E(x) + log Z,   ∇(-log p) = ∇E(x) - E_model[∇E]
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gibbsian.capabilities import Sampleable
from gibbsian.errors import CapabilityError, check_count
from gibbsian.kernels.base import Kernel
from gibbsian.objectives.base import Batch, Loss, Objective, Step, finish, observed, observed_with
from gibbsian.objectives.chains import SampledObjective, check_kernel, energy_gap, walk
from gibbsian.partition.exact import exact_log_z


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

    kernel: Kernel | None = None
    steps: int = 100
    chains: int | None = None
    penalty: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel is not None:
            check_kernel(self, self.kernel)
        if self.chains is not None:
            check_count(self, "chains", self.chains)

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
