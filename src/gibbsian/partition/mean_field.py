"""The mean-field bound: the best lower bound that independent units give."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from gibbsian.capabilities import PairwiseTables
from gibbsian.energy import Energy
from gibbsian.errors import check_count, check_number
from gibbsian.fast.sparse import compressed_rows
from gibbsian.graphs import coloring
from gibbsian.partition.base import LogZ, bounded, tables
from gibbsian.random import stream


def mean_field(
    energy: Energy,
    *,
    restarts: int = 16,
    steps: int = 500,
    tolerance: float = 1e-10,
    generator: torch.Generator | None = None,
) -> LogZ:
    """A lower bound on log Z of a machine with pairwise couplings by naive mean field.

        log Z ≥ ½ mᵀWm + b·m + Σᵢ H(mᵢ),   ascended by mᵢ ← σ(Σⱼ wᵢⱼmⱼ + bᵢ), units that are not neighbors at
        once

    (tanh for ±1 units: the same bound; a softmax for units of several values). It holds at any m, so it needs no convergence; several starts are
    ascended and the best is kept. Tight for weak or frustration-free couplings with one dominant mode; it
    loses up to log 2 for each symmetric pair of modes it cannot cover. `tree_reweighted` bounds from above.

    Reference: Peterson & Anderson 1987; Saul, Jaakkola & Jordan 1996.

    Args:
        energy: a BoltzmannMachine, an Ising model, a Potts machine, or an RBM with Bernoulli or Spin units (both
            layers are units).
        restarts: starting points: all values alike, σ(b), and random ones.
        steps: most sweeps over the units.
        tolerance: stop when no mean moves by more than this.
        generator: for the random starts; a fixed seed where it is left out.

    Returns:
        `value` = `lower`; `upper` is +∞. Diagnostics: `means` (of the units as {0, 1}; Potts: probabilities of all values), `converged`,
        `steps`.

    >>> import gibbsian as gb
    >>> mean_field(gb.models.BoltzmannMachine(4)).upper
    tensor(inf, dtype=torch.float64)
    """
    restarts, steps = check_count("mean_field", "restarts", restarts), check_count("mean_field", "steps", steps)
    check_number("mean_field", "tolerance", tolerance)
    graph = tables(energy)
    generator = stream(0, "mean_field", graph.bias.device) if generator is None else generator
    means, blocks, done = _starts(graph, restarts, generator), _blocks(graph), 0
    moving, m = torch.arange(restarts, device=means.device), means.clone()
    while done < steps and len(moving):
        moved = torch.zeros(len(moving), dtype=torch.float64, device=m.device)
        for units, bias, rows in blocks:
            new = _means((rows @ m.flatten(0, 1)).reshape(len(units), -1, len(moving)).add_(bias))
            moved = torch.maximum(moved, (new - m.index_select(0, units)).abs_().amax((0, 1)))
            m.index_copy_(0, units, new)
        done += 1
        still = moved > tolerance
        if done == steps or not bool(still.all()):  # the others are at rest
            means[..., moving] = m
            moving, m = moving[still], m[..., still].contiguous()
    m, converged = means.permute(2, 0, 1), len(moving) == 0
    bound = graph.log_density(m) + torch.special.entr(torch.cat([_rest(m), m], 2)).flatten(1).sum(1)
    best = int(bound.argmax())
    value = bound[best]
    diagnostics = {"means": whole(m[best]), "converged": converged, "steps": done, "restarts": bound}
    return bounded(value, "mean field", diagnostics, lower=value).of(energy)


def _means(field: Tensor) -> Tensor:
    """Probabilities of the values but 0 from their log-odds `(units, k, restarts)` against it."""
    return torch.sigmoid(field) if field.shape[1] == 1 else torch.softmax(pad(field, (0, 0, 1, 0)), 1)[:, 1:]


def _rest(m: Tensor) -> Tensor:
    """The probability of the value 0."""
    return (1 - m.sum(-1, keepdim=True)).clamp_(min=0.0)


def whole(means: Tensor) -> Tensor:
    """Probabilities `(n, k)` of the values but 0 as reported: that of 1 for two-valued units, else those of all values."""
    return means[:, 0] if means.shape[1] == 1 else torch.cat([_rest(means), means], 1)


def _starts(graph: PairwiseTables, restarts: int, generator: torch.Generator) -> Tensor:
    """All values alike, those of independent units, and random ones: `(n, k, restarts)`."""
    n, k = graph.bias.shape
    m = torch.rand(restarts, n, k, generator=generator, dtype=torch.float64, device=graph.bias.device)
    m = m.permute(1, 2, 0).contiguous()
    if k > 1:
        m = _means((1 / m - 1).log())
    m[..., 0] = 1 / (k + 1)
    if restarts > 1:
        m[..., 1] = _means(graph.bias[..., None])[..., 0]
    return m.contiguous()


def _blocks(graph: PairwiseTables) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Units in groups without inner edges, so that updating one at once is coordinate ascent: (units, their biases,
    rows of the weights of all pairs that lead into their values)."""
    source, target, weight, _ = graph.directed()
    (n, k), color = graph.bias.shape, coloring(graph.edges, graph.units)
    values = torch.arange(k, device=source.device)
    column = (source[:, None, None] * k + values[:, None]).expand(weight.shape)
    position = torch.zeros(n, dtype=torch.long, device=source.device)
    groups = []
    for c in range(int(color.max()) + 1):
        units = (color == c).nonzero().flatten()
        position[units] = torch.arange(len(units), device=source.device)
        into = (color[target] == c).nonzero().flatten()
        row = (position[target[into]][:, None, None] * k + values).expand(len(into), k, k)
        entries = row.flatten(), column[into].flatten(), weight[into].flatten()
        groups.append((units, graph.bias[units][..., None], compressed_rows(*entries, (len(units) * k, n * k))))
    return groups
