"""Exact partition functions: streamed sums over all states.

log Z = log Σ_x exp(-E(x))
"""

import math
import time

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gibbsian.capabilities import Normalized
from gibbsian.domains import Discrete
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, DomainError
from gibbsian.models.conditional import ConditionedMachine
from gibbsian.partition.base import LogZ, exactly, refuse_nan, require_energy
from gibbsian.partition.sides import summed_side
from gibbsian.placement import placement
from gibbsian.progress import progress_bar

__all__ = ["exact", "exact_log_z"]

LIMIT = 1 << 30  # states; minutes to an hour on one core


def exact(
    energy: Energy,
    *,
    rows: int = 1 << 14,
    limit: int = LIMIT,
    total: int | None = None,
    progress: bool | None = None,
) -> LogZ:
    """log Z by summing over every state, in blocks: 2^25 states never mean 2^25 rows in memory.

        log Z = log Σ_x exp(-E(x)),   accumulated in float64

    A model that knows its own log Z answers with it. A model that can sum out one of its layers in closed
    form (RBMs with visible units of any kind, classification and subspace RBMs) is summed over its smaller
    layer. Use it whenever it fits: about 25 units take seconds, each further unit twice as long. Beyond that
    use `ais`.

    Args:
        energy: over a discrete domain, or with a discrete layer.
        rows: states evaluated at a time.
        limit: refuse sums over more states than this.
        total: for RBMs over counts, the length of the documents, where the units do not fix it.
        progress: show a progress bar; by default on a terminal.

    >>> import gibbsian as gb
    >>> independent = gb.as_energy(lambda x: -x.sum(-1), gb.domains.Binary(3))
    >>> exact(independent).value  # 3 log(1 + e)
    tensor(3.9398, dtype=torch.float64)
    """
    require_energy(energy)
    if isinstance(energy, Normalized):
        with torch.no_grad():
            return exactly(energy.log_z().double(), "closed form")
    summed, domain = summed_side(energy, total)
    _check(summed, domain, rows, limit)
    dtype, device = placement(energy)
    value = torch.full((), -math.inf, dtype=torch.float64, device=device)
    with torch.no_grad(), progress_bar(domain.size, "exact sum", progress) as tick:
        for x in domain.chunks(rows, dtype=dtype, device=device):
            value = torch.logaddexp(value, torch.logsumexp(-summed(x).double(), 0))
            tick(len(x))
    refuse_nan(value, "the exact log Z")
    return exactly(value, "exact sum", states=domain.size, over=str(domain))


def exact_log_z(energy: Energy, *, rows: int = 1 << 14, limit: int = LIMIT) -> Tensor:
    """log Z as a tensor that can be differentiated in the parameters: -∇log Z is the model's mean of ∇E.

    Every block of states is recomputed in the backward pass instead of being kept, so memory does not grow
    with the number of states. Conditional machines under several inputs have one each: `(inputs,)`.

    >>> import gibbsian as gb
    >>> bias = torch.nn.Parameter(torch.zeros(3))
    >>> class Independent(gb.Energy):
    ...     def __init__(self):
    ...         super().__init__(gb.domains.Binary(3))
    ...         self.bias = bias
    ...     def forward(self, x):
    ...         return -x @ self.bias
    >>> exact_log_z(Independent()).backward()
    >>> bias.grad  # the means
    tensor([0.5000, 0.5000, 0.5000])
    """
    require_energy(energy)
    if isinstance(energy, Normalized):
        return energy.log_z()
    dtype, device = placement(energy)
    if isinstance(energy, ConditionedMachine) and len(energy.condition) > 1:
        from gibbsian.partition.conditional import exact_each

        return exact_each(energy, rows=rows, limit=limit).value.to(dtype)
    summed, domain = summed_side(energy)
    _check(summed, domain, rows, limit)

    def block(start: int) -> Tensor:
        index = torch.arange(start, min(start + rows, domain.size), device=device)
        return torch.logsumexp(-summed(domain.decode(index, dtype)).double(), 0)

    starts = range(0, domain.size, rows)
    if len(starts) == 1:
        total = block(0)
    else:
        parts = [checkpoint(block, start, use_reentrant=False, preserve_rng_state=False) for start in starts]
        total = torch.logsumexp(torch.stack(parts), 0)
    refuse_nan(total.detach(), "the exact log Z")
    return total.to(dtype)


def _check(energy: Energy, domain: Discrete, rows: int, limit: int) -> None:
    if rows < 1:
        raise ArgumentError(f"rows={rows}: at least one state must be evaluated at a time")
    if domain.log_size <= math.log(limit) + 1e-9:
        return
    dtype, device = placement(energy)
    probe = domain.sample(1024, generator=torch.Generator(device).manual_seed(0), dtype=dtype)
    with torch.no_grad():
        energy(probe)
        begin = time.perf_counter()
        float(energy(probe)[0])
    log_years = domain.log_size + math.log((time.perf_counter() - begin) / len(probe) / 3.15e7)
    raise DomainError(
        f"an exact sum over {domain} has 2^{domain.log_size / math.log(2):.0f} states, about "
        f"10^{log_years / math.log(10):.0f} years at this speed; the limit is 2^{math.log2(limit):.0f} (raise it "
        "with limit=). Estimate log Z with partition.ais, or bound it with mean_field, tree_reweighted or "
        "perturb_and_map"
    )
