"""What users do, on a second device: `python second_device_cases.py` prints what failed, a line of JSON each, and how many were tried."""

import json
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from second_device import DEVICE, Device, MixedError, gen, installed

installed()  # before anybody asks torch for a generator

from test_capture import PRINCIPLES, step_of  # noqa: E402
from test_invariance import KERNELS as REAL_KERNELS  # noqa: E402
from test_machines_conformance import MODELS  # noqa: E402
from test_neural_energies import CASES as NETWORKS  # noqa: E402

import gibbsian as gb  # noqa: E402
from gibbsian import (  # noqa: E402
    domains,
    energies,
    errors,
    hybrid,
    kernels,
    metrics,
    models,
    objectives,
    partition,
    schedules,
    sequences,
    spins,
    trees,
    zoo,
)
from gibbsian.objectives.base import Step  # noqa: E402

CASES: dict[str, Callable[[], Any]] = {}
HELD = torch.tensor([True, False])


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


def there(part: Any) -> Any:
    return trees.mapped(
        lambda leaf: leaf.to(DEVICE) if isinstance(leaf, torch.Tensor | torch.nn.Module) else leaf, part
    )


def quiet() -> dict[str, Any]:
    return {"generator": gen(), "progress": False}


def net() -> gb.Energy:
    return there(energies.MLPEnergy(2, (8,), confine=0.5))


def joint() -> models.JointEnergy:
    return there(models.JointEnergy(energies.MLP(2, (8,), outputs=3), domains.Real(2)))


def points(n: int = 10) -> torch.Tensor:
    return torch.randn(n, 2, generator=gen(), device=DEVICE)


def classes(n: int = 10) -> torch.Tensor:
    return torch.arange(n, device=DEVICE) % 3


def unless_refused(call: Callable[[], Any]) -> None:
    """A machine may not know how; but it may not say that tensors lie apart."""
    try:
        call()
    except errors.PrecisionError:
        raise
    except errors.GibbsianError:
        pass


# --- chains and machines ---------------------------------------------------------------------------


def chain(kernel: kernels.Kernel) -> None:
    x = points(6).double()
    energy = net().double()
    first = gb.sample(energy, kernel, x, steps=4, burn_in=1, **quiet())
    assert gb.sample(energy, kernel, first, steps=2, **quiet()).last.device == DEVICE
    gb.sample(energy, kernel, x, steps=2, keep=False, **quiet()).summary()
    if "MAMS" not in type(kernel).__name__:
        gb.sample(energy, kernel, x, steps=2, clamp=HELD.to(DEVICE), **quiet())


for _name in ["random walk", "MALA", "MALA, dense mass", "HMC, jitter", "guided", "ChEES", "MAMS", "NUTS"]:
    CASES[f"chain: {_name}"] = lambda name=_name: chain(REAL_KERNELS[name])
for _kernel in (
    kernels.MALA(0.5),
    kernels.HMC(0.3, 2),
    kernels.ChEES(0.3, 1.0),
    kernels.MCLMC(0.3, 1.0),
    kernels.NUTS(0.3),
):
    CASES[f"warm-up: {type(_kernel).__name__}"] = lambda kernel=_kernel: gb.warm_up(net(), kernel, points(6), steps=40, mass="dense", **quiet())  # fmt: skip


def machine(name: str) -> None:
    m = there(MODELS[name]())
    x = m.domain.sample(12, generator=gen())
    gb.sample(m, kernels.Gibbs(), x, steps=2, **quiet())
    unless_refused(lambda: gb.draw(m, 2, steps=3, **quiet()))
    unless_refused(lambda: partition.ais(m, data=x, betas=5, chains=4, **quiet()))
    unless_refused(lambda: gb.minimize(m, x[:2]))
    unless_refused(lambda: partition.exact(m))
    for objective in (
        objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=5), objectives.PseudoLikelihood(), objectives.EnergyDiscrepancy(0.1, 2),
    ):  # fmt: skip
        unless_refused(
            lambda objective=objective: objective.loss(m, x, objective.init(m, x, gen()), gen(), Step(done=0))
        )


for _name in MODELS:
    if _name not in {"tempered RBM", "annealed RBM", "labeled RBM"}:  # made from numbers of the host
        CASES[f"machine: {_name}"] = lambda name=_name: machine(name)
for _kernel in (
    kernels.SiteGibbs(),
    kernels.GibbsWithGradients(),
    kernels.DiscreteLangevin(0.5),
    kernels.SwendsenWang(),
    kernels.Wolff(),
):
    CASES[f"lattice: {type(_kernel).__name__}"] = lambda kernel=_kernel: gb.sample(
        there(models.Ising((3, 4), coupling=0.2)),
        kernel,
        domains.Spin((3, 4)).sample(4, generator=gen()),
        steps=2,
        **quiet(),
    )


@case
def deep_machines() -> None:
    for m in (there(models.DBM(6, 4, 3)), there(models.DBN(6, 4, 3))):
        x = m.domain.sample(8, generator=gen())
        gb.log_likelihood(m, x, generator=gen())
        gb.draw(m, 2, steps=3, **quiet())


@case
def labels() -> None:
    m = there(models.ClassificationRBM(6, classes=3, hidden=3))
    x = m.domain.sample(9, generator=gen())
    for law in (m.given(1), m.given(classes(9))):
        gb.sample(law, kernels.Gibbs(), x, steps=2, **quiet())
    objective = objectives.ClassificationLikelihood(1.0, 0.5, 0.2)
    step_of(objective, m, (x, classes(9)), objective.init(m, (x, classes(9)), gen()), gen(), 0)


@case
def associative_memory() -> None:
    m = there(models.Hopfield(6))
    m.store(m.domain.sample(1, generator=gen()))
    m.recall(m.domain.sample(3, generator=gen()), generator=gen())


# --- principles and training -----------------------------------------------------------------------


def twice(objective: objectives.Objective, energy: gb.Energy, batch: Any) -> None:
    """Two steps of a principle."""
    state = objective.init(energy, batch, gen())
    for done in range(2):
        state = step_of(objective, energy, batch, state, gen(), done)


def principle(name: str) -> None:
    make, objective, data = PRINCIPLES[name]
    energy, batch = there((make(), data()))
    twice(objective, energy, batch)


for _name in PRINCIPLES:
    if _name != "plane: explicit":  # its law stays on the host
        CASES[f"principle: {_name}"] = lambda name=_name: principle(name)


@case
def chains_of_classes() -> None:
    kernel = kernels.ShortRunLangevin(0.3, 0.01)
    objective = objectives.PersistentContrastiveDivergence(
        kernel, steps=2, buffer=60, chains=6, classes=3, start="gaussian", reinit=0.5
    )
    energy, batch = joint(), (points(6), classes(6))
    twice(objective, energy, batch)


@case
def draws_of_their_own() -> None:
    matching = objectives.EnergyMatching(flow_steps=5, steps=3, jump_every=2, noise="gaussian")
    energy = net()
    matching.generate(energy, 3, matching.init(energy, points(20), gen()), gen(), time=0.1, jump_every=2)
    recovery = objectives.RecoveryLikelihood(2)
    family = models.NoiseConditionalEnergy(
        models.LevelEnergy(gb.nets.MLP(3, (8,))), domains.Real(2), schedules.recovery_ladder()
    )
    recovery.generate(there(family), 3, recovery.init(there(family), points(20), gen()), gen())


@case
def training() -> None:
    how = {"batch_size": 10, "progress": False}
    bits = (torch.rand(40, 6, generator=gen(), device=DEVICE) < 0.5).float()
    with TemporaryDirectory() as home:
        folder = Path(home) / "run"
        objective = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=8)
        gb.fit(there(models.RBM(6, 4)), objective, bits, steps=4, validation=bits[:20], ema=0.9, run_dir=folder, **how)
        gb.resume(folder, bits, steps=6, validation=bits[:20], progress=False)
    gb.fit(joint(), objectives.CrossEntropy(), (points(30), classes(30)), steps=3, **how)


# --- likelihoods and what people do ------------------------------------------------------------------


@case
def likelihoods() -> None:
    gb.log_likelihood(net(), points(5), generator=gen())
    partition.ais(net(), data=points(50), betas=10, chains=5, **quiet())
    rbm = there(models.RBM(6, 4))
    bits = rbm.domain.sample(20, generator=gen())
    partition.reverse_ais(rbm, bits, betas=10, **quiet())
    partition.smc(rbm, betas=10, chains=5, **quiet())
    gb.evaluate(rbm, bits, train=bits)
    partition.perturb_and_map(there(models.Ising((3, 4), coupling=0.2)), generator=gen())


@case
def bounds() -> None:
    lattice = there(models.Ising((3, 3), coupling=0.2))
    for bound in (partition.mean_field, partition.bethe, partition.tree_reweighted):
        bound(lattice, steps=5)


@case
def scores_of_levels() -> None:
    score = there(models.NoiseConditionalScore(models.ScoreMLP(2), domains.Real(2), [1.0, 0.5, 0.1]))
    gb.draw(score, 2, **quiet())
    partition.flow_log_likelihood(score, points(2), data=points(20))


@case
def restoration() -> None:
    held, how = HELD.to(DEVICE), {"method": "mean", "kernel": kernels.MALA(0.1), "steps": 4, "burn_in": 1, "chains": 2}
    gb.minimize(net(), points(3))
    gb.denoise(net(), points(3), sigma=0.3, generator=gen(), **how)
    gb.inpaint(net(), points(3), held, generator=gen(), **how)
    gb.elastic_band(net(), points(2)[0], points(2)[1], steps=20)


@case
def classifiers() -> None:
    kernel, model = kernels.ShortRunLangevin(0.3, 0.01), joint()
    hybrid.generate(model, classes(4), kernel, 2, pool=points(20), generator=gen())
    hybrid.refine(model, points(4), kernel, 2, generator=gen())
    hybrid.rejecting(model, points(40), coverage=0.9, by="energy")
    for method in ("energy", "score_norm", "confidence"):
        scores = metrics.ood_scores(model, points(5), method)
        metrics.auroc(scores, scores + 1)
    metrics.expected_calibration_error(torch.softmax(model.logits(points(9)), 1).detach(), classes(9))


@case
def distances() -> None:
    metrics.mmd(points(10), points(12))
    metrics.sliced_wasserstein(points(10), points(10), generator=gen())
    metrics.kernel_stein_discrepancy(points(10), net())
    metrics.two_sample_test(points(10), points(12), generator=gen())
    metrics.kid(points(20), points(20), lambda x: x, generator=gen())


@case
def checks() -> None:
    gb.testing.check_invariance(there(energies.Bimodal()), kernels.MALA(0.5), chains=200, generator=gen())
    gb.testing.check_energy(net(), points(4), generator=gen())


@case
def networks() -> None:
    for make, shape in NETWORKS.values():
        for options in ({}, {"confine": 0.3}, {"spectral_norm": True}):
            there(make(**options)).score(torch.randn(2, *shape, generator=gen(), device=DEVICE))


@case
def pairs() -> None:
    spins.fit_ising(domains.Spin(5).sample(50, generator=gen()), "pseudo-likelihood")
    letters = torch.randint(0, 5, (40, 6), generator=torch.Generator().manual_seed(0))
    sequences.fit_potts(sequences.Family(letters, sequences.Alphabet.of("rna")), "mean-field", device=DEVICE)


@case
def trained_models() -> None:
    garments = there(zoo.load("fashion-jem"))
    zoo.begin(garments, there(zoo.chains("fashion-jem")), classes(2))


# --- the device itself -------------------------------------------------------------------------------


def refused(call: Callable[[], Any]) -> None:
    try:
        call()
    except MixedError:
        return
    raise AssertionError("both sides met")


@case
def what_lies_apart_does_not_meet() -> None:
    x = points(3)
    refused(lambda: x + torch.ones(2))
    refused(lambda: torch.cat([x, torch.ones(1, 2)]))
    refused(lambda: torch.ones(3, 2)[classes(3)])
    refused(lambda: torch.rand(3, generator=gen()))
    refused(lambda: torch.rand(3, generator=torch.Generator(), device=DEVICE))
    x[0, 1] = 5.0
    assert (x * torch.tensor(2.0))[0].tolist()[1] == 10.0


def main() -> None:
    warnings.simplefilter("ignore")
    for name, function in CASES.items():
        try:
            with Device():
                function()
        except Exception as error:
            print(json.dumps({"case": name, "error": repr(error)[:500], "where": traceback.format_exc()[-1500:]}))
    print(json.dumps({"tried": len(CASES)}))


if __name__ == "__main__":
    main()
