"""Exact partition functions: streamed sums over all states."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gibbsian.capabilities import ConditionedModel, DocumentModel, Normalized, SummableModel, require
from gibbsian.domains import Discrete
from gibbsian.energy import Energy
from gibbsian.errors import DomainError, check_count, check_number
from gibbsian.partition.base import LogZ, exactly, refuse_nan, require_energy, require_one_law
from gibbsian.placement import placement
from gibbsian.progress import progress_bar

LIMIT = 1 << 30  # states; minutes to an hour on one core
LIMIT_EACH = 1 << 20  # states for every input


def exact(
    energy: Energy, *, rows: int = 1 << 14, limit: int = LIMIT, total: int | None = None, progress: bool | None = None
) -> LogZ:
    """log Z by summing over every state, in blocks: 2^25 states never mean 2^25 rows in memory.

        log Z = log Σ_x exp(-E(x)),   accumulated in float64

    A model that knows its own log Z answers with it. A model that can sum out some of its variables in closed form
    (`marginals()`: RBMs with visible units of any kind, classification and subspace RBMs, deep machines) is summed over
    the smallest of what is left. Use it whenever it fits: about 25 units take seconds, each further unit twice as long.
    Beyond that use `ais`.

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
    require_one_law(energy)
    if isinstance(energy, Normalized):
        with torch.no_grad():
            return exactly(energy.log_z().double(), "closed form").of(energy)
    law = energy if total is None else require(energy, DocumentModel, "a log Z of one length").of_length(total)
    summed, domain = _smallest(law)
    _check(summed, domain, rows, limit)
    dtype, device = placement(energy)
    value = torch.full((), -math.inf, dtype=torch.float64, device=device)
    with torch.no_grad(), progress_bar(domain.size, "exact sum", progress) as tick:
        for x in domain.chunks(rows, dtype=dtype, device=device):
            value = torch.logaddexp(value, torch.logsumexp(-summed(x).double(), 0))
            tick(len(x))
    refuse_nan(value, "the exact log Z")
    return exactly(value, "exact sum", states=domain.size, over=str(domain)).of(energy)


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
    if isinstance(energy, ConditionedModel) and len(energy.inputs()) > 1:
        return exact_each(energy, rows=rows, limit=limit).value.to(dtype)
    summed, domain = _smallest(energy)
    _check(summed, domain, rows, limit)

    def block(index: Tensor) -> Tensor:
        return torch.logsumexp(-summed(domain.decode(index, dtype)).double(), 0)

    total = _log_sum(block, domain, rows, device)
    refuse_nan(total.detach(), "the exact log Z")
    return total.to(dtype)


class LogZEach(NamedTuple):
    """log Z(x) of every input, with the standard error of each by the delta method (0 for exact sums)."""

    value: Tensor
    stderr: Tensor
    method: str


def exact_each(machine: ConditionedModel, *, rows: int = 1 << 14, limit: int = LIMIT_EACH) -> LogZEach:
    """log Z(x) for every input, summed over all states of the smaller layer; differentiable in the parameters.

    Args:
        machine: a conditional machine under its inputs; or a conditional energy, which sums over y as it knows how.
        rows: states times inputs evaluated at a time; blocks are computed again in the backward pass.
        limit: refuse sums over more states than this.

    >>> import gibbsian as gb
    >>> model = gb.models.TemporalRBM(visible=4, hidden=3, order=1)
    >>> exact_each(model.given(torch.zeros(5, 1, 4))).value.shape
    torch.Size([5])
    """
    machine = require_inputs(machine)
    if isinstance(machine, Normalized):
        value = machine.log_z().reshape(-1).double()
        return LogZEach(value, torch.zeros_like(value.detach()), "exact sum")
    like = machine.inputs()
    n = len(like)
    check_count("exact_each", "rows", rows)
    check_number("exact_each", "limit", limit, 1)
    summed, domain = _smallest(machine)  # type: ignore[arg-type]
    if domain.log_size > math.log(limit) + 1e-9:
        raise DomainError(
            f"an exact log Z(x) sums over {domain} for every input, 2^{domain.log_size / math.log(2):.0f} states, and the "
            f"limit is 2^{math.log2(limit):.0f} (limit=); use partition.ais_each"
        )

    def block(index: Tensor) -> Tensor:
        each = domain.decode(index, like.dtype).repeat_interleave(n, 0)  # inputs run fastest, as `repeated` has them
        return torch.logsumexp(-summed(each).reshape(len(index), n).double(), 0)

    value = _log_sum(block, domain, max(1, rows // n), like.device)
    refuse_nan(value.detach(), "the exact log Z(x)")
    return LogZEach(value, torch.zeros_like(value.detach()), "exact sum")


def require_inputs(machine: object) -> ConditionedModel:
    """Refuse models that have one log Z for all rows."""
    advice = (
        "it has one log Z: use partition.exact or partition.ais; a model under its inputs is what "
        "TemporalRBM(...).given(past) returns"
    )
    return require(machine, ConditionedModel, "one log Z for every input", advice)


def _smallest(energy: Energy) -> tuple[Energy, Discrete]:
    """The energy whose enumeration gives log Z, and the domain to enumerate: the smallest of a model's marginals."""
    laws = energy.marginals() if isinstance(energy, SummableModel) else [energy]
    finite = [(law, law.domain) for law in laws if isinstance(law.domain, Discrete)]
    if not finite:
        small = energy.domain.numel <= 3
        raise DomainError(
            f"an exact sum needs finitely many states, this energy lives on {energy.domain}; "
            + ("use partition.quadrature" if small else "use partition.ais, or quadrature in up to three dimensions")
        )
    return min(finite, key=lambda law: law[1].log_size)


def _log_sum(block: Callable[[Tensor], Tensor], domain: Discrete, rows: int, device: torch.device) -> Tensor:
    """log Σ over all states of what `block` sums for their positions, each block computed again in the backward pass."""

    def at(start: int) -> Tensor:
        return block(torch.arange(start, min(start + rows, domain.size), device=device))

    starts = range(0, domain.size, rows)
    if len(starts) == 1:
        return at(0)
    parts = [checkpoint(at, start, use_reentrant=False, preserve_rng_state=False) for start in starts]
    return torch.logsumexp(torch.stack(parts), 0)


def _check(energy: Energy, domain: Discrete, rows: int, limit: int) -> None:
    check_count("exact", "rows", rows)
    check_number("exact", "limit", limit, 1)
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
