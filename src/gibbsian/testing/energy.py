"""Conformance of an energy: shapes, rows, score, partition function and exact draws."""

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gibbsian.capabilities import Normalized, Sampleable
from gibbsian.domains import Categorical, Discrete
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import CapabilityError, EstimateWarning
from gibbsian.kernels.base import Kernel
from gibbsian.kernels.metropolis import Metropolis, RandomWalk
from gibbsian.partition.quadrature import quadrature
from gibbsian.random import require_generator
from gibbsian.testing.common import replay, require, same, untouched
from gibbsian.testing.invariance import check_invariance

_ENUMERABLE = 1 << 16


def check_energy(
    energy: Energy | ScoreField, x: Tensor | None = None, *, chains: int = 20000, generator: torch.Generator
) -> list[str]:
    """Everything that kernels, objectives and estimators rely on in an energy, checked from outside.

    Shapes; finite values; each row's energy depends on that row alone; calling twice gives the same; the score against
    central differences in double precision; `energy_and_score`, `score` and `forward` agree; inputs, model and global
    random states stay untouched. If the energy knows `log_z()`: enumeration of discrete domains, quadrature up to two
    dimensions. If it can `sample`: draws lie in the domain, come from the generator alone, and stay in their law under
    a Metropolis walk on the energy (`check_invariance`, false-alarm rate 1e-6).

    Args:
        energy: the energy, or a score field, of which only the score is checked.
        x: points `(batch, *event)` to check at; by default draws of the energy or its domain.
        chains: draws for the check of `sample`.
        generator: required.

    Returns:
        The names of the checks that applied.

    Raises:
        AssertionError: what is wrong, and where.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> check_energy(gb.energies.Gaussian(torch.zeros(2), torch.eye(2)), chains=2000, generator=g)
    ['rows', 'score', 'log_z', 'sample']
    """
    require_generator(generator)
    name = type(energy).__name__
    if not isinstance(energy, Energy | ScoreField):
        raise CapabilityError(f"{name} is not an energy; wrap it with gibbsian.as_energy(function, domain)")
    draws = _known(energy, Sampleable, lambda model: model.sample(16, generator=generator))
    if x is None:
        x = _reference(energy, generator) if draws is None else draws
    energy.domain.check(x)
    if len(x) < 2:
        x = x.expand(2, *x.shape[1:])
    done = ["rows"]
    _check_rows(energy, x, generator)
    if _differentiable(energy, x):
        _check_score(energy, x, generator)
        done.append("score")
    if isinstance(energy, Energy) and _check_log_z(energy, x):
        done.append("log_z")
    if isinstance(energy, Energy) and draws is not None:
        _check_sample(energy, chains, generator)
        done.append("sample")
    return done


def _known(energy: Any, capability: type, ask: Callable[[Any], Tensor]) -> Tensor | None:
    """What a model of this capability knows; None where it does not, or is a combination of models that do not."""
    try:
        return ask(energy) if isinstance(energy, capability) else None
    except CapabilityError:
        return None


def _reference(energy: Energy | ScoreField, generator: torch.Generator) -> Tensor:
    tensors = [t for t in (*energy.parameters(), *energy.buffers()) if t.is_floating_point()]
    x = energy.domain.sample(16, generator=generator, dtype=tensors[0].dtype if tensors else None)
    return x.to(tensors[0].device) if tensors else x


def _check_rows(energy: Energy | ScoreField, x: Tensor, generator: torch.Generator) -> None:
    name = type(energy).__name__
    order = torch.randperm(len(x), generator=generator, device=generator.device).to(x.device)
    half = order[: max(1, len(x) // 2)]
    functions: dict[str, Callable[[Tensor], Tensor]] = {}
    if isinstance(energy, Energy):
        functions["forward"] = energy
    if _differentiable(energy, x):
        functions["score"] = energy.score
    for what, function in functions.items():
        label = f"{name}.{what}"
        with untouched(label, energy, x=x):
            value, again, shuffled, part = (function(y).detach() for y in (x, x, x[order], x[half]))
        shape = x.shape[:1] if what == "forward" else x.shape
        got, want = tuple(value.shape), tuple(shape)
        require(got == want, f"{label} of x {tuple(x.shape)} has shape {got}, expected {want}")
        kept = value.dtype == x.dtype and value.device == x.device
        require(kept, f"{label} of {x.dtype} on {x.device} came out as {value.dtype} on {value.device}")
        finite = torch.isfinite(value).flatten(1).all(1) if value.dim() > 1 else torch.isfinite(value)
        require(finite.all(), f"{label} is not finite at row {int(finite.int().argmin())} of x")
        require(same(value, again), f"{label} differs between two calls on the same x")
        for one, which, how in ((shuffled, order, "permuted"), (part, half, "fewer")):
            require(
                _close(one, value[which]),
                f"{label} of {how} rows differs from that of the whole batch, but each row must depend on "
                "that row alone (no batch normalization or statistics over the batch)",
            )


def _close(a: Tensor, b: Tensor) -> bool:
    """Equal up to the rounding of sums taken in another order."""
    eps = torch.finfo(a.dtype).eps
    return bool(((a - b).abs() <= 1e4 * eps * (1 + b.abs().amax())).all())


def _differentiable(energy: Energy | ScoreField, x: Tensor) -> bool:
    if isinstance(energy, ScoreField):
        return True
    with torch.enable_grad():
        return energy(x.detach().requires_grad_(True)).requires_grad


def _check_score(energy: Energy | ScoreField, x: Tensor, generator: torch.Generator) -> None:
    name = type(energy).__name__
    model, points = copy.deepcopy(energy).double(), x.detach().double()
    score = model.score(points)
    require(not score.requires_grad, f"{name}.score is not detached; it must be unless create_graph=True")
    graph = model.score(points.clone().requires_grad_(True), create_graph=True)
    varies = bool((score != score[:1]).any())  # a constant score has nothing to differentiate
    require(graph.requires_grad or not varies, f"{name}.score(x, create_graph=True) cannot be differentiated")
    require(_close(graph.detach(), score), f"{name}.score with and without create_graph differ")
    if not isinstance(model, Energy):
        return
    value, pair = model.energy_and_score(points)
    require(not value.requires_grad and not pair.requires_grad, f"{name}.energy_and_score is not detached")
    require(_close(value, model(points).detach()), f"the energy of {name}.energy_and_score is not that of forward")
    require(_close(pair, score), f"the score of {name}.energy_and_score is not that of score(x)")
    if isinstance(model.domain, Discrete):
        with torch.enable_grad():
            leaf = points.clone().requires_grad_(True)
            (gradient,) = torch.autograd.grad(model(leaf).sum(), leaf)
        require(_close(score, -gradient), f"{name}.score is not the negative gradient of forward")
        return
    n = points[0].numel()
    directions = torch.eye(n, dtype=points.dtype)
    if n > 32:
        directions = torch.randn(32, n, generator=generator, device=generator.device) / math.sqrt(n)
    for u in directions.to(points):
        u = u.reshape(points.shape[1:])
        h = 1e-5 * (1 + points.flatten(1).abs().amax(1)).reshape(-1, *[1] * (points.dim() - 1))
        ahead, behind = points + h * u, points - h * u
        inside = (model.domain.contains(ahead) & model.domain.contains(behind)).flatten(1).all(1)
        if not inside.any():
            continue
        with torch.no_grad():
            slope = (model(ahead[inside]) - model(behind[inside])) / (2 * h.flatten()[inside])
        expected = -(score[inside] * u).flatten(1).sum(1)
        size = 1 + score[inside].flatten(1).abs().amax(1) + value[inside].abs()
        wrong = (slope - expected).abs() / size
        require(
            bool((wrong < 1e-5).all()),
            f"{name}.score disagrees with central differences of forward: the energy's slope is "
            f"{float(slope[wrong.argmax()]):.6g}, the score says {float(expected[wrong.argmax()]):.6g}; look "
            "for a sign, a factor or a detached part",
        )


def _check_log_z(energy: Energy, x: Tensor) -> bool:
    """Against enumeration or quadrature; False where neither is possible."""
    model, domain = copy.deepcopy(energy).double(), energy.domain
    known = _known(model, Normalized, lambda model: model.log_z())
    if known is None:
        return False
    if isinstance(domain, Discrete):
        if domain.size > _ENUMERABLE:
            return False
        with torch.no_grad():
            parts = [torch.logsumexp(-model(s), 0) for s in domain.chunks(dtype=torch.float64, device=x.device)]
        total, error = float(torch.logsumexp(torch.stack(parts), 0)), 0.0
    elif domain.numel <= 2:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EstimateWarning)  # its error is taken into account
            estimate = quadrature(model, tolerance=1e-6)
        total, error = float(estimate.value), 10 * float(estimate.stderr)
    else:
        return False
    if error > 1e-2:
        return False
    name = f"{type(energy).__name__}.log_z()"
    require(isinstance(known, Tensor) and known.dim() == 0, f"{name} must be a tensor of shape ()")
    value = float(known.detach())
    agrees = abs(value - total) < error + 1e-5 * (1 + abs(total))
    require(agrees, f"{name} is {value:.8g}, but summing exp(-E) over {domain} gives {total:.8g}")
    return True


def _site_walk(domain: Discrete) -> Metropolis:
    """A Metropolis walk that sets one unit of each row to a random one of its values."""
    values = domain.shape[-1] if isinstance(domain, Categorical) else 1

    def propose(x: Tensor, generator: torch.Generator) -> Tensor:
        new, rows = x.reshape(len(x), -1, values).clone(), torch.arange(len(x), device=x.device)
        site = torch.randint(new.shape[1], (len(x),), generator=generator, device=x.device)
        if values == 1:
            new[rows, site] = domain.low + 1 - new[rows, site]  # type: ignore[attr-defined]
        else:
            label = torch.randint(values, (len(x),), generator=generator, device=x.device)
            new[rows, site] = torch.nn.functional.one_hot(label, values).to(x)
        return new.reshape(x.shape)

    return Metropolis(propose, symmetric=True)


def _check_sample(energy: Energy, chains: int, generator: torch.Generator) -> None:
    name, what = type(energy).__name__, f"{type(energy).__name__}.sample"
    twin = replay(generator)
    with untouched(what, energy):
        draws = energy.sample(chains, generator=generator)  # type: ignore[operator]
        again = energy.sample(chains, generator=twin)  # type: ignore[operator]
    require(same(draws, again), f"{what} gives other draws from the same generator")
    shape = (chains, *energy.domain.shape)
    require(draws.shape == shape, f"{what}({chains}) has shape {tuple(draws.shape)}, expected {shape}")
    require(not draws.requires_grad, f"{what} carries a graph; draw under torch.no_grad()")
    require(bool(energy.domain.contains(draws).all()), f"{what} gives draws outside {energy.domain}")
    walks: list[Kernel]
    if isinstance(energy.domain, Discrete):
        walks = [_site_walk(energy.domain)]
    else:
        low, high = torch.quantile(draws[:1000].flatten(1), torch.tensor([0.2, 0.8]).to(draws), dim=0)
        scale = float((high - low).median())
        walks = [RandomWalk(scale / math.sqrt(energy.domain.numel)), RandomWalk(scale / 8)]
    for kernel in walks:
        try:
            check_invariance(energy, kernel, draws=draws, steps=10, alpha=5e-7, generator=generator)
        except AssertionError as error:
            raise AssertionError(f"the draws of {name} do not follow its density: {error}") from error
