"""Belief propagation on pairwise machines, plain (ρ = 1) and tree-reweighted, all messages at once; the Bethe value.

For {0, 1} units a message is one number, the log-odds ν_{t→s} = log M_{t→s}(1)/M_{t→s}(0):

    ν_{t→s} ← ζ(w_st/ρ_st + c_{t→s}) - ζ(c_{t→s}),   c_{t→s} = b_t + Σ_u ρ_ut ν_{u→t} - ν_{s→t},   ζ(z) =
    log(1 + e^z)

which is M_{t→s}(x_s) ∝ Σ_{x_t} exp(θ_st/ρ_st + θ_t) Π_{u≠s} M_{u→t}^{ρ_ut} / M_{s→t}^{1-ρ_st}.
"""

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gibbsian.capabilities import Pairwise
from gibbsian.energy import Energy
from gibbsian.errors import EstimateWarning, check_count, check_number
from gibbsian.partition.base import LogZ, bounded, pairwise
from gibbsian.partition.mean_field import mean_field


class Beliefs(NamedTuple):
    """Where message passing ended."""

    value: Tensor  # Σ E_b[θ] + Σ H_i - Σ ρ_ij I_ij
    means: Tensor  # beliefs that units are 1
    information: Tensor  # mutual information of every edge's belief
    messages: Tensor
    cavities: Tensor  # the fields c of every directed edge
    residual: float  # the largest change that one more undamped update would make
    converged: bool
    steps: int


def propagate(
    graph: Pairwise, rho: Tensor, *, damping: float, steps: int, tolerance: float, messages: Tensor | None = None
) -> Beliefs:
    """Pass messages until none changes by more than `tolerance`, at most `steps` times."""
    check_number("message passing", "damping", damping, 0.0, 1.0, open_high=True)
    check_number("message passing", "tolerance", tolerance)
    steps = check_count("message passing", "steps", steps)
    source, target, weight, opposite = graph.directed()
    both = rho.repeat(2)
    coupling = weight / both
    nu = torch.zeros_like(weight) if messages is None else messages
    residual, done = float("inf"), 0
    while residual > tolerance and done < steps:
        cavity = graph.bias.index_add(0, target, both * nu)[source] - nu[opposite]
        new = softplus(coupling + cavity) - softplus(cavity)
        residual = float((new - nu).abs().max()) if len(nu) else 0.0
        done += 1
        if residual > tolerance:
            nu = torch.lerp(new, nu, damping)
    total = graph.bias.index_add(0, target, both * nu)
    cavities = total[source] - nu[opposite]
    value, means, information = _beliefs(graph, rho, total, cavities)
    return Beliefs(value, means, information, nu, cavities, residual, residual <= tolerance, done)


def _beliefs(graph: Pairwise, rho: Tensor, total: Tensor, cavities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The free energy of the beliefs, with the means and the mutual information of every edge."""
    means = torch.sigmoid(total)
    c_i, c_j = cavities.split(len(rho)) if len(rho) else (cavities, cavities)
    joint = torch.stack([torch.zeros_like(c_i), c_j, c_i, c_i + c_j + graph.weight / rho], 1)  # 00, 01, 10, 11
    p = torch.softmax(joint, 1)
    margins = torch.stack([p[:, 2] + p[:, 3], p[:, 0] + p[:, 1], p[:, 1] + p[:, 3], p[:, 0] + p[:, 2]], 1)  # no 1 - p
    entr = torch.special.entr
    entropy = entr(means) + entr(torch.sigmoid(-total))
    information = entr(margins).sum(1) - entr(p).sum(1)
    expected = graph.constant + graph.bias @ means + graph.weight @ p[:, 3]
    return expected + entropy.sum() - rho @ information, means, information


def bethe(energy: Energy, *, damping: float = 0.5, steps: int = 4000, tolerance: float = 1e-10) -> LogZ:
    """The Bethe approximation of log Z of a machine with two-valued units.

        log Z ≈ Σ E_b[θᵢ] + Σ E_b[θᵢⱼ] + Σ Hᵢ - Σ Iᵢⱼ   at a fixed point of belief propagation

    Exact on trees, usually close on sparse or weakly coupled graphs, and no bound in general (for attractive
    machines it lies below log Z). There may be several fixed points: messages start as if all units were half
    on, off and on, and from the means of `mean_field`; the largest value, the lowest Bethe free energy, is kept.
    Independent beliefs are beliefs too, at which the expression is the mean-field bound, so its maximum is never
    below that. Where no start converges, or none to a value that reaches it, as on strongly frustrated graphs, the
    bound is returned instead: a warning says so and `diagnostics["converged"]` is False.

    Reference: Yedidia, Freeman & Weiss 2005; Ruozzi 2012 for attractive machines.

    Args:
        energy: a BoltzmannMachine, an Ising model, or an RBM with Bernoulli or Spin units.
        damping: share of the old message that is kept in every update.
        steps: most updates of all messages.
        tolerance: largest change of a message (log-odds) at convergence.

    Returns:
        `lower`, `upper` are ∓∞ and `stderr` NaN: nothing is known about its error. Diagnostics: `converged`,
        `residual`, `steps`, `means` of the units as {0, 1},
        `fixed_points` (the value of each start, that from mean field last; NaN where it did not converge),
        `mean_field` (its bound).

    >>> import gibbsian as gb
    >>> pair = gb.models.BoltzmannMachine(2)
    >>> bool((bethe(pair).value - gb.partition.exact(pair).value).abs() < 1e-6)
    True
    """
    graph = pairwise(energy)
    rho = torch.ones_like(graph.weight)
    low = mean_field(energy)
    starts = [share * graph.weight.repeat(2) for share in (0.5, 0.0, 1.0)]
    starts.append(_messages_of(graph, low.diagnostics["means"]))
    runs = [
        propagate(graph, rho, damping=damping, steps=steps, tolerance=tolerance, messages=start) for start in starts
    ]
    settled = [run for run in runs if run.converged]  # the others' beliefs contradict each other
    out = max(settled, key=lambda run: float(run.value)) if settled else min(runs, key=lambda run: run.residual)
    found = out.converged and float(out.value) >= float(low.value) - 1e-9 * (
        1 + abs(float(low.value))
    )  # but for rounding
    if not found:
        ended = (
            f"found no fixed point that is as good as mean field ({float(out.value):.6g} against {float(low.value):.6g})"
            if settled
            else f"did not converge: messages still change by {out.residual:.2g} after {out.steps} updates"
        )
        warnings.warn(
            f"belief propagation {ended}; this is the mean-field bound. Use tree_reweighted for a bound from above, or ais",
            EstimateWarning,
            stacklevel=2,
        )
    nothing = torch.full_like(low.value, math.nan)
    diagnostics = {
        "converged": found,
        "residual": out.residual,
        "steps": out.steps,
        "means": out.means if found else low.diagnostics["means"],
        "fixed_points": torch.stack([run.value if run.converged else nothing for run in runs]),
        "mean_field": low.value,
    }
    return bounded(out.value if found else low.value, "Bethe", diagnostics).of(energy)


def _messages_of(graph: Pairwise, means: Tensor) -> Tensor:
    """What units with these means say to their neighbors: every message from the field without its receiver."""
    source, target, weight, _ = graph.directed()
    field = graph.bias.index_add(0, target, weight * means[source])
    cavity = field[source] - weight * means[target]
    return softplus(weight + cavity) - softplus(cavity)
