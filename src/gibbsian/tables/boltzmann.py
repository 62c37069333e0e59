"""Restricted Boltzmann machines over tables, exactly: a mixture with one component a hidden state.

E(x, h) = Σ (zᵢ-bᵢ)²/2σᵢ² - Σ (zᵢ/σᵢ)(Wh)ᵢ - Σ_codes (b + Wh)_code - c·h

Given h, cells are independent, zᵢ ~ N(bᵢ + σᵢ(Wh)ᵢ, σᵢ²), codes are softmax(b + Wh), and log w_h = c·h + Σᵢ log Zᵢ(h) - log Z with Zᵢ(h)
what a cell sums to. All 2^H hidden states are gone through, so log Z, the likelihood of observed parts and its gradient
with cells missing, E[· | observed] - E[·], are exact.
"""

import copy
import math

import torch
from torch import Tensor, nn

from gibbsian.errors import check_count
from gibbsian.models.rbm.machine import RBM
from gibbsian.random import stream
from gibbsian.recorded import Recorded
from gibbsian.tables.em import Whole
from gibbsian.tables.mixture import Mixture
from gibbsian.tables.rows import Rows
from gibbsian.units import Gaussian, Joined, Softmax, Unit

MOST_HIDDEN = 12


class TableRBM(Recorded):
    """The machine: parameters, and the mixture that it is.

    Args:
        numbers: how many z.
        states: of every code.
        hidden: H, at most 12.
        generator: for the initial weights.

    >>> machine = TableRBM(2, (3,), 2)
    >>> machine.mixture().components, machine.mixture().states
    (4, (3,))
    """

    def __init__(
        self, numbers: int, states: tuple[int, ...], hidden: int, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        check_count(self, "hidden", hidden, 1, MOST_HIDDEN)
        generator = generator or stream(0, "TableRBM")
        size = numbers + sum(states)
        self.sizes = (numbers, tuple(states), hidden)
        self.weight = nn.Parameter(0.3 * torch.randn(size, hidden, generator=generator, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        self.hidden_bias = nn.Parameter(torch.zeros(hidden, dtype=torch.float64))
        self.log_sigma = nn.Parameter(torch.zeros(numbers, dtype=torch.float64))

    def mixture(self) -> Mixture:
        """The law of the rows, one component a hidden state; differentiable in the parameters."""
        m, states, hidden = self.sizes
        h = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * hidden).view(-1, hidden)
        field = h @ self.weight.T
        sigma = self.log_sigma.exp()
        log_weight = h @ self.hidden_bias
        push = field[:, :m]
        log_weight = log_weight + (self.bias[:m] / sigma * push + 0.5 * push.square()).sum(1)
        tables = []
        for part in (self.bias[m:] + field[:, m:]).split(list(states), 1):
            total = torch.logsumexp(part, 1, keepdim=True)
            log_weight = log_weight + total[:, 0]
            tables.append(part - total)
        table = torch.cat(tables, 1) if tables else field[:, :0]
        mean = self.bias[:m] + sigma * push
        return Mixture(torch.log_softmax(log_weight, 0), mean, sigma.square().expand_as(mean), table, states)

    def machine(self) -> RBM:
        """The same law as a `models.RBM` of joined units over (z, one-of-K codes)."""
        m, states, hidden = self.sizes
        sigma = self.log_sigma.detach().exp()
        units: list[Unit] = ([Gaussian(m, sigma)] if m else []) + [Softmax(1, classes=size) for size in states]
        rbm = RBM(Joined(*units), hidden).double()
        with torch.no_grad():
            rbm.weight.copy_(self.weight)
            rbm.hidden_bias.copy_(self.hidden_bias)
            rbm.visible_bias.copy_(self.bias)
        return rbm


def fit_rbm(
    rows: Rows, held: Rows | None, whole: Whole, *, hidden: int = 6, seed: int = 0, steps: int = 400, batch: int = 256, lr: float = 0.03
) -> tuple[Mixture, int]:  # fmt: skip
    """A machine by its exact likelihood, gaps marginalized; with held-out rows the best of what was seen is kept."""
    generator = stream(seed, "rbm")
    machine = TableRBM(len(whole.mean), whole.states, hidden, generator=generator)
    with torch.no_grad():
        machine.bias.copy_(torch.cat([whole.mean, whole.frequencies.log()]))
        machine.log_sigma.copy_(0.5 * whole.covariance.diagonal().log())
    optimizer = torch.optim.Adam(machine.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, 0.05 * lr)
    best, best_score, best_step = copy.deepcopy(machine.state_dict()), -math.inf, steps
    for step in range(1, steps + 1):
        some = rows.take(torch.randint(rows.n, (min(batch, rows.n),), generator=generator))
        loss = -_likelihood(machine.mixture(), some, points=True) + 1e-3 * machine.weight.square().sum() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            machine.log_sigma.clamp_(min=0.5 * whole.floor.log())
            if held is not None and (step % 50 == 0 or step == steps):
                score = float(_likelihood(machine.mixture(), held))
                if score > best_score:
                    best, best_score, best_step = copy.deepcopy(machine.state_dict()), score, step
    if held is not None:
        machine.load_state_dict(best)
    with torch.no_grad():
        found = machine.mixture()
    return Mixture(found.log_weight, found.mean, found.covariance.clone(), found.table, found.states), best_step


def _likelihood(mixture: Mixture, rows: Rows, points: bool = False) -> Tensor:
    return torch.logsumexp(mixture.log_joint(rows, points=points), 1).mean()
