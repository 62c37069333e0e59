"""A prior that has seen something: the energy of what is behind a noisy observation."""

import torch
from torch import Tensor

from gibbsian.domains import Bounded, Real
from gibbsian.energies.experts import StudentExperts
from gibbsian.energy import Energy, rows_for
from gibbsian.errors import ArgumentError, CapabilityError, DataError, ShapeError, check_number, check_tensor
from gibbsian.placement import check_placement


def _checked(observation: Tensor, mask: Tensor | None, event: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Observations `(rows, *event)`, and 1 where something was seen, 0 elsewhere."""
    fits = tuple(observation.shape[-len(event) :]) == event and observation.dim() in (len(event), len(event) + 1)
    if not bool(torch.isfinite(observation).all()):
        raise DataError(
            "the observation has entries that are not finite; put any number there and leave them out by mask="
        )
    if not fits or not observation.numel():
        raise ShapeError(f"the observation has shape {tuple(observation.shape)}, expected {event} or (rows, *{event})")
    rows = observation.reshape(-1, *event)
    if mask is None:
        return rows, torch.ones_like(rows)
    if mask.dtype != torch.bool or tuple(mask.shape) not in {event, tuple(observation.shape)}:
        raise ArgumentError(f"mask is {mask.dtype} of shape {tuple(mask.shape)}, expected bool of shape {event}")
    return rows, mask.to(rows).expand_as(observation).reshape(-1, *event)


class Observed(Energy):
    """The posterior of a prior energy after y = x + σ·noise was seen: E(x | y) = E(x) + ‖m·(x - y)‖²/2σ².

    m is 1 where y was seen and 0 where it was not. Its minimum is the maximum a posteriori, the mean of its
    samples the estimate of least squared error: `gibbsian.denoise`. With a product or field of experts as
    prior it has exact block Gibbs steps.

    Args:
        prior: an energy over continuous events.
        observation: y, one event, or one for each row `(rows, *event)`; further rows go through them again.
        sigma: σ.
        mask: bool, True where y was seen; of the event shape, or that of `observation`. Everywhere when left out.

    >>> import gibbsian as gb
    >>> prior = gb.energies.Gaussian(torch.zeros(1), torch.eye(1))
    >>> posterior = Observed(prior, torch.tensor([2.0]), sigma=1.0)  # N(1, ½)
    >>> posterior.score(torch.ones(1, 1))
    tensor([[0.]])
    """

    observation: Tensor
    mask: Tensor

    def __init__(self, prior: Energy, observation: Tensor, sigma: float, mask: Tensor | None = None) -> None:
        if not isinstance(prior, Energy):
            raise ArgumentError(f"the prior is a {type(prior).__name__}, expected an energy")
        super().__init__(prior.domain)
        if not isinstance(prior.domain, Real | Bounded):
            raise ArgumentError(f"Gaussian noise needs continuous events, the prior lives on {prior.domain}")
        check_number(self, "sigma", sigma, open_low=True)
        check_tensor(observation, "observation")
        check_placement(observation, prior, "observation")
        rows, seen = _checked(observation, mask, tuple(prior.domain.shape))
        self.prior, self.sigma = prior, float(sigma)
        self.register_buffer("observation", rows.clone(), persistent=False)
        self.register_buffer("mask", seen, persistent=False)

    def _seen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mask and observation of every row, or of all."""
        if len(self.mask) == 1:
            return self.mask, self.observation
        return rows_for(self.mask, len(x), "observations"), rows_for(self.observation, len(x), "observations")

    def _gap(self, x: Tensor) -> Tensor:
        mask, observation = self._seen(x)
        return mask * (x - observation)

    def forward(self, x: Tensor) -> Tensor:
        return self.prior(x) + self._gap(x).flatten(1).square().sum(1) / (2 * self.sigma**2)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            e, s = self.prior.energy_and_score(x)
            gap = self._gap(x)
            return e + gap.flatten(1).square().sum(1) / (2 * self.sigma**2), s - gap / self.sigma**2

    # --- Gibbs sampling, for priors that are Gaussian given their scales ------------------------------

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """That of the prior."""
        if not isinstance(self.prior, StudentExperts):
            raise CapabilityError(
                f"{type(self.prior).__name__} has no Gibbs steps after an observation; use kernels.HMC, MALA or NUTS"
            )
        return self.prior.gibbs_noise(x, steps, generator)

    def gibbs_sweep(self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None) -> Tensor:
        """The scales given x, then x given scales and observation."""
        mask, observation = self._seen(x)
        return self.prior.gibbs_sweep(x, noise, clamp, (mask / self.sigma**2, observation))  # type: ignore[operator]
