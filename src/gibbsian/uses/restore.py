"""Restoring what was corrupted, with a learned energy as the prior: denoising and inpainting."""

from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.energies.observed import Observed
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, check_count, check_number
from gibbsian.kernels.base import Kernel
from gibbsian.kernels.gibbs import Gibbs
from gibbsian.placement import check_placement, check_rows
from gibbsian.progress import progress_bar
from gibbsian.random import require_generator
from gibbsian.sampling.checks import check_counts
from gibbsian.sampling.sample import sample
from gibbsian.sampling.trace import Trace
from gibbsian.uses.minimize import minimize, report_unrest


class Restored(NamedTuple):
    """The estimate `(batch, *event)`; for posterior means the posterior's standard deviation, for modes which rows had come
    to rest `(batch,)`, None for the other."""

    x: Tensor
    sd: Tensor | None
    converged: Tensor | None = None


def denoise(
    prior: Energy,
    observation: Tensor,
    sigma: float,
    *,
    method: str = "mode",
    strength: float = 1.0,
    kernel: Kernel | None = None,
    steps: int = 100,
    burn_in: int = 20,
    chains: int = 1,
    generator: torch.Generator | None = None,
    progress: bool | None = None,
) -> Restored:
    """What is behind y = x + σ·noise under a prior: the mode or the mean of p(x | y) ∝ exp(-E(x) - ‖x - y‖²/2σ²).

    The mean has the least squared error that the prior allows, and comes with an error bar; the mode is
    faster, and a `ConvergenceWarning` tells of rows whose search for it had not come to rest. `strength` multiplies
    the prior's energy: 1 is Bayes' rule, and other values make up for priors that are too sure or not sure enough
    (modes of heavy-tailed priors like 0.3 to 1).

    Args:
        prior: an energy over continuous events, such as a learned `energies.FieldOfExperts`.
        observation: y `(batch, *event)`.
        sigma: σ.
        method: "mode" (L-BFGS) or "mean" (sampling).
        strength: factor of the prior's energy.
        kernel: for the mean; `kernels.Gibbs()` for products and fields of experts, else yours.
        steps, burn_in: of the search; or of each chain, and how many of its first steps do not count.
        chains: chains for every row, started at the observation.
        generator: for the mean.
        progress: show a progress bar; by default on a terminal.

    >>> import gibbsian as gb
    >>> prior = gb.energies.Gaussian(torch.zeros(2), torch.eye(2))
    >>> denoise(prior, torch.tensor([[2.0, 0.0]]), sigma=1.0).x.round(decimals=3)
    tensor([[1., 0.]])
    """
    prior.domain.check_shape(observation, "observation")
    check_placement(observation, prior, "observation")
    posterior = Observed(_scaled(prior, strength), observation, sigma)
    start = prior.domain.within_walls(observation)
    return _Search(method, kernel, steps, burn_in, chains, generator, progress).of(posterior, start, None)


def inpaint(
    prior: Energy,
    observation: Tensor,
    clamp: Tensor,
    *,
    method: str = "mode",
    strength: float = 1.0,
    kernel: Kernel | None = None,
    steps: int = 200,
    burn_in: int = 40,
    chains: int = 1,
    generator: torch.Generator | None = None,
    progress: bool | None = None,
) -> Restored:
    """Fill in what is missing: the mode or the mean of the prior given the entries that `clamp` holds.

    Args:
        prior: an energy over continuous events.
        observation: `(batch, *event)`; entries that are not held may be anything finite, which is where the
            search starts.
        clamp: bool, True for entries that are known and keep their value; of the event shape, or per row.
        method, strength, kernel, steps, burn_in, chains, generator, progress: as in `denoise`.

    >>> import gibbsian as gb
    >>> prior = gb.energies.Gaussian(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
    >>> inpaint(prior, torch.tensor([[2.0, 0.0]]), torch.tensor([True, False])).x.round(decimals=3)
    tensor([[2., 1.]])
    """
    check_rows(prior, observation, "observation")
    how = _Search(method, kernel, steps, burn_in, chains, generator, progress)
    return how.of(_scaled(prior, strength), observation, clamp)


def _scaled(prior: Energy, strength: float) -> Energy:
    check_number("denoise", "strength", strength, open_low=True)
    return prior if strength == 1 else prior.tempered(torch.tensor(float(strength)))


class _Search(NamedTuple):
    """How an estimate is looked for: what `denoise` and `inpaint` are told alike."""

    method: str
    kernel: Kernel | None
    steps: int
    burn_in: int
    chains: int
    generator: torch.Generator | None
    progress: bool | None

    def of(self, law: Energy, start: Tensor, clamp: Tensor | None) -> Restored:
        """The mode or the mean of a law, from `start` on, where entries that `clamp` holds stay."""
        if self.method == "mode":
            found = minimize(law, start, clamp=clamp, steps=self.steps)
            report_unrest(found.converged, self.steps, stacklevel=4)
            return Restored(found.x, None, found.converged)
        if self.method != "mean":
            raise ArgumentError(f"method={self.method!r}: expected 'mode' or 'mean'")
        return self._mean(law, start, clamp)

    def _mean(self, law: Energy, start: Tensor, clamp: Tensor | None) -> Restored:
        steps, burn_in, _ = check_counts(self.steps, self.burn_in, 1)
        chains = check_count("denoise", "chains", self.chains)
        generator = require_generator(self.generator, start.device)
        kernel = Gibbs() if self.kernel is None else self.kernel
        copies = (chains, *[1] * (start.dim() - 1))
        if clamp is not None and clamp.dim() == start.dim():
            clamp = clamp.repeat(copies)
        state: Tensor | Trace = start.repeat(copies)
        mean, square = torch.zeros_like(start), torch.zeros_like(start)
        with progress_bar(steps, "posterior mean", self.progress) as tick:
            for step in range(steps):  # one at a time: the random numbers of several steps of a large image are many
                state = sample(law, kernel, state, 1, keep=False, clamp=clamp, generator=generator, progress=False)
                clamp = None  # the trace keeps it
                if step >= burn_in:
                    draws = state.last.reshape(chains, *start.shape)
                    moved = mean + (draws - mean).mean(0) / (step - burn_in + 1)
                    square = square + ((draws - mean) * (draws - moved)).mean(0)
                    mean = moved
                tick(1)
        return Restored(mean, (square / (steps - burn_in)).clamp(min=0).sqrt())
