"""A discrete density given by its table of energies."""

import torch
from torch import Tensor

from gibbsian.domains import Binary, Categorical, Discrete, Spin
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, DomainError, ShapeError
from gibbsian.random import check_draws


def _units_of(table: Tensor) -> Categorical:
    """One categorical unit for every axis of a table."""
    if table.dim() < 1 or len(set(table.shape)) != 1 or table.shape[0] < 2:
        raise ShapeError(
            f"the table has shape {tuple(table.shape)}, expected (K, ..., K), K of 2 or more: one "
            "axis for each categorical unit; flatten it for one unit with all its states"
        )
    return Categorical(table.dim(), classes=table.shape[0])


class Grid(Energy):
    """Any law on finitely many states: E(s) is an entry of a table, log Z = log Σ exp(-table).

    Between the states the energy is the multilinear interpolation of the table,

        E(x) = Σ_s table[s] Πᵢ xᵢ[sᵢ],   xᵢ one-hot,

    so that it has a score: for one unit, energy differences by gradient are exact. The oracle of discrete
    kernels and of objectives on discrete data; with `trainable` the saturated model that can fit any law.

    Args:
        table: energies, finite. Of shape `(K, ..., K)` with one axis for each categorical unit; or, with
            `domain`, `domain.size` of them in the order of `domain.states()`.
        domain: a discrete domain; Categorical from the shape of the table when left out.
        trainable: make the table a trainable parameter.

    >>> law = torch.tensor([0.1, 0.2, 0.7])
    >>> dice = Grid(-law.log())
    >>> dice.log_z().abs() < 1e-6, dice.domain
    (tensor(True), Categorical(shape=(1, 3), classes=3))
    >>> import gibbsian as gb
    >>> Grid(torch.tensor([0.0, 1.0, 2.0, 3.0]), gb.domains.Binary(2))(torch.tensor([[1.0, 0.0]]))
    tensor([2.])
    """

    table: Tensor

    def __init__(self, table: Tensor, domain: Discrete | None = None, *, trainable: bool = False) -> None:
        table = torch.as_tensor(table)
        if not table.is_floating_point():
            table = table.to(torch.get_default_dtype())
        if not bool(torch.isfinite(table).all()):
            raise ArgumentError(
                "the table of energies must be finite; give a forbidden state a large energy, such as 50"
            )
        domain = _units_of(table) if domain is None else domain
        if not isinstance(domain, Binary | Spin | Categorical):
            raise DomainError(
                f"a table of energies needs discrete units of one kind, not {domain}; use Binary, Spin or Categorical"
            )
        if table.numel() != domain.size:
            raise ShapeError(f"the table has {table.numel()} energies but {domain} has {domain.size} states")
        super().__init__(domain)
        self.values = domain.classes if isinstance(domain, Categorical) else 2
        self.hold(trainable, table=table.flatten().clone())

    def _one_hot(self, x: Tensor) -> Tensor:
        """(batch, units, values)."""
        if isinstance(self.domain, Categorical):
            return x.reshape(len(x), -1, self.values)
        low = self.domain.low  # type: ignore[attr-defined]
        up = (x.flatten(1) - low) / (1 - low)
        return torch.stack([1 - up, up], 2)

    def forward(self, x: Tensor) -> Tensor:
        hot = self._one_hot(x)
        half = hot.shape[1] // 2
        left, right = self._products(hot[:, :half]), self._products(hot[:, half:])
        return (left @ self.table.to(x.dtype).reshape(left.shape[1], -1) * right).sum(1)

    @staticmethod
    def _products(hot: Tensor) -> Tensor:
        """Πᵢ xᵢ[sᵢ] for every joint value of these units, the last changing fastest."""
        out = hot.new_ones(len(hot), 1)
        for unit in hot.unbind(1):
            out = (out[:, :, None] * unit[:, None, :]).flatten(1)
        return out

    @property
    def probabilities(self) -> Tensor:
        """p of every state, in the order of `domain.states()`."""
        return torch.softmax(-self.table, 0)

    def log_z(self) -> Tensor:
        """log Σ exp(-table)."""
        return torch.logsumexp(-self.table, 0)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """n exact draws `(n, *event)`."""
        n = check_draws(n, generator, self.table.device)
        with torch.no_grad():
            index = torch.multinomial(self.probabilities, n, replacement=True, generator=generator)
            states = self.domain.states(dtype=self.table.dtype, device=self.table.device)  # type: ignore[attr-defined]
            return states[index]
