"""Estimators under scikit-learn's own checks, against scikit-learn's RBM, enumeration and quadrature."""

import inspect
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn import neural_network
from sklearn.datasets import load_digits, make_moons
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_estimator

import gibbsian as gb
from gibbsian.errors import GibbsianError
from gibbsian.sklearn import (
    BernoulliRBM,
    DBNClassifier,
    EnergyDensity,
    EnergyOutlierDetector,
    GaussianRBM,
    JointEnergyClassifier,
)

X_DIGITS, Y_DIGITS = load_digits(return_X_y=True)
X_DIGITS = X_DIGITS / 16

# as scikit-learn says of its own: the score of a row depends on a column drawn at random
RANDOM_SCORE = {
    "check_methods_subset_invariance": "score_samples draws a column",
    "check_methods_sample_order_invariance": "score_samples draws a column",
}


@pytest.mark.parametrize(
    ("estimator", "excused"),
    [
        (BernoulliRBM(n_components=8, n_iter=2), RANDOM_SCORE),
        (BernoulliRBM(n_components=8, n_iter=2, early_stopping=True, exact_score=True, persistent=False), {}),
        (GaussianRBM(n_components=4, n_iter=1), {}),
        (EnergyOutlierDetector(), {}),
        (EnergyDensity(n_components=2, hidden_layer_sizes=()), {}),
        (JointEnergyClassifier((16,), n_iter=3, n_steps=1, learning_rate=0.1), {}),
        (DBNClassifier((16, 16), n_iter_pretrain=1, n_iter=15, learning_rate=0.05, batch_size=30), {}),
    ],
    ids=lambda e: type(e).__name__,
)
def test_scikit_learn_finds_nothing_wrong(estimator, excused):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(estimator, expected_failed_checks=excused)


def test_import_of_the_package_does_not_import_scikit_learn():
    code = "import sys, gibbsian; assert 'sklearn' not in sys.modules; gibbsian.sklearn.BernoulliRBM; assert 'sklearn' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- BernoulliRBM -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_numbers_are_those_of_scikit_learn(dtype, form):
    x = form(X_DIGITS[:155].astype(dtype))  # 155 rows: batches of two sizes
    options = {"n_components": 12, "batch_size": 20, "n_iter": 3, "random_state": 5}
    theirs, ours = neural_network.BernoulliRBM(**options).fit(x), BernoulliRBM(**options).fit(x)
    tolerance = 1e-12 if dtype == np.float64 else 1e-5
    for name in ("components_", "intercept_hidden_", "intercept_visible_", "h_samples_"):
        assert getattr(ours, name).dtype == dtype
        assert np.abs(getattr(ours, name) - getattr(theirs, name)).max() < tolerance
    assert np.abs(ours.transform(x) - theirs.transform(x)).max() < tolerance
    assert np.allclose(ours.score_samples(x), theirs.score_samples(x), atol=1e-4)
    partial = [
        cls(n_components=12, batch_size=20, random_state=5) for cls in (neural_network.BernoulliRBM, BernoulliRBM)
    ]
    for rbm in partial:
        for start in (0, 20, 40):
            rbm.partial_fit(x[start : start + 20])
    assert np.abs(partial[0].components_ - partial[1].components_).max() < 1e-12


def test_their_own_tests_pass(capsys):
    """scikit-learn's test file with our class in place of theirs: all of it, private methods and seeds included."""
    from sklearn.neural_network import tests

    text = (Path(tests.__path__[0]) / "test_rbm.py").read_text()
    assert "from sklearn.neural_network import BernoulliRBM" in text
    text = text.replace("from sklearn.neural_network import BernoulliRBM", "from gibbsian.sklearn import BernoulliRBM")
    text = re.sub(r"@pytest.mark.(thread_unsafe|parametrize)", r"@unmarked.\1", text)
    their: dict = {"unmarked": Unmarked, "__name__": "their"}
    exec(compile(text, "test_rbm.py", "exec"), their)
    ran = 0
    for name in [name for name in their if name.startswith("test_")]:
        for values in getattr(their[name], "values", [()]):
            if "capsys" not in inspect.signature(their[name]).parameters:
                their[name](*(values if isinstance(values, tuple) else (values,)))
                ran += 1
    assert ran >= 20
    for container in their["CSC_CONTAINERS"]:
        their["test_sparse_and_verbose"](container, capsys)


class Unmarked:
    """Stands for pytest.mark: keeps the values of a parametrized test with it."""

    @staticmethod
    def thread_unsafe(function):
        return function

    @staticmethod
    def parametrize(names, values):
        def keep(function):
            function.values = values
            return function

        return keep


def test_contrastive_divergence_and_decay_follow_their_definition():
    """One update of CD-2 with decay, from the same random numbers, by hand."""
    x = (X_DIGITS[:7, :6] > 0.3).astype(float)
    rbm = BernoulliRBM(3, batch_size=7, n_iter=1, n_gibbs=2, persistent=False, weight_decay=0.1, random_state=1).fit(x)
    rng = np.random.RandomState(1)
    w = rng.normal(0, 0.01, (3, 6))
    sigmoid = lambda a: 1 / (1 + np.exp(-a))  # noqa: E731
    draw = lambda p: (rng.uniform(size=p.shape) < p).astype(float)  # noqa: E731
    h = draw(sigmoid(x @ w.T))
    h = draw(sigmoid(draw(sigmoid(h @ w)) @ w.T))
    v = draw(sigmoid(h @ w))
    update = sigmoid(x @ w.T).T @ x - sigmoid(v @ w.T).T @ v
    assert np.abs(rbm.components_ - (w * (1 - 0.1 * 0.1) + 0.1 / 7 * update)).max() < 1e-14


def test_exact_score_is_the_expectation_of_the_random_one():
    x = (X_DIGITS[:20] > 0.5).astype(float)
    rbm = BernoulliRBM(8, n_iter=5, random_state=0).fit(x)
    draws = np.array([clone_with(rbm, random_state=s).score_samples(x) for s in range(400)])
    rbm.exact_score = True
    error = draws.std(0) / 20
    assert (np.abs(draws.mean(0) - rbm.score_samples(x)) < 5 * error + 1e-9).all()
    energy = rbm.to_energy()
    v = torch.tensor(x[:1])
    flips = v.repeat(64, 1)
    flips[range(64), range(64)] = 1 - flips[range(64), range(64)]
    expected = -torch.nn.functional.softplus(energy(v) - energy(flips)).sum()
    assert rbm.score_samples(x[:1])[0] == pytest.approx(float(expected.detach()), rel=1e-10)


def clone_with(estimator, **params):
    """A fitted copy with other parameters."""
    copy = pickle.loads(pickle.dumps(estimator))
    return copy.set_params(**params)


def test_likelihood_is_that_of_the_machine():
    x = (X_DIGITS[:300, 20:30] > 0.4).astype(float)
    rbm = BernoulliRBM(6, n_iter=20, random_state=0).fit(x)
    energy = rbm.to_energy()
    states = gb.domains.Binary(10).states(dtype=torch.float64)
    log_z = torch.logsumexp(-energy(states), 0)
    assert float(rbm.log_partition().value) == pytest.approx(float(log_z.detach()), abs=1e-9)
    expected = (-energy(torch.tensor(x)) - log_z).mean()
    assert float(rbm.log_likelihood(x).value) == pytest.approx(float(expected.detach()), abs=1e-9)
    # the same sum by AIS, which larger machines get; 5 standard errors
    big = BernoulliRBM(21, n_iter=3, random_state=0).fit(X_DIGITS > 0.5)
    estimate = big.log_partition(n_betas=300, X=X_DIGITS)
    assert estimate.method == "AIS"
    exact = gb.partition.exact(big.to_energy(), progress=False)
    assert abs(float(estimate.value - exact.value)) < 5 * float(estimate.stderr)
    frequencies = rbm.sample(2000, n_steps=60).mean(0)
    means = (torch.softmax(-energy(states), 0)[:, None] * states).sum(0).detach().numpy()
    assert np.abs(frequencies - means).max() < 5 * 0.5 / np.sqrt(2000)


def test_early_stopping_keeps_the_best():
    rbm = BernoulliRBM(16, n_iter=30, learning_rate=0.5, early_stopping=True, n_iter_no_change=2, random_state=0)
    rbm.fit(X_DIGITS[:200])
    scores = rbm.validation_scores_
    assert rbm.n_iter_ == len(scores) < 30
    assert int(np.argmax(scores)) == len(scores) - 3


def test_pipeline_grid_search_and_data_frames():
    pd = pytest.importorskip("pandas")
    pipe = make_pipeline(MinMaxScaler(), BernoulliRBM(24, n_iter=30, random_state=0), LogisticRegression(max_iter=500))
    search = GridSearchCV(pipe, {"bernoullirbm__n_components": [1, 24]}, cv=2).fit(X_DIGITS[:300], Y_DIGITS[:300])
    assert search.best_params_["bernoullirbm__n_components"] == 24
    assert search.best_score_ > 0.7
    frame = pd.DataFrame(X_DIGITS[:50], columns=[f"pixel {i}" for i in range(64)])
    for rbm in (BernoulliRBM(5, n_iter=1), GaussianRBM(5, n_iter=1)):
        out = rbm.set_output(transform="pandas").fit_transform(frame)
        assert list(out.columns) == [f"{type(rbm).__name__.lower()}{i}" for i in range(5)]
        assert list(rbm.feature_names_in_) == list(frame.columns)
    scores = GridSearchCV(GaussianRBM(4, random_state=0), {"n_iter": [1, 10]}, cv=2).fit(X_DIGITS[:200, 20:26])
    assert scores.best_params_ == {"n_iter": 10}


# --- GaussianRBM ------------------------------------------------------------------------------------


def test_gaussian_rbm_is_a_density_in_the_units_of_the_data():
    rng = np.random.RandomState(0)
    x = 5 + 3 * np.where(rng.rand(1000) < 0.5, -1, 1)[:, None] + 0.5 * rng.randn(1000, 1)
    rbm = GaussianRBM(4, n_iter=30, learning_rate=0.03, random_state=0).fit(x)
    grid = np.linspace(-15, 25, 4001)[:, None]
    assert np.exp(rbm.score_samples(grid)).sum() * 0.01 == pytest.approx(1, abs=1e-6)
    normal = -0.5 * np.log(2 * np.pi * np.e * x.var())
    assert rbm.score(x) > normal + 0.5  # two hills, found
    assert 0.3 < (rbm.sample(500, n_steps=100) > 5).mean() < 0.7
    h = rbm.transform(x)
    assert np.abs(rbm.inverse_transform(h) - x).mean() < 1.0
    again = GaussianRBM(4, n_iter=30, learning_rate=0.03, random_state=0).fit(x)
    assert np.array_equal(again.components_, rbm.components_)


@pytest.mark.parametrize("origin", [0.1, 1.7e9], ids=["small", "seconds since 1970"])
def test_columns_far_from_zero_are_standardized_and_constant_ones_stay(origin):
    x = np.random.default_rng(0).normal(size=(400, 2))
    moved = np.c_[origin + 100 * x[:, 0], x[:, 1], np.full(400, origin)]
    columns = GaussianRBM(2, n_iter=1, random_state=0).fit(moved).columns_
    np.testing.assert_allclose(columns.scale, [100 * x[:, 0].std(), x[:, 1].std(), 1], rtol=1e-6)
    same = [EnergyOutlierDetector(random_state=0).fit(part).score_samples(part) for part in (x, moved[:, :2])]
    np.testing.assert_allclose(*same, atol=1e-4)


@pytest.mark.parametrize("method", ["exact", "cd", "pcd"])
def test_gaussian_rbm_learns_in_parts(method):
    rng = np.random.RandomState(0)
    x = np.where(rng.rand(600) < 0.5, -1, 1)[:, None] * [1.0, 1.0] + 0.3 * rng.randn(600, 2)
    rbm = GaussianRBM(6, method=method, random_state=0, batch_size=60)
    for _ in range(15):
        for part in np.split(x, 10):
            rbm.partial_fit(part)
    alone = GaussianRBM(6, random_state=0).partial_fit(x)
    assert rbm.score(x) > alone.score(x) + 0.5
    assert pickle.loads(pickle.dumps(rbm)).score(x) == rbm.score(x)


# --- classifiers ------------------------------------------------------------------------------------


def test_joint_energy_classifies_and_knows_its_data():
    x, y = make_moons(600, noise=0.15, random_state=0)
    labels = np.array(["left", "right"])[y]
    model = JointEnergyClassifier((32,), n_iter=30, random_state=0).fit(x[:400], labels[:400])
    assert model.score(x[400:], labels[400:]) > 0.9
    far = np.random.RandomState(1).uniform(-4, 5, (400, 2))
    far = far[np.abs(far - x.mean(0)).max(1) > 2]
    truth = np.r_[np.zeros(len(x)), np.ones(len(far))]
    assert roc_auc_score(truth, -np.r_[model.score_samples(x), model.score_samples(far)]) > 0.97
    left = model.sample(200, label="left", n_steps=200)
    assert (model.predict(left) == "left").mean() > 0.8
    assert np.allclose(model.predict_proba(x).sum(1), 1)


def test_deep_belief_network_uses_rows_without_labels():
    rng = np.random.RandomState(0)
    order = rng.permutation(len(X_DIGITS))
    train, test = order[:1000], order[1000:]
    y = Y_DIGITS.copy()
    y[train[100:]] = -1  # a hundred labels
    options = {"hidden_layer_sizes": (64, 64), "n_iter": 60, "random_state": 0}
    model = DBNClassifier(unlabeled=-1, n_iter_pretrain=15, **options).fit(X_DIGITS[train], y[train])
    plain = DBNClassifier(n_iter_pretrain=0, **options).fit(X_DIGITS[train[:100]], y[train[:100]])
    assert -1 not in model.classes_
    assert model.score(X_DIGITS[test], Y_DIGITS[test]) > max(0.75, plain.score(X_DIGITS[test], Y_DIGITS[test]))


@pytest.mark.parametrize("bad", [
    lambda: EnergyOutlierDetector(energy=lambda x, seed: None).fit(np.ones((20, 2))),
    lambda: DBNClassifier((5,)).fit(np.ones((4, 2)), [0, 1, 0, 1]),
    lambda: DBNClassifier(visible="bernoulli").fit(np.full((4, 2), 3.0), [0, 1, 0, 1]),
    lambda: DBNClassifier(unlabeled=1).fit(np.ones((4, 2)), [0, 1, 0, 1]),
    lambda: JointEnergyClassifier().fit(np.ones((4, 2)), [1, 1, 1, 1]),
    lambda: JointEnergyClassifier((4,), n_iter=1).fit(np.eye(4), [0, 1, 0, 1]).sample(label=7),
    lambda: BernoulliRBM(early_stopping=True).fit(np.ones((1, 3))),
])  # fmt: skip
def test_bad_input_is_refused(bad):
    with pytest.raises(GibbsianError) as caught:
        bad()
    assert len(str(caught.value)) > 25
