"""A density for tables: a Gaussian mixture corrected by a neural energy."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from gibbsian import domains
from gibbsian.energies.neural import MLPEnergy
from gibbsian.energy import Sum
from gibbsian.kernels import MALA
from gibbsian.objectives.noise import MixtureNoise
from gibbsian.objectives.noise_contrastive import NoiseContrastive
from gibbsian.random import stream
from gibbsian.sampling.sample import sample
from gibbsian.sklearn.common import FLOATS, EnergyEstimator, constraints, table, tensor

_DRAWS = 20000  # of the mixture, for log Z


@dataclass(eq=False, repr=False)
class EnergyDensity(DensityMixin, EnergyEstimator):
    """log p(x) = log p₀(x) - f(x) - log Z: a Gaussian mixture p₀, tilted by a network f trained by NCE against p₀.

    The network learns where the mixture is wrong, and f = 0 is the mixture itself; log Z is the importance estimate
    log E_{p₀} exp(-f), with its standard error in `log_z_stderr_`. For tables of up to some dozens of columns; for
    images train a `gibbsian` energy directly. Columns are standardized inside; `score_samples` is in the units of the
    data. Columns of few values are no density: expect their likelihood to grow without meaning; a broad component of
    the mixture, worth one row, keeps rows between the extremes of the data from becoming impossible there.

    Args:
        n_components: of the mixture, besides the broad one.
        hidden_layer_sizes: of the network; () for the mixture alone.
        n_iter, learning_rate, batch_size: passes over the data, rate of AdamW (falling to 0), rows an update.
        noise_ratio: draws of the mixture for every row.
        weight_decay: of the network.
        floor: least variance of a component in any direction, as a share of the data's.
        verbose, random_state: show progress; seed, random state or None.

    Attributes:
        base_: the mixture, an `energies.GaussianMixture`.
        energy_: the trained energy over standardized columns; any kernel samples it.
        log_z_, log_z_stderr_: its log Z and standard error.

    >>> X = np.random.RandomState(0).randn(300, 2)
    >>> density = EnergyDensity(n_components=2, n_iter=5, random_state=0).fit(X)
    >>> bool(abs(density.score(X) / 300 + 2.84) < 0.15)  # the entropy of two normals; score is the sum, as in KernelDensity
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = constraints(
        counts="n_components n_iter batch_size noise_ratio",
        positive="learning_rate floor",
        not_negative="weight_decay",
        hidden_layer_sizes=["array-like"],
        verbose=["verbose"],
    )

    n_components: int = 8
    _: KW_ONLY
    hidden_layer_sizes: tuple[int, ...] = (64, 64)
    n_iter: int = 100
    learning_rate: float = 1e-2
    batch_size: int = 64
    noise_ratio: int = 4
    weight_decay: float = 0.01
    floor: float = 1e-3
    verbose: int = 0
    random_state: Any = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the mixture, then the network."""
        self._validate_params()
        x = self._standardize(tensor(validate_data(self, X, dtype=FLOATS, ensure_min_samples=2)))
        kind = MixtureNoise(self.n_components, floor=self.floor, background=1.0)
        noise = kind.fit(domains.Real(x.shape[1]), x, stream(self._seed, "mixture"))
        self.base_: Any = noise.energy
        self.energy_, self.log_z_, self.log_z_stderr_ = self.base_, 0.0, 0.0
        if len(tuple(self.hidden_layer_sizes)) == 0:
            return self
        net = MLPEnergy(x.shape[1], tuple(self.hidden_layer_sizes), generator=stream(self._seed, "init")).to(x.dtype)
        with torch.no_grad():
            net.net.layers[-1].weight.zero_()  # type: ignore[union-attr,index]
        self.energy_ = Sum([self.base_, net])  # type: ignore[list-item]
        objective = NoiseContrastive(self.base_, ratio=self.noise_ratio)  # type: ignore[arg-type]
        self._train(objective, x, len(x), optimizer={"name": "adamw", "weight_decay": self.weight_decay})
        with torch.no_grad():  # log Z = log E exp(-f) over draws of the mixture
            log_w = -net(self.base_.sample(_DRAWS, generator=stream(self._seed, "normalise"))).double()  # type: ignore[union-attr,operator]
        value = torch.logsumexp(log_w, 0) - math.log(_DRAWS)
        self.log_z_, self.log_z_stderr_ = float(value), float((log_w - value).exp().std()) / math.sqrt(_DRAWS)
        return self

    def score_samples(self, X: Any) -> np.ndarray:
        """log p(x) of every row, in the units of the data."""
        return -self._energies(X) - self.log_z_ - self.columns_.log_scale()

    def score(self, X: Any, y: Any = None) -> float:
        """Total log-likelihood, as scikit-learn's KernelDensity has it."""
        return float(self.score_samples(X).sum())

    def sample(self, n_samples: int = 1, *, n_steps: int = 200) -> np.ndarray:
        """Draws: from the mixture, then `n_steps` adjusted Langevin steps on the energy."""
        check_is_fitted(self)
        g = stream(self._seed, "sample")
        x = self.base_.sample(n_samples, generator=g)
        if self.energy_ is not self.base_:
            step = 0.5 * x.shape[1] ** (-1 / 6)
            x = sample(self.energy_, MALA(step), x, steps=n_steps, keep=False, generator=g, progress=False).last
        return table(self.columns_.undo(x))
