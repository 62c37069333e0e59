"""Deep Boltzmann machines, of the layers in a row that `layers`, `exact` and `infer` tell of."""

import copy
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Filters, LayerContrast
from gibbsian.domains import Discrete
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, check_count, check_tensor
from gibbsian.fast.compiled import compiled_copy
from gibbsian.models.dbm.doubled import DoubledRBM
from gibbsian.models.dbm.fused import fused_phases
from gibbsian.models.dbm.infer import InferredMachine
from gibbsian.models.dbm.marginal import LayerMarginal
from gibbsian.models.dbm.path import DBMPath
from gibbsian.models.dbm.phases import phases, positive_phase
from gibbsian.placement import check_placement, explained
from gibbsian.random import quick_uniforms, require_generator, stream
from gibbsian.units import Bernoulli, Count, Unit, as_unit, layer_noise


class DBM(InferredMachine):
    """Deep Boltzmann machine of any depth; `forward(v)` is its free energy, its domain that of the visible units.

        any units:  E = Σₗ Eₗ(hˡ) - Σₗ φ(h^{l-1})ᵀ Wˡ φ(hˡ),   h⁰ = v
        two layers of Bernoulli units:  E = -vᵀW¹h¹ - h¹ᵀW²h² - b·v - c¹·h¹ - c²·h²

    Given the even layers the odd ones are independent and the other way round, so block Gibbs sampling needs two
    half-sweeps whatever the depth: `marginal(0)` is the law of v, h², ... with h¹, h³, ... summed out, `marginal(1)` that of
    h¹, h³, ...; both are energies that `kernels.Gibbs` samples, clamps and tempers. `infer` gives mean-field posteriors,
    `log_mass_bound` the bound on log Σ_h exp(-E(v, h)) that they make, which `log_likelihood` uses.

    Train it with `pretrain` and `objectives.ContrastiveDivergence`, then `objectives.VariationalLikelihood`, or with that
    alone and `centering`. The free energy itself sums over the smaller half of the hidden layers, up to 2^16 states; for
    one hidden layer use an `RBM`, whose free energy is exact at any size.

    Reference: Salakhutdinov & Hinton 2009.

    Args:
        layers: visible units first; numbers of Bernoulli units, or `gibbsian.units` (the machine keeps copies). Hidden
            ones must be discrete (Bernoulli, Spin, Softmax, or those `Joined`, such as a label beside features), visible
            ones anything but counts.
        generator: for the initial weights, N(0, 0.01²); a fixed seed where it is left out.

    Attributes:
        layers: the units.
        weights: W¹, W², ..., `(below.size, above.size)` each.
        biases: one a layer, the visible one first.

    >>> dbm = DBM(6, 4, 3)
    >>> v = torch.zeros(2, 6)
    >>> dbm(v).shape, dbm.infer(v).means[1].shape
    (torch.Size([2]), torch.Size([2, 3]))
    >>> bool((dbm.log_mass_bound(v) <= -dbm(v)).all())
    True
    """

    def __init__(self, *layers: int | Unit, generator: torch.Generator | None = None) -> None:
        if len(layers) < 2:
            raise ArgumentError(f"DBM{layers}: give the visible units and at least one hidden layer")
        units = [copy.deepcopy(as_unit(layer, f"layer {i}")) for i, layer in enumerate(layers)]
        for i, unit in enumerate(units):
            if isinstance(unit, Count) or (i > 0 and not isinstance(unit.domain, Discrete)):
                raise ArgumentError(
                    f"layer {i} of a DBM is {type(unit).__name__}: hidden units must be Bernoulli, Spin or Softmax, whose "
                    "mean-field posteriors are closed forms, and counts cannot be visible either; use an RBM for others"
                )
        super().__init__(units[0].domain)
        generator = stream(0, "init") if generator is None else generator
        self.layers = nn.ModuleList(units)  # type: ignore[assignment]
        self.weights = nn.ParameterList([
            0.01 * torch.randn(a.size, b.size, generator=generator, device=generator.device)
            for a, b in pairwise(units)
        ])  # fmt: skip
        self.biases = nn.ParameterList([self.weights[0].new_zeros(unit.size) for unit in units])
        self._own_biases: dict[int, Tensor] = {}  # what the machines of later stages learned, until all have

    # --- energies -----------------------------------------------------------------------------------

    def joint(self, v: Tensor, *hidden: Tensor) -> Tensor:
        """E(v, h¹, ..., h^L), `(batch,)`."""
        if len(hidden) != len(self.layers) - 1:
            raise ArgumentError(f"joint got {len(hidden)} hidden layers, expected {len(self.layers) - 1}")
        return -self.mass([v, *hidden])

    def marginal(self, parity: int) -> LayerMarginal:
        """The law of the even layers (0: v, h², ...) or of the odd ones (1: h¹, h³, ...), the others summed out."""
        return LayerMarginal(self, parity)

    def marginals(self) -> Sequence[Energy]:
        """The even layers, and the odd ones."""
        return [self.marginal(0), self.marginal(1)]

    # --- sampling ---------------------------------------------------------------------------------

    def fill_in(self, v: Tensor, clamp: Tensor, *, steps: int = 1000, generator: torch.Generator) -> Tensor:
        """Complete partial examples: Gibbs sweeps with the entries where `clamp` is True held, all else drawn.

        Returns E[v | h¹] of the last states at the others (for Bernoulli units gray values), v at the held ones.
        """
        self.domain.check_shape(v, "v")
        check_placement(v, self, "v")
        check_tensor(clamp, "clamp")
        steps = check_count("fill_in", "steps", steps, 0)
        require_generator(generator, v.device)
        if clamp.dtype != torch.bool or clamp.shape not in {v.shape, v.shape[1:]}:
            raise ArgumentError(
                f"clamp is {clamp.dtype} of shape {tuple(clamp.shape)}, expected a bool tensor of shape "
                f"{tuple(v.shape[1:])} or {tuple(v.shape)}, True where entries of v are held"
            )
        self.domain.check_clamp(clamp)
        start = self.domain.sample(len(v), generator=generator, dtype=v.dtype)
        v = torch.where(clamp, v, start)
        self.domain.check(v, "v")
        with torch.no_grad():
            values: list[Tensor | None] = [v, *self.draw_hidden(v, generator=generator, steps=1)]
            for _ in range(steps):
                numbers = self.numbers(v, generator)
                values = self.resample(self.resample(values, 0, numbers, clamp={0: clamp}), 1, numbers)
            mean = self.layers[0].mean(self.natural(0, self.statistics(values)))
            return torch.where(clamp, v, mean)

    def path(self, base_bias: Tensor | None = None, *, data: Tensor | None = None) -> DBMPath:
        """The annealing path from independent units to this machine, its state the odd layers; arguments as in `RBM.path`."""
        return DBMPath(self, base_bias, data)

    def draw(
        self,
        n: int,
        *,
        steps: int = 1000,
        start: Tensor | None = None,
        clamp: Tensor | None = None,
        label: int | Tensor | None = None,
        generator: torch.Generator,
    ) -> Tensor:
        """n draws of v: block Gibbs sweeps over the even layers, of which the visible ones are kept.

        Arguments as in `capabilities.DrawableModel`: `start` are visible states, gone through again where there are
        fewer than n; hidden ones, and all where it is left out, are reference draws of their domains. A DBM has no
        classes, so that a label is refused.
        """
        if label is not None:
            raise CapabilityError("a DBM knows no classes to draw from; clamp a label that it was trained with")
        even, like = self.marginal(0), self.weights[0].detach()
        require_generator(generator, like.device)
        layers = even.split(even.domain.sample(n, generator=generator, dtype=like.dtype))
        if start is not None:
            layers[0] = start.to(like)[torch.arange(n, device=like.device) % len(start)]
        held = None
        if clamp is not None:
            self.domain.check_clamp(clamp)
            loose = [torch.zeros(layer.shape, dtype=torch.bool, device=like.device) for layer in layers[1:]]
            held = even.join([clamp.to(like.device).expand(layers[0].shape), *loose])
        return even.split(even.swept(even.join(layers), steps, generator, held))[0]

    def filters(self) -> Filters:
        """What each unit of the first hidden layer looks for."""
        return Filters(self.weights[0], "Filters of the first layer")

    # --- learning -----------------------------------------------------------------------------------

    def initialize_visible_bias(self, data: Tensor) -> None:
        """Set the visible bias so that the machine without weights has the means of the data."""
        self.domain.check(data, "data")
        with torch.no_grad():
            self.biases[0].copy_(self.layers[0].fit_bias(data.to(self.biases[0])))

    @explained
    def layer_means(self, x: Tensor, steps: int = 10) -> list[Tensor]:
        """E[φ] of every layer given the rows of x, after `steps` of mean field."""
        with torch.no_grad():
            return positive_phase(self, x, steps)[0].statistics

    def start_layers(self, v: Tensor, generator: torch.Generator, *, encode: bool) -> list[Tensor]:
        """All layers of chains whose visible one is v: hidden ones drawn upwards with doubled inputs, or uniformly."""
        hidden = enumerate(self.layers[1:], start=1)
        if encode:
            return [v, *(self.encode(i, v, generator) for i, _ in hidden)]
        return [v, *(unit.domain.sample(len(v), generator=generator, dtype=v.dtype) for _, unit in hidden)]

    def layer_contrast(
        self,
        batch: Tensor,
        chains: Sequence[Tensor],
        mean_field_steps: int,
        steps: int,
        generator: torch.Generator,
        *,
        fused: bool = False,
    ) -> LayerContrast:
        """-bound on log p(batch) less that of chains after `steps` sweeps; see `gibbsian.models.dbm.phases`."""
        require_generator(generator, batch.device)
        if fused and steps < mean_field_steps and all(type(unit) is Bernoulli for unit in self.layers):
            rows, sizes = len(chains[0]), [unit.size for unit in self.layers]
            count = rows * sum(sizes)
            noise = [quick_uniforms(count, generator, dtype=batch.dtype, device=batch.device) for _ in range(steps)]
            weights, biases = ([p.detach() for p in part] for part in self.layer_parameters())
            twin = compiled_copy(fused_phases, len(batch), rows, mean_field_steps, steps, *sizes)
            with torch.no_grad():
                return twin(weights, biases, batch, list(chains), noise, mean_field_steps)
        return phases(self, batch, chains, mean_field_steps, steps, generator)

    def stages(self) -> int:
        """Machines that are trained one after the other by `pretrain`: one for each pair of neighboring layers."""
        return len(self.weights)

    def check_stage(self, stage: int, batch: Tensor | Sequence[Tensor]) -> None:
        """Refuse data outside the domain."""
        self.domain.check(batch if isinstance(batch, Tensor) else batch[0], "data")

    def encode(self, stage: int, batch: Tensor | Sequence[Tensor], generator: torch.Generator | None) -> Tensor:
        """The layer that a stage sees: drawn upwards with doubled inputs, or means without a generator."""
        x = batch if isinstance(batch, Tensor) else batch[0]
        with torch.no_grad():
            for i in range(stage):
                unit = self.layers[i + 1]
                natural = unit.natural(self.biases[i + 1], 2 * (self.layers[i].statistic(x) @ self.weights[i]))
                if generator is None:
                    x = unit.mean(natural)
                else:
                    (noise,) = layer_noise([unit], x, 1, generator)
                    x = unit.sample(natural, noise[0])
        return x

    def begin_stage(self, stage: int, batch: Tensor) -> DoubledRBM:
        """A machine of two layers with doubled inputs: the bottom doubles upwards, the top downwards, others both."""
        top = len(self.weights) - 1
        machine = DoubledRBM(
            self.layers[stage], self.layers[stage + 1], up=2 if stage < top else 1, down=2 if stage > 0 else 1
        ).to(self.weights[0])
        with torch.no_grad():
            machine.weight.copy_(self.weights[stage])
            machine.hidden_bias.copy_(self.biases[stage + 1])
            machine.visible_bias.copy_(machine.visible.fit_bias(batch.to(machine.weight)))
        return machine

    def end_stage(self, stage: int, machine: DoubledRBM) -> None:
        """Take over weights and biases; after the last stage the bias of a layer between two machines is the average
        of theirs, half of each of their doubled inputs being the input from one side."""
        with torch.no_grad():
            self.weights[stage].copy_(machine.weight)
            self.biases[stage + 1].copy_(machine.hidden_bias)
            if stage == 0:
                self.biases[0].copy_(machine.visible_bias)
                self.layers[0].load_state_dict(machine.visible.state_dict())  # the widths of Gaussian units
                self._own_biases.clear()
            else:
                self._own_biases[stage] = machine.visible_bias.detach().clone()
            if stage == len(self.weights) - 1:
                for layer, bias in self._own_biases.items():
                    self.biases[layer].add_(bias).mul_(0.5)
                self._own_biases.clear()
