"""Belief propagation on pairwise machines, plain (ρ = 1) and tree-reweighted, all messages at once; the Bethe value.

For {0, 1} units a message is one number, the log-odds ν_{t→s} = log M_{t→s}(1)/M_{t→s}(0):

    ν_{t→s} ← ζ(w_st/ρ_st + c_{t→s}) - ζ(c_{t→s}),   c_{t→s} = b_t + Σ_u ρ_ut ν_{u→t} - ν_{s→t},   ζ(z) =
    log(1 + e^z)

which is M_{t→s}(x_s) ∝ Σ_{x_t} exp(θ_st/ρ_st + θ_t) Π_{u≠s} M_{u→t}^{ρ_ut} / M_{s→t}^{1-ρ_st}.
"""

import warnings
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gibbsian.capabilities import Pairwise
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, EstimateWarning
from gibbsian.partition.base import LogZ, bounded, pairwise


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
    damping: float


def propagate(
    graph: Pairwise,
    rho: Tensor,
    *,
    damping: float,
    steps: int,
    tolerance: float,
    messages: Tensor | None = None,
    stages: int = 1,
) -> Beliefs:
    """Pass messages until none changes by more than `tolerance`; where `steps` do not suffice, `stages` damp harder."""
    if not 0 <= damping < 1:
        raise ArgumentError(f"damping={damping}: must lie in [0, 1), the share of the old message that is kept")
    if steps < 1:
        raise ArgumentError(f"steps={steps}: at least one is needed")
    source, target, weight, opposite = graph.directed()
    both = rho.repeat(2)
    coupling = weight / both
    nu = torch.zeros_like(weight) if messages is None else messages
    residual, done = float("inf"), 0
    for stage in range(stages):
        keep = 1 - (1 - damping) * 0.3**stage
        for _ in range(steps):
            cavity = graph.bias.index_add(0, target, both * nu)[source] - nu[opposite]
            new = softplus(coupling + cavity) - softplus(cavity)
            residual = float((new - nu).abs().max()) if len(nu) else 0.0
            done += 1
            if not residual > tolerance:
                break
            nu = torch.lerp(new, nu, keep)
        if not residual > tolerance:
            break
    total = graph.bias.index_add(0, target, both * nu)
    cavities = total[source] - nu[opposite]
    value, means, information = _beliefs(graph, rho, total, cavities)
    return Beliefs(value, means, information, nu, cavities, residual, residual <= tolerance, done, keep)


def _beliefs(graph: Pairwise, rho: Tensor, total: Tensor, cavities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The free energy of the beliefs, with the means and the mutual information of every edge."""
    means = torch.sigmoid(total)
    c_i, c_j = cavities.split(len(rho)) if len(rho) else (cavities, cavities)
    joint = torch.stack([torch.zeros_like(c_i), c_j, c_i, c_i + c_j + graph.weight / rho], 1)  # 00, 01, 10, 11
    p = torch.softmax(joint, 1)
    p_i, p_j = p[:, 2] + p[:, 3], p[:, 1] + p[:, 3]
    entr = torch.special.entr
    entropy = entr(means) + entr(torch.sigmoid(-total))
    information = entr(p_i) + entr(1 - p_i) + (entr(p_j) + entr(1 - p_j)) - entr(p).sum(1)
    expected = graph.constant + graph.bias @ means + graph.weight @ p[:, 3]
    return expected + entropy.sum() - rho @ information, means, information


def bethe(energy: Energy, *, damping: float = 0.5, steps: int = 1000, tolerance: float = 1e-10) -> LogZ:
    """The Bethe approximation of log Z of a machine with two-valued units.

        log Z ≈ Σ E_b[θᵢ] + Σ E_b[θᵢⱼ] + Σ Hᵢ - Σ Iᵢⱼ   at a fixed point of belief propagation

    Exact on trees, usually close on sparse or weakly coupled graphs, and no bound in general (for attractive
    machines it lies below log Z). There may be several fixed points: messages start as if all units were half
    on, off and on, and the largest value, the lowest Bethe free energy, is kept. Where messages do not
    converge even when damped harder, the value is not to be trusted: a warning says so and
    `diagnostics["converged"]` is False.

    Reference: Yedidia, Freeman & Weiss 2005; Ruozzi 2012 for attractive machines.

    Args:
        energy: a BoltzmannMachine, an Ising model, or an RBM with Bernoulli or Spin units.
        damping: share of the old message that is kept in every update.
        steps: most updates of all messages at one damping.
        tolerance: largest change of a message (log-odds) at convergence.

    Returns:
        `lower`, `upper` are ∓∞ and `stderr` NaN: nothing is known about its error. Diagnostics: `converged`,
        `residual`, `steps`, `damping` (the last one used), `means` of the units as {0, 1},
        `fixed_points` (the value of each start).

    >>> import gibbsian as gb
    >>> pair = gb.models.BoltzmannMachine(2)
    >>> bool((bethe(pair).value - gb.partition.exact(pair).value).abs() < 1e-6)
    True
    """
    graph = pairwise(energy)
    rho = torch.ones_like(graph.weight)
    runs = [
        propagate(
            graph, rho, damping=damping, steps=steps, tolerance=tolerance, stages=4,
            messages=share * graph.weight.repeat(2),
        )
        for share in (0.5, 0.0, 1.0)
    ]  # fmt: skip
    out = max(runs, key=lambda run: (run.converged, float(run.value)))
    if not out.converged:
        warnings.warn(
            f"belief propagation did not converge: messages still change by {out.residual:.2g} after "
            f"{out.steps} updates; the Bethe value is not to be trusted. Use tree_reweighted, mean_field or ais",
            EstimateWarning,
            stacklevel=2,
        )
    diagnostics = {
        "converged": out.converged,
        "residual": out.residual,
        "steps": out.steps,
        "damping": out.damping,
        "means": out.means,
        "fixed_points": torch.stack([run.value for run in runs]),
    }
    return bounded(out.value, "Bethe", diagnostics).of(energy)
