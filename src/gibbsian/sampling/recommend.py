"""Which kernel suits an energy, and why."""

from dataclasses import dataclass
from typing import Any

import torch

from gibbsian.capabilities import GibbsModel, NoiseLevels, SubsampledModel
from gibbsian.domains import Bounded, Discrete
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import CapabilityError, check_count
from gibbsian.kernels.annealed import AnnealedLangevin
from gibbsian.kernels.base import Kernel
from gibbsian.kernels.chees import ChEES
from gibbsian.kernels.discrete import GibbsWithGradients
from gibbsian.kernels.gibbs import Gibbs, SiteGibbs
from gibbsian.kernels.langevin import Langevin
from gibbsian.kernels.metropolis import RandomWalk
from gibbsian.kernels.nuts import NUTS
from gibbsian.placement import placement

_MANY = 16  # chains from which on trajectories of one length for all are learned well
_FEW_SITES = 32  # discrete sites up to which visiting every one is cheap


@dataclass(frozen=True)
class Recommendation:
    """A kernel for an energy.

    Attributes:
        kernel: with first guesses of what a warm-up finds.
        warm_up: how many steps of `gibbsian.warm_up` it should get, 0 where it has nothing to tune.
        reason: why this one, and what it cannot do.
    """

    kernel: Kernel
    warm_up: int
    reason: str

    def __str__(self) -> str:
        tuned = f"after {self.warm_up} steps of warm-up" if self.warm_up else "as it is"
        return f"{type(self.kernel).__name__}, {tuned}: {self.reason}"


def recommend(energy: Any, chains: int = 4) -> Recommendation:
    """The kernel that suits an energy and a number of chains, how long to warm it up, and why.

    Asked in this order, the first that holds decides:

    | the energy | kernel |
    |---|---|
    | a ladder of noise levels | `AnnealedLangevin` |
    | a score and no energy | `Langevin`, unadjusted |
    | exact block conditionals | `Gibbs` |
    | discrete, few sites or no gradient | `SiteGibbs` |
    | discrete, with a gradient | `GibbsWithGradients` |
    | continuous, no gradient | `RandomWalk` |
    | continuous, 16 chains or more | `ChEES` |
    | continuous, fewer chains | `NUTS` |

    `benchmarks/many_chains.py` and `benchmarks/particles.py` compare the last two with their rivals: with 100 chains ChEES gives more
    draws a gradient than HMC tuned by hand, and on plain targets it is ahead of NUTS from four chains on; below 16 NUTS is named
    nevertheless, since it learns nothing from other chains and follows scales that differ from place to place. No kernel can tell from an
    energy whether it has modes far apart: look at R-hat from scattered starts, and take `ParallelTempering` where chains disagree.

    Args:
        energy: an `Energy` or a `ScoreField`.
        chains: how many are run at once.

    >>> import gibbsian as gb
    >>> print(recommend(gb.energies.Banana(), chains=4).kernel)
    NUTS(step_size=0.1, max_depth=10, mass=None)
    >>> type(recommend(gb.energies.Banana(), chains=1000).kernel).__name__, recommend(gb.models.RBM(6, 3)).reason
    ('ChEES', 'RBM knows exact block conditionals: a sweep draws whole blocks anew and refuses nothing')
    """
    if not isinstance(energy, Energy | ScoreField):
        raise CapabilityError(
            f"{type(energy).__name__} is neither an energy nor a score field; wrap it with gibbsian.as_energy(function, domain)"
        )
    chains = check_count("recommend", "chains", chains)
    name = type(energy).__name__
    if isinstance(energy, NoiseLevels):
        size = float(energy.noise_levels()[-1]) ** 2 * 0.2
        reason = f"{name} knows a ladder of noise levels, along which noise becomes data; the law is that of the smallest level"
        return Recommendation(AnnealedLangevin(steps_per_level=20, step_size=size), 0, reason)
    if isinstance(energy, ScoreField):
        reason = f"{name} has a score and no energy, so nothing can be refused: biased, by more the larger the step; 0.05 is a guess"
        return Recommendation(Langevin(0.05), 0, reason)
    if isinstance(energy, GibbsModel) and fits(Gibbs(), energy):
        reason = f"{name} knows exact block conditionals: a sweep draws whole blocks anew and refuses nothing"
        return Recommendation(Gibbs(), 0, reason)
    smooth = _has_score(energy)
    discrete = isinstance(energy.domain, Discrete)
    found = _discrete(energy, name, smooth) if discrete else _continuous(energy, name, smooth, chains)
    found.kernel.check(energy)  # nothing moves mixed states and counts but what is made for them
    return found


def fits(kernel: Kernel, energy: Any) -> bool:
    """Whether a kernel takes an energy."""
    try:
        kernel.check(energy)
    except CapabilityError:
        return False
    return True


def _has_score(energy: Energy) -> bool:
    """Whether it can be differentiated, found out at a point, in the precision that it takes: a function that holds tensors
    of its own does not say which."""
    usual, device = placement(energy)
    trouble: RuntimeError | None = None
    for dtype in dict.fromkeys([usual, torch.get_default_dtype(), torch.float32, torch.float64]):
        x = energy.domain.sample(1, generator=torch.Generator(device).manual_seed(0), dtype=dtype)
        try:
            energy.score(x)
        except CapabilityError:
            return False
        except RuntimeError as error:
            trouble = trouble or error
        else:
            return True
    raise trouble or CapabilityError(f"{type(energy).__name__} could not be tried")


def _discrete(energy: Energy, name: str, smooth: bool) -> Recommendation:
    sites = energy.domain.numel
    if not smooth:
        return Recommendation(
            SiteGibbs(), 0, f"{name} is discrete and has no gradient: one site after the other, exactly"
        )
    if sites <= _FEW_SITES or not fits(GibbsWithGradients(), energy):
        return Recommendation(SiteGibbs(), 0, f"{name} has few discrete entries ({sites}): every one in turn, exactly")
    reason = f"{name} has {sites} discrete entries and a gradient, which tells which of them are worth a flip; exact"
    return Recommendation(GibbsWithGradients(), 0, reason)


def _continuous(energy: Energy, name: str, smooth: bool, chains: int) -> Recommendation:
    d = energy.domain.numel
    walls = "; trajectories are reflected at the walls, exactly" if isinstance(energy.domain, Bounded) else ""
    if not smooth:
        return Recommendation(
            RandomWalk(0.1), 1000, f"{name} has no gradient, so a random walk is left, slow beyond a few dimensions"
        )
    rows = ""
    if isinstance(energy, SubsampledModel):
        rows = f"; every step takes all {energy.data_rows()} rows: with very many of them SGLD is cheaper, and biased"
    if chains >= _MANY:
        reason = (
            f"{chains} chains learn the length of their trajectories from each other, and none waits for a longer one; "
            f"exact in all {d} dimensions"
        )
        return Recommendation(ChEES(0.1), 500, reason + walls + rows)
    reason = f"{chains} chains are too few to learn from each other: every trajectory finds its own length; exact, and much faster with compile=True"
    return Recommendation(NUTS(0.1), 1000, reason + walls + rows)
