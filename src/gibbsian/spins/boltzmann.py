"""Maximum likelihood of a pairwise machine by persistent chains, and its standard errors."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gibbsian.models import BoltzmannMachine
from gibbsian.progress import progress_bar
from gibbsian.spins.conditional import Pairs


class Learning(NamedTuple):
    """How chains are run."""

    steps: int
    chains: int
    sweeps: int
    lr: float
    generator: torch.Generator
    progress: bool | None


def learn(
    machine: BoltzmannMachine, start: Any, moments: tuple[Tensor, Tensor], state: Tensor, how: Learning
) -> tuple[Tensor, Tensor, Tensor]:
    """θ ← θ + (lr/variance)(⟨f⟩_data - ⟨f⟩_chains), averaged over the second half of the steps, by which the noise of the chains
    falls as if all their draws were one sample (Polyak & Juditsky 1992); couplings, fields, and the chains."""
    means, seconds = moments
    of_squares = torch.ones_like(seconds) if machine.spin else seconds
    spread = (of_squares - seconds.square()).clamp(min=1e-3)
    own = (of_squares.diagonal() - means.square()).clamp(min=1e-3)
    w, b, dtype = start.coupling.clone(), start.field.clone(), machine.weight.dtype
    total_w, total_b, half = torch.zeros_like(w), torch.zeros_like(b), how.steps // 2
    with progress_bar(how.steps, "boltzmann", how.progress) as tick:
        for step in range(how.steps):
            machine.set_parameters(weight=w.to(dtype), bias=b.to(dtype))
            state = machine.swept(state, how.sweeps, how.generator)
            y = state.double()
            gap = (seconds - y.T @ y / len(y)).fill_diagonal_(0)
            change = how.lr * gap / spread
            w, b = w + (change + change.T) / 2, b + how.lr * (means - y.mean(0)) / own
            if step >= half:
                total_w, total_b = total_w + w, total_b + b
            tick(1)
    w, b = total_w / (how.steps - half), total_b / (how.steps - half)
    machine.set_parameters(weight=w.to(dtype), bias=b.to(dtype))
    return w, b, state


def fisher_errors(machine: BoltzmannMachine, pairs: Pairs, state: Tensor, rows: int, how: Learning) -> np.ndarray:
    """The roots of the diagonal of F⁻¹/N, F the covariance of all products under the model, from ten times as many draws as
    there are parameters; of p parameters and D draws the inverse comes out too large by D/(D - p - 1), which is taken out."""
    i, j = torch.from_numpy(pairs.i), torch.from_numpy(pairs.j)
    size = pairs.count + pairs.n
    total, square, draws = torch.zeros(size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64), 0
    while draws < 10 * size:
        state = machine.swept(state, how.sweeps, how.generator)
        y = state.double()
        f = torch.cat([y[:, i] * y[:, j], y], 1)
        total, square, draws = total + f.sum(0), square.addmm_(f.T, f), draws + len(f)
    mean = total / draws
    inverse = torch.linalg.inv(square / draws - mean[:, None] * mean) * ((draws - size - 1) / draws)
    return (inverse.diagonal() / rows).sqrt().numpy()
