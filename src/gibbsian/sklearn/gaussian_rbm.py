"""An RBM with Gaussian visible units as a transformer and density for real data."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from gibbsian import objectives
from gibbsian.kernels.gibbs import Gibbs
from gibbsian.models.rbm.machine import RBM
from gibbsian.partition.annealed import ais
from gibbsian.partition.base import LogZ
from gibbsian.partition.exact import exact
from gibbsian.random import stream
from gibbsian.sklearn.common import FLOATS, EnergyEstimator, constraints, gibbs_chains, table, tensor
from gibbsian.units import Gaussian

_FIRST_SIGMA = 0.5
_SUMMED = 10  # hidden units whose states are all summed in every update
_LEAST_SIGMA = 0.05  # of a standardized column: a constant column would pull its σ to 0


@dataclass(eq=False, repr=False)
class GaussianRBM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, EnergyEstimator):
    """Gaussian-Bernoulli RBM: binary features of real data, and a density that is a mixture of 2^h Gaussians.

        E(v, h) = Σ(vᵢ-bᵢ)²/2σᵢ² - Σ(vᵢ/σᵢ)wᵢⱼhⱼ - c·h

    Columns are standardized inside (`scale`), σ is learned. `transform` gives p(h = 1 | v), `inverse_transform` the
    mean of v given h, `score_samples` log p(v) in the units of the data, with log Z summed exactly up to 15 hidden
    units and by annealed importance sampling beyond.

    Args:
        n_components: hidden units.
        n_iter, learning_rate, batch_size: passes over the data, rate of Adam (falling to 0), rows an update and chains.
        n_gibbs: Gibbs sweeps an update.
        method: "exact" maximum likelihood, a sum over 2^n_components states an update; "pcd", chains continued from
            update to update; "cd", chains from the data; "auto" is "exact" up to 10 hidden units, else "pcd".
        weight_decay: λ of ½λ‖W‖².
        scale: standardize columns.
        verbose, random_state: show progress; seed, random state or None.

    Attributes:
        energy_: the trained `models.RBM`, over standardized columns.
        columns_: means and scales of the columns.
        components_: weights `(n_components, n_features)`.

    >>> X = np.random.RandomState(0).randn(200, 3)
    >>> rbm = GaussianRBM(n_components=4, n_iter=5, random_state=0).fit(X)
    >>> rbm.transform(X).shape, rbm.score_samples(X).shape
    ((200, 4), (200,))
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = constraints(
        counts="n_components batch_size n_iter n_gibbs",
        positive="learning_rate",
        not_negative="weight_decay",
        method=[StrOptions({"auto", "exact", "pcd", "cd"})],
        scale=["boolean"],
        verbose=["verbose"],
    )

    n_components: int = 64
    _: KW_ONLY
    learning_rate: float = 0.02
    batch_size: int = 50
    n_iter: int = 20
    n_gibbs: int = 1
    method: str = "auto"
    weight_decay: float = 0.0
    scale: bool = True
    verbose: int = 0
    random_state: Any = None

    # --- learning -----------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from the rows of X."""
        self._validate_params()
        x = self._start(validate_data(self, X, dtype=FLOATS))
        objective = self._objective(min(self.batch_size, len(x)))
        self._train(objective, x, len(x), hooks=[lambda run: _clamp_sigma(run.energy)])
        return self

    def _start(self, rows: np.ndarray) -> Tensor:
        """A new machine for these columns; the rows standardized."""
        x = self._standardize(tensor(rows), self.scale)
        g = stream(self._seed, "init")
        # σ = 1 and W = 0 is a saddle for standardized data: start with room for the hidden units to explain
        self.energy_ = RBM(Gaussian(x.shape[1], sigma=_FIRST_SIGMA), self.n_components, generator=g).to(x.dtype)
        with torch.no_grad():
            self.energy_.weight.mul_(10)
        self._n_features_out = self.n_components
        self._updates: int = 0
        self._chains: Any = None  # of partial_fit
        self._log_z: float | None = None
        self._moments = x.mean(0), x.std(0, correction=0).clamp(min=_LEAST_SIGMA)
        self.energy_.initialize_visible_bias(x)
        return x

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """One update with the rows of X; columns are standardized as in the first batch."""
        self._validate_params()
        first = "energy_" not in vars(self)
        rows = validate_data(self, X, dtype=FLOATS, reset=first)
        x = self._start(rows) if first else self.columns_.apply(tensor(rows).to(self.energy_.weight))
        g = stream(self._seed, f"partial/{self._updates}")
        objective = self._objective(len(x))
        state = objective.init(self.energy_, x, g) if self._updates == 0 else self._chains
        loss = objective(self.energy_, x, state, g)
        if self._updates == 0:
            self._optimizer = torch.optim.Adam(self.energy_.parameters(), lr=self.learning_rate)
        self._optimizer.zero_grad()
        loss.value.backward()
        self._optimizer.step()
        _clamp_sigma(self.energy_)
        self._chains, self._updates, self._log_z = loss.state, self._updates + 1, None
        return self

    def _objective(self, chains: int) -> objectives.Objective:
        automatic = "exact" if self.n_components <= _SUMMED else "pcd"
        method = automatic if self.method == "auto" else self.method
        how: dict[str, Any] = {"kernel": Gibbs(), "steps": self.n_gibbs}
        likelihood: objectives.Objective = objectives.ExactLikelihood()
        if method == "pcd":
            likelihood = objectives.PersistentContrastiveDivergence(**how, chains=chains, start="data")
        elif method == "cd":
            likelihood = objectives.ContrastiveDivergence(**how)
        if not self.weight_decay:
            return likelihood
        return objectives.Weighted([likelihood, objectives.WeightDecay(self.weight_decay)])

    # --- using it -----------------------------------------------------------------------------------

    @property
    def components_(self) -> np.ndarray:
        """Weights `(n_components, n_features)`, of standardized columns."""
        check_is_fitted(self, "energy_")
        return table(self.energy_.weight.T)

    def transform(self, X: Any) -> np.ndarray:
        """p(h = 1 | v), `(n_samples, n_components)`."""
        x = self._rows(X)
        with torch.no_grad():
            mean = table(self.energy_.hidden_mean(x))
        given = np.asarray(X).dtype
        return mean.astype(given if given in FLOATS else np.float64)

    def inverse_transform(self, X: Any) -> np.ndarray:
        """E[v | h] for rows of hidden units or of their means."""
        check_is_fitted(self)
        h = tensor(np.asarray(X)).to(self.energy_.weight)
        with torch.no_grad():
            return table(self.columns_.undo(self.energy_.visible_mean(h)))

    def log_partition(self, *, n_chains: int = 100, n_betas: int | None = None) -> LogZ:
        """log Z over standardized columns, with its error: exact up to 15 hidden units, else by AIS."""
        check_is_fitted(self)
        if self.n_components <= 15:
            return exact(self.energy_, progress=False)
        g = stream(self._seed, "ais")
        mean, spread = self._moments  # of rows that the base is fitted to
        like = mean + spread * torch.randn(1000, len(mean), generator=g, dtype=mean.dtype)
        return ais(self.energy_, like, betas=n_betas, chains=n_chains, generator=g, progress=False)

    def score_samples(self, X: Any) -> np.ndarray:
        """log p(v) of every row, in the units of the data."""
        energies = self._energies(X)
        if self._log_z is None:
            self._log_z = float(self.log_partition().value)
        return -energies - self._log_z - self.columns_.log_scale()

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log p(v)."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, *, n_steps: int = 1000) -> np.ndarray:
        """Draws from the machine: as many chains, `n_steps` Gibbs sweeps each."""
        check_is_fitted(self)
        return table(self.columns_.undo(gibbs_chains(self.energy_, n_samples, n_steps, stream(self._seed, "sample"))))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _clamp_sigma(rbm: RBM) -> None:
    with torch.no_grad():
        rbm.visible.log_sigma.clamp_(min=math.log(_LEAST_SIGMA))  # type: ignore[operator]
