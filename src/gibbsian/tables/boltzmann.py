"""Boltzmann machines over tables, exactly: a mixture with one component a hidden state.

E(x, h) = ½|u - L⁻¹b|² - u·Wh - Σ_codes (b + Wh)_code - c·h,      u = L⁻¹z

Hidden units are not tied to each other, nor are codes; numbers are, through L. Given h, z ~ N(b + LWh, LLᵀ) and codes are
independent, softmax(b + Wh); log w_h = c·h + log Z(h) - log Z with Z(h) what the cells sum to. In (u, codes) it is a restricted machine.
All 2^H hidden states are gone through, so log Z, the likelihood of observed parts and its gradient with cells missing,
E[· | observed] - E[·], are exact.
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
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


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
        self.lower = nn.Parameter(torch.zeros(numbers, numbers, dtype=torch.float64))
        self.register_buffer("root", torch.eye(numbers, dtype=torch.float64))
        self.register_buffer("floor", torch.zeros(numbers, dtype=torch.float64))
        self.root: Tensor
        self.floor: Tensor

    def factor(self) -> Tensor:
        """L: LLᵀ = AAᵀ + the least variances, A = R(diag σ + strictly lower triangle), R a root of the covariance of all rows."""
        own = self.root @ (torch.diag(self.log_sigma.exp()) + self.lower.tril(-1))
        return torch.linalg.cholesky(own @ own.T + torch.diag(self.floor))

    def mixture(self) -> Mixture:
        """The law of the rows, one component a hidden state; differentiable in the parameters."""
        m, states, hidden = self.sizes
        h = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * hidden).view(-1, hidden)
        field, factor = h @ self.weight.T, self.factor()
        push, start = field[:, :m], torch.linalg.solve_triangular(factor, self.bias[:m, None], upper=False)
        log_weight = h @ self.hidden_bias + push @ start[:, 0] + 0.5 * push.square().sum(1)
        tables = []
        for part in (self.bias[m:] + field[:, m:]).split(list(states), 1):
            total = torch.logsumexp(part, 1, keepdim=True)
            log_weight = log_weight + total[:, 0]
            tables.append(part - total)
        table = torch.cat(tables, 1) if tables else field[:, :0]
        mean = self.bias[:m] + push @ factor.T
        covariance = (factor @ factor.T)[None]
        return Mixture(torch.log_softmax(log_weight, 0), mean, covariance, table, states)

    def machine(self) -> RBM:
        """The same law as a `models.RBM` of joined units over (u = L⁻¹z, one-of-K codes)."""
        m, states, hidden = self.sizes
        units: list[Unit] = ([Gaussian(m)] if m else []) + [Softmax(1, classes=size) for size in states]
        rbm = RBM(Joined(*units), hidden).double()
        with torch.no_grad():
            start = torch.linalg.solve_triangular(self.factor(), self.bias[:m, None], upper=False)[:, 0]
            rbm.weight.copy_(self.weight)
            rbm.hidden_bias.copy_(self.hidden_bias)
            rbm.visible_bias.copy_(torch.cat([start, self.bias[m:]]))
        return rbm


def fit_rbm(
    rows: Rows, held: Rows | None, whole: Whole, *, hidden: int = 6, seed: int = 0, steps: int = 400, batch: int = 256, lr: float = 0.03
) -> tuple[Mixture, int]:  # fmt: skip
    """A machine by its exact likelihood, gaps marginalized; with held-out rows the best of what was seen is kept."""
    generator = stream(seed, "rbm")
    machine = TableRBM(len(whole.mean), whole.states, hidden, generator=generator)
    with torch.no_grad():
        machine.bias.copy_(torch.cat([whole.mean, whole.frequencies.log()]))
        machine.root.copy_(torch.linalg.cholesky(whole.covariance))
        machine.floor.copy_(whole.floor)
    hot = _one_of_k(rows.code, whole.states)
    optimizer = torch.optim.Adam(machine.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, 0.05 * lr)
    best, best_score, best_step = copy.deepcopy(machine.state_dict()), -math.inf, steps
    for step in range(1, steps + 1):
        some = torch.randint(rows.n, (min(batch, rows.n),), generator=generator)
        loss = 1e-3 * machine.weight.square().sum() / 2 - mean_log_prob(machine.mixture(), rows.z[some], hot[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if held is not None and (step % 50 == 0 or step == steps):
            with torch.no_grad():
                score = float(machine.mixture().log_prob(held).clamp(min=-1e6).mean())
            if score > best_score:
                best, best_score, best_step = copy.deepcopy(machine.state_dict()), score, step
    if held is not None:
        machine.load_state_dict(best)
    with torch.no_grad():
        return machine.mixture(), best_step


def _one_of_k(code: Tensor, states: tuple[int, ...]) -> Tensor:
    """Codes as one of K side by side, all 0 where one is missing."""
    parts = [torch.nn.functional.one_hot(code[:, j] + 1, size + 1)[:, 1:] for j, size in enumerate(states)]
    return torch.cat(parts, 1).double() if parts else code.new_zeros(len(code), 0).double()


def mean_log_prob(mixture: Mixture, z: Tensor, hot: Tensor) -> Tensor:
    """Mean log-likelihood of observed parts, bins taken as their middles, under a mixture whose components share their covariance: as
    `Mixture.log_joint`, with one factor a row."""
    joint = mixture.log_weight + hot @ mixture.table.T
    if z.shape[1]:
        seen = ~z.isnan()
        one = seen[:1] if bool(seen.all()) else seen
        both = one[:, :, None] & one[:, None]
        factor = torch.linalg.cholesky(torch.where(both, mixture.covariance[0], torch.eye(z.shape[1], dtype=z.dtype)))
        away = torch.where(seen[..., None], z.nan_to_num()[..., None] - mixture.mean.T, torch.zeros((), dtype=z.dtype))
        if len(one) == 1:  # all components and rows at once
            away = away.permute(1, 0, 2).reshape(1, z.shape[1], -1)
        r = torch.linalg.solve_triangular(factor, away, upper=False).square().sum(1).view(len(z), -1)
        spread = factor.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True)
        joint = joint - 0.5 * r - spread - _HALF_LOG_2PI * seen.sum(1, keepdim=True)
    return torch.logsumexp(joint, 1).mean()
