"""Detection, calibration and image metrics against scikit-learn, plain loops and closed forms; energy margins."""

import math
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import nn

import gibbsian as gb
from gibbsian import domains, energies, errors, metrics, objectives
from gibbsian.errors import DataError, GibbsianError
from gibbsian.testing import check_objective

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- ranking ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [5, 1000000])  # with many ties, and with none
@pytest.mark.parametrize("seed", range(5))
def test_areas_agree_with_scikit_learn(seed, levels):
    g = gen(seed)
    y = torch.rand(300, generator=g) < 0.3
    s = ((torch.randn(300, generator=g, dtype=F64) + y) * levels / 5).round()
    expected = sk.roc_auc_score(y, s), sk.average_precision_score(y, s), sk.average_precision_score(~y, -s)
    for given in ({"scores": s, "labels": y}, {"scores": s[~y], "outside": s[y]}):
        got = metrics.auroc(**given), metrics.aupr(**given), metrics.aupr(**given, positive="inside")
        assert torch.tensor(got, dtype=F64).sub(torch.tensor(expected, dtype=F64)).abs().max() < 1e-12
    false, true, _ = sk.roc_curve(y, s, drop_intermediate=False)
    curve = metrics.roc_curve(s, labels=y)
    assert torch.allclose(curve.false_positive_rate, torch.from_numpy(false))
    assert torch.allclose(curve.true_positive_rate, torch.from_numpy(true))
    # inside rows are the positives: scikit-learn's curve of the negated scores
    false, true, _ = sk.roc_curve(~y, -s, drop_intermediate=False)
    assert float(metrics.fpr95(s, labels=y)) == pytest.approx(false[true >= 0.95][0], abs=1e-12)


def test_extremes_and_direction():
    inside, outside = torch.arange(20.0), torch.arange(20.0) + 100
    assert float(metrics.auroc(inside, outside)) == 1
    assert float(metrics.auroc(outside, inside)) == 0
    assert float(metrics.aupr(inside, outside)) == 1
    assert float(metrics.fpr95(inside, outside)) == 0
    assert float(metrics.fpr95(outside, inside)) == 1
    assert float(metrics.fpr95(inside, inside)) == 0.95
    assert float(metrics.auroc(inside, torch.full((3,), 9.5))) == 0.5
    assert float(metrics.auroc(torch.zeros(4), torch.zeros(7))) == 0.5


# --- calibration ------------------------------------------------------------------------------------


def test_calibration_error_is_its_definition():
    g = gen()
    p = torch.softmax(2 * torch.randn(500, 4, generator=g, dtype=F64), 1)
    y = torch.randint(4, (500,), generator=g)
    total = 0.0
    for b in range(10):
        rows = [i for i in range(500) if b / 10 < float(p[i].max()) <= (b + 1) / 10]
        if rows:
            right = sum(int(p[i].argmax() == y[i]) for i in rows) / len(rows)
            total += len(rows) / 500 * abs(right - sum(float(p[i].max()) for i in rows) / len(rows))
    assert float(metrics.expected_calibration_error(p, y, bins=10)) == pytest.approx(total, abs=1e-12)
    assert int(metrics.reliability_curve(p, y, 10).rows.sum()) == 500


def test_temperature_undoes_what_the_logits_were_multiplied_by():
    z = 2 * torch.randn(200000, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.multinomial(torch.softmax(z, 1), 1, generator=torch.Generator().manual_seed(1)).squeeze(1)
    spread = 1 / math.sqrt(
        len(z)
        * float((torch.softmax(z, 1) * z.square()).sum(1).mean() - (torch.softmax(z, 1) * z).sum(1).square().mean())
    )
    for scale in (0.3, 1.0, 4.0):  # 1/T has the standard error of a likelihood
        found = metrics.fit_temperature(scale * z, y)
        assert abs(scale / found - 1) < 5 * spread
    with pytest.raises(DataError, match="right in all"):
        metrics.fit_temperature(torch.eye(3), torch.arange(3))
    few = z[:1000], y[:1000]
    for scale in (1e-6, 1e6):  # whatever the unit
        assert metrics.fit_temperature(scale * few[0], few[1]) == pytest.approx(scale * metrics.fit_temperature(*few))
    sure = torch.tensor([[2.0, 0.0, -math.inf]] * 4), torch.tensor([0, 0, 0, 1])  # the third class cannot be
    assert metrics.fit_temperature(*sure) == pytest.approx(2 / math.log(3))
    with pytest.raises(DataError, match="1 of 4 labels have probability 0"):
        metrics.fit_temperature(sure[0], torch.tensor([0, 0, 1, 2]))


def test_labels_drawn_from_the_probabilities_are_calibrated():
    g = gen()
    p = torch.softmax(torch.randn(200000, 3, generator=g), 1)
    y = torch.multinomial(p, 1, generator=g)[:, 0]
    # a bin's error has sd at most ½/√n_b; the weighted mean of 15 absolute errors is below 4 of √(15/n)/2
    assert float(metrics.expected_calibration_error(p, y)) < 4 * 0.5 * math.sqrt(15 / 200000)
    assert float(metrics.expected_calibration_error(torch.softmax(3 * p.log(), 1), y)) > 0.1
    assert float(metrics.expected_calibration_error(torch.softmax(p.log() / 3, 1), y)) > 0.05


def test_calibration_agrees_with_torchmetrics():
    from torchmetrics.functional.classification import multiclass_calibration_error

    p = torch.softmax(torch.randn(300, 5, generator=gen()), 1)
    y = torch.randint(5, (300,), generator=gen(1))
    theirs = multiclass_calibration_error(p, y, num_classes=5, n_bins=15)
    assert float(metrics.expected_calibration_error(p, y)) == pytest.approx(float(theirs), abs=1e-6)


# --- images -----------------------------------------------------------------------------------------


def covariance(d, seed):
    a = torch.randn(d, d, generator=gen(seed), dtype=F64)
    return a @ a.T / d


def test_frechet_distance_of_gaussians():
    import scipy.linalg

    a, b = covariance(6, 0), covariance(6, 1)
    mean = torch.randn(6, generator=gen(2), dtype=F64)
    root = torch.from_numpy(scipy.linalg.sqrtm((a @ b).numpy()).real)
    expected = mean.square().sum() + (a + b - 2 * root).trace()
    assert float(metrics.frechet_distance(torch.zeros(6), a, mean, b)) == pytest.approx(float(expected), rel=1e-9)
    # commuting covariances: Σ(√λ - √μ)²; a singular one too
    values = torch.tensor([4.0, 1.0, 0.0]), torch.tensor([1.0, 9.0, 4.0])
    got = metrics.frechet_distance(torch.zeros(3), values[0].diag(), torch.zeros(3), values[1].diag())
    assert float(got) == pytest.approx(1 + 4 + 4)


def test_fid_streams_the_same_moments():
    g = gen()
    x, y = torch.randn(700, 1, 3, 3, generator=g), 2 * torch.randn(500, 1, 3, 3, generator=g) + 1
    whole = metrics.fid(x, y, nn.Flatten())
    parts = metrics.fid(
        [(part, None) for part in x.split(97)], metrics.feature_moments(y, nn.Flatten(), batch_size=50), nn.Flatten()
    )
    assert float(whole.value) == pytest.approx(float(parts.value), rel=1e-12)
    assert parts.rows == (700, 500)
    m = metrics.feature_moments(x, nn.Flatten(), batch_size=33)
    assert torch.allclose(m.covariance, torch.cov(x.flatten(1).double().T))
    # 9 dimensions, shift 1, scales 1 and 2: 9 + 9; the bias and the error of 500 draws stay below 10 %
    assert float(whole.value) == pytest.approx(18, rel=0.1)
    assert "Flatten" in repr(whole)
    assert "pixels" in repr(metrics.fid(x, y, nn.Flatten(), label="pixels"))


def test_extractors_run_in_evaluation_mode_and_come_back():
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.9))
    x = torch.randn(50, 1, 2, 2, generator=gen())
    assert float(metrics.fid(x, x, net).value) < 1e-9
    assert net.training


def test_kid_is_the_mean_over_subsets_with_its_standard_error_and_has_none_where_all_rows_are_one_subset():
    """Against numpy on the same subsets: (x·y/d + 1)³ without the diagonal within a set, and with it between them."""
    x, y = torch.randn(60, 3, generator=gen()), torch.randn(40, 3, generator=gen(1)) + 0.4

    def squared(a, b):
        k = [(u @ v.T / 3 + 1) ** 3 for u, v in ((a, a), (b, b), (a, b))]
        within = [(m.sum() - np.trace(m)) / (len(m) * (len(m) - 1)) for m in k[:2]]
        return sum(within) - 2 * k[2].mean()

    found = metrics.kid(x, y, nn.Identity(), subsets=7, subset_size=50, generator=gen(2))
    g, a, b = gen(2), x.double().numpy(), y.double().numpy()
    each = [squared(a[torch.randperm(60, generator=g)[:50]], b[torch.randperm(40, generator=g)]) for _ in range(7)]
    assert float(found.value) == pytest.approx(np.mean(each), abs=1e-12)
    assert float(found.standard_error) == pytest.approx(np.std(each, ddof=1) / 7**0.5, rel=1e-9)
    other = metrics.kid(y, x, nn.Identity(), subsets=7, subset_size=50, generator=gen(2))  # rows of each on its own
    g = gen(2)
    each = [squared(b[torch.randperm(40, generator=g)], a[torch.randperm(60, generator=g)[:50]]) for _ in range(7)]
    assert float(other.value) == pytest.approx(np.mean(each), abs=1e-12)
    whole = metrics.kid(x, y, nn.Identity(), generator=gen())
    assert float(whole.value) == pytest.approx(squared(a, b), abs=1e-12)
    assert float(whole.standard_error) == 0.0
    assert "±" not in repr(whole)


def test_an_extractor_of_several_outputs_is_told_to_give_one():
    x = torch.ones(4, 1, 2, 2)
    with pytest.raises(errors.ShapeError, match=r"gave a tuple for a batch of real.*extractor\(x\)\[0\]"):
        metrics.fid(x, x, lambda batch: (batch,))
    with pytest.raises(errors.ShapeError, match=r"shape \(4,\) for a batch of real"):
        metrics.kid(x, x, lambda batch: batch.sum((1, 2, 3)), generator=gen())


def test_kid_is_unbiased():
    """(x·y + 1)³ in one dimension: MMD² of N(0,1) and N(1,1) from their moments, means differ by 1, 2-1, 4-0."""
    values = []
    for seed in range(60):
        g = gen(seed)
        x, y = torch.randn(40, 1, generator=g, dtype=F64), 1 + torch.randn(30, 1, generator=g, dtype=F64)
        values.append(metrics.kid(x, y, nn.Identity(), subsets=2, subset_size=100, generator=g).value)
    values = torch.stack(values)
    # k = Σ_j C(3, j)(xy)^j, so MMD² = 3·(1-0)² + 3·(2-1)² + (4-0)²; 5 standard errors
    assert abs(float(values.mean()) - 22) < 5 * float(values.std()) / math.sqrt(60)
    x = torch.randn(200, 3, generator=gen(), dtype=F64)
    same = metrics.kid(x[:100], x[100:], nn.Identity(), subset_size=50, generator=gen())
    assert abs(float(same.value)) < 0.5


def stand_in_for_torch_fidelity(monkeypatch):
    """Its Inception by name and call, which reads weights as it does; features are means of colors."""

    class FeatureExtractorInceptionV3(nn.Module):
        def __init__(self, name, features_list, feature_extractor_weights_path=None):
            super().__init__()
            self.features_list, self.gain = features_list, nn.Parameter(torch.zeros(3))
            self.load_state_dict(torch.load(feature_extractor_weights_path, weights_only=False))

        def forward(self, x):
            assert not self.training
            assert x.dtype == torch.uint8
            assert x.shape[1] == 3
            return (self.gain * x.double().mean((2, 3)),)

    package, module = (
        types.ModuleType("torch_fidelity"),
        types.ModuleType("torch_fidelity.feature_extractor_inceptionv3"),
    )
    module.FeatureExtractorInceptionV3 = FeatureExtractorInceptionV3
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_images_reach_inception_as_bytes_of_three_colors(tmp_path, monkeypatch):
    stand_in_for_torch_fidelity(monkeypatch)
    torch.save({"gain": torch.tensor([1.0, 2.0, 4.0])}, tmp_path / "weights.pth")
    whole = torch.randint(256, (30, 3, 4, 5), generator=gen(), dtype=torch.uint8)
    net = metrics.Inception(tmp_path / "weights.pth", low=-1, high=1)
    assert torch.equal(net.as_bytes(whole.double() / 127.5 - 1), whole)
    assert torch.equal(net.as_bytes(whole), whole)
    gray = net.as_bytes(torch.tensor([-1.2, 0.0, 1.3]).reshape(1, 1, 1, 3))
    assert gray.tolist() == [[[[0, 128, 255]]] * 3]  # cut off where pictures are, and shown in all colors
    found = metrics.fid(whole, whole.float() / 127.5 - 1, net)
    assert float(found.value) == pytest.approx(0, abs=1e-6)
    assert "Inception" in repr(found)
    darker = metrics.fid(whole, (whole // 2).float() / 127.5 - 1, net)
    assert float(darker.value) > 1000
    assert not net.train().network.training


def test_inception_refuses_what_it_cannot_read(tmp_path, monkeypatch):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "torch_fidelity", None)
        with pytest.raises(errors.CapabilityError, match="pip install torch-fidelity"):
            metrics.Inception(tmp_path / "weights.pth")
    stand_in_for_torch_fidelity(monkeypatch)
    with pytest.raises(errors.DataError, match="no file"):
        metrics.Inception(tmp_path / "weights.pth")
    torch.save({"gain": Path("code that would run")}, tmp_path / "code.pth")
    with pytest.raises(errors.DataError, match="more than tensors"):
        metrics.Inception(tmp_path / "code.pth")
    torch.save({"other": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(errors.DataError, match="other weights"):
        metrics.Inception(tmp_path / "other.pth")
    torch.save({"gain": torch.ones(3)}, tmp_path / "weights.pth")
    for wrong in ({"layer": 100}, {"low": 1.0}, {"low": math.nan}):
        with pytest.raises(errors.ArgumentError):
            metrics.Inception(tmp_path / "weights.pth", **wrong)
    net = metrics.Inception(tmp_path / "weights.pth")
    with pytest.raises(errors.DataError, match="run from -1 to 1"):
        net(torch.tensor([-1.0, 1.0]).reshape(1, 1, 1, 2))
    with pytest.raises(errors.DataError, match="nan"):
        net(torch.full((1, 1, 2, 2), math.nan))
    with pytest.raises(errors.ShapeError, match="1 or 3"):
        net(torch.zeros(2, 4, 3, 3))


# --- scores of models -------------------------------------------------------------------------------


def test_scores_are_what_they_say():
    wide = energies.Gaussian(torch.zeros(3), 4 * torch.eye(3))
    narrow = energies.Gaussian(torch.zeros(3), torch.eye(3))
    x = torch.randn(10, 3, generator=gen())
    square = x.square().sum(1)
    assert torch.allclose(metrics.ood_scores(narrow, x, batch_size=3), square / 2)
    assert torch.allclose(metrics.ood_scores(narrow, x, "ratio", background=wide), square * (1 / 2 - 1 / 8))
    assert torch.allclose(metrics.ood_scores(wide, x, "score_norm"), square.sqrt() / 4)

    class Exact(nn.Module):
        def forward(self, x, sigma):
            return -x / (1 + sigma[:, None] ** 2)

    family = gb.models.NoiseConditionalScore(Exact(), domains.Real(3), torch.tensor([3.0, 1.0]))
    assert torch.allclose(metrics.ood_scores(family, x, "score_norm"), square.sqrt() * (0.3 + 0.5) / 2)
    joint = gb.models.JointEnergy(nn.Linear(3, 2), domains.Real(3))
    p = torch.softmax(joint.net(x), 1).amax(1)
    assert torch.allclose(metrics.ood_scores(joint, x, "confidence"), -p.log())
    assert not metrics.ood_scores(joint, x).requires_grad


def test_rows_are_held_to_the_background_too():
    """Outside of its box the energy is infinite, and a row of two numbers is no event of a law of one."""
    square = lambda x: x.square().flatten(1).sum(1)  # noqa: E731
    law, x = gb.as_energy(square, domains.Real(2)), torch.full((3, 2), 5.0)
    for domain, error in ((domains.Box(2, 0.0, 1.0), errors.DomainError), (domains.Real(1), errors.ShapeError)):
        with pytest.raises(error, match="under the background"):
            metrics.ood_scores(law, x, "ratio", background=gb.as_energy(square, domain))
    field = gb.models.NoiseConditionalScore(nn.Linear(2, 2), domains.Real(2), torch.tensor([3.0, 1.0]))
    for background in (field, square):
        with pytest.raises(errors.CapabilityError, match=r"background is .* expected an energy"):
            metrics.ood_scores(law, x, "ratio", background=background)


# --- energy margins ---------------------------------------------------------------------------------


def test_margin_loss_is_its_definition_and_conforms():
    energy = energies.MLPEnergy(2, hidden=(8,)).double()
    x, out = torch.randn(6, 2, generator=gen(), dtype=F64), 3 + torch.zeros(1, 2, dtype=F64)
    objective = objectives.EnergyMargin(out, -0.05, 0.2, ratio=2.0)
    loss = objective(energy, x, objective.init(energy, x, gen()), gen())
    inside, outside = energy(x), energy(out)
    expected = (inside + 0.05).clamp(min=0).square().mean() + (0.2 - outside).clamp(min=0).square().mean()
    value, expected = float(loss.value.detach()), float(expected.detach())
    assert value == pytest.approx(expected, rel=1e-12)
    assert expected > 0
    check_objective(objective, energy, x, generator=gen())
    check_objective(objectives.EnergyMargin(objectives.GaussianNoise(), 0.0, 1.0), energy, x, generator=gen())


@pytest.mark.parametrize(("ratio", "count"), [(0.05, 1), (0.5, 5), (1.0, 10), (2.5, 25)])
def test_the_ratio_is_outsiders_per_row(ratio, count):
    """So many are drawn from rows, from a noise and from an energy; both sides are means, whatever the ratio."""
    energy = gb.as_energy(lambda x: x.sum(1), domains.Real(2))
    x, rows = torch.zeros(10, 2, dtype=F64), torch.arange(40, dtype=F64)[:, None].expand(40, 2)
    law = energies.Gaussian(torch.zeros(2, dtype=F64), torch.eye(2, dtype=F64))
    for outsiders in (rows, objectives.GaussianNoise(), law):
        objective = objectives.EnergyMargin(outsiders, -1.0, 100.0, ratio=ratio)
        data = x + torch.randn(10, 2, generator=gen(), dtype=F64)
        state = objective.init(energy, data, gen())
        drawn = objective.draw(energy, data, state, gen(1))
        assert drawn.shape == (count, 2)
        loss = objective(energy, x, state, gen(1))
        assert float(loss.value) == pytest.approx(1.0 + float((100 - drawn.sum(1)).square().mean()), rel=1e-9)


def test_margins_separate_what_cross_entropy_does_not(tmp_path):
    """Two classes and a ring of outsiders around them: fine-tuning finds outsiders and keeps the classes."""
    g = gen()
    y = torch.randint(2, (600,), generator=g)
    x = 0.4 * torch.randn(600, 2, generator=g) + torch.stack([4.0 * y - 2, torch.zeros(600)], 1)
    far = 6 * nn.functional.normalize(torch.randn(600, 2, generator=g))
    joint = gb.models.JointEnergy(energies.MLP(2, (32,), outputs=2), domains.Real(2))
    gb.fit(joint, objectives.CrossEntropy(), (x, y), steps=150, lr=1e-2)
    before = metrics.auroc(metrics.ood_scores(joint, x), metrics.ood_scores(joint, far[:300]))
    tuned = objectives.Weighted([objectives.CrossEntropy(), objectives.EnergyMargin(far[300:], -5.0, 0.0)], [1.0, 0.1])
    gb.fit(joint, tuned, (x, y), steps=300, lr=1e-2, run_dir=tmp_path / "run")
    after = metrics.auroc(metrics.ood_scores(joint, x), metrics.ood_scores(joint, far[:300]))
    assert float(before) < 0.9 < 0.98 < float(after)
    assert float((joint.class_log_prob(x).argmax(1) == y).float().mean()) > 0.98
    again = gb.load(tmp_path / "run")
    assert torch.equal(again(x), joint(x))


@pytest.mark.parametrize("bad", [
    lambda: metrics.auroc(torch.ones(3)),
    lambda: metrics.auroc(torch.ones(3), torch.ones(2), labels=torch.ones(3)),
    lambda: metrics.auroc(torch.ones(3, 1), torch.ones(2)),
    lambda: metrics.auroc(torch.ones(3), labels=torch.tensor([0, 1, 2])),
    lambda: metrics.auroc(torch.ones(3), labels=torch.zeros(3)),
    lambda: metrics.auroc(torch.tensor([math.nan, 1.0]), torch.ones(2)),
    lambda: metrics.aupr(torch.ones(3), torch.ones(3), positive="both"),
    lambda: metrics.fpr95(torch.ones(3), torch.ones(3), recall=0.0),
    lambda: metrics.expected_calibration_error(torch.ones(3), torch.zeros(3).long()),
    lambda: metrics.expected_calibration_error(torch.ones(3, 2), torch.zeros(3).long()),
    lambda: metrics.expected_calibration_error(torch.ones(3, 2) / 2, torch.zeros(3)),
    lambda: metrics.expected_calibration_error(torch.ones(3, 2) / 2, torch.full((3,), 2)),
    lambda: metrics.expected_calibration_error(torch.ones(3, 2) / 2, torch.zeros(3).long(), bins=0),
    lambda: metrics.frechet_distance(torch.zeros(2), torch.eye(2), torch.zeros(3), torch.eye(3)),
    lambda: metrics.fid(torch.ones(1, 2), torch.ones(4, 2), nn.Flatten()),
    lambda: metrics.fid(torch.full((3, 2), math.inf), torch.ones(4, 2), nn.Flatten()),
    lambda: metrics.kid(torch.ones(5, 2), torch.ones(4, 2), nn.Flatten(), generator=None),
    lambda: metrics.kid(torch.ones(5, 2), torch.ones(4, 2), nn.Flatten(), subsets=1, generator=gen()),
    lambda: metrics.ood_scores(energies.MLPEnergy(2), torch.ones(3, 2), "guess"),
    lambda: metrics.ood_scores(energies.MLPEnergy(2), torch.ones(3, 2), "ratio"),
    lambda: metrics.ood_scores(energies.MLPEnergy(2), torch.ones(3, 2), "confidence"),
    lambda: metrics.ood_scores(nn.Linear(2, 1), torch.ones(3, 2)),
    lambda: metrics.ood_scores(energies.MLPEnergy(2), torch.ones(3, 3)),
    lambda: objectives.EnergyMargin(torch.ones(2, 2), 1.0, 0.0),
    lambda: objectives.EnergyMargin(torch.ones(2, 2), 0.0, 1.0, ratio=0.0),
    lambda: objectives.EnergyMargin("noise", 0.0, 1.0),
    lambda: objectives.EnergyMargin(torch.ones(2, 3), 0.0, 1.0).init(
        energies.MLPEnergy(2), torch.ones(2, 2), gen()),
])  # fmt: skip
def test_bad_input_is_refused(bad):
    with pytest.raises(GibbsianError) as caught:
        bad()
    assert len(str(caught.value)) > 25
