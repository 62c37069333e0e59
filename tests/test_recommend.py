"""The kernel that is recommended: every row of the table, and runs that leave the choice to it."""

import pytest
import torch

import gibbsian as gb
from gibbsian import domains, energies, kernels, models
from gibbsian.energy import ScoreField
from gibbsian.errors import ArgumentError, CapabilityError, RandomnessError


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Pull(ScoreField):
    def score(self, x, *, create_graph=False):
        return -x


def steps_of(x):
    return torch.where(x.abs() < 1, 0.0, x.detach().abs()).sum(1).detach()


def smooth(sites):
    weight = torch.randn(sites, sites, generator=gen())
    return gb.as_energy(lambda x: ((x @ weight) * x).sum(1), domains.Binary(sites))


CASES = {
    "noise levels": (
        lambda: models.NoiseConditionalScore(torch.nn.Identity(), domains.Real(2), torch.tensor([1.0, 0.1])),
        4, kernels.AnnealedLangevin, "noise levels",
    ),
    "a score": (lambda: Pull(domains.Real(2)), 4, kernels.Langevin, "nothing can be refused"),
    "blocks": (lambda: models.RBM(6, 3), 4, kernels.Gibbs, "block conditionals"),
    "a table": (lambda: energies.Grid(torch.zeros(8), domains.Binary(3)), 4, kernels.SiteGibbs, "discrete"),
    "few sites": (lambda: smooth(5), 4, kernels.SiteGibbs, "every one in turn"),
    "many sites": (lambda: smooth(100), 4, kernels.GibbsWithGradients, "worth a flip"),
    "no gradient": (lambda: gb.as_energy(steps_of, domains.Real(2)), 4, kernels.RandomWalk, "no gradient"),
    "few chains": (energies.Banana, 4, kernels.NUTS, "too few to learn"),
    "many chains": (energies.Banana, 16, kernels.ChEES, "learn the length"),
    "walls": (lambda: gb.as_energy(lambda x: x.sum(1), domains.NonNegative(2)), 4, kernels.NUTS, "reflected"),
    "rows of data": (
        lambda: energies.DataPosterior(domains.Real(1), lambda t, d: -(d - t[:, None]).square().sum(2), torch.zeros(9, 1)),
        4, kernels.NUTS, "all 9 rows",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_table_of_decisions(name):
    make, chains, kind, words = CASES[name]
    energy = make()
    found = gb.recommend(energy, chains)
    assert type(found.kernel) is kind
    assert words in found.reason
    assert found.kernel.tuned == "" or found.warm_up > 0 or not found.kernel.adjusted
    found.kernel.check(energy)
    assert type(found.kernel).__name__ in str(found)


def test_a_run_that_chooses_its_kernel():
    """ChEES on a Gaussian of condition 100, standard deviations within five standard errors of 64 × 100 draws, a third of them
    effective: 8 %."""
    energy = energies.Gaussian(torch.zeros(2), torch.diag(torch.tensor([1.0, 100.0])))
    trace = gb.sample(energy, "auto", torch.zeros(64, 2), steps=100, generator=gen(1))
    assert type(trace.kernel) is kernels.ChEES
    assert trace.samples.shape == (100, 64, 2)
    assert "learn the length" in trace.reason
    assert torch.allclose(trace.samples.flatten(0, 1).std(0), torch.tensor([1.0, 10.0]), rtol=0.08)
    more = gb.sample(energy, "auto", trace, steps=5, generator=gen(2))
    assert more.kernel == trace.kernel
    assert more.reason == trace.reason


def test_a_run_without_a_warm_up_and_with_a_clamp():
    rbm = models.RBM(6, 3)
    x = torch.zeros(4, 6)
    clamp = torch.tensor([True, False, False, False, False, False])
    assert torch.equal(
        gb.sample(rbm, "auto", x, steps=5, clamp=clamp, generator=gen()).samples[..., 0], torch.zeros(5, 4)
    )
    energy = energies.Gaussian(torch.zeros(3), torch.eye(3))
    held = torch.tensor([True, False, False])
    trace = gb.sample(energy, "auto", torch.ones(64, 3), steps=5, clamp=held, generator=gen())
    assert torch.equal(trace.samples[..., 0], torch.ones(5, 64))


def test_refusals():
    energy = energies.Banana()
    with pytest.raises(ArgumentError, match="'auto'"):
        gb.sample(energy, "nuts", torch.zeros(4, 2), steps=5, generator=gen())
    with pytest.raises(RandomnessError):
        gb.sample(energy, "auto", torch.zeros(4, 2), steps=5)
    with pytest.raises(ArgumentError, match="chains"):
        gb.recommend(energy, 0)
    with pytest.raises(CapabilityError, match="as_energy"):
        gb.recommend(lambda x: x, 4)
