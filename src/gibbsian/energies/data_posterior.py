"""The law of parameters after data: a sum over rows, which minibatches estimate."""

from collections.abc import Callable

from torch import Tensor

from gibbsian.domains import Domain
from gibbsian.energy import Energy, with_score
from gibbsian.errors import ArgumentError, DataError, ShapeError, check_count, check_tensor


def _checked(data: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The data, known to be tensors with as many rows each."""
    if not data:
        raise DataError("no data were given: DataPosterior(prior, log_likelihood, x, y, ...)")
    for i, rows in enumerate(data):
        check_tensor(rows, f"data[{i}]", "(rows, ...)")
        if not rows.dim() or not len(rows) or len(rows) != len(data[0]):
            raise ShapeError(f"data[{i}] has shape {tuple(rows.shape)}, expected {len(data[0])} rows, as data[0] has")
    return data


class DataPosterior(Energy):
    """E(θ) = E₀(θ) - Σᵢ log p(dᵢ | θ), over N rows of data: what is known of parameters after data were seen.

    Any kernel samples it, at the price of all rows a step; `kernels.SGLD` and `SGHMC` take n of them at a time, whose score

        s₀(θ) + (N/n) Σ_{i in batch} ∇ log p(dᵢ | θ)

    is right on average. With a `center` θ̂ near the mode, the gradients there are taken off and their sum over all rows is put
    back (control variates): the noise then vanishes at θ̂ instead of growing with N.

    Reference: Welling & Teh 2011; Baker, Fearnhead, Fox & Nemeth 2019 (control variates).

    Args:
        prior: E₀, an energy over θ; or a domain, for a flat prior.
        log_likelihood: `log_likelihood(theta, *rows) -> (chains, n)` of θ `(chains, *event)` and rows `(chains or 1, n, ...)`
            of each of the data: log p of every row under every θ. A module can be saved with a run, a function not.
        data: tensors with one row for each observation.
        center: θ̂, of the event shape.
        chunk: rows at a time where all of them are summed.

    >>> import torch
    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> inputs, labels = torch.randn(500, 2, generator=g), torch.ones(500)
    >>> labels[inputs[:, 0] < 0.3] = 0
    >>> def log_likelihood(theta, x, y):  # logistic regression
    ...     logit = torch.einsum("cnp,cp->cn", x, theta)
    ...     return y * logit - torch.nn.functional.softplus(logit)
    >>> prior = gb.energies.Gaussian(torch.zeros(2), 10 * torch.eye(2))
    >>> posterior = DataPosterior(prior, log_likelihood, inputs, labels)
    >>> kernel = gb.kernels.SGLD(step_size=1e-3, batch_size=50)
    >>> trace = gb.sample(posterior, kernel, torch.zeros(4, 2), steps=300, generator=g)
    >>> bool(trace.last[:, 0].mean() > 2)
    True
    """

    center: Tensor | None
    pull: Tensor  # Σ ∇log p at the center

    def __init__(
        self,
        prior: Energy | Domain,
        log_likelihood: Callable[..., Tensor],
        *data: Tensor,
        center: Tensor | None = None,
        chunk: int = 4096,
    ) -> None:
        if not isinstance(prior, Energy | Domain):
            raise ArgumentError(
                f"the prior is a {type(prior).__name__}, expected an energy, or a domain for a flat one"
            )
        super().__init__(prior.domain if isinstance(prior, Energy) else prior)
        self.prior, self.log_likelihood = prior, log_likelihood
        self.chunk = check_count(self, "chunk", chunk)
        for i, rows in enumerate(_checked(data)):
            self.register_buffer(f"data_{i}", rows, persistent=False)
        self.parts = len(data)
        if center is not None:
            check_tensor(center, "center", "of the event shape")
            if tuple(center.shape) != tuple(self.domain.shape):
                raise ShapeError(f"center has shape {tuple(center.shape)}, expected {tuple(self.domain.shape)}")
        pull = None if center is None else with_score(self._misfit, center[None], self)[1]
        self.register_buffer("center", center, persistent=False)
        self.register_buffer("pull", pull, persistent=False)

    def _data(self) -> list[Tensor]:
        return [getattr(self, f"data_{i}") for i in range(self.parts)]

    def _fit(self, theta: Tensor, rows: list[Tensor]) -> Tensor:
        """Σ log p over the rows of each θ, `(chains,)`."""
        log_p = self.log_likelihood(theta, *rows)
        want = (len(theta), rows[0].shape[1])
        if tuple(log_p.shape) != want:
            raise ShapeError(f"log_likelihood returned shape {tuple(log_p.shape)}, expected {want}: (chains, rows)")
        return log_p.sum(1)

    def _misfit(self, theta: Tensor) -> Tensor:
        """-Σ log p over all rows."""
        total = theta.new_zeros(len(theta))
        for parts in zip(*(rows.split(self.chunk) for rows in self._data()), strict=True):
            total = total - self._fit(theta, [part[None] for part in parts])
        return total

    def forward(self, theta: Tensor) -> Tensor:
        misfit = self._misfit(theta)
        return self.prior(theta) + misfit if isinstance(self.prior, Energy) else misfit

    def data_rows(self) -> int:
        """N."""
        return len(self._data()[0])

    def score_estimate(self, x: Tensor, index: Tensor) -> Tensor:
        """s(θ) as the rows `index` `(chains, n)` tell it, for every chain its own."""
        rows = [part[index] for part in self._data()]
        scale = self.data_rows() / index.shape[1]

        def misfit(theta: Tensor) -> Tensor:
            return -scale * self._fit(theta, rows)

        prior = self.prior
        whole = (lambda theta: prior(theta) + misfit(theta)) if isinstance(prior, Energy) else misfit
        score = with_score(whole, x, self)[1]
        if self.center is None:
            return score
        return score - with_score(misfit, self.center.expand_as(x), self)[1] + self.pull
