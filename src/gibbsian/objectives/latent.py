"""Maximum likelihood of latent-variable models with an energy prior, by short runs for prior and posterior."""

from dataclasses import dataclass
from typing import Any

import torch

from gibbsian.capabilities import LatentModel, require
from gibbsian.errors import check_count
from gibbsian.kernels.base import Kernel
from gibbsian.objectives.base import Batch, Loss, Step, SteppedObjective, finish, observed, observed_with
from gibbsian.objectives.chains import check_kernel, walk


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
        check_count(self, "prior_steps", self.prior_steps)
        check_count(self, "posterior_steps", self.posterior_steps)

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
