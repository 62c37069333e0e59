"""Annealing paths: from a base whose log Z is known to the energy, with a move at every inverse temperature.

    log p*_β(x) = -(1-β) E_base(x) - β E(x)

Machines know their own path (`capabilities.Annealable`), along which their Gibbs sweeps are exact; any other energy has
the geometric one.
"""

import math
import warnings
from typing import Any, ClassVar

import torch
from torch import Tensor

from gibbsian.capabilities import Annealable, Normalized, Path, Sampleable, Scaled
from gibbsian.domains import Bounded, Discrete
from gibbsian.energies.bases import fitted_base, independent_units
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, DomainError, EstimateWarning
from gibbsian.kernels import HMC, Gibbs, Kernel, SiteGibbs
from gibbsian.kernels.base import MoveInputs, where_chain
from gibbsian.partition.base import require_one_law
from gibbsian.placement import check_rows, placement
from gibbsian.trees import like_tuple


def single(noise: Any) -> Any:
    """The random numbers of the first of some steps."""
    return like_tuple(type(noise), [part[0] for part in noise])


class Bridge(Energy):
    """(1-β) E_base + βE, remembering both energies and scores at the last x, so that weighting and moving share them."""

    def __init__(self, base: Energy, energy: Energy) -> None:
        super().__init__(energy.domain)
        self.base, self.energy = base, energy
        self.beta: Tensor | float = 0.0
        self._at: tuple[Tensor, tuple[Tensor, ...]] | None = None

    def forward(self, x: Tensor) -> Tensor:
        return (1 - self.beta) * self.base(x) + self.beta * self.energy(x)

    def energy_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        e0, s0, e1, s1 = self.parts(x)
        return torch.lerp(e0, e1, self.beta), torch.lerp(s0, s1, self.beta)

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """Energy and score of the base and of the target."""
        if self._at is None or self._at[0] is not x:
            self._at = (x, (*self.base.energy_and_score(x), *self.energy.energy_and_score(x)))
        return self._at[1]

    def settle(self, before: tuple[Tensor, ...], x: Tensor) -> None:
        """What is known at x, each chain of which is where the energy was asked for last or where it was `before`."""
        last, after = self._at  # type: ignore[misc]
        moved = (x == last).flatten(1).all(1)
        self._at = (x, tuple(where_chain(moved, a, b) for a, b in zip(after, before, strict=True)))


class GeometricPath(Path):
    """The geometric path between a base and any energy, moved along by any kernel that keeps p_β invariant.

    Without a kernel continuous energies are moved by HMC of `leapfrog_steps` steps with masses from the base;
    its step size is found for every temperature by a pilot run with its own chains (`tune`), so that the
    weights stay unbiased. Discrete energies are moved by a Gibbs sweep over the sites.
    """

    on_device: ClassVar[bool] = True

    def __init__(self, energy: Energy, base: Energy, kernel: Kernel | None = None, leapfrog_steps: int = 5) -> None:
        if not isinstance(base, Normalized) or not isinstance(base, Sampleable):
            raise CapabilityError(
                f"a base needs a known log_z() and exact draws sample(n, generator=...), {type(base).__name__} has "
                "not both; use energies.Gaussian, or leave base out"
            )
        if base.domain != energy.domain:
            raise DomainError(
                f"the base lives on {base.domain}, the energy on {energy.domain}; they must share one domain"
            )
        self.energy, self.base = energy, base
        self.dtype, self.device = placement(energy)
        self.bridge = Bridge(base, energy)
        self.tuned: tuple[Tensor, Tensor] | None = None
        self.adapts = kernel is None and not isinstance(energy.domain, Discrete)
        self.kernel = self._default(leapfrog_steps) if kernel is None else kernel
        self._check()

    def _default(self, leapfrog_steps: int) -> Kernel:
        if isinstance(self.energy.domain, Discrete):
            return SiteGibbs()
        masses = self.base.masses() if isinstance(self.base, Scaled) else None  # for the kernel the base has scale 1
        return HMC(1.0, leapfrog_steps, mass=masses, jitter=0.2)

    def _check(self) -> None:
        kernel = self.kernel
        if not kernel.adjusted:
            raise CapabilityError(
                f"{type(kernel).__name__} is unadjusted: it does not leave p_β invariant, so its weights would be "
                "biased; use MALA or HMC"
            )
        if type(kernel).target is not Kernel.target:
            raise CapabilityError(
                f"{type(kernel).__name__} moves along temperatures of its own; give the kernel that it wraps"
            )
        kernel.check(self.bridge)

    def log_z0(self) -> Tensor:
        """log Z of the base."""
        return self.base.log_z().detach()

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Exact draws of the base."""
        return self.base.sample(n, generator=generator).to(self.dtype)

    def noise(self, x: Tensor, steps: int, generator: torch.Generator) -> Any:
        """The kernel's random numbers."""
        return self.kernel.draw(self.bridge, x, steps, generator, 0)

    def anneal(self, x: Tensor, beta: Tensor, next_beta: Tensor, noise: Any) -> tuple[Tensor, Tensor]:
        """Weight, then move."""
        with torch.no_grad():
            increment = (beta - next_beta) * self._difference(x)
            x, _ = self._move(x, next_beta, noise)
            return x, increment

    def _difference(self, x: Tensor) -> Tensor:
        """E(x) - E_base(x)."""
        if isinstance(self.energy.domain, Discrete) and not self.kernel.one_proposal:
            return self.energy(x) - self.base(x)
        e0, _, e1, _ = self.bridge.parts(x)
        return e1 - e0

    def _move(self, x: Tensor, beta: Tensor, noise: Any) -> tuple[Tensor, Any]:
        self.bridge.beta = beta.to(x)
        if self.tuned is not None and isinstance(noise, MoveInputs):
            noise = noise._replace(step_size=noise.step_size * self._step_size(beta))
        before = self.bridge.parts(x) if self.kernel.one_proposal else None
        state, info = self.kernel.step(self.bridge, self.kernel.init(self.bridge, x), noise)
        x = self.kernel.position(state)
        if before is not None:
            self.bridge.settle(before, x)
        return x, info

    def _step_size(self, beta: Tensor) -> Tensor:
        """The pilot's step size at its first temperature that is not below β."""
        betas, sizes = self.tuned  # type: ignore[misc]
        return sizes.take(torch.searchsorted(betas, beta.to(betas.device)).clamp(max=len(sizes) - 1)).to(self.dtype)

    def tune(self, betas: Tensor, generator: torch.Generator, *, chains: int = 64, target: float = 0.75) -> None:
        """Find step sizes along the ladder with a pilot run: chains of their own are annealed while the logarithm of
        the step size follows their acceptance. Kernels with a step size of their own keep it."""
        if not self.adapts or self.tuned is not None:
            return
        x = self.sample(chains, generator=generator)
        betas = betas.double().cpu()[:: math.ceil(len(betas) / 100)].clone()
        log_size, sizes = math.log(0.5), torch.empty(len(betas), dtype=torch.float64)
        rounds = math.ceil(200 / len(betas))
        with torch.no_grad():
            for k, beta in enumerate(betas):
                gains = [1.0] * 10 + [0.3] * 20 if k == 0 else [0.3] * rounds
                seen = []
                for gain in gains:
                    noise = single(self.noise(x, 1, generator))
                    self.tuned = (betas[:1], torch.tensor([math.exp(log_size)], dtype=torch.float64))
                    x, info = self._move(x, beta, noise)
                    log_size += gain * (float(info.acceptance.mean()) - target)
                    seen.append(log_size)
                sizes[k] = math.exp(sum(seen[len(seen) // 2 :]) / len(seen[len(seen) // 2 :]))
        self.tuned = (betas.to(self.device), sizes.to(self.device))


def path_of(
    energy: Energy, data: Tensor | None, base: "Energy | Tensor | None", kernel: Kernel | None, *, stacklevel: int = 3
) -> Path:
    """The path that suits an energy: its own, or the geometric one."""
    require_one_law(energy)
    if data is not None and base is not None:
        raise ArgumentError("give data, to which a base is fitted, or base, not both")
    if data is not None:
        check_rows(energy, data, "data")
    elif base is None and not isinstance(energy.domain, Bounded):
        warnings.warn(
            "no data and no base: annealing starts from a law that knows nothing of the model, and the estimate "
            "can be many nats low while its effective sample size looks healthy; pass data= (the training data)",
            EstimateWarning,
            stacklevel=stacklevel,
        )
    if isinstance(base, Energy):
        return GeometricPath(energy, base, kernel)
    path = _own_path(energy, data, base) if kernel is None or isinstance(kernel, Gibbs) else None
    return GeometricPath(energy, _base(energy, data, base), kernel) if path is None else path


def _own_path(energy: Energy, data: Tensor | None, bias: Tensor | None) -> Path | None:
    return energy.path(bias, data=data) if isinstance(energy, Annealable) else None


def _base(energy: Energy, data: Tensor | None, bias: Tensor | None) -> Energy:
    """Where annealing starts: fitted to data, or independent units with a bias."""
    dtype, device = placement(energy)
    like = torch.zeros((), dtype=dtype, device=device)
    if bias is None:
        return fitted_base(energy.domain, data, like)
    return independent_units(energy.domain, bias, data, like)
