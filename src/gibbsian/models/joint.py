"""A classifier read as an energy over inputs and classes."""

from functools import cached_property

import torch
from torch import Tensor, nn

from gibbsian.domains import Domain
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError, as_numbers
from gibbsian.fast import graphs
from gibbsian.placement import explained


class JointEnergy(Energy):
    """Any classifier with K logits f as an energy: E(x, y) = -f(x)[y], E(x) = -log Σ_y exp f(x)[y].

        log p(x, y) = log softmax f(x)[y] + (logsumexp f(x) - log Z)

    The class probabilities are the classifier's own, whatever Z is. Train it with `CrossEntropy` plus
    `PersistentContrastiveDivergence` in `Weighted`; `given(y)` is the energy of a class, for sampling it.
    `gibbsian.uses.hybrid` generates images of given classes, and classifies after a few refining steps.

    Reference: Grathwohl et al. 2020.

    Args:
        net: maps `(batch, *event)` to logits `(batch, classes)`, without batch normalization.
        domain: where x lives.

    >>> import gibbsian as gb
    >>> joint = JointEnergy(gb.energies.MLP(2, outputs=3), gb.domains.Real(2))
    >>> x = torch.zeros(4, 2)
    >>> joint(x).shape, joint.class_log_prob(x).shape, joint.given(2)(x).shape
    (torch.Size([4]), torch.Size([4, 3]), torch.Size([4]))
    """

    def __init__(self, net: nn.Module, domain: Domain) -> None:
        super().__init__(domain)
        self.net = net

    @explained
    def logits(self, x: Tensor) -> Tensor:
        """f(x), `(batch, classes)`."""
        out = self.net(x)
        if out.dim() != 2 or len(out) != len(x) or out.shape[1] < 2:
            raise ShapeError(
                f"the network of a JointEnergy gave {tuple(out.shape)} for {len(x)} rows, expected logits "
                "(batch, classes) of at least two classes"
            )
        return out.float() if out.dtype == torch.bfloat16 else out  # eight bits are too few for sums of exponentials

    @cached_property
    def classes(self) -> int:
        """K, the number of logits."""
        like = next((p for p in self.parameters() if p.is_floating_point()), torch.zeros(()))
        with torch.no_grad():
            return self.logits(torch.zeros(1, *self.domain.shape, dtype=like.dtype, device=like.device)).shape[1]

    def forward(self, x: Tensor) -> Tensor:
        return -torch.logsumexp(self.logits(x), 1)

    @explained
    def class_log_prob(self, x: Tensor) -> Tensor:
        """log p(y|x), `(batch, classes)`."""
        return torch.log_softmax(self.logits(x), 1)

    def given(self, index: int | Tensor) -> "ClassEnergy":
        """E(·, y) for one class, or for one class a row `(batch,)`."""
        return ClassEnergy(self, as_numbers(self, "index", index))


class ClassEnergy(Energy):
    """E(x, y) = -f(x)[y] with y fixed, a number or one per row."""

    label: Tensor

    def __init__(self, joint: JointEnergy, label: Tensor) -> None:
        super().__init__(joint.domain)
        if label.is_floating_point() or label.dtype == torch.bool or label.dim() > 1 or not label.numel():
            raise ArgumentError(
                f"a class is a whole number, or one a row; got {label.dtype} of shape {tuple(label.shape)}"
            )
        self.joint = joint
        self.register_buffer("label", label.long(), persistent=False)
        if graphs.capturing(label):  # objectives have checked their labels before
            return
        lowest, highest = int(label.min()), int(label.max())
        if lowest < 0 or highest >= joint.classes:
            raise ArgumentError(f"classes run from {lowest} to {highest}, expected 0 to {joint.classes - 1}")

    def forward(self, x: Tensor) -> Tensor:
        logits = self.joint.logits(x)
        if self.label.dim() and len(self.label) != len(x):
            raise ShapeError(f"{len(self.label)} labels met {len(x)} rows; give one label, or one a row")
        return -logits.gather(1, self.label.to(x.device).expand(len(x))[:, None]).squeeze(1)
