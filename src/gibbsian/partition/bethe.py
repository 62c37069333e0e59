"""The Bethe approximation by loopy belief propagation.

log Z ≈ Σ E_b[θᵢ] + Σ E_b[θᵢⱼ] + Σ Hᵢ - Σ Iᵢⱼ
"""

import math
import warnings

import torch

from gibbsian.energy import Energy
from gibbsian.errors import EstimateWarning
from gibbsian.partition.base import LogZ
from gibbsian.partition.messages import propagate
from gibbsian.partition.pairwise import pairwise


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
    inf = torch.full_like(out.value, math.inf)
    diagnostics = {
        "converged": out.converged,
        "residual": out.residual,
        "steps": out.steps,
        "damping": out.damping,
        "means": out.means,
        "fixed_points": torch.stack([run.value for run in runs]),
    }
    return LogZ(out.value, torch.full_like(out.value, math.nan), -inf, inf, "Bethe", diagnostics).of(energy)
