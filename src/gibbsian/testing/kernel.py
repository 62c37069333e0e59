"""Conformance of a kernel: seeds, shapes, cuts, clamps, and chains that leave their neighbors alone."""

import warnings
from typing import Any

import torch
from torch import Tensor

from gibbsian.domains import Categorical
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, DivergenceWarning, DomainError
from gibbsian.kernels.base import Kernel
from gibbsian.random import require_generator
from gibbsian.sampling.chunks import run_chunk
from gibbsian.sampling.sample import sample
from gibbsian.sampling.trace import Trace
from gibbsian.testing.common import leaves, replay, require, same, untouched

_STEPS = 23  # more than one chunk of most kernels, and not a multiple of it


class _Planted(Energy):
    """An energy that is NaN in its first row from the second call on, when planted.

    Where several points of each chain are asked for at once, the first row is the first chain's in any order.
    """

    def __init__(self, base: Energy, planted: bool) -> None:
        super().__init__(base.domain)
        self.base, self.planted, self.rows, self.met = base, planted, 0, False

    def _spoil(self, value: Tensor) -> Tensor:
        if not self.rows:  # the first call is the kernel's init: starts must be finite
            self.rows = len(value)
            return value
        if not self.planted or len(value) % self.rows:  # of part of the chains: nobody knows which
            return value
        self.met = True
        first = torch.arange(len(value), device=value.device) == 0
        return torch.where(first.reshape(-1, *[1] * (value.dim() - 1)), torch.nan, value)

    def forward(self, x: Tensor) -> Tensor:
        return self._spoil(self.base(x))

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        energy, score = self.base.energy_and_score(x)
        spoilt = self._spoil(energy)
        bad = spoilt.isnan().reshape(-1, *[1] * (score.dim() - 1))
        return spoilt, torch.where(bad, torch.nan, score)


def check_kernel(kernel: Kernel, energy: Any, x: Tensor, *, generator: torch.Generator) -> list[str]:
    """What `gibbsian.sample` and its users rely on in a kernel, apart from its law (see `check_invariance`).

    The same seed gives the same chain and another seed another one; global random states, x, the model and its
    gradients stay untouched; states and infos have the right shapes; on the CPU a run cut in pieces gives the same chain
    to the bit; clamped entries keep their bits while the others move; one chain that meets NaN is reported as divergent
    and leaves its neighbors identical to the bit.

    Args:
        kernel: the kernel, at a step size that moves.
        energy: an energy (or score field) it can sample.
        x: starting points `(chains, *event)`, at least two of them and different from each other.
        generator: required.

    Returns and raises as `check_energy`; "clamp" is missing where the kernel refuses to clamp.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> x = torch.randn(6, 2, generator=g)
    >>> check_kernel(gb.kernels.MALA(step_size=0.5), gb.energies.Banana(), x, generator=g)
    ['seed', 'shapes', 'pieces', 'clamp', 'neighbors']
    """
    if not isinstance(kernel, Kernel):
        raise ArgumentError(f"kernel is a {type(kernel).__name__}, expected an instance of gibbsian.kernels.Kernel")
    energy.domain.check(x)
    if len(x) < 2:
        raise ArgumentError("check_kernel needs at least two chains: it looks at how they disturb each other")
    require_generator(generator, x.device)
    done = ["seed", "shapes"]
    trace = _check_seed(kernel, energy, x, generator)
    _check_shapes(kernel, energy, x, trace, generator)
    if x.device.type == "cpu":
        _check_pieces(kernel, energy, x, generator)
        done.append("pieces")
    for name, check in (("clamp", _check_clamp), ("neighbors", _check_neighbors)):
        if check(kernel, energy, x, generator):
            done.append(name)
    return done


def _run(kernel: Kernel, energy: Any, x: Tensor | Trace, steps: int, generator: torch.Generator, **how: Any) -> Trace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        return sample(energy, kernel, x, steps, generator=generator, progress=False, **how)


def _draws(trace: Trace) -> Tensor:
    require(trace.samples is not None, "the run kept no samples")
    return trace.samples  # type: ignore[return-value]


def _check_seed(kernel: Kernel, energy: Any, x: Tensor, generator: torch.Generator) -> Trace:
    name, twin = type(kernel).__name__, replay(generator)
    with untouched(name, energy, x=x):
        first = _run(kernel, energy, x, _STEPS, generator)
        second = _run(kernel, energy, x, _STEPS, twin)
    require(same(_draws(first), _draws(second)), f"{name} gives another chain from the same generator state")
    require(bool((_draws(first) != x).any()), f"{name} never moved in {_STEPS} steps; check it at a smaller step size")
    third = _run(kernel, energy, x, _STEPS, generator)
    moved = not same(_draws(first), _draws(third))
    require(moved, f"{name} gives the same chain whatever the generator; it must use it")
    return first


def _check_shapes(kernel: Kernel, energy: Any, x: Tensor, trace: Trace, generator: torch.Generator) -> None:
    name, draws = type(kernel).__name__, _draws(trace)
    got, want = tuple(draws.shape[1:]), tuple(x.shape)
    require(len(draws) == _STEPS and got == want, f"{name}: positions have shape {got}, not {want}")
    require(draws.dtype == x.dtype and draws.device == x.device, f"{name} changed dtype or device of the chains")
    for leaf in leaves(trace.state):
        known = leaf is None or isinstance(leaf, Tensor | int | float | bool)
        require(known, f"{name}: the state holds a {type(leaf).__name__}; only tensors, numbers and None are saved")
        detached = not isinstance(leaf, Tensor) or not leaf.requires_grad
        require(detached, f"{name}: a tensor of the state requires a gradient, so memory grows with the chain")
    with torch.no_grad():
        target = kernel.target(energy)
        state = kernel.init(target, x.detach().clone())
        inputs = kernel.draw(target, x, 1, replay(generator))
        after, _, acceptance, diverged = run_chunk(target, kernel, state, inputs)
    require(type(after) is type(state), f"{name}.step returns a {type(after).__name__}, init a {type(state).__name__}")
    for field, value in (("acceptance", acceptance), ("diverged", diverged)):
        got = tuple(value.shape[1:])
        require(got == (len(x),), f"{name}: info.{field} has shape {got}, expected ({len(x)},)")
    require(diverged.dtype == torch.bool, f"{name}: info.diverged is {diverged.dtype}, expected bool")
    if kernel.adjusted:
        inside = (acceptance >= 0) & (acceptance <= 1)
        require(bool(inside.all()), f"{name}: acceptance is not a probability everywhere; report min(1, ratio)")
    else:
        require(bool(acceptance.isnan().all()), f"{name} is unadjusted, so its acceptance must be NaN")


def _check_pieces(kernel: Kernel, energy: Any, x: Tensor, generator: torch.Generator) -> None:
    twin = replay(generator)
    whole = _run(kernel, energy, x, _STEPS, generator)
    part = _run(kernel, energy, x, 7, twin)
    rest = _run(kernel, energy, part, _STEPS - 7, twin)
    require(
        same(_draws(whole), torch.cat([_draws(part), _draws(rest)])),
        f"{type(kernel).__name__}: a run cut in two gives another chain; draw with gibbsian.random.normals "
        "and uniforms, and keep all that the next step needs in the state",
    )


def _check_clamp(kernel: Kernel, energy: Any, x: Tensor, generator: torch.Generator) -> bool:
    domain, name = energy.domain, type(kernel).__name__
    units = domain.shape[:-1] if isinstance(domain, Categorical) else domain.shape
    count = int(torch.Size(units).numel())
    if count < 2:
        return False
    held = (torch.arange(count, device=x.device) % 2 == 0).reshape(units)
    per_chain = held.expand(len(x), *units).clone()
    per_chain[1::2] = ~per_chain[1::2]
    for clamp in (held, per_chain):
        try:
            draws = _draws(_run(kernel, energy, x, _STEPS, generator, clamp=clamp))
        except (CapabilityError, DomainError, ArgumentError):
            return False
        mask = (clamp.unsqueeze(-1) if isinstance(domain, Categorical) else clamp).expand_as(x)
        require(bool(((draws == x) | ~mask).all()), f"{name} moved clamped entries; they must keep their bits")
        require(bool(((draws != x) & ~mask).any()), f"{name} with clamped entries never moved the others")
    return True


def _check_neighbors(kernel: Kernel, energy: Any, x: Tensor, generator: torch.Generator) -> bool:
    if not isinstance(energy, Energy):
        return False
    clean, spoilt = _Planted(energy, False), _Planted(energy, True)
    try:
        kernel.check(clean)
    except (CapabilityError, DomainError):  # the kernel knows this model from inside
        return False
    name, twin = type(kernel).__name__, replay(generator)
    start = kernel.init(kernel.target(_Planted(energy, False)), x.detach().clone())
    if kernel.energies(start) is None:  # nothing that must be finite at the start
        clean.rows = spoilt.rows = len(x)
    good, bad = _run(kernel, clean, x, _STEPS, generator), _run(kernel, spoilt, x, _STEPS, twin)
    alike = same(_draws(good)[:, 1:], _draws(bad)[:, 1:])
    require(alike, f"{name}: a chain whose energy is NaN changed its neighbors; mix nothing over the chain axis")
    if not spoilt.met:
        return False
    require(int(bad.divergences[0]) > 0, f"{name}: a chain whose energy is NaN was not reported as divergent")
    alike = same(good.divergences[1:], bad.divergences[1:])
    require(alike, f"{name}: the neighbors of a NaN chain were reported as divergent")
    return True
