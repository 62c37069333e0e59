"""scikit-learn's BernoulliRBM with the same numbers in less time, and with what it lacks."""

import time
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from scipy import sparse
from sklearn.neural_network import BernoulliRBM as Original
from sklearn.utils import check_random_state, gen_even_slices
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor
from torch.nn.functional import softplus

from gibbsian.errors import DataError
from gibbsian.models.rbm.machine import RBM
from gibbsian.partition.annealed import ais
from gibbsian.partition.base import LogZ
from gibbsian.partition.exact import exact
from gibbsian.partition.likelihood import LogLikelihood, log_likelihood
from gibbsian.random import stream
from gibbsian.sklearn.common import FLOATS, constraints, gibbs_chains, seed_of, tensor


@dataclass(eq=False, repr=False)
class BernoulliRBM(Original):
    """Drop-in for `sklearn.neural_network.BernoulliRBM`: same arguments, attributes, methods and random numbers.

    With default options a `random_state` gives the components that scikit-learn's gives, up to rounding (in single
    precision a coin may fall the other way once in a million throws). An update reads the weights three times and
    writes them once (scikit-learn: five and three, with as many large temporaries), which is what costs at its batch
    sizes. Inputs lie in [0, 1], which is not checked, as there.

    Additions: CD-k and PCD-k (`n_gibbs`, `persistent`), weight decay, early stopping on held-out rows, `score` for
    grid search, `sample`, `reconstruct`, likelihoods with an interval (`log_partition`, `log_likelihood`), and the
    machine itself as a gibbsian energy (`to_energy`).

    Args:
        n_components, learning_rate, batch_size, n_iter, verbose, random_state: as in scikit-learn.
        n_gibbs: Gibbs sweeps an update, k.
        persistent: continue the chains from update to update (PCD), or start them at the data (CD).
        weight_decay: λ of ½λ‖W‖², added to what is minimized.
        early_stopping, validation_fraction, n_iter_no_change: hold out that share of the rows, stop when their
            pseudo-likelihood has not risen for so many passes over the data, and keep the best parameters.
        exact_score: let `score_samples` go over all columns of a row instead of one drawn at random, as
            scikit-learn's does: n_features times the work, and no randomness.

    Attributes:
        components_, intercept_hidden_, intercept_visible_, h_samples_: as in scikit-learn.
        n_iter_: passes over the data.
        validation_scores_: with early stopping, mean pseudo-likelihood of the held-out rows after every pass.

    >>> X = np.array([[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 1]])
    >>> rbm = BernoulliRBM(n_components=2, random_state=0).fit(X)
    >>> rbm.transform(X).shape, round(float(rbm.log_partition().value), 3)
    ((4, 2), 2.155)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = Original._parameter_constraints | constraints(
        counts="n_gibbs n_iter_no_change",
        not_negative="weight_decay",
        persistent=["boolean"],
        early_stopping=["boolean"],
        validation_fraction=[Interval(Real, 0, 1, closed="neither")],
        exact_score=["boolean"],
    )

    n_components: int = 256
    _: KW_ONLY
    learning_rate: float = 0.1
    batch_size: int = 10
    n_iter: int = 10
    verbose: int = 0
    random_state: Any = None
    n_gibbs: int = 1
    persistent: bool = True
    weight_decay: float = 0.0
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 5
    exact_score: bool = False

    # --- learning -----------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from the rows of X, an array, data frame or sparse matrix with entries in [0, 1]."""
        self._validate_params()
        X = validate_data(self, X, accept_sparse="csr", dtype=FLOATS)
        rng = check_random_state(self.random_state)
        held_out, X = self._hold_out(X, rng)
        self._start(X.shape[1], X.dtype, rng)
        batches = int(np.ceil(X.shape[0] / self.batch_size))
        slices = list(gen_even_slices(batches * self.batch_size, batches, n_samples=X.shape[0]))
        self.n_iter_, begin, best, since = 0, time.time(), -np.inf, 0
        if self.early_stopping:
            self.validation_scores_: list[float] = []
        while self.n_iter_ < self.n_iter and since < self.n_iter_no_change:
            for part in slices:
                self._update(X[part], rng)
            self.n_iter_ += 1
            if self.verbose:
                begin = self._say(X, begin)
            if held_out is not None:
                score, since = float(self.score_samples(held_out).mean()), since + 1
                self.validation_scores_.append(score)
                if score > best:
                    best, since, kept = score, 0, [a.copy(order="K") for a in self._parameters()]
        if best > -np.inf:
            self.components_, self.intercept_hidden_, self.intercept_visible_ = kept
        return self

    def _hold_out(self, X: Any, rng: np.random.RandomState) -> tuple[Any, Any]:
        """Rows that judge when to stop, where some are to, and those to learn from."""
        if not self.early_stopping:
            return None, X
        count = max(1, round(self.validation_fraction * X.shape[0]))
        if count >= X.shape[0]:
            raise DataError(f"n_samples={X.shape[0]} is too few to hold rows out; give more, or early_stopping=False")
        order = rng.permutation(X.shape[0])
        return X[order[:count]], X[order[count:]]

    def _say(self, X: Any, begin: float) -> float:
        """A line as scikit-learn prints it; the time now."""
        end, score = time.time(), self.score_samples(X).mean()
        done = f"Iteration {self.n_iter_}, pseudo-likelihood = {score:.2f}, time = {end - begin:.2f}s"
        print(f"[{type(self).__name__}] {done}")
        return end

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """One update with the rows of X as the batch."""
        self._validate_params()
        first = "components_" not in vars(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=first)
        if "random_state_" not in vars(self):
            self.random_state_ = check_random_state(self.random_state)
        if first:
            self._start(X.shape[1], X.dtype, self.random_state_)
        self._update(X, self.random_state_)
        return self

    def _start(self, features: int, dtype: Any, rng: np.random.RandomState) -> None:
        weight = rng.normal(0, 0.01, (self.n_components, features))
        self.components_ = np.asarray(weight, order="F", dtype=dtype)
        self._n_features_out = self.n_components
        self.intercept_hidden_ = np.zeros(self.n_components, dtype=dtype)
        self.intercept_visible_ = np.zeros(features, dtype=dtype)
        self.h_samples_ = np.zeros((self.batch_size, self.n_components), dtype=dtype)

    def _parameters(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.components_, self.intercept_hidden_, self.intercept_visible_

    def _update(self, X: Any, rng: np.random.RandomState) -> None:
        """W ← W + lr/n·(Σ v p(h|v)ᵀ over data - the same over chains), in place."""
        data = torch.from_numpy(X.toarray() if sparse.issparse(X) else np.ascontiguousarray(X)).to(
            torch.from_numpy(self.intercept_hidden_).dtype
        )
        if not self.components_.flags.f_contiguous or not self.components_.flags.writeable:  # unpickled, or shared
            self.components_ = np.array(self.components_, order="F")
        weight = torch.from_numpy(self.components_.T)  # (features, components), the same memory
        b, c = torch.from_numpy(self.intercept_visible_), torch.from_numpy(self.intercept_hidden_)

        def draw(p: Tensor) -> Tensor:
            return (torch.from_numpy(rng.random_sample(tuple(p.shape))) < p).to(p.dtype)

        def visible(h: Tensor) -> Tensor:
            return draw(torch.addmm(b, h, weight.T).sigmoid_())

        def hidden(v: Tensor) -> Tensor:
            return torch.addmm(c, v, weight).sigmoid_()

        n = len(data)
        h = torch.from_numpy(self.h_samples_) if self.persistent else draw(hidden(data))
        for _ in range(self.n_gibbs - 1):
            h = draw(hidden(visible(h)))
        both = torch.cat([data, visible(h)])
        means = hidden(both)  # of data and chains in one reading of the weights
        if self.persistent:
            self.h_samples_ = draw(means[n:]).numpy()
        means[n:].neg_()
        gap = both[:n].sum(0, dtype=torch.float64) - both[n:].sum(0, dtype=torch.float64)  # small, of large sums
        rate = self.learning_rate / n
        weight.addmm_(both.T, means, beta=1 - self.learning_rate * self.weight_decay, alpha=rate)
        c.add_(means.sum(0), alpha=rate)
        b.add_(gap, alpha=rate)

    # --- what scikit-learn's has not ----------------------------------------------------------------

    def score_samples(self, X: Any) -> np.ndarray:
        """Pseudo-likelihood of every row: exact with `exact_score`, else an unbiased estimate from one column."""
        if not self.exact_score:
            return super().score_samples(X)
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", reset=False, dtype=FLOATS)
        weight, b = tensor(self.components_.T), tensor(self.intercept_visible_)
        c, total = tensor(self.intercept_hidden_), []
        for start in range(0, X.shape[0], 1000):
            v = tensor(X[start : start + 1000]).to(weight)
            field, sign = torch.addmm(c, v, weight), 1 - 2 * v
            here, value = softplus(field).sum(1), torch.zeros(len(v), dtype=weight.dtype)
            for i in range(v.shape[1]):  # log p(vᵢ | others) = -log(1 + exp(F(v) - F(v with vᵢ flipped)))
                there = softplus(field + sign[:, i : i + 1] * weight[i]).sum(1)
                value -= softplus(sign[:, i] * b[i] + there - here)
            total.append(value)
        return torch.cat(total).numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """Mean pseudo-likelihood, for grid search."""
        return float(self.score_samples(X).mean())

    def to_energy(self) -> RBM:
        """The machine as a gibbsian energy with weights of its own, for any kernel, objective or estimator."""
        check_is_fitted(self)
        rbm = RBM(self.components_.shape[1], self.components_.shape[0]).to(tensor(self.components_).dtype)
        with torch.no_grad():
            rbm.weight.copy_(tensor(self.components_.T))
            rbm.hidden_bias.copy_(tensor(self.intercept_hidden_))
            rbm.visible_bias.copy_(tensor(self.intercept_visible_))
        return rbm

    def reconstruct(self, X: Any) -> np.ndarray:
        """E[v | E[h | v]], one mean-field pass up and down."""
        h = self.transform(X)
        field = np.asarray(h) @ self.components_ + self.intercept_visible_
        return torch.sigmoid(torch.from_numpy(field)).numpy()

    def sample(self, n_samples: int = 1, *, n_steps: int = 1000) -> np.ndarray:
        """Draws from the machine: as many chains, `n_steps` Gibbs sweeps each from fair coins."""
        g = stream(seed_of(self.random_state), "sample")
        return gibbs_chains(self.to_energy(), n_samples, n_steps, g).numpy()

    def log_partition(self, *, n_chains: int = 100, n_betas: int | None = None, X: Any = None) -> LogZ:
        """log Z: exact up to 20 units in the smaller layer, else by annealed importance sampling, with its error.

        `X` fits the base of the annealing to data; without it the base has the machine's own visible biases.
        """
        rbm = self.to_energy()
        if min(rbm.weight.shape) <= 20:
            return exact(rbm, progress=False)
        base = rbm.visible_bias.detach()
        if X is not None:
            X = validate_data(self, X, accept_sparse="csr", reset=False)
            mean = (np.asarray(X.sum(0)).ravel() + 0.5) / (X.shape[0] + 1)  # smoothed: no column is certain
            base = torch.from_numpy(np.log(mean / (1 - mean))).to(base)
        g = stream(seed_of(self.random_state), "ais")
        return ais(rbm, base=base, betas=n_betas, chains=n_chains, generator=g, progress=False)

    def log_likelihood(self, X: Any, log_z: LogZ | None = None, **options: Any) -> LogLikelihood:
        """Mean log p(x) of binary rows with an interval; options of `log_partition`."""
        X = validate_data(self, X, accept_sparse="csr", reset=False)
        rbm = self.to_energy()
        return log_likelihood(rbm, tensor(X).to(rbm.weight), log_z or self.log_partition(**options))
