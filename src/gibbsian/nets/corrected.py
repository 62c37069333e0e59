"""A network of class energies, and a classifier beside it that may correct it by so much."""

import torch
from torch import Tensor, nn

from gibbsian.errors import ArgumentError, ShapeError, check_number
from gibbsian.recorded import Recorded


class Corrected(Recorded):
    """f(x)[y] = b(x)[y] + log q(y|x),  q(y|x) = (1 - ε) softmax c(x)[y] + ε/K: logits of a base b times a classifier.

    For joint energies that are to classify well and to draw well from far starts. Chains that begin at noise teach a network
    slopes that lead to images; such a network reads fewer images rightly than one that is free to use any small feature. So
    chains train the base, and cross-entropy alone the classifier (`objectives.Sparing`). It decides between classes at
    images; it is wrong in a share ε of the cases, so that its logarithms lie in [log ε/K, 0] and cannot lead chains astray
    where energies differ by more.

    Args:
        base: maps `(batch, *event)` to K outputs.
        classifier: another such network.
        smoothing: ε, in (0, 1).

    >>> from gibbsian.nets import MLP
    >>> net = Corrected(MLP(2, outputs=3), MLP(2, outputs=3), smoothing=0.03)
    >>> x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    >>> correction = net(x) - net.base(x)
    >>> torch.allclose(correction.exp().sum(1), torch.ones(5)), bool((correction.exp() > 0.01).all())
    (True, True)
    """

    def __init__(self, base: nn.Module, classifier: nn.Module, smoothing: float = 0.02) -> None:
        super().__init__()
        check_number(self, "smoothing", smoothing, 0.0, 1.0, open_low=True, open_high=True)
        for name, net in (("base", base), ("classifier", classifier)):
            if not isinstance(net, nn.Module):
                raise ArgumentError(
                    f"Corrected({name}={net!r}): expected a network with K outputs, such as nets.MLP(2, outputs=3)"
                )
        self.base, self.classifier, self.smoothing = base, classifier, smoothing

    def forward(self, x: Tensor) -> Tensor:
        logits, q = self.base(x), torch.softmax(self.classifier(x), 1)
        if logits.shape != q.shape:  # one column would be added to all of the other's without a word
            raise ShapeError(
                f"the base gave {tuple(logits.shape)} and the classifier {tuple(q.shape)}; both need (batch, classes)"
            )
        return logits + torch.log((1 - self.smoothing) * q + self.smoothing / q.shape[1])
