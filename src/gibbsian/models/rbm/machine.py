"""Restricted Boltzmann machines: two layers of units, any pair of kinds that has a normalizer.

E(v, h) = E_v(v) + E_h(h) - φ(v)ᵀ W φ(h),    F(v) = E_v(v) - log Σ_h exp(-E_h(h) + φ(v)ᵀ W φ(h))
"""

from typing import Any

import torch
from torch import Tensor, nn

from gibbsian.capabilities import Contrast, Filters, Pairwise
from gibbsian.derivatives.known import with_gradients
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, CapabilityError, DivergenceError, check_choice
from gibbsian.fast.coins import coins
from gibbsian.fast.compiled import compiled_copy
from gibbsian.fast.logistic import Logistic
from gibbsian.models.annealing import small_weights
from gibbsian.models.pairwise import from_edges
from gibbsian.models.rbm import native, neighbors
from gibbsian.models.rbm.contrast import bernoulli_contrast
from gibbsian.models.rbm.fused import fused_contrast
from gibbsian.models.rbm.fused_path import BernoulliPath
from gibbsian.models.rbm.layers import HiddenMarginal, TwoLayers, copied
from gibbsian.models.rbm.path import RBMPath, visible_base
from gibbsian.placement import explained
from gibbsian.random import quick_uniforms, require_generator
from gibbsian.units import Bernoulli, Count, Gaussian, Joined, Natural, Softmax, Spin, Unit


class RBM(TwoLayers):
    """Restricted Boltzmann machine; `forward(v)` is its free energy, its domain that of the visible units.

        Bernoulli-Bernoulli:  E = -vᵀWh - b·v - c·h,   F(v) = -b·v - Σⱼ log(1 + exp(cⱼ + (vW)ⱼ))
        Gaussian-Bernoulli:   E = Σ(vᵢ-bᵢ)²/2σᵢ² - Σ(vᵢ/σᵢ)wᵢⱼhⱼ - c·h
        softmax, counts:      one-of-K rows of W; for counts the hidden bias is multiplied by the document length

    Two layers of unbounded units (Gaussian, rectified) have a normalizer only for small weights: that is
    checked at use. The model of choice for binary data with exact block Gibbs sampling; for images in
    color or strongly correlated real data a neural energy is better.

    Reference: Smolensky 1986; Hinton 2002; Welling, Rosen-Zvi & Hinton 2005 for other units.

    Args:
        visible: a number of Bernoulli units, or one of `gibbsian.units`; the machine keeps a copy.
        hidden: the same.
        products: "full" for matrix products in the precision of the parameters, "bf16" for half-precision
            products in `contrast`, with the parameters kept in theirs.
        generator: for the initial weights, N(0, 0.01²); a fixed seed where it is left out.

    Attributes:
        weight: `(visible.size, hidden.size)`.
        visible_bias, hidden_bias: b and c.

    >>> rbm = RBM(4, 3)
    >>> rbm(torch.zeros(2, 4)).shape, rbm.hidden_mean(torch.zeros(2, 4)).shape
    (torch.Size([2]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        visible: int | Unit,
        hidden: int | Unit,
        *,
        products: str = "full",
        generator: torch.Generator | None = None,
    ) -> None:
        visible, hidden = copied(visible, hidden)
        if isinstance(hidden, Count):
            raise ArgumentError("count units cannot be hidden: their number of words must be given; use units.Softmax")
        if isinstance(visible, Count) and hidden.real:
            raise ArgumentError(
                f"counts with {type(hidden).__name__} hidden units are not defined: the hidden bias grows with the "
                "document length; use Bernoulli, Spin or Softmax hidden units"
            )
        check_choice(self, "products", products, ("full", "bf16"))
        if products == "bf16" and not (isinstance(visible, Bernoulli) and isinstance(hidden, Bernoulli)):
            raise ArgumentError("products='bf16' is for Bernoulli layers, whose values are exact in half precision")
        super().__init__(visible.domain)
        self.visible, self.hidden, self.products = visible, hidden, products
        weight = small_weights(visible.size, hidden.size, generator=generator)
        self.weight = nn.Parameter(weight)
        self.visible_bias = nn.Parameter(weight.new_zeros(visible.size))
        self.hidden_bias = nn.Parameter(weight.new_zeros(hidden.size))

    # --- energies -----------------------------------------------------------------------------------

    def check_proper(self) -> None:
        """Raise where two unbounded layers are coupled so strongly that the law has no normalizer."""
        if not (self.visible.real and self.hidden.real):
            return
        gaussian = isinstance(self.visible, Gaussian), isinstance(self.hidden, Gaussian)
        weight = self.weight.detach()
        norm = float(torch.linalg.matrix_norm(weight if any(gaussian) else weight.clamp(min=0), 2))
        if not norm < 1:
            need = "exactly when" if all(gaussian) else "for sure when"
            what = "W" if any(gaussian) else "the positive part of W"
            raise DivergenceError(
                f"{type(self.visible).__name__} visible with {type(self.hidden).__name__} hidden units have a "
                f"normalizer {need} the largest singular value of {what} is below 1, and it is {norm:.4g}; "
                "scale the weights down, use weight decay, or use Bernoulli hidden units"
            )

    def hidden_natural(self, v: Tensor) -> Natural:
        """Natural parameters of h given v."""
        total = self.visible.total_of(v)
        bias = self.hidden_bias if total is None else total[:, None] * self.hidden_bias
        return self.hidden.natural(bias, self.visible.statistic(v) @ self.weight)

    def visible_natural(self, h: Tensor) -> Natural:
        """Natural parameters of v given h."""
        return self.visible.natural(self.visible_bias, self.hidden.statistic(h) @ self.weight.T)

    def own_energy(self, v: Tensor) -> Tensor:
        """F(v) without the cumulant of the hidden layer."""
        return self.visible.energy(v, self.visible_bias) + self.hidden.constant(self.hidden_bias)

    def joint(self, v: Tensor, h: Tensor) -> Tensor:
        """E(v, h), `(batch,)`."""
        total = self.visible.total_of(v)
        own = self.hidden.energy(h, self.hidden_bias)
        coupling = (self.visible.statistic(v) @ self.weight * self.hidden.statistic(h)).sum(1)
        return self.visible.energy(v, self.visible_bias) + (own if total is None else total * own) - coupling

    def hidden_energy(self, h: Tensor, *, total: Tensor | None = None) -> Tensor:
        """The energy of the hidden layer alone, -log Σ_v exp(-E(v, h)); for counts of documents of `total` words."""
        self.check_proper()
        cumulant = self.visible.log_partition(self.visible_natural(h), total) - self.visible.constant(self.visible_bias)
        own = self.hidden.energy(h, self.hidden_bias)
        if isinstance(self.visible, Count):
            own = own * (self.visible.noise_size() if total is None else total)
        return own - cumulant

    def filters(self) -> Filters:
        """What each hidden unit looks for."""
        return Filters(self.weight)

    # --- partition functions ------------------------------------------------------------------------

    def of_length(self, total: int) -> Energy:
        """The hidden layer of documents of `total` words."""
        return HiddenMarginal(self, total)

    def pairwise(self) -> Pairwise:
        """Both layers as {0, 1} units."""
        low = []
        for layer in (self.visible, self.hidden):
            if not isinstance(layer, Bernoulli | Spin):
                raise CapabilityError(
                    f"a pairwise form needs two-valued units, this RBM has {type(layer).__name__} ones; use "
                    "partition.ais, or partition.exact where one layer is small"
                )
            low.append(self.weight.new_full((layer.n,), -1.0 if isinstance(layer, Spin) else 0.0))
        with torch.no_grad():
            nv, nh = self.weight.shape
            unit = torch.arange(nv + nh, device=self.weight.device)
            i, j = unit[:nv].repeat_interleave(nh), unit[nv:].repeat(nv)
            return from_edges(
                i, j, self.weight.flatten(), torch.cat([self.visible_bias, self.hidden_bias]), torch.cat(low)
            )

    def path(self, base_bias: Tensor | None = None, *, data: Tensor | None = None) -> RBMPath:
        """The annealing path from independent units to this machine, for annealed importance sampling.

        Args:
            base_bias: b^A, the visible bias of the base; 0 where it is left out.
            data: fit the base to it instead (base rates; for Gaussian units means and variances).
        """
        base = visible_base(self.visible, self.weight.detach(), base_bias, data)
        base = self.visible.base(self.weight) if base is None else base
        if self.bernoulli:  # the fused path, else its plain twin
            return BernoulliPath(self, base, self.weight, self.hidden_bias)
        return RBMPath(self, base)

    # --- learning -----------------------------------------------------------------------------------

    def initialize_visible_bias(self, data: Tensor) -> None:
        """Set the visible bias so that the machine without weights has the means of the data (Hinton 2012)."""
        self.domain.check(data, "data")
        with torch.no_grad():
            self.visible_bias.copy_(self.visible.fit_bias(data.to(self.visible_bias)))

    def contrast(
        self, batch: Tensor, chains: Tensor | None, steps: int, generator: torch.Generator, *, fused: bool = False
    ) -> Contrast:
        """F(batch).mean() - F(samples).mean() and the samples, `steps` sweeps from `chains` or from the batch.

        With Bernoulli layers every product is done once: five for CD-1, six with persistent chains. Their
        gradients are known then.
        """
        require_generator(generator, batch.device)
        if steps < 1:
            raise ArgumentError(f"contrast(steps={steps}): at least one sweep is needed")
        labels = self._labels() if isinstance(self.hidden, Bernoulli) else None
        if labels is not None:
            return self._bernoulli_contrast(batch, chains, steps, generator, labels, fused)
        x = self.swept(batch if chains is None else chains, steps, generator)
        return Contrast(self(batch).mean() - self(x).mean(), x)

    def _bernoulli_contrast(
        self, batch: Tensor, chains: Tensor | None, steps: int, generator: torch.Generator, labels: int, fused: bool
    ) -> Contrast:
        """The same in closed form, eagerly or by its compiled twin."""
        with torch.no_grad():
            master, b, c = (p.detach() for p in (self.weight, self.visible_bias, self.hidden_bias))
            weight = master.bfloat16() if self.products == "bf16" else master
            starts = [batch] if chains is None else [batch, chains]
            rows = len(starts[-1])
            count = rows * (len(b) + len(c))
            where: Any = {"dtype": b.dtype, "device": b.device}
            if fused:
                uniforms = [quick_uniforms(count, generator, **where) for _ in range(steps)]
                twin = compiled_copy(fused_contrast, len(batch), rows, steps, *weight.shape, weight.dtype, labels)
                value, samples, gradients = twin(weight, b, c, batch, chains, uniforms, labels)
            elif not labels and native.serves(weight, (b, c), starts):
                value, samples, gradients = native.native_contrast(weight, b, c, batch, chains, steps, generator)
            else:
                up, down = Logistic.of(c, weight), Logistic.of(b, weight.T)
                noise = (coins(count, generator, **where, seen=labels > 0) for _ in range(steps))
                value, samples, gradients = bernoulli_contrast(up, down, batch, chains, noise, labels)
        value, known = with_gradients(value, [self.weight, self.visible_bias, self.hidden_bias], gradients)
        return Contrast(value, samples, known)

    @explained
    def neighbor_gaps(self, x: Tensor, units: Tensor | None = None) -> Tensor | None:
        """F(x) - F(x̄ᵢ) where visible units have two values and hidden biases enter linearly; see `neighbors`."""
        own = self._couplings()
        return None if own is None else neighbors.gaps(own, x.flatten(1), units)

    def gap_gradients(self, x: Tensor, weight: Tensor, units: Tensor | None = None) -> dict[Tensor, Tensor]:
        """The gradients of Σ weight·gap."""
        own = self._couplings()
        if own is None:
            raise CapabilityError(f"neighbors of {self.visible} are not compared by their gaps; ask for their energies")
        found = neighbors.gradients(own, x.flatten(1), weight, units)
        return dict(zip([self.weight, self.visible_bias, self.hidden_bias], found, strict=True))

    def _couplings(self) -> neighbors.Couplings | None:
        own = all(
            getattr(type(self), name) is getattr(RBM, name) for name in ("forward", "free_energy", "hidden_natural")
        )
        if not own or type(self.visible) not in (Bernoulli, Spin) or not self.hidden.linear:
            return None
        w, b, c = (p.detach() for p in (self.weight, self.visible_bias, self.hidden_bias))
        return neighbors.Couplings(w, b, c, self.hidden, -1.0 if isinstance(self.visible, Spin) else 0.0)

    def linear_biases(self) -> bool:
        """Whether both layers are Bernoulli, Spin or Softmax units, so that the gradient can be centered."""
        return self.visible.linear and self.hidden.linear

    def layer_parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        """The weight, and both biases."""
        return [self.weight], [self.visible_bias, self.hidden_bias]

    @explained
    def layer_means(self, x: Tensor, steps: int = 1) -> list[Tensor]:
        """φ(v) and E[φ(h) | v] of the rows."""
        return [self.visible.statistic(x), self.hidden.statistic(self.hidden_mean(x))]

    @property
    def bernoulli(self) -> bool:
        """Are both layers plain Bernoulli units?"""
        return type(self.visible) is type(self.hidden) is Bernoulli

    def _labels(self) -> int | None:
        """How many classes of one softmax unit stand before Bernoulli visible units; None for other layers."""
        parts = self.visible.layers if isinstance(self.visible, Joined) else [self.visible]
        label, rest = (parts[0], parts[1:]) if isinstance(parts[0], Softmax) and len(parts) > 1 else (None, parts)
        if len(rest) != 1 or type(rest[0]) is not Bernoulli or (label is not None and label.n != 1):
            return None
        return 0 if label is None else label.size
