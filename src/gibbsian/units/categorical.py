"""Units with several values: one-hot categories, and word counts."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gibbsian import domains
from gibbsian.domains import Domain
from gibbsian.errors import ArgumentError, check_count
from gibbsian.units.base import Natural, Unit, pick


class Softmax(Unit):
    """Categorical units, one-hot: p(vᵢ = k) = softmax_k(ηᵢₖ). Events are `(n, classes)`; η has n·classes entries.

    >>> Softmax(2, classes=3).domain
    Categorical(shape=(2, 3), classes=3)
    """

    def __init__(self, n: int, classes: int) -> None:
        super().__init__(n)
        check_count(self, "classes", classes, 2)
        self.classes = classes

    @property
    def size(self) -> int:
        return self.n * self.classes

    @property
    def domain(self) -> Domain:
        return domains.Categorical(self.n, self.classes)

    def _groups(self, natural: Natural) -> Tensor:
        return natural.linear.unflatten(-1, (self.n, self.classes))

    def log_partition(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        return torch.logsumexp(self._groups(natural), -1).sum(-1)

    def mean(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        return torch.softmax(self._groups(natural), -1)

    def sample(self, natural: Natural, noise: Tensor, total: Tensor | None = None) -> Tensor:
        p = torch.softmax(self._groups(natural).detach(), -1).expand(*noise.shape, self.classes)
        return F.one_hot(pick(p, noise), self.classes).to(p.dtype)

    def fit_bias(self, data: Tensor) -> Tensor:
        return ((data.sum(0) + 1) / (len(data) + self.classes)).log().flatten()

    def extra_repr(self) -> str:
        return f"{self.n}, classes={self.classes}"


class Count(Unit):
    """Word counts of a document (replicated softmax): N words drawn from one softmax, N given.

    The energy is that of the words in their order, so it holds no multinomial coefficient, and there is one
    partition function per N: `log p(n) = log(N!/Πn_k!) - F(n) - log Z_N`. The bias of a hidden layer above is
    multiplied by N. As visible units only.

    Args:
        n: size of the vocabulary.
        total: N where all documents have one length; None for documents of any length.

    Reference: Salakhutdinov & Hinton 2009, Replicated softmax.

    >>> unit = Count(3, total=4)
    >>> unit.domain.contains(torch.tensor([[1.0, 3.0, 0.0]])).all()
    tensor(True)
    """

    def __init__(self, n: int, total: int | None = None) -> None:
        super().__init__(n)
        if total is not None:
            check_count(self, "total", total)
        self.total = total

    @property
    def linear(self) -> bool:
        return False  # biases of other layers grow with the length of the document

    @property
    def domain(self) -> Domain:
        return domains.Counts(self.n, self.total)

    def total_of(self, v: Tensor) -> Tensor:
        return v.sum(-1)

    def noise_size(self, v: Tensor | None = None) -> int:
        if v is not None:
            return int(v.sum(-1).max())
        if self.total is None:
            raise ArgumentError(
                "documents of any length: say how many words with total=, or make the unit Count(n, total=N)"
            )
        return self.total

    def _total(self, like: Tensor, total: Tensor | None) -> Tensor:
        words = float(self.noise_size()) if total is None else total
        return torch.as_tensor(words, dtype=like.dtype, device=like.device)

    def log_partition(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        return self._total(natural.linear, total) * torch.logsumexp(natural.linear, -1)

    def mean(self, natural: Natural, total: Tensor | None = None) -> Tensor:
        words = self._total(natural.linear, total)
        return (words[:, None] if words.dim() else words) * torch.softmax(natural.linear, -1)

    def sample(self, natural: Natural, noise: Tensor, total: Tensor | None = None) -> Tensor:
        """N words by inversion of N uniforms, then counted; rows with fewer words leave the rest unused."""
        p = torch.softmax(natural.linear.detach(), -1).expand(len(noise), self.n)
        words = self._total(p, total).expand(len(noise))
        cumulative = p.cumsum(-1)
        whole = cumulative[:, -1:]
        level = torch.minimum(noise * whole, torch.nextafter(whole, torch.zeros_like(whole)))
        index = torch.searchsorted(cumulative, level.contiguous(), right=True)
        used = (torch.arange(noise.shape[1], device=p.device) < words[:, None]).to(p.dtype)
        return torch.zeros_like(p).scatter_add_(1, index, used)

    def resample(self, natural: Natural, noise: Tensor, v: Tensor, clamp: Tensor | None) -> Tensor:
        if clamp is None:
            return self.sample(natural, noise, self.total_of(v))
        open_words = (~clamp).expand_as(v)
        linear = natural.linear.expand_as(v).masked_fill(~open_words, -torch.inf)
        linear = torch.where(open_words.any(1, keepdim=True), linear, torch.zeros_like(linear))
        new = self.sample(Natural(linear), noise, (v * open_words).sum(1))
        return torch.where(open_words, new, v)

    def fit_bias(self, data: Tensor) -> Tensor:
        return ((data.sum(0) + 1) / (data.sum() + self.n)).log()

    def extra_repr(self) -> str:
        return f"{self.n}, total={self.total}"
