"""Belief propagation on pairwise machines, plain (ρ = 1) and tree-reweighted, all messages at once; the Bethe value.

A message is the log-odds ν_{t→s}(a) = log M_{t→s}(a)/M_{t→s}(0) of the values a = 1, …, k (one number for {0, 1} units):

    ν_{t→s}(a) ← ζ(w_ts(·, a)/ρ_st + c_{t→s}) - ζ(c_{t→s}),   c_{t→s} = b_t + Σ_u ρ_ut ν_{u→t} - ν_{s→t},   ζ(z) =
    log(1 + Σ_b e^{z(b)})

which is M_{t→s}(x_s) ∝ Σ_{x_t} exp(θ_st/ρ_st + θ_t) Π_{u≠s} M_{u→t}^{ρ_ut} / M_{s→t}^{1-ρ_st}.
"""

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from gibbsian.capabilities import PairwiseTables
from gibbsian.energy import Energy
from gibbsian.errors import EstimateWarning, check_count, check_number
from gibbsian.partition.base import LogZ, bounded, tables
from gibbsian.partition.mean_field import mean_field, whole


class Beliefs(NamedTuple):
    """Where message passing ended."""

    value: Tensor  # Σ E_b[θ] + Σ H_i - Σ ρ_ij I_ij
    means: Tensor  # beliefs (n, k) that units have each value but 0
    information: Tensor  # mutual information of every edge's belief
    messages: Tensor  # (directed edges, k)
    cavities: Tensor  # the fields c of every directed edge
    residual: float  # the largest change that one more undamped update would make
    converged: bool
    steps: int


def zeta(z: Tensor, dim: int) -> Tensor:
    """log(1 + Σ e^z) over an axis."""
    return softplus(z.squeeze(dim) if z.shape[dim] == 1 else torch.logsumexp(z, dim))


def message(coupling: Tensor, cavity: Tensor) -> Tensor:
    """What every directed edge says: its coupling w/ρ `(edges, k, k)` and the field c `(edges, k)` of its source."""
    return zeta(coupling + cavity[:, :, None], 1) - zeta(cavity, 1)[:, None]


def propagate(
    graph: PairwiseTables, rho: Tensor, *, damping: float, steps: int, tolerance: float, messages: Tensor | None = None
) -> Beliefs:
    """Pass messages until none changes by more than `tolerance`, at most `steps` times."""
    check_number("message passing", "damping", damping, 0.0, 1.0, open_high=True)
    check_number("message passing", "tolerance", tolerance)
    steps = check_count("message passing", "steps", steps)
    source, target, weight, _ = graph.directed()
    both = rho.repeat(2)[:, None]
    coupling = weight / both[:, None]
    nu = torch.zeros_like(weight[:, 0]) if messages is None else messages
    residual, done = float("inf"), 0
    while residual > tolerance and done < steps:
        cavity = graph.bias.index_add(0, target, both * nu).index_select(0, source) - nu.roll(len(rho), 0)
        new = message(coupling, cavity)
        residual = float((new - nu).abs().max()) if len(nu) else 0.0
        done += 1
        if residual > tolerance:
            nu = torch.lerp(new, nu, damping)
    total = graph.bias.index_add(0, target, both * nu)
    cavities = total[source] - nu.roll(len(rho), 0)
    value, means, information = _beliefs(graph, rho, total, cavities)
    return Beliefs(value, means, information, nu, cavities, residual, residual <= tolerance, done)


def _beliefs(graph: PairwiseTables, rho: Tensor, total: Tensor, cavities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The free energy of the beliefs, with the means and the mutual information of every edge."""
    units = torch.softmax(pad(total, (1, 0)), 1)
    c_i, c_j = cavities.split(len(rho)) if len(rho) else (cavities, cavities)
    joint = (
        pad(graph.weight / rho[:, None, None], (1, 0, 1, 0)) + pad(c_i, (1, 0))[:, :, None] + pad(c_j, (1, 0))[:, None]
    )
    p = torch.softmax(joint.flatten(1), 1).reshape(joint.shape)
    entr = torch.special.entr
    information = entr(p.sum(1)).sum(1) + entr(p.sum(2)).sum(1) - entr(p).flatten(1).sum(1)
    means = units[:, 1:]
    expected = graph.constant + (graph.bias * means).sum() + (graph.weight * p[:, 1:, 1:]).sum()
    return expected + entr(units).sum() - rho @ information, means, information


def bethe(energy: Energy, *, damping: float = 0.5, steps: int = 4000, tolerance: float = 1e-10) -> LogZ:
    """The Bethe approximation of log Z of a machine with pairwise couplings.

        log Z ≈ Σ E_b[θᵢ] + Σ E_b[θᵢⱼ] + Σ Hᵢ - Σ Iᵢⱼ   at a fixed point of belief propagation

    Exact on trees, usually close on sparse or weakly coupled graphs, and no bound in general (for attractive
    machines it lies below log Z). There may be several fixed points: messages start as if all units were half
    on, off and on (of k values: all alike, at value 0, at the other values), and from the means of `mean_field`; the largest value, the lowest Bethe free energy, is kept.
    Independent beliefs are beliefs too, at which the expression is the mean-field bound, so its maximum is never
    below that. Where no start converges, or none to a value that reaches it, as on strongly frustrated graphs, the
    bound is returned instead: a warning says so and `diagnostics["converged"]` is False.

    Reference: Yedidia, Freeman & Weiss 2005; Ruozzi 2012 for attractive machines.

    Args:
        energy: a BoltzmannMachine, an Ising model, a Potts machine, or an RBM with Bernoulli or Spin units.
        damping: share of the old message that is kept in every update.
        steps: most updates of all messages.
        tolerance: largest change of a message (log-odds) at convergence.

    Returns:
        `lower`, `upper` are ∓∞ and `stderr` NaN: nothing is known about its error. Diagnostics: `converged`,
        `residual`, `steps`, `means` of the units as {0, 1} (Potts: probabilities of all values),
        `fixed_points` (the value of each start, that from mean field last; NaN where it did not converge),
        `mean_field` (its bound).

    >>> import gibbsian as gb
    >>> pair = gb.models.BoltzmannMachine(2)
    >>> bool((bethe(pair).value - gb.partition.exact(pair).value).abs() < 1e-6)
    True
    """
    graph = tables(energy)
    rho = torch.ones_like(graph.weight[:, 0, 0])
    low = mean_field(energy)
    _, _, weight, _ = graph.directed()
    k = weight.shape[-1]
    starts = [weight.sum(1) * share for share in (1 / (k + 1), 0.0, 1 / k)]
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
        "means": whole(out.means) if found else low.diagnostics["means"],
        "fixed_points": torch.stack([run.value if run.converged else nothing for run in runs]),
        "mean_field": low.value,
    }
    return bounded(out.value if found else low.value, "Bethe", diagnostics).of(energy)


def _messages_of(graph: PairwiseTables, means: Tensor) -> Tensor:
    """What units with these means say to their neighbors: every message from the field without its receiver."""
    source, target, weight, opposite = graph.directed()
    p = means[:, None] if means.dim() == 1 else means[:, 1:]
    said = graph.pull(p[None, source], weight)[0]
    return message(weight, graph.bias.index_add(0, target, said)[source] - said[opposite])
