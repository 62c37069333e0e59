"""The classification RBM: hidden units that see an input and its label."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Filters, Path
from gibbsian.domains import Discrete
from gibbsian.energy import Energy, rows_for
from gibbsian.errors import DataError, ShapeError, as_numbers, check_count
from gibbsian.models.annealing import Machine, VisiblePath, small_weights
from gibbsian.models.rbm.layers import HiddenMarginal, finite_layers
from gibbsian.placement import explained
from gibbsian.units import Natural, Softmax, Unit, layer_noise


class ClassificationRBM(Machine):
    """An RBM over inputs x and labels y; as an energy it is that of x with label and hidden units summed out.

        E(x, y, h) = E_v(x) - xᵀWh - d_y - U_y·h - c·h
        p(y | x) ∝ exp(d_y + Σⱼ softplus(cⱼ + U_yⱼ + (xW)ⱼ))

    `given(y)` is the energy of x under a label, `class_log_prob(x)` the exact classifier, `forward(x)` the
    density of x alone; log p(x, y) = log p(y | x) + log p(x). Train it with
    `objectives.ClassificationLikelihood` (generative, discriminative, hybrid, semi-supervised), or with
    `CrossEntropy` and any objective for x.

    Reference: Larochelle & Bengio 2008.

    Args:
        visible: a number of Bernoulli units, or one of `gibbsian.units` (not counts).
        classes: number of labels.
        hidden: a number of Bernoulli hidden units, or units of a finite kind.
        generator: for the initial weights, N(0, 0.01²); a fixed seed where it is left out.

    Attributes:
        weight: W `(visible.size, hidden.size)`; label_weight: U `(classes, hidden.size)`; visible_bias b,
            label_bias d, hidden_bias c.

    >>> model = ClassificationRBM(4, classes=3, hidden=5)
    >>> model.class_log_prob(torch.zeros(2, 4)).shape, model(torch.zeros(2, 4)).shape
    (torch.Size([2, 3]), torch.Size([2]))
    """

    def __init__(
        self, visible: int | Unit, classes: int, hidden: int | Unit, *, generator: torch.Generator | None = None
    ) -> None:
        visible, hidden = finite_layers(self, visible, hidden)
        check_count(self, "classes", classes, 2)
        super().__init__(visible.domain)
        self.visible, self.hidden, self.classes = visible, hidden, classes
        self.label = Softmax(1, classes)
        both = small_weights(visible.size + classes, hidden.size, generator=generator)
        self.weight = nn.Parameter(both[: visible.size].clone())
        self.label_weight = nn.Parameter(both[visible.size :].clone())
        self.visible_bias = nn.Parameter(both.new_zeros(visible.size))
        self.label_bias = nn.Parameter(both.new_zeros(classes))
        self.hidden_bias = nn.Parameter(both.new_zeros(hidden.size))

    # --- energies -----------------------------------------------------------------------------------

    def check_labels(self, y: int | Tensor, rows: int | None = None) -> Tensor:
        """Labels as whole numbers 0 to classes - 1, one or one per row, of which there are `rows`."""
        y = torch.as_tensor(as_numbers(self, "labels", y), device=self.weight.device)
        if y.is_floating_point() or y.dtype == torch.bool:
            raise DataError(f"labels have dtype {y.dtype}, expected whole numbers; call y.long() first")
        if y.dim() > 1 or not y.numel() or (rows is not None and y.dim() and len(y) != rows):
            met = "" if rows is None else f", of which there are {rows}"
            raise ShapeError(f"labels have shape {tuple(y.shape)}, expected one number or one per row{met}")
        if bool((y < 0).any()) or bool((y >= self.classes).any()):
            raise DataError(f"labels run from {int(y.min())} to {int(y.max())}, expected 0 to {self.classes - 1}")
        return y.long()

    def hidden_natural(self, x: Tensor, y: Tensor) -> Natural:
        """Natural parameters of h given x and labels."""
        return self.hidden.natural(self.hidden_bias, self._input(x) + self.label_weight[y])

    def _input(self, x: Tensor) -> Tensor:
        return self.visible.statistic(x) @ self.weight

    def joint(self, x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        """E(x, y, h), `(batch,)`."""
        y = self.check_labels(y, len(x)).expand(len(x))
        seen = ((self._input(x) + self.label_weight[y]) * self.hidden.statistic(h)).sum(1)
        own = self.visible.energy(x, self.visible_bias) + self.hidden.energy(h, self.hidden_bias)
        return own - self.label_bias[y] - seen

    @explained
    def pair_energy(self, x: Tensor, y: int | Tensor) -> Tensor:
        """F(x, y), hidden units summed out: the energy of an input with its label."""
        return self._pair_energy(x, self.check_labels(y, len(x)))

    def _pair_energy(self, x: Tensor, y: Tensor) -> Tensor:
        own = self.visible.energy(x, self.visible_bias) - self.label_bias[y]
        return own - self.hidden.log_partition(self.hidden_natural(x, y))

    def _class_logits(self, x: Tensor, beta: Tensor | None) -> Tensor:
        """log p(x, y) for every y, but for the visible energy and a constant: `(batch, classes)`."""
        fields = self._input(x)[:, None] + self.label_weight
        natural = self.hidden.natural(self.hidden_bias, fields)
        bias: Tensor = self.label_bias
        if beta is not None:
            linear = natural.linear * (beta.reshape(-1, 1, 1) if beta.dim() else beta)
            natural, bias = Natural(linear), bias * (beta[:, None] if beta.dim() else beta)
        return bias + self.hidden.log_partition(natural)

    @explained
    def free_energy(self, x: Tensor, beta: Tensor | None = None) -> Tensor:
        """F(x) = -log Σ_y exp(-F(x, y)) of the machine with joint energy βE; β a number or one per row."""
        own = self.visible.energy(x, self.visible_bias)
        return (own if beta is None else beta * own) - torch.logsumexp(self._class_logits(x, beta), 1)

    def hidden_energy(self, h: Tensor, y: Tensor | None = None) -> Tensor:
        """The energy of the hidden layer, the input summed out, and the label as well where none is given."""
        seen = self.hidden.statistic(h)
        natural = self.visible.natural(self.visible_bias, seen @ self.weight.T)
        cumulant = self.visible.log_partition(natural) - self.visible.constant(self.visible_bias)
        labels = self.label_bias + seen @ self.label_weight.T
        label = torch.logsumexp(labels, 1) if y is None else labels[:, y]
        return self.hidden.energy(h, self.hidden_bias) - cumulant - label

    @explained
    def class_log_prob(self, x: Tensor) -> Tensor:
        """log p(y | x), `(batch, classes)`, exactly."""
        return torch.log_softmax(self._class_logits(x, None), 1)

    def given(self, y: int | Tensor) -> "LabeledRBM":
        """The energy of x under a label, or one per row: an RBM with hidden bias c + U_y."""
        return LabeledRBM(self, y)

    def hidden_unit(self) -> Unit:
        """The hidden units."""
        return self.hidden

    @explained
    def hidden_mean(self, x: Tensor, y: int | Tensor | None = None) -> Tensor:
        """E[h | x, y], or E[h | x] with the label averaged out: features."""
        if y is not None:
            return self.hidden.mean(self.hidden_natural(x, self.check_labels(y, len(x))))
        fields = self.hidden.natural(self.hidden_bias, self._input(x)[:, None] + self.label_weight)
        weights = self.class_log_prob(x).exp()
        means = self.hidden.mean(fields)
        return (weights.reshape(*weights.shape, *[1] * (means.dim() - 2)) * means).sum(1)

    def filters(self) -> Filters:
        """What each hidden unit looks for."""
        return Filters(self.weight)

    # --- Gibbs sampling -----------------------------------------------------------------------------

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """For the label, the hidden and the visible layer."""
        return layer_noise([self.label, self.hidden, self.visible], x, steps, generator, self.visible)

    def gibbs_sweep(
        self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None, beta: Tensor | None = None
    ) -> Tensor:
        """y ~ p(y | x), h ~ p(h | x, y), then x ~ p(x | h) where not `clamp`."""
        with torch.no_grad():
            logits = self._class_logits(x, beta)
            y = self.label.sample(Natural(logits), noise[0]).flatten(1).argmax(1)
            return self._resample(x, y, noise[1], noise[2], clamp, beta)[0]

    def _resample(
        self, x: Tensor, y: Tensor, up: Tensor, down: Tensor, clamp: Tensor | None, beta: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        hidden = self.hidden_natural(x, y)
        h = self.hidden.sample(hidden if beta is None else hidden.scaled(beta), up)
        statistic = self.hidden.statistic(h)
        visible = self.visible.natural(self.visible_bias, statistic @ self.weight.T)
        return self.visible.resample(visible if beta is None else visible.scaled(beta), down, x, clamp), statistic

    def pair_sweep(
        self, x: Tensor, y: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """h ~ p(h | x, y), then x and y given h: the chain over inputs with labels."""
        with torch.no_grad():
            x, statistic = self._resample(x, y, noise[1], noise[2], clamp, None)
            logits = self.label_bias + statistic @ self.label_weight.T
            return x, self.label.sample(Natural(logits), noise[0]).flatten(1).argmax(1)

    # --- partition functions ------------------------------------------------------------------------

    def path(self, base_bias: Tensor | None = None, *, data: Tensor | None = None) -> Path | None:
        """The annealing path from independent visible units, of this bias or fitted to data, where these are discrete."""
        if not isinstance(self.domain, Discrete):
            return None
        return VisiblePath(self, base_bias, data)

    def marginals(self) -> Sequence[Energy]:
        """The inputs, and the hidden layer with input and label summed out."""
        return [self, HiddenMarginal(self)]

    def extra_repr(self) -> str:
        return f"classes={self.classes}"


class LabeledRBM(Energy):
    """A classification RBM under given labels, one for all rows or one per row: `pair_energy(x, y)` of x."""

    y: Tensor

    def __init__(self, model: ClassificationRBM, y: int | Tensor) -> None:
        super().__init__(model.domain)
        self.model = model
        self.register_buffer("y", model.check_labels(y), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.model._pair_energy(x, self._labels(x))

    def _labels(self, x: Tensor) -> Tensor:
        """One for each row, or one of shape (1,): to index by a single number the host would have to see it."""
        return rows_for(self.y, len(x), "labels") if self.y.dim() else self.y[None]

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """For the hidden and the visible layer."""
        return layer_noise([self.model.hidden, self.model.visible], x, steps, generator, self.model.visible)

    def gibbs_sweep(self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None) -> Tensor:
        """h ~ p(h | x, y), then x ~ p(x | h) where not `clamp`."""
        with torch.no_grad():
            return self.model._resample(x, self._labels(x), noise[0], noise[1], clamp, None)[0]

    def marginals(self) -> Sequence[Energy]:
        """The inputs, and under one label for all rows the hidden layer."""
        return [self] if self.y.dim() else [self, HiddenMarginal(self, domain=self.model.hidden.domain)]

    def hidden_energy(self, h: Tensor) -> Tensor:
        """The energy of the hidden layer, the input summed out: under one label for all rows."""
        return self.model.hidden_energy(h, self.y)
