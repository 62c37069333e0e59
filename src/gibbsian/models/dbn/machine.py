"""Deep belief networks: directed layers below a restricted Boltzmann machine."""

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Filters, WakeSleep
from gibbsian.derivatives.known import sum_of
from gibbsian.domains import Discrete, Domain
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, DataError, check_choice, check_count
from gibbsian.models.dbn.directed import Directed, Upward, can_tie, tie
from gibbsian.models.dbn.phases import sleep_phase, wake_phase
from gibbsian.models.joint import JointEnergy
from gibbsian.models.rbm.machine import RBM
from gibbsian.models.rbm.path import RBMPath
from gibbsian.placement import explained
from gibbsian.random import require_generator, stream
from gibbsian.units import Gaussian, Joined, Softmax, Unit, as_unit

_PAIRS = 1 << 22  # pairs of states of two layers that the exact energy may enumerate
_BLOCK = 1 << 12  # rows at a time where a row means many numbers


class DBN(Energy):
    """Deep belief network: sigmoid layers that generate downwards from an RBM over the top two, labels beside them.

        p(v, h¹, ..., h^L) = p(v | h¹) ··· p(h^{L-2} | h^{L-1}) · exp(-E(y, h^{L-1}, h^L)) / Z
        log p(v) ≥ E_q[log p(v | h¹) - log q(h¹ | v) + ... - F(h^{L-1})] - log Z

    Recognition q(h¹ | v) ··· q(h^{L-1} | h^{L-2}) runs upwards with weights of its own, equal to the generative ones
    after greedy training and untied by `objectives.UpDown`. log Z is that of the top RBM: the directed layers are
    normalized. As an `Energy` it is that of v, which is exact where the hidden layers can be enumerated and refused
    elsewhere; `log_mass_bound` and `gibbsian.log_likelihood` serve models of any size.

    Train it with `gibbsian.pretrain` and any objective for RBMs, then with `fit` and `objectives.UpDown`, or use it
    to initialize a classifier (`to_classifier`). Use it for features, for generation by class, and where a
    likelihood bound is wanted; today's classifiers do without it.

    Reference: Hinton, Osindero & Teh 2006; Salakhutdinov & Murray 2008 for the bound.

    Args:
        layers: numbers of Bernoulli units, or `gibbsian.units`, from the visible layer to the top: three at least.
        labels: number of classes of a softmax label beside the last layer but one; none where it is left out.
        tied: start every machine of `pretrain` from the transposed weights below where its hidden layer has room
            for them, so that the bound does not fall.
        generator: for the initial weights, N(0, 0.01²); a fixed seed where it is left out.

    Attributes:
        directed: the directed layers, from below: `weight`, `bias`, `recognition_weight`, `recognition_bias`.
        top: the RBM, whose visible units are the label's (first) and those of the last layer but one.

    >>> dbn = DBN(6, 5, 4, 8, labels=3)
    >>> x = torch.zeros(2, 6)
    >>> dbn.features(x).shape, dbn.class_log_prob(x).shape
    (torch.Size([2, 8]), torch.Size([2, 3]))
    >>> dbn.generate(2, steps=10, label=1, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 6])
    """

    def __init__(
        self,
        *layers: int | Unit,
        labels: int | None = None,
        tied: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        if len(layers) < 3:
            raise ArgumentError(
                f"a DBN has three layers or more, got {len(layers)}; for two use models.RBM, with labels "
                "models.ClassificationRBM"
            )
        units = [copy.deepcopy(as_unit(layer, f"layer {i}")) for i, layer in enumerate(layers)]
        for i, unit in enumerate(units):
            if i and isinstance(unit, Gaussian) and isinstance(unit.log_sigma, nn.Parameter):
                raise ArgumentError(
                    f"layer {i} has Gaussian hidden units with a learned sigma, which only rescales weights; give "
                    f"units.Gaussian({unit.n}, learned=False)"
                )
        if labels is not None:
            check_count(self, "labels", labels, 2)
        super().__init__(units[0].domain)
        generator = stream(0, "init") if generator is None else generator
        self.classes, self.tied = labels, tied
        self.directed = nn.ModuleList(Directed(a, b, generator=generator) for a, b in itertools.pairwise(units[:-1]))
        below = units[-2] if labels is None else Joined(Softmax(1, labels), units[-2])
        self.top = RBM(below, units[-1], generator=generator)

    # --- passes -------------------------------------------------------------------------------------

    @property
    def layers(self) -> list[Directed]:
        """The directed layers, from below."""
        return list(self.directed)  # type: ignore[arg-type]

    @property
    def penultimate(self) -> Unit:
        """The units below the top layer, without the label."""
        return self.layers[-1].upper

    def up(self, x: Tensor, *, generator: torch.Generator | None = None, depth: int | None = None) -> list[Tensor]:
        """x and the states of the layers above it, up to the last layer but one: drawn, or means of means."""
        states = [x]
        for layer in self.layers[:depth]:
            states.append(layer.up_mean(states[-1]) if generator is None else layer.up(states[-1], generator))
        return states

    def down(self, h: Tensor, *, generator: torch.Generator, mean: bool = False, total: Tensor | None = None) -> Tensor:
        """One ancestral pass from states of the last layer but one to v; its mean given h¹ with `mean`.

        For counts `total` are the document lengths, one per row.
        """
        require_generator(generator, h.device)
        for layer in self.layers[:0:-1]:
            h = layer.down(h, generator)
        with torch.no_grad():
            return self.layers[0].down_mean(h, total) if mean else self.layers[0].down(h, generator, total)

    @explained
    def features(self, x: Tensor, depth: int | None = None) -> Tensor:
        """Means of hidden layer `depth` (1 is the lowest; the top layer where it is left out) given x.

        The label is summed out where the top layer is asked for.
        """
        count = len(self.directed) + 1
        depth = count if depth is None else depth
        if not 1 <= depth <= count:
            raise ArgumentError(f"features(depth={depth}): the hidden layers are 1 to {count}")
        if depth < count:
            return self.up(x, depth=depth)[-1]
        h = self.up(x)[-1]
        if self.classes is None:
            return self.top.hidden_mean(h)
        fields = self._label_fields(h)
        means = self.top.hidden.mean(self.top.hidden.natural(self.top.hidden_bias, fields))
        weights = torch.log_softmax(self._label_logits(h), 1).exp()
        return (weights.reshape(*weights.shape, *[1] * (means.dim() - 2)) * means).sum(1)

    # --- energies and the bound ---------------------------------------------------------------------

    def top_weights(self) -> tuple[Tensor, Tensor]:
        """The weights between the top layer and the label, and between it and the layer below."""
        classes = self.classes or 0
        return self.top.weight[:classes], self.top.weight[classes:]

    def _label_fields(self, h: Tensor) -> Tensor:
        """The input of the top layer under every label, `(batch, classes, size)`."""
        label, rest = self.top_weights()
        return (self.penultimate.statistic(h) @ rest)[:, None] + label

    def _label_logits(self, h: Tensor) -> Tensor:
        """log p(h^{L-1}, y) for every label but for what does not depend on it, `(batch, classes)`."""
        natural = self.top.hidden.natural(self.top.hidden_bias, self._label_fields(h))
        cumulant = self.top.hidden.log_partition(natural) - self.top.hidden.constant(self.top.hidden_bias)
        return self.top.visible_bias[: self.classes] + cumulant

    def top_energy(self, h: Tensor) -> Tensor:
        """F(h^{L-1}): the energy of the last layer but one in the top machine, label and top layer summed out."""
        if self.classes is None:
            return self.top(h)
        self.top.check_proper()
        own = self.penultimate.energy(h, self.top.visible_bias[self.classes :])
        return own - torch.logsumexp(self._label_logits(h), 1)

    def forward(self, v: Tensor) -> Tensor:
        """-log Σ_h p(v | h¹) ··· exp(-F(h^{L-1})), by enumeration of the hidden layers: for small models."""
        if not self.sums_exactly():
            raise CapabilityError(
                "the exact energy of a DBN sums over its hidden layers, and these are too large; bound its likelihood "
                "with gibbsian.log_likelihood(dbn, x, log_z, generator=g), log_z = partition.ais(dbn, data, "
                "generator=g), or sample and train dbn.top, which is an RBM"
            )
        states = [layer.upper.domain.states(dtype=v.dtype, device=v.device) for layer in self.layers]  # type: ignore[attr-defined]
        log_p = -self.top_energy(states[-1])
        for i in range(len(self.directed) - 1, 0, -1):
            log_p = torch.logsumexp(self.layers[i].log_p_table(states[i - 1], states[i]) + log_p, 1)
        rows = max(1, _PAIRS // len(states[0]))
        lowest = self.layers[0]
        return -torch.cat([
            torch.logsumexp(lowest.log_p_table(part, states[0]) + log_p, 1) for part in v.split(rows)
        ])  # fmt: skip

    def sums_exactly(self) -> bool:
        """Whether the hidden layers are small enough for `forward`."""
        domains = [layer.upper.domain for layer in self.layers]
        sizes = [d.log_size if isinstance(d, Discrete) else math.inf for d in domains]
        return max(a + b for a, b in zip([0.0, *sizes[:-1]], sizes, strict=True)) <= math.log(_PAIRS)

    def log_mass_bound(
        self, x: Tensor, *, samples: int = 10, generator: torch.Generator | None = None, importance: bool = False
    ) -> Tensor:
        """A lower bound on log p(x) + log Z for every row, from stochastic up-passes: `(batch,)`.

            E_q[log p(x | h¹) - log q(h¹ | x) + ... - F(h^{L-1})],   or E log of the mean over samples of its exponential

        It is unbiased for the bound; labels are summed out. Equal to -F(x) of the lowest RBM where the layers above
        repeat it: W² = W¹ᵀ, b² = c¹, c² = b¹.

        Args:
            x: data `(batch, *event)`.
            samples: up-passes a row.
            generator: required.
            importance: average exponentials instead of logarithms over the up-passes, a bound that becomes exact
                with their number.

        Reference: Salakhutdinov & Murray 2008; Burda, Grosse & Salakhutdinov 2016 for importance weights.
        """
        generator = require_generator(generator, x.device)
        if samples < 1:
            raise ArgumentError(f"log_mass_bound(samples={samples}): at least one up-pass is needed")
        with torch.no_grad():
            return torch.cat([self._bound(part, samples, generator, importance) for part in x.split(_BLOCK)])

    def _bound(self, x: Tensor, samples: int, generator: torch.Generator, importance: bool) -> Tensor:
        values = []
        for _ in range(samples):
            states = self.up(x, generator=generator)
            value = -self.top_energy(states[-1]).double()
            for layer, low, high in zip(self.layers, states[:-1], states[1:], strict=True):
                value += (layer.log_p(low, high) - layer.log_q(high, low)).double()
            values.append(value)
        each = torch.stack(values)
        return torch.logsumexp(each, 0) - math.log(samples) if importance else each.mean(0)

    def path(self, base_bias: Tensor | None = None, *, data: Tensor | None = None) -> RBMPath:
        """The annealing path of the top RBM, whose log Z is the network's: `base_bias` is of that RBM's visible layer,
        `data` of the network, the base being fitted to what the up-pass makes of it."""
        if data is None:
            return self.top.path(base_bias)
        with torch.no_grad():
            h = torch.cat([self.up(part)[-1] for part in data.split(_BLOCK)])
            bias = self.penultimate.fit_bias(h)
            if self.classes is not None:  # the labels of data are unknown here
                bias = torch.cat([bias.new_zeros(self.classes), bias])
        return self.top.path(bias)

    def marginals(self) -> Sequence[Energy]:
        """Those of the top RBM: the directed layers are normalized."""
        return self.top.marginals()

    def of_length(self, total: int) -> Self:
        """The network itself: one log Z serves documents of all lengths."""
        return self

    def filters(self) -> Filters:
        """What each unit of the first hidden layer looks for."""
        return Filters(self.layers[0].weight, "Filters of the first layer")

    # --- labels -------------------------------------------------------------------------------------

    def _need_labels(self, what: str) -> int:
        if self.classes is None:
            raise CapabilityError(f"{what} needs a label layer; make the network with DBN(..., labels=K)")
        return self.classes

    def one_hot(self, y: Tensor, like: Tensor) -> Tensor:
        """Labels as rows with one 1, without waiting for the device."""
        return (y[:, None] == torch.arange(self._need_labels("one_hot"), device=y.device)).to(like.dtype)

    def check_labels(self, y: Tensor) -> None:
        """Refuse labels outside 0 to classes - 1."""
        classes = self._need_labels("a label")
        if y.is_floating_point() or y.dtype == torch.bool or y.dim() != 1:
            raise DataError(f"labels are {y.dtype} of shape {tuple(y.shape)}, expected one whole number a row")
        if int(y.min()) < 0 or int(y.max()) >= classes:
            raise DataError(f"labels run from {int(y.min())} to {int(y.max())}, expected 0 to {classes - 1}")

    def class_log_prob(
        self, x: Tensor, *, method: str = "free energy", passes: int = 20, generator: torch.Generator | None = None
    ) -> Tensor:
        """log p(y | x) under the up-pass, `(batch, classes)`.

        Args:
            x: data `(batch, *event)`.
            method: "free energy": exact in the top machine, p(y | h^{L-1}) ∝ exp(-F(y, h^{L-1})), with one
                deterministic up-pass, or averaged over stochastic ones where a generator is given; or "up-pass":
                means all the way up under an undecided label, then one step down to it, which is cheaper.
            passes: stochastic up-passes.
            generator: for those.
        """
        classes = self._need_labels("class_log_prob")
        check_choice(self, "method", method, ("free energy", "up-pass"))
        if method == "up-pass":
            h = self.up(x)[-1]
            label, rest = self.top_weights()
            field = self.penultimate.statistic(h) @ rest + label.mean(0)
            hidden = self.top.hidden
            top = hidden.statistic(hidden.mean(hidden.natural(self.top.hidden_bias, field)))
            return torch.log_softmax(self.top.visible_bias[:classes] + top @ label.T, 1)
        if generator is None:
            return torch.log_softmax(self._label_logits(self.up(x)[-1]), 1)
        each = [torch.log_softmax(self._label_logits(self.up(x, generator=generator)[-1]), 1) for _ in range(passes)]
        return torch.logsumexp(torch.stack(each), 0) - math.log(passes)

    @explained
    def classify(self, x: Tensor, **options: Any) -> Tensor:
        """The most probable label of every row, `(batch,)`; options of `class_log_prob`."""
        with torch.no_grad():
            return torch.cat([self.class_log_prob(part, **options).argmax(1) for part in x.split(_BLOCK)])

    # --- generation ---------------------------------------------------------------------------------

    def generate(
        self,
        n: int,
        *,
        steps: int = 1000,
        label: int | Tensor | None = None,
        start: Tensor | None = None,
        mean: bool = False,
        total: Tensor | None = None,
        generator: torch.Generator,
    ) -> Tensor:
        """n draws of v: `steps` Gibbs sweeps in the top RBM, then one ancestral pass down.

        Args:
            n: how many.
            steps: sweeps of every chain.
            label: a class to generate, or one for each draw; the label unit is clamped to it.
            start: data `(n, *event)` whose up-pass starts the chains; reference draws of the top layer without it.
            mean: give the mean of v given h¹ instead of a draw: smoother pictures.
            total: document lengths for counts, one a row.
            generator: required.
        """
        device = self.top.weight.device
        require_generator(generator, device)
        x = self.top.domain.sample(n, generator=generator, dtype=self.top.weight.dtype)
        if start is not None:
            self.domain.check(start, "start")
            h = self.up(start, generator=generator)[-1]
            x = h if self.classes is None else torch.cat([x[:, : self.classes], h.flatten(1)], 1)
        clamp = None
        if label is not None:
            y = torch.as_tensor(label, device=device).expand(n)
            self.check_labels(y)
            labels = self.one_hot(y, x)
            x = torch.cat([labels, x[:, labels.shape[1] :]], 1)
            clamp = torch.arange(x.shape[1], device=device) < labels.shape[1]
        x = self.top.swept(x, steps, generator, clamp)
        return self.down(self.features_of(x), generator=generator, mean=mean, total=total)

    def draw(self, n: int, *, clamp: Tensor | None = None, **options: Any) -> Tensor:
        """`generate`, for whoever draws any model; nothing of v can be held, since it is generated from above."""
        if clamp is not None:
            raise CapabilityError("a DBN generates v from its top layers, so that no entry of v can be held")
        return self.generate(n, **options)

    def features_of(self, x: Tensor) -> Tensor:
        """The states of the last layer but one in states of the top machine's visible layer."""
        return x if self.classes is None else x[:, self.classes :].unflatten(1, self.penultimate.domain.shape)

    # --- learning -----------------------------------------------------------------------------------

    def wake_sleep(
        self, x: Tensor, y: Tensor | None, steps: int, generator: torch.Generator, *, fused: bool = False
    ) -> WakeSleep:
        """One step of contrastive wake-sleep: up with q, `steps` sweeps of the top RBM, down with p; labels y `(batch,)`
        where the network has them, by compiled kernels with `fused` where there are such."""
        require_generator(generator, x.device)
        wake, wake_gradients, h = wake_phase(self.layers, x, generator, fused=fused)
        top = h if y is None else torch.cat([self.one_hot(y, h), h.flatten(1)], 1)
        gap, chain, gap_gradients = self.top.contrast(top, None, steps, generator, fused=fused)
        sleep, sleep_gradients = sleep_phase(self.layers, self.features_of(chain), x, generator, fused=fused)
        parts = [(wake, wake_gradients), (gap, gap_gradients), (sleep, sleep_gradients)]
        value, gradients = sum_of(parts, (1.0, 1.0, 1.0))
        return WakeSleep(value, wake, gap, sleep, gradients)

    # --- layer-wise training: the protocol of training.pretrain ---------------------------------------

    def stages(self) -> int:
        """As many machines as there are hidden layers."""
        return len(self.directed) + 1

    def check_stage(self, stage: int, batch: Any) -> None:
        """Data of the visible domain; pairs with labels where the top layer has them and is trained."""
        pair = not isinstance(batch, Tensor)
        self.domain.check(batch[0] if pair else batch, "batch")
        if stage == len(self.directed) and self.classes is not None:
            if not pair or len(batch) != 2:
                raise DataError("the label layer is trained on pairs (x, y); give data=(x, y)")
            self.check_labels(batch[1])

    def encode(self, stage: int, batch: Any, generator: torch.Generator | None) -> Tensor:
        """States of layer `stage` given data, drawn or means; the label comes first where there is one."""
        x = batch if isinstance(batch, Tensor) else batch[0]
        with torch.no_grad():
            h = self.up(x, generator=generator, depth=stage)[-1]
            if stage < len(self.directed) or self.classes is None:
                return h
            return torch.cat([self.one_hot(batch[1], h), h.flatten(1)], 1)

    def machine(self, stage: int) -> RBM:
        """The RBM of two neighboring layers, with the network's own parameters: G, g and r of a directed layer."""
        if stage == len(self.directed):
            return self.top
        layer = self.layers[stage]
        machine = RBM(layer.lower, layer.upper)
        machine.visible, machine.hidden = layer.lower, layer.upper
        machine.weight, machine.visible_bias, machine.hidden_bias = layer.weight, layer.bias, layer.recognition_bias
        return machine

    def begin_stage(self, stage: int, batch: Tensor) -> RBM:
        """`machine(stage)`, started as the RBM below it turned over, W = W_belowᵀ, b = c_below, c = b_below, where its
        hidden layer repeats the kind of the layer two below and has room for it; further units begin with small weights,
        compensated in the visible bias. Elsewhere it starts from small weights and the base rates of `batch`."""
        machine = self.machine(stage)
        with torch.no_grad():
            if self.tied and stage and can_tie(self.layers[stage - 1].lower, machine.hidden):
                tie(machine, self.layers[stage - 1])
            else:
                machine.visible_bias.copy_(machine.visible.fit_bias(batch))
        return machine

    def end_stage(self, stage: int, machine: RBM) -> None:
        """Recognize with the weights that were learned."""
        if stage < len(self.directed):
            layer = self.layers[stage]
            with torch.no_grad():
                layer.recognition_weight.copy_(layer.weight)

    # --- classifiers --------------------------------------------------------------------------------

    def to_classifier(
        self, classes: int | None = None, *, domain: Domain | None = None, generator: torch.Generator | None = None
    ) -> JointEnergy:
        """A feed-forward classifier that starts from the recognition weights, for `fit` and `objectives.CrossEntropy`.

        Every hidden layer becomes the means of its units, the top one included; then one linear layer of logits, from
        the label weights where the network has labels, else small ones.

        Args:
            classes: number of classes; by default that of the label layer.
            domain: of the inputs, where it is to be another one than the network's: domains.Box(784) for gray values.
            generator: for the last layer; a fixed seed where it is left out.
        """
        if classes is None:
            classes = self._need_labels("to_classifier() without a number of classes")
        if self.classes is not None and classes != self.classes:
            raise ArgumentError(f"to_classifier({classes}): the network has labels of {self.classes} classes")
        layers, top, (label, rest) = self.layers, self.top, self.top_weights()
        generator = stream(0, "init") if generator is None else generator
        ups = [Upward(layer.lower, layer.upper) for layer in layers]
        ups.append(Upward(self.penultimate, top.hidden))
        last = nn.utils.skip_init(nn.Linear, top.hidden.size, classes)
        weights: list[tuple[Tensor, Tensor]] = [(la.recognition_weight, la.recognition_bias) for la in layers]
        weights.append((rest, top.hidden_bias))
        with torch.no_grad():
            for up, (weight, bias) in zip(ups, weights, strict=True):
                up.weight.copy_(weight)
                up.bias.copy_(bias)
            if self.classes is None:
                nn.init.normal_(last.weight, 0.0, 0.01, generator=generator)
                nn.init.zeros_(last.bias)
            else:
                ups[-1].bias.add_(label.mean(0))  # an undecided label
                last.weight.copy_(label)
                last.bias.copy_(top.visible_bias[:classes])
        flat = [nn.Flatten()] if len(top.hidden.domain.shape) > 1 else []
        net = nn.Sequential(*ups, *flat, last).to(top.weight)
        return JointEnergy(net, self.domain if domain is None else domain)

    def extra_repr(self) -> str:
        return f"labels={self.classes}" if self.classes else ""
