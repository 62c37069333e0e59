"""How many independent draws the draws of chains are worth."""

import math

import scipy  # its parts are imported on first use
import torch
from torch import Tensor


def effective(x: Tensor) -> Tensor:
    """The effective sample size of `(entries, chains, draws)` for the mean of x, by Geyer's initial monotone sequence.

    >>> g = torch.Generator().manual_seed(0)
    >>> x = torch.randn(1, 4, 1000, generator=g).cumsum(2)  # walks: hardly more than one draw a chain
    >>> bool(effective(x) < 20)
    True
    """
    _, chains, n = x.shape
    mean = x.mean(2, keepdim=True)
    length = scipy.fft.next_fast_len(2 * n, real=True)
    power = torch.view_as_real(torch.fft.rfft(x - mean, n=length)).square_().mean(1).sum(2)
    covariance = torch.fft.irfft(power, n=length)[:, :n] / n  # its mean over chains, at every lag
    within = covariance[:, :1] * (n / (n - 1))
    total = within * ((n - 1) / n)
    if chains > 1:
        total = total + mean.squeeze(2).var(1)[:, None]
    rho = 1 - (within - covariance) / total
    rho[:, 0] = 1
    tau = _geyer(rho).clamp_min(1 / math.log10(chains * n))
    ess = torch.where(rho.isnan().any(1), torch.nan, chains * n / tau)
    low, high = x.flatten(1).aminmax(dim=1)
    return torch.where(high - low < 1e-15, float(chains * n), ess)  # what never moves tells all at once


def _geyer(rho: Tensor) -> Tensor:
    """-1 + 2Σρ_t over the pairs ρ_2k + ρ_2k+1 before the first that is not positive, each no larger than the one before,
    and once the next ρ if it is positive."""
    n = rho.shape[1]
    pairs = rho[:, : n // 2 * 2].unflatten(1, (-1, 2)).sum(2)
    most = max(0, -(-(n - 4) // 2))
    stops = ~(pairs[:, : most + 1] > 0)
    stops[:, most:] = True  # the last lags are too noisy
    end = stops.int().argmax(1, keepdim=True)  # the first that stops
    before = torch.arange(pairs.shape[1], device=rho.device) < end
    falling = torch.where(before, pairs, torch.inf).cummin(1).values
    rest = rho.gather(1, 2 * end).squeeze(1)
    keeps = (rest > 0) | (pairs.gather(1, end).squeeze(1) >= 0)
    return -1 + 2 * torch.where(before, falling, 0.0).sum(1) + torch.where(keeps, rest, 0.0)
