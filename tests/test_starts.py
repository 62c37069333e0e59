"""Where chains begin: the moments of Gaussian starts, classes that are asked for, walls."""

from types import SimpleNamespace

import pytest
import torch
from objective_oracles import gen

import gibbsian as gb
from gibbsian import domains, kernels, models, objectives
from gibbsian.app.cli import main
from gibbsian.app.draws import start_of
from gibbsian.app.recipe import SampleSpec
from gibbsian.energies import MLP
from gibbsian.errors import ArgumentError, CapabilityError
from gibbsian.objectives.starts import check_starts, start_points
from gibbsian.uses.hybrid import like_classes


def three_classes(rows=30):
    g = gen(7)
    y = torch.arange(rows) % 3
    x = torch.randn(rows, 2, 2, generator=g, dtype=torch.float64) * torch.tensor([0.2, 1.0]) + 3.0 * y[:, None, None]
    return x + 0.5 * x.flip(1), y


def moments(x, y):
    """Means of the classes, and the covariance within them, row by row."""
    flat = x.flatten(1)
    means = torch.stack([flat[y == k].mean(0) for k in range(3)])
    rest = flat - means[y]
    return means, sum(torch.outer(r, r) for r in rest) / len(rest)


def has_moments(draws, mean, covariance):
    """Within five standard errors of Gaussian draws with these moments."""
    n, v = len(draws), covariance.diagonal()
    assert ((draws.mean(0) - mean).abs() < 5 * (v / n).sqrt()).all()
    found = (draws - mean).T @ (draws - mean) / n
    assert ((found - covariance).abs() < 5 * ((torch.outer(v, v) + covariance.square()) / n).sqrt()).all()


def test_gaussian_starts_have_the_moments_of_their_class():
    x, y = three_classes()
    means, covariance = moments(x, y)
    wanted = torch.arange(60_000) % 3
    draws = like_classes(x, y, 60_000, wanted=wanted, generator=gen()).flatten(1)
    for k in range(3):
        has_moments(draws[wanted == k], means[k], covariance)


def test_classes_come_as_often_as_in_the_batch():
    x, y = three_classes()
    means, within = moments(x, y)
    between = sum(torch.outer(m, m) for m in means - means.mean(0)) / 3
    draws = like_classes(x, y, 60_000, generator=gen()).flatten(1)
    mean = draws.mean(0)
    assert ((mean - means.mean(0)).abs() < 5 * ((within + between).diagonal() / 60_000).sqrt()).all()
    torch.testing.assert_close(torch.cov(draws.T), within + between, rtol=0.05, atol=0.1)


def test_without_classes_all_rows_are_one():
    x, _ = three_classes()
    flat = x.flatten(1)
    mean = flat.mean(0)
    draws = like_classes(x, None, 60_000, generator=gen()).flatten(1)
    has_moments(draws, mean, (flat - mean).T @ (flat - mean) / len(flat))


@pytest.mark.parametrize("start", ["data", "gaussian"])
def test_chains_bound_to_a_class_begin_in_it(start):
    x, y = three_classes(300)
    joint = models.JointEnergy(MLP(4, (8,), outputs=3), domains.Real((2, 2))).double()
    pcd = objectives.PersistentContrastiveDivergence(kernels.Langevin(1e-9), classes=3, buffer=900, start=start)
    slots = pcd.init(joint, (x, y), gen()).x
    level = slots.flatten(1).mean(1).view(3, 300)
    within = moments(x, y)[1].mean().sqrt()
    truth = torch.stack([x.flatten(1).mean(1)[y == k].mean() for k in range(3)])
    assert ((level.mean(1) - truth).abs() < 5 * within / 300**0.5).all()


def test_wanted_classes_that_the_batch_lacks_are_replaced():
    x, y = three_classes()
    joint = models.JointEnergy(MLP(4, (8,), outputs=3), domains.Real((2, 2))).double()
    rows = start_points("data", 50, joint, x, gen(), y=y, wanted=torch.full((50,), 9))
    assert all((x == row).flatten(1).all(1).any() for row in rows)


def test_chains_that_begin_anew_take_the_labels_of_a_batch():
    x, y = three_classes(300)
    joint = models.JointEnergy(MLP(4, (8,), outputs=3), domains.Box((2, 2), -1.0, 8.0)).double()
    pcd = objectives.PersistentContrastiveDivergence(kernels.Langevin(1e-12), chains=3000, reinit=1.0, start="gaussian")
    batch = (x.clamp(-1, 8), y)
    state = pcd.init(joint, batch, gen())
    moved = pcd(joint, batch, state, gen(1)).state.x
    assert moved.min() >= -1
    assert moved.max() <= 8
    level = moved.flatten(1).mean(1)  # three humps: one Gaussian would put a third of its draws between them
    centers = torch.stack([batch[0].flatten(1).mean(1)[y == k].mean() for k in range(3)])
    near = (level[:, None] - centers).abs().amin(1)
    spread = moments(*batch)[1].mean().sqrt()
    assert (near < 3 * spread).double().mean() > 0.97


def test_gaussian_starts_need_real_numbers():
    rbm = gb.models.RBM(4, 2)
    for start in ("gaussian", {"gaussian": 0.5, "data": 0.5}):
        pcd = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), start=start)
        with pytest.raises(CapabilityError, match="discrete; use start='rates', 'reference' or 'data'"):
            pcd.init(rbm, torch.ones(5, 4), gen())


def test_shares_mix_the_starts():
    x = 20.0 + torch.arange(12.0).view(6, 2)
    energy = gb.as_energy(lambda x: 0 * x.sum(1), domains.Box(2, -1.0, 50.0))
    shares = {"data": 0.5, "gaussian": 0.2, "reference": 0.3}
    found = start_points(shares, 20_000, energy, x, gen())
    at_data = (found[:, None] == x).all(2).any(1).double().mean()
    far = ((found < 5) | (found > 45)).any(1).double().mean() / (1 - (40 / 51) ** 2)  # Gaussians: 25 ± 3.4 and 26 ± 3.4
    assert abs(at_data - 0.5) < 5 * (0.25 / 20_000) ** 0.5
    assert abs(far - 0.3) < 5 * (0.25 / 20_000) ** 0.5 / 0.38


@pytest.mark.parametrize(
    "start",
    [
        "noise",
        {"noise": 1.0},
        {"data": 0.5},
        {},
        {"data": 1.5, "reference": -0.5},
        {"data": "x"},
        {"data": float("nan"), "reference": 1.0},
        3,
    ],
)
def test_unknown_starts_are_refused(start):
    with pytest.raises(ArgumentError, match="start="):
        objectives.PersistentContrastiveDivergence(kernels.Gibbs(), start=start)


def test_smooth_starts_are_noise_of_all_scales():
    energy = gb.as_energy(lambda x: 0 * x.flatten(1).sum(1), domains.Box((1, 28, 28), -1.0, 2.0))
    x = start_points("smooth", 4000, energy, torch.zeros(1, 1, 28, 28, dtype=torch.float64), gen())
    assert x.min() >= -1
    assert x.max() <= 2
    rank = torch.linalg.matrix_rank(x[:, 0], rtol=1e-9)  # a grid of g² numbers, enlarged, has rank g
    for grid in (1, 2, 4, 7, 14):
        assert abs((rank == grid).double().mean() - 0.2) < 5 * (0.2 * 0.8 / 4000) ** 0.5


def test_smooth_starts_need_images():
    energy = gb.as_energy(lambda x: 0 * x.sum(1), domains.Box(4, -1.0, 1.0))
    pcd = objectives.PersistentContrastiveDivergence(kernels.Langevin(0.1), start={"smooth": 0.5, "data": 0.5})
    with pytest.raises(CapabilityError, match="use start='gaussian' or 'reference'"):
        pcd.init(energy, torch.zeros(5, 4), gen())


@pytest.mark.parametrize("start", ["data", "gaussian"])
def test_samples_of_a_class_begin_in_it(start):
    x, y = three_classes(3000)
    recipe = SimpleNamespace(sample=SampleSpec(start=start), fit={"seed": 0})
    prepared = SimpleNamespace(finished=lambda part, rows: SimpleNamespace(x=x, y=y))
    joint = models.JointEnergy(MLP(4, (8,), outputs=3), domains.Real((2, 2))).double()
    means, covariance = moments(x, y)
    for label in range(3):
        begun = start_of(recipe, prepared, joint, label).flatten(1)
        assert ((begun.mean(0) - means[label]).abs() < 5 * (covariance.diagonal() / len(begun)).sqrt()).all()
    everything = start_of(recipe, prepared, joint).flatten(1)
    assert (everything.std(0) > 2 * covariance.diagonal().sqrt()).all()
    recipe.sample = SampleSpec(start=start, by_class=True)
    in_turn = start_of(recipe, prepared, joint).flatten(1)
    for label in range(3):
        some = in_turn[label::3]
        assert ((some.mean(0) - means[label]).abs() < 5 * (covariance.diagonal() / len(some)).sqrt()).all()


def test_a_recipe_with_starts_that_its_model_cannot_take_is_refused_before_it_trains(tmp_path, capsys):
    text = """
about: bits
data: {name: moons, n: 40}
model: {RBM: {visible: 2, hidden: 3}}
objective: {PersistentContrastiveDivergence: {kernel: {Gibbs: {}}}}
fit: {steps: 2}
sample: {start: gaussian}
"""
    (tmp_path / "bits.yaml").write_text(text)
    assert main(["train", str(tmp_path / "bits.yaml"), "--run", str(tmp_path / "run")]) != 0
    assert "use start='rates', 'reference' or 'data'" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("domain", [domains.Binary(3), domains.Spin(3), domains.Categorical(2, 3)])
def test_rates_are_those_of_the_batch(domain):
    """40000 independent draws have the (smoothed) means of the batch, within five standard errors, and no correlations."""
    g = torch.Generator().manual_seed(0)
    batch = domain.sample(7, generator=g, dtype=torch.float64)
    energy = gb.energies.MLPEnergy(domain).double()
    x = start_points("rates", 40000, energy, batch, g)
    domain.check(x, "x")
    low = -1.0 if isinstance(domain, domains.Spin) else 0.0
    classes = domain.classes if isinstance(domain, domains.Categorical) else 2
    share = ((batch - low) / (1 - low)).sum(0).add(1) / (7 + classes)
    found = ((x - low) / (1 - low)).mean(0)
    assert bool(((found - share).abs() < 5 * (share * (1 - share) / 40000).sqrt()).all())
    first, other = (x[:, 0], x[:, 1]) if x.dim() == 2 else (x[:, 0, 0], x[:, 1, 0])
    assert abs(float(torch.corrcoef(torch.stack([first, other]))[0, 1])) < 5 / 200


def test_rates_need_discrete_units():
    pcd = objectives.PersistentContrastiveDivergence(kernels.MALA(0.1), start="rates")
    with pytest.raises(CapabilityError, match="use start='gaussian'"):
        pcd.init(gb.energies.Banana(), torch.zeros(5, 2), torch.Generator())
    mixed = gb.as_energy(lambda x: x.sum(1), domains.Joined(domains.Binary(1), domains.Real(1)))
    for start in ("rates", "gaussian", "smooth"):
        with pytest.raises(CapabilityError, match="use start='reference' or 'data'"):
            check_starts(start, mixed)


def test_a_recipe_that_draws_classes_of_a_model_without_is_refused_before_it_trains(tmp_path, capsys):
    text = """
about: a plane
data: {name: moons, n: 40}
model: {MLPEnergy: {domain: 2, hidden: [4], confine: 1.0}}
objective: {DenoisingScoreMatching: {sigma: 0.3}}
fit: {steps: 2}
sample: {by_class: true}
"""
    (tmp_path / "plane.yaml").write_text(text)
    assert main(["train", str(tmp_path / "plane.yaml"), "--run", str(tmp_path / "run")]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "sample.by_class needs a model with class_log_prob(x)" in said
    assert "leave it out" in said
    assert not (tmp_path / "run").exists()
