"""Conditional random fields: labels in a chain, whose sums and maxima are exact, and labels that all depend on each other."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gibbsian.domains import Binary, Categorical
from gibbsian.energies.conditional import ConditionalEnergy
from gibbsian.errors import ShapeError, check_count
from gibbsian.random import require_generator


class _LabelEnergy(ConditionalEnergy):
    """An energy of labels whose encoder gives every label, or every value of it, a score."""

    def encode(self, x: Tensor) -> Tensor:
        h = super().encode(x)
        if tuple(h.shape[1:]) != self.domain.shape:
            raise ShapeError(
                f"the network gave {tuple(h.shape)} for {len(x)} inputs, expected (n, *{self.domain.shape})"
            )
        return h

    def mean_given(self, x: Tensor) -> Tensor:
        """E[y | x], the marginal probabilities of all values `(n, *event)`: the gradient of log Z(x) in the scores."""
        with torch.enable_grad():
            h = self.encode(x).detach().requires_grad_(True)
            (p,) = torch.autograd.grad(self._log_partition(h).sum(), h)
        return p


class ChainField(_LabelEnergy):
    """A chain of T labels given x: E(x, y) = -Σ_t u_t(x)[y_t] - Σ_t A[y_t, y_{t+1}] (a linear-chain random field).

    log Z(x), marginals, the best sequence (Viterbi) and exact draws take T·K² operations each: train it by its
    exact likelihood, `Conditional(ExactLikelihood())`.

    Reference: Lafferty, McCallum & Pereira 2001; Rabiner 1989 (the recursions).

    Args:
        emission: x → scores u `(n, length, classes)`.
        length: T.
        classes: K.

    Attributes:
        transition: A `(classes, classes)`, from the row's label to the column's.

    >>> field = ChainField(torch.nn.Identity(), length=3, classes=2)
    >>> x = torch.zeros(1, 3, 2)
    >>> field.log_partition(x)  # 3 log 2
    tensor([2.0794], grad_fn=<LogsumexpBackward0>)
    """

    def __init__(self, emission: Callable[[Tensor], Tensor], length: int, classes: int) -> None:
        check_count(self, "length", length)
        super().__init__(None, Categorical(length, classes), encoder=emission)
        self.length, self.classes = length, classes
        self.transition = nn.Parameter(torch.zeros(classes, classes))

    def encoded_energy(self, h: Tensor, y: Tensor) -> Tensor:
        pairs = (y[:, :-1] @ self.transition * y[:, 1:]).flatten(1).sum(1)
        return -(h * y).flatten(1).sum(1) - pairs

    def _messages(self, h: Tensor) -> list[Tensor]:
        """The log weights of the labels before and up to every place."""
        forward = [h[:, 0]]
        for t in range(1, self.length):
            forward.append(torch.logsumexp(forward[-1][:, :, None] + self.transition, 1) + h[:, t])
        return forward

    def _log_partition(self, h: Tensor) -> Tensor:
        return torch.logsumexp(self._messages(h)[-1], 1)

    def mode(self, x: Tensor) -> Tensor:
        """The sequence of highest probability, one-hot `(n, length, classes)` (Viterbi)."""
        with torch.no_grad():
            h = self.encode(x)
            best, back = h[:, 0], []
            for t in range(1, self.length):
                value, which = (best[:, :, None] + self.transition).max(1)
                best = value + h[:, t]
                back.append(which)
            label = best.argmax(1)
            labels = [label]
            for which in reversed(back):
                label = which.gather(1, label[:, None])[:, 0]
                labels.append(label)
            return self.domain.one_hot(torch.stack(labels[::-1], 1), dtype=h.dtype)  # type: ignore[attr-defined]

    def sample_given(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        """One exact draw for every input, one-hot: messages forward, labels drawn backward."""
        require_generator(generator, x.device)
        with torch.no_grad():
            h = self.encode(x)
            forward = self._messages(h)
            logits = forward[-1]
            labels: list[Tensor] = []
            for t in range(self.length - 1, -1, -1):
                if labels:
                    logits = forward[t] + self.transition[:, labels[-1]].T
                labels.append(torch.multinomial(torch.softmax(logits, 1), 1, generator=generator)[:, 0])
            return self.domain.one_hot(torch.stack(labels[::-1], 1), dtype=h.dtype)  # type: ignore[attr-defined]

    def extra_repr(self) -> str:
        return f"length={self.length}, classes={self.classes}"


class LabelField(_LabelEnergy):
    """Multi-label outputs y in {0, 1}^L given x: E(x, y) = -b(x)·y - ½ yᵀWy, W symmetric without diagonal.

    With W = 0 it is L independent logistic regressions; W captures which labels occur together or exclude each
    other beyond what x says. Up to some 16 labels train by `Conditional(ExactLikelihood())`, more by
    `PseudoLikelihood` or `ContrastiveDivergence(SiteGibbs())` inside `Conditional`.

    Reference: Ghamrawi & McCallum 2005.

    Args:
        net: x → b `(n, labels)`.
        labels: L.

    Attributes:
        weight: a full matrix, used through its symmetric part without diagonal: `coupling()`.

    >>> field = LabelField(torch.nn.Identity(), 3)
    >>> field.given(torch.ones(2, 3))(torch.ones(2, 3)).detach()
    tensor([-3., -3.])
    """

    def __init__(self, net: Callable[[Tensor], Tensor], labels: int) -> None:
        check_count(self, "labels", labels)
        super().__init__(None, Binary(labels), encoder=net)
        self.labels = labels
        self.weight = nn.Parameter(torch.zeros(labels, labels))

    def coupling(self) -> Tensor:
        """W."""
        upper = (self.weight + self.weight.T).triu(1) / 2
        return upper + upper.T

    def encoded_energy(self, h: Tensor, y: Tensor) -> Tensor:
        return -((h + 0.5 * (y @ self.coupling())) * y).sum(1)

    def extra_repr(self) -> str:
        return f"labels={self.labels}"
