"""The shipped checks pass what is right and catch what is wrong: one planted defect for every promise."""

import copy
import math
import random
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gibbsian as gb
from gibbsian import domains, energies, kernels
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import GibbsianError
from gibbsian.kernels.base import Info, Kernel
from gibbsian.objectives.base import Loss, Objective
from gibbsian.testing import check_energy, check_invariance, check_kernel, check_objective

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- check_energy ---------------------------------------------------------------------------------


class Quadratic(Energy):
    """½‖x‖², right; the classes below each break one thing."""

    def __init__(self, domain: domains.Domain | None = None):
        super().__init__(domain or domains.Real(2))
        self.anchor = nn.Parameter(torch.ones((), dtype=F64))

    def forward(self, x):
        return 0.5 * self.anchor * x.square().flatten(1).sum(1)

    def log_z(self):
        return torch.log(torch.tensor(2 * torch.pi, dtype=F64)) - self.anchor.log()

    def sample(self, n, *, generator):
        with torch.no_grad():
            return torch.randn(n, 2, generator=generator, dtype=F64) / self.anchor.sqrt()


class BatchStatistics(Quadratic):
    def forward(self, x):
        return super().forward(x - 0.01 * x.mean(0))


class Noisy(Quadratic):
    def forward(self, x):
        return super().forward(x) + 1e-3 * torch.randn(len(x), dtype=F64)


class NumpyNoisy(Quadratic):
    def forward(self, x):
        np.random.rand()  # noqa: NPY002
        return super().forward(x)


class PythonNoisy(Quadratic):
    def forward(self, x):
        random.random()
        return super().forward(x)


class Counting(Quadratic):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=F64))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Writing(Quadratic):
    def forward(self, x):
        value = super().forward(x)
        if not x.requires_grad:
            x.mul_(1.0).add_(1e-9)
        return value


class NotFinite(Quadratic):
    def forward(self, x):
        return super().forward(x) / (x[:, 0] != x[:, 0].detach()[3]).to(x)


class WrongSign(Quadratic):
    def energy_and_score(self, x):
        energy, score = super().energy_and_score(x)
        return energy, -score


class DetachedPart(Quadratic):
    def forward(self, x):
        return super().forward(x) + (x.detach() * x).sum(1)


class OtherEnergy(Quadratic):
    def energy_and_score(self, x):
        energy, score = super().energy_and_score(x)
        return energy + 1, score


class AttachedScore(Quadratic):
    def score(self, x, *, create_graph=False):
        return super().score(x, create_graph=True)


class DetachedScore(Quadratic):
    def score(self, x, *, create_graph=False):
        return super().score(x).detach()


class SinglePrecision(Quadratic):
    def forward(self, x):
        return super().forward(x).float()


class WrongLogZ(Quadratic):
    def log_z(self):
        return super().log_z() + 1e-3


class WrongDraws(Quadratic):
    def sample(self, n, *, generator):
        return 1.06 * super().sample(n, generator=generator)


class ShiftedDraws(Quadratic):
    def sample(self, n, *, generator):
        return super().sample(n, generator=generator) + 0.05


class GlobalDraws(Quadratic):
    def sample(self, n, *, generator):
        return torch.randn(n, 2, dtype=F64)


class DrawsOutside(Quadratic):
    def __init__(self):
        super().__init__(domains.Box(2, -1.0, 1.0))

    def log_z(self):
        one = torch.tensor(2 * math.pi, dtype=F64).sqrt() * math.erf(1 / math.sqrt(2))
        return 2 * one.log()  # the integral over the box


class WrongTable(energies.Grid):
    def sample(self, n, *, generator):
        index = torch.multinomial((self.probabilities.sqrt()), n, replacement=True, generator=generator)
        return self.domain.states(dtype=self.table.dtype)[index]


def test_a_right_energy_passes():
    assert check_energy(Quadratic(), generator=gen()) == ["rows", "score", "log_z", "sample"]
    net = nn.Sequential(nn.Linear(40, 8), nn.SiLU(), nn.Linear(8, 1), nn.Flatten(0))
    assert check_energy(gb.as_energy(net, domains.Real(40)), generator=gen()) == ["rows", "score"]
    assert check_energy(gb.as_energy(lambda x: x[:, 0].round(), domains.Binary(3)), generator=gen()) == [
        "rows",
        "score",
    ]
    parity = gb.as_energy(lambda x: (x.sum(1) % 2 == 0).to(x), domains.Binary(3))
    assert check_energy(parity, generator=gen()) == ["rows"]  # nothing to differentiate


def test_a_score_field_is_checked_too():
    class Pull(ScoreField):
        def score(self, x, *, create_graph=False):
            return -x if create_graph else -x.detach()

    class Mixed(Pull):
        def score(self, x, *, create_graph=False):
            return super().score(x, create_graph=create_graph) + x.mean()

    x = torch.randn(5, 2, generator=gen()).requires_grad_(True)
    assert check_energy(Pull(domains.Real(2)), x, generator=gen()) == ["rows", "score"]
    with pytest.raises(AssertionError, match="row"):
        check_energy(Mixed(domains.Real(2)), x, generator=gen())


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        (BatchStatistics(), "that row alone"),
        (Noisy(), "global random state"),
        (NumpyNoisy(), "global random state"),
        (PythonNoisy(), "global random state"),
        (Counting(), "changed calls"),
        (Writing(), "wrote into x"),
        (NotFinite(), "not finite"),
        (WrongSign(), "differ|central differences"),
        (DetachedPart(), "central differences"),
        (OtherEnergy(), "not that of forward"),
        (AttachedScore(), "not detached"),
        (DetachedScore(), "cannot be differentiated"),
        (SinglePrecision(), "came out as torch.float32"),
        (WrongLogZ(), "log_z"),
        (WrongDraws(), "do not follow its density"),
        (ShiftedDraws(), "do not follow its density"),
        (GlobalDraws(), "global random state"),
        (DrawsOutside(), "outside Box"),
        (WrongTable(torch.randn(4, 4, generator=gen(), dtype=F64)), "do not follow its density"),
        (WrongTable(torch.randn(64, generator=gen(), dtype=F64), domains.Spin(6)), "do not follow its density"),
    ],
    ids=lambda case: type(case).__name__ if isinstance(case, Energy) else None,
)
def test_a_defect_of_an_energy_is_caught(defect, message):
    inside = 0.4 * torch.randn(8, 2, generator=gen(1), dtype=F64).clamp(-1, 1)
    with pytest.raises(AssertionError, match=message):
        check_energy(defect, None if defect.domain.discrete else inside, generator=gen())


def test_check_energy_refuses_what_it_cannot_check():
    for call in (
        lambda: check_energy(nn.Linear(2, 1), generator=gen()),
        lambda: check_energy(Quadratic(), generator=None),
        lambda: check_energy(Quadratic(), torch.zeros(3, 5), generator=gen()),
    ):
        with pytest.raises(GibbsianError):
            call()


# --- check_kernel ---------------------------------------------------------------------------------

GAUSSIAN = energies.Gaussian(torch.zeros(3), torch.eye(3) + 0.5)
X = torch.randn(6, 3, generator=gen(5))


def wander(x, generator):
    return x + 0.5 * torch.randn(x.shape, generator=generator)


GOOD = {
    "random walk": kernels.RandomWalk(0.5),
    "independence": kernels.Independence(energies.Gaussian(torch.zeros(3), 2 * torch.eye(3))),
    "user": kernels.Metropolis(wander, symmetric=True),
    "Langevin": kernels.Langevin(0.3),
    "short run": kernels.ShortRunLangevin(0.3, 0.1, clip=0.5),
    "MALA": kernels.MALA(0.5),
    "MALA, dense": kernels.MALA(0.5, mass=2 * torch.eye(3) + 0.3),
    "HMC": kernels.HMC(0.3, 4),
    "HMC, jitter": kernels.HMC(0.3, 4, jitter=0.3),
    "HMC, diagonal": kernels.HMC(0.3, 4, mass=torch.tensor([1.0, 2.0, 3.0])),
    "HMC, dense": kernels.HMC(0.3, 4, mass=2 * torch.eye(3) + 0.3),
    "NUTS": kernels.NUTS(0.4),
    "NUTS, dense": kernels.NUTS(0.4, mass=2 * torch.eye(3) + 0.3),
    "ChEES": kernels.ChEES(0.3, 2.0),
    "ChEES, dense": kernels.ChEES(0.3, 2.0, mass=2 * torch.eye(3) + 0.3),
    "underdamped": kernels.UnderdampedLangevin(0.3),
    "guided": kernels.UnderdampedLangevin(0.3, adjusted=True),
    "tempering": kernels.ParallelTempering(kernels.MALA(0.5), [1.0, 0.5, 0.2]),
}


@pytest.mark.parametrize("name", GOOD)
def test_kernels_conform(name):
    done = check_kernel(GOOD[name], GAUSSIAN, X, generator=gen())
    assert done == ["seed", "shapes", "pieces"] + ["clamp"] * (name != "user") + ["neighbors"]


@pytest.mark.parametrize("name", [n for n in GOOD if "dense" not in n])
def test_kernels_conform_behind_walls(name):
    energy = gb.as_energy(lambda x: x.sum(1) + x[:, 0] * x[:, 1], domains.NonNegative(3))
    done = check_kernel(GOOD[name], energy, X.abs(), generator=gen())
    assert done[-1] == "neighbors"


DISCRETE = [kernels.SiteGibbs(), kernels.GibbsWithGradients(), kernels.DiscreteLangevin(0.5)]


@pytest.mark.parametrize("kernel", DISCRETE, ids=lambda kernel: type(kernel).__name__)
@pytest.mark.parametrize("domain", [domains.Categorical(3, classes=3), domains.Spin(4)], ids=str)
def test_discrete_kernels_conform(kernel, domain):
    table = energies.Grid(torch.randn(domain.size, generator=gen()), domain)
    done = check_kernel(kernel, table, domain.sample(6, generator=gen(1)), generator=gen())
    assert done == ["seed", "shapes", "pieces", "clamp", "neighbors"]


class WithDefect(kernels.RandomWalk):
    """A random walk of which a method is overridden below."""


class GlobalNoise(WithDefect):
    def step(self, energy, state, inputs):
        return super().step(energy, state, inputs._replace(z=torch.randn_like(inputs.z)))


class Mutating(WithDefect):
    def draw(self, energy, x, steps, generator, start=0):
        x += 0.0 if start else 1.0
        return super().draw(energy, x, steps, generator, start)


class Deaf(WithDefect):
    def draw(self, energy, x, steps, generator, start=0):
        return super().draw(energy, x, steps, torch.Generator().manual_seed(start), start)


class CutDependent(WithDefect):
    """Draws the thresholds after all the normals of a chunk."""

    def draw(self, energy, x, steps, generator, start=0):
        drawn = super().draw(energy, x, steps, generator, start)
        return drawn._replace(threshold=torch.rand(drawn.threshold.shape, generator=generator).log())


class Unclamped(WithDefect):
    def step(self, energy, state, inputs):
        new, info = super().step(energy, state._replace(clamp=None), inputs)
        return new._replace(clamp=state.clamp), info


class Frozen(WithDefect):
    def step(self, energy, state, inputs):
        _, info = super().step(energy, state, inputs)
        return state, info


class Mixing(WithDefect):
    """Adds up energies over chains."""

    def step(self, energy, state, inputs):
        new, info = super().step(energy, state, inputs)
        return new._replace(energy=new.energy + 0 * energy(new.x).sum()), info


class Silent(WithDefect):
    """Takes NaN for an ordinary rejection."""

    def step(self, energy, state, inputs):
        new, info = super().step(energy, state, inputs)
        return new, Info(info.acceptance, torch.zeros_like(info.diverged))


class RatioAsAcceptance(WithDefect):
    def step(self, energy, state, inputs):
        new, info = super().step(energy, state, inputs)
        return new, Info(3 * info.acceptance, info.diverged)


class Box(NamedTuple):
    x: Tensor
    energy: Tensor
    clamp: Tensor | None
    note: Any


class Noting(WithDefect):
    def init(self, energy, x, clamp=None):
        return Box(*super().init(energy, x, clamp), {1, 2})

    def step(self, energy, state, inputs):
        new, info = super().step(energy, kernels.metropolis.WalkState(*state[:3]), inputs)
        return Box(*new, state.note), info


class Backward(kernels.MALA):
    """Leaves gradients in the model."""

    def step(self, energy, state, inputs):
        with torch.enable_grad():
            energy(state.x).sum().backward()
        return super().step(energy, state, inputs)


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        (GlobalNoise(0.5), "global random state"),
        (Mutating(0.5), "wrote into x"),
        (Deaf(0.5), "whatever the generator"),
        (CutDependent(0.5), "cut in two"),
        (Unclamped(0.5), "clamped"),
        (Frozen(0.5), "never moved"),
        (Mixing(0.5), "changed its neighbors"),
        (Silent(0.5), "not reported as divergent"),
        (RatioAsAcceptance(0.5), "not a probability"),
        (Noting(0.5), "holds a set"),
        (Backward(0.3), "left a gradient"),
    ],
    ids=lambda case: type(case).__name__ if isinstance(case, Kernel) else None,
)
def test_a_defect_of_a_kernel_is_caught(defect, message):
    energy = energies.Gaussian(torch.zeros(3), torch.eye(3) + 0.5, trainable=True)
    with pytest.raises(AssertionError, match=message):
        check_kernel(defect, energy, X.clone(), generator=gen())


def test_check_kernel_refuses_what_it_cannot_check():
    for call in (
        lambda: check_kernel("MALA", GAUSSIAN, X, generator=gen()),
        lambda: check_kernel(GOOD["MALA"], GAUSSIAN, X[:1], generator=gen()),
        lambda: check_kernel(GOOD["MALA"], GAUSSIAN, X, generator=None),
        lambda: check_kernel(GOOD["MALA"], GAUSSIAN, X[:, :2], generator=gen()),
    ):
        with pytest.raises(GibbsianError):
            call()


# --- check_invariance: what it refuses (what it catches is in test_invariance.py) -------------------


def test_check_invariance_refuses_what_it_cannot_check():
    plain = gb.as_energy(lambda x: x.square().sum(1), domains.Real(2))
    for call in (
        lambda: check_invariance(plain, kernels.MALA(0.5), generator=gen()),
        lambda: check_invariance(GAUSSIAN, kernels.MALA(0.5), alpha=0.0, generator=gen()),
        lambda: check_invariance(GAUSSIAN, kernels.MALA(0.5), generator=None),
        lambda: check_invariance(GAUSSIAN, "MALA", generator=gen()),
    ):
        with pytest.raises(GibbsianError):
            call()


def test_invariance_of_discrete_kernels():
    """A table of 2⁶ states: flips are right, flips that always go up are caught, state by state."""
    table = energies.Grid(torch.randn(64, generator=gen(), dtype=F64), domains.Binary(6))

    def flip(x, generator):
        site = torch.randint(6, (len(x), 1), generator=generator)
        return x.scatter(1, site, 1 - x.gather(1, site))

    def eager_up(x, generator):
        new = flip(x, generator)
        up = torch.rand(len(x), 1, generator=generator) < 0.1
        return torch.where(up, torch.maximum(new, x), new)

    report = check_invariance(table, kernels.Metropolis(flip, symmetric=True), generator=gen())
    assert report.functions > 64
    with pytest.raises(AssertionError, match="does not leave the law"):
        check_invariance(table, kernels.Metropolis(eager_up, symmetric=True), steps=10, generator=gen())


def test_invariance_in_high_dimension_and_single_precision():
    energy = energies.Gaussian(torch.zeros(100), torch.eye(100))
    report = check_invariance(energy, kernels.HMC(0.5, 3), chains=5000, generator=gen())
    assert report.worst
    with pytest.raises(AssertionError):
        check_invariance(energy, kernels.Langevin(0.6), chains=5000, generator=gen())


# --- check_objective ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contrast(Objective):
    """Energy of data less energy of noisy data, with a running mean as state: right."""

    def init(self, energy, batch, generator):
        super().init(energy, batch, generator)
        return (torch.zeros((), dtype=batch.dtype), nn.Linear(1, 1, bias=False, dtype=batch.dtype).requires_grad_(True))

    def noise(self, batch, generator):
        return torch.randn(batch.shape, generator=generator, dtype=batch.dtype)

    def __call__(self, energy, batch, state, generator):
        running, scale = state
        value = energy(batch).mean() - energy(batch + self.noise(batch, generator)).mean() + scale.weight.square().sum()
        return Loss(value, (0.9 * running + value.detach(), scale), {"loss": value.detach()})


class SeededContrast(Contrast):
    """The same, with a module that is not initialized from the global state."""

    def init(self, energy, batch, generator):
        Objective.init(self, energy, batch, generator)
        scale = nn.utils.skip_init(nn.Linear, 1, 1, bias=False, dtype=batch.dtype)
        nn.init.constant_(scale.weight, 0.5)
        return (torch.zeros((), dtype=batch.dtype), scale)


class GlobalContrast(SeededContrast):
    def noise(self, batch, generator):
        return torch.randn_like(batch)


SEEN: list[int] = []


class Drifting(SeededContrast):
    def noise(self, batch, generator):
        SEEN.append(1)
        return super().noise(batch, generator) * len(SEEN)


class Attached(SeededContrast):
    def __call__(self, energy, batch, state, generator):
        loss = super().__call__(energy, batch, state, generator)
        return loss._replace(state=(loss.value, state[1]))


class Vector(SeededContrast):
    def __call__(self, energy, batch, state, generator):
        return super().__call__(energy, batch, state, generator)._replace(value=energy(batch))


class Exploding(SeededContrast):
    def __call__(self, energy, batch, state, generator):
        loss = super().__call__(energy, batch, state, generator)
        return loss._replace(value=loss.value / 0)


class Constant(SeededContrast):
    def __call__(self, energy, batch, state, generator):
        loss = super().__call__(energy, batch, state, generator)
        return loss._replace(value=loss.value.detach())


class Elsewhere(SeededContrast):
    def __call__(self, energy, batch, state, generator):
        loss = super().__call__(energy, batch, state, generator)
        return loss._replace(value=torch.ones((), requires_grad=True) * 2)


class WritesBatch(SeededContrast):
    def __call__(self, energy, batch, state, generator):
        batch += 1
        return super().__call__(energy, batch, state, generator)


class Steps(SeededContrast):
    def __call__(self, energy, batch, state, generator):
        with torch.no_grad():
            next(energy.parameters()).add_(1e-3)
        return super().__call__(energy, batch, state, generator)


class OddState(SeededContrast):
    def init(self, energy, batch, generator):
        return (object(), super().init(energy, batch, generator)[1])


class LiveMetric(SeededContrast):
    def __call__(self, energy, batch, state, generator):
        loss = super().__call__(energy, batch, state, generator)
        return loss._replace(metrics={"loss": loss.value})


class NoLoss(SeededContrast):
    def __call__(self, energy, batch, state, generator):
        return super().__call__(energy, batch, state, generator).value


DATA = torch.randn(20, 2, generator=gen(3), dtype=F64)


def trainable() -> Energy:
    return energies.Gaussian(torch.zeros(2, dtype=F64), torch.eye(2, dtype=F64), trainable=True)


def test_a_right_objective_passes():
    energy = trainable()
    before = copy.deepcopy(energy.state_dict())
    assert check_objective(SeededContrast(), energy, DATA, generator=gen()) == ["loss", "gradient", "state", "seed"]
    assert all(torch.equal(a, b) for a, b in zip(before.values(), energy.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        (Contrast(), "global random state"),  # its module is initialized from the global state
        (GlobalContrast(), "global random state"),
        (Drifting(), "from the same generator state"),
        (Attached(), "carries a graph"),
        (Vector(), "shape \\(\\)"),
        (Exploding(), "loss.value is"),
        (Constant(), "cannot be differentiated"),
        (Elsewhere(), "does not depend on any parameter"),
        (WritesBatch(), "wrote into batch"),
        (Steps(), "only an optimizer may"),
        (OddState(), "cannot be saved"),
        (LiveMetric(), "one detached number"),
        (NoLoss(), "expected a Loss"),
    ],
    ids=lambda case: type(case).__name__ if isinstance(case, Objective) else None,
)
def test_a_defect_of_an_objective_is_caught(defect, message):
    with pytest.raises(AssertionError, match=message):
        check_objective(defect, trainable(), DATA.clone(), generator=gen())


def test_check_objective_refuses_what_it_cannot_check():
    for call in (
        lambda: check_objective("CD", trainable(), DATA, generator=gen()),
        lambda: check_objective(SeededContrast(), trainable(), DATA, generator=None),
        lambda: check_objective(SeededContrast(), trainable(), DATA[:, :1], generator=gen()),
    ):
        with pytest.raises(GibbsianError):
            call()
