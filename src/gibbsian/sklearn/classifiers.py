"""Classifiers that are energies: a joint energy model, and a deep belief network fine-tuned to classify."""

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from gibbsian import domains, objectives
from gibbsian.errors import ArgumentError, DataError
from gibbsian.kernels.gibbs import Gibbs
from gibbsian.kernels.langevin import Langevin
from gibbsian.models.dbn.machine import DBN
from gibbsian.models.joint import JointEnergy
from gibbsian.nets.mlp import MLP
from gibbsian.random import stream
from gibbsian.recorded import Recorded
from gibbsian.sampling.sample import sample
from gibbsian.sklearn.common import FLOATS, EnergyEstimator, constraints, table, tensor
from gibbsian.training.pretrain import pretrain
from gibbsian.units import Bernoulli, Gaussian


class _EnergyClassifier(ClassifierMixin, EnergyEstimator):
    """Labels in, probabilities out; `energy_` is a `JointEnergy`."""

    energy_: JointEnergy

    def _pairs(self, X: Any, y: Any) -> tuple[Tensor, Tensor]:
        """Rows and labels 0 to K - 1, checked."""
        X, y = validate_data(self, X, y, dtype=FLOATS)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(f"all labels are of one class, {self.classes_[0]!r}; a classifier needs two or more")
        return tensor(X), torch.as_tensor(codes, dtype=torch.long)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """log p(y|x), `(n_samples, n_classes)`."""
        check_is_fitted(self)
        return self._energies(X, self.energy_.class_log_prob)

    def predict_proba(self, X: Any) -> np.ndarray:
        """p(y|x), `(n_samples, n_classes)`."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of every row."""
        best = self.predict_log_proba(X).argmax(1)
        return self.classes_[best]


class _Confined(Recorded):
    """f(x) - ½c‖x‖² for every class: p(y|x) stays as it is, and p(x) gets a finite integral."""

    def __init__(self, net: nn.Module, confine: float) -> None:
        super().__init__()
        self.net, self.confine = net, confine

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) - 0.5 * self.confine * x.square().sum(1, keepdim=True)


@dataclass(eq=False, repr=False)
class JointEnergyClassifier(_EnergyClassifier):
    """A classifier whose logits are also a density: E(x) = -log Σ_y exp f(x)[y], trained on p(y|x) and p(x) (JEM).

    Cross-entropy plus `generative` times persistent contrastive divergence with short Langevin chains. Compared with
    the same network trained by cross-entropy alone it is better calibrated and knows what lies outside its data
    (`score_samples`), for several times the training time. Columns are standardized inside.

    Reference: Grathwohl et al. 2020.

    Args:
        hidden_layer_sizes: of the network.
        generative: weight of log p(x); 0 trains a plain classifier.
        n_steps: Langevin steps of every chain an update.
        step_size: ε of the steps, in standard deviations of the columns.
        confine: c of the quadratic term that keeps p(x) proper.
        n_iter, learning_rate, batch_size: passes over the data, rate of Adam (falling to 0), rows an update and chains.
        smoothing: share of a label that is spread over all classes.
        verbose, random_state: show progress; seed, random state or None.

    Attributes:
        classes_: the labels.
        energy_: the trained `models.JointEnergy`, over standardized columns.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = JointEnergyClassifier((16,), n_iter=20, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9), bool(model.score_samples(X).mean() > model.score_samples(X + 20).mean())
    (True, True)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = constraints(
        counts="n_steps n_iter batch_size",
        positive="step_size confine learning_rate",
        not_negative="generative",
        hidden_layer_sizes=["array-like"],
        smoothing=[Interval(Real, 0, 1, closed="left")],
        verbose=["verbose"],
    )

    hidden_layer_sizes: tuple[int, ...] = (100,)
    _: KW_ONLY
    generative: float = 0.1
    n_steps: int = 10
    step_size: float = 0.2
    confine: float = 0.1
    n_iter: int = 50
    learning_rate: float = 1e-2
    batch_size: int = 32
    smoothing: float = 0.0
    verbose: int = 0
    random_state: Any = None

    def fit(self, X: Any, y: Any) -> Self:
        """Learn classes and density."""
        self._validate_params()
        x, labels = self._pairs(X, y)
        x = self._standardize(x)
        sizes = x.shape[1], tuple(self.hidden_layer_sizes), len(self.classes_)
        net = MLP(*sizes, generator=stream(self._seed, "init"))
        self.energy_ = JointEnergy(_Confined(net, self.confine), domains.Real(x.shape[1])).to(x.dtype)
        batch = min(self.batch_size, len(x))
        objective: objectives.Objective = objectives.CrossEntropy(self.smoothing)
        if self.generative:
            chains = objectives.PersistentContrastiveDivergence(
                Langevin(self.step_size), steps=self.n_steps, chains=batch, buffer=max(1000, batch), reinit=0.05
            )
            objective = objectives.Weighted([objective, chains], [1.0, self.generative])
        self._train(objective, (x, labels), len(x), clip=10.0)
        return self

    def score_samples(self, X: Any) -> np.ndarray:
        """-E(x), log p(x) but for a constant: low for rows unlike the training data."""
        return -self._energies(X)

    def sample(self, n_samples: int = 1, *, label: Any = None, n_steps: int = 500) -> np.ndarray:
        """Draws of p(x), or of p(x | label): Langevin chains from standard normals."""
        check_is_fitted(self)
        energy: Any = self.energy_
        if label is not None:
            where = np.flatnonzero(self.classes_ == label)
            if len(where) == 0:
                raise ArgumentError(f"label={label!r} is not among the classes {self.classes_.tolist()}")
            energy = self.energy_.given(int(where[0]))
        g = stream(self._seed, "sample")
        start = energy.domain.sample(n_samples, generator=g, dtype=self.columns_.mean.dtype)
        trace = sample(energy, Langevin(self.step_size), start, steps=n_steps, keep=False, generator=g, progress=False)
        return table(self.columns_.undo(trace.last))


@dataclass(eq=False, repr=False)
class DBNClassifier(_EnergyClassifier):
    """A deep belief network, trained layer by layer without labels, then fine-tuned as a classifier.

    Of use with few labels among many rows: give rows without a label the class given as `unlabeled`, and they train
    the layers but not the classifier. Inputs in [0, 1] are taken for probabilities of binary units, drawn anew in
    every batch; others are standardized and get Gaussian units.

    Reference: Hinton & Salakhutdinov 2006.

    Args:
        hidden_layer_sizes: from below, two or more.
        visible: "auto" (binary units where all training inputs lie in [0, 1]), "bernoulli" or "gaussian".
        n_iter_pretrain, learning_rate_pretrain: passes over the data for every layer, CD-1, and their rate.
        n_iter, learning_rate: passes and rate (Adam, falling to 0) of fine-tuning.
        unlabeled: the label of rows without one, None for none.
        batch_size, verbose, random_state: as in `JointEnergyClassifier`.

    Attributes:
        classes_: the labels.
        dbn_: the generative network as it was before fine-tuning, a `models.DBN`.
        energy_: the classifier, a `models.JointEnergy`.

    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> model = DBNClassifier((64, 64), n_iter_pretrain=5, n_iter=10, random_state=0).fit(X[:800] / 16, y[:800])
    >>> bool(model.score(X[800:] / 16, y[800:]) > 0.8)
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = constraints(
        counts="n_iter batch_size",
        positive="learning_rate_pretrain learning_rate",
        hidden_layer_sizes=["array-like"],
        visible=[StrOptions({"auto", "bernoulli", "gaussian"})],
        n_iter_pretrain=[Interval(Integral, 0, None, closed="left")],
        unlabeled="no_validation",
        verbose=["verbose"],
    )

    hidden_layer_sizes: tuple[int, ...] = (100, 100)
    _: KW_ONLY
    visible: str = "auto"
    n_iter_pretrain: int = 20
    learning_rate_pretrain: float = 0.1
    n_iter: int = 30
    learning_rate: float = 5e-3
    batch_size: int = 20
    unlabeled: Any = None
    verbose: int = 0
    random_state: Any = None

    def fit(self, X: Any, y: Any) -> Self:
        """Learn features from all rows, then classes from the labeled ones."""
        self._validate_params()
        if len(tuple(self.hidden_layer_sizes)) < 2:
            raise ArgumentError(f"hidden_layer_sizes={self.hidden_layer_sizes}: a deep belief network has two or more")
        x, labels = self._pairs(X, y)
        labels, labeled = self._without_unlabeled(labels)
        binary = bool(((x >= 0) & (x <= 1)).all())
        if self.visible == "bernoulli" and not binary:
            raise DataError("visible='bernoulli' takes inputs in [0, 1]; scale them, or use visible='gaussian'")
        binary = binary and self.visible != "gaussian"
        x = self._standardize(x, scaled=not binary)
        unit = Bernoulli(x.shape[1]) if binary else Gaussian(x.shape[1], learned=False)
        self.dbn_ = DBN(unit, *self.hidden_layer_sizes, generator=stream(self._seed, "init")).to(x.dtype)
        if self.n_iter_pretrain:
            self._pretrain(x, binary)
        self.energy_ = self.dbn_.to_classifier(
            len(self.classes_), domain=domains.Real(x.shape[1]), generator=stream(self._seed, "classifier")
        ).to(x.dtype)
        self._train(objectives.CrossEntropy(), (x[labeled], labels[labeled]), int(labeled.sum()))
        return self

    def _without_unlabeled(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Labels numbered without the class that stands for none, and which rows have one."""
        if self.unlabeled is None or not bool((self.classes_ == self.unlabeled).any()):
            return labels, torch.ones(len(labels), dtype=torch.bool)
        code = int(np.flatnonzero(self.classes_ == self.unlabeled)[0])
        self.classes_ = np.delete(self.classes_, code)
        if len(self.classes_) < 2:
            raise DataError("fewer than two classes are left without the unlabeled rows")
        return labels - (labels > code).long(), labels != code

    def _pretrain(self, x: Tensor, binary: bool) -> None:
        """Every layer by CD-1."""
        cd: objectives.Objective = objectives.ContrastiveDivergence(Gibbs())
        pretrain(
            self.dbn_,
            objectives.Binarized(cd) if binary else cd,
            x,
            epochs=self.n_iter_pretrain,
            lr=self.learning_rate_pretrain if binary else 0.1 * self.learning_rate_pretrain,  # real units overshoot
            optimizer={"name": "sgd", "momentum": 0.5},
            batch_size=min(self.batch_size, len(x)),
            seed=self._seed,
            progress=bool(self.verbose),
        )
