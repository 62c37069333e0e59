"""The spike-and-slab RBM: hidden units that are binary times real, for the covariance of real data."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gibbsian.capabilities import Contrast, Filters, Path
from gibbsian.derivatives.known import with_gradients
from gibbsian.domains import Binary, Real
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, ShapeError, check_count, check_number
from gibbsian.fast.coins import coins
from gibbsian.fast.logistic import mean_and_softplus
from gibbsian.models.annealing import Machine, small_weights
from gibbsian.models.rbm.layers import HiddenMarginal
from gibbsian.placement import explained
from gibbsian.random import normals, require_generator, uniforms
from gibbsian.units.binary import below

_LOG_2PI = math.log(2 * math.pi)


class _Law(NamedTuple):
    """The machine itself, at another temperature, or on the way from a base: what its conditionals are made of.

    v has precision Λ and linear term η, slabs couple to it with strength β (1 where that is None). At a
    temperature slabs have precision βα; on the way from a base they keep α.
    """

    precision: Tensor
    linear: Tensor
    beta: Tensor | None = None
    annealed: bool = False


class SpikeSlabRBM(Machine):
    """Spike-and-slab RBM over real v: every hidden unit is a binary spike h times a real slab s.

        E(v, h, s) = ½Σλᵢvᵢ² - b·v - Σⱼ hⱼsⱼ(wⱼ·v) + ½Σαⱼsⱼ² - Σαⱼμⱼsⱼhⱼ + ½Σαⱼμⱼ²hⱼ - c·h
        λᵢ = λ⁰ᵢ + Σⱼ |wᵢⱼ| ‖wⱼ‖₁ / αⱼ,   α, λ⁰ > 0
        F(v) = ½vᵀΛv - b·v - Σⱼ softplus(cⱼ + μⱼuⱼ + uⱼ²/2αⱼ) - ½Σ log(2π/αⱼ),   u = vW

    Given the spikes v is Gaussian with precision Λ - Σ hⱼwⱼwⱼᵀ/αⱼ: each spike that is on lets v vary along its
    weights, so the machine models covariance where a Gaussian RBM models means alone. In the usual form the
    precision can lose its sign and the law its normalizer; here Λ grows with the weights and dominates the sum
    whatever they are, so no training step can leave the space of proper laws. λ depends on W, and the gradient
    knows.

    Reference: Courville, Bergstra & Bengio 2011; the choice of Λ makes the precision diagonally dominant.

    Args:
        visible: number of real visible units.
        hidden: number of spikes with their slabs.
        precision: λ⁰ to start from; α starts at 1 and μ at 0.
        generator: for the initial weights, N(0, 0.01²); a fixed seed where it is left out.

    Attributes:
        weight: W `(visible, hidden)`; visible_bias b, hidden_bias c, slab_mean μ, log_slab_precision log α,
            log_precision log λ⁰.

    >>> model = SpikeSlabRBM(4, 3)
    >>> model(torch.zeros(2, 4)).shape, model.hidden_mean(torch.zeros(2, 4)).shape
    (torch.Size([2]), torch.Size([2, 3]))
    """

    def __init__(
        self, visible: int, hidden: int, *, precision: float = 1.0, generator: torch.Generator | None = None
    ) -> None:
        for name, size in (("visible", visible), ("hidden", hidden)):
            check_count(self, name, size)
        check_number(self, "precision", precision, open_low=True)
        super().__init__(Real(visible))
        weight = small_weights(visible, hidden, generator=generator)
        self.weight = nn.Parameter(weight)
        self.visible_bias = nn.Parameter(weight.new_zeros(visible))
        self.hidden_bias = nn.Parameter(weight.new_zeros(hidden))
        self.slab_mean = nn.Parameter(weight.new_zeros(hidden))
        self.log_slab_precision = nn.Parameter(weight.new_zeros(hidden))
        self.log_precision = nn.Parameter(weight.new_full((visible,), math.log(precision)))

    # --- energies -----------------------------------------------------------------------------------

    @property
    def slab_precision(self) -> Tensor:
        """α."""
        return self.log_slab_precision.exp()

    def precision(self) -> Tensor:
        """λ, the diagonal of Λ."""
        size = self.weight.abs()
        return self.log_precision.exp() + size @ (size.sum(0) / self.slab_precision)

    def joint(self, v: Tensor, h: Tensor, s: Tensor) -> Tensor:
        """E(v, h, s), `(batch,)`."""
        alpha, mu = self.slab_precision, self.slab_mean
        own = 0.5 * (v.square() @ self.precision()) - v @ self.visible_bias - h @ self.hidden_bias
        slabs = 0.5 * (s.square() @ alpha) - (s * h) @ (alpha * mu) + 0.5 * (h @ (alpha * mu.square()))
        return own + slabs - (h * s * (v @ self.weight)).sum(1)

    def _law(self, beta: Tensor | None = None) -> _Law:
        """The machine itself, or with joint energy βE."""
        if beta is None:
            return _Law(self.precision(), self.visible_bias)
        column = beta[:, None] if beta.dim() else beta
        return _Law(column * self.precision(), column * self.visible_bias, column)

    def _logits(self, u: Tensor, law: _Law) -> Tensor:
        """log p(h = 1 | v) - log p(h = 0 | v)."""
        alpha, mu, c = self.slab_precision, self.slab_mean, self.hidden_bias
        logits = torch.addcmul(c, u, torch.addcmul(mu, u, 0.5 / alpha))
        if law.beta is None:
            return logits
        if law.annealed:
            logits = c + law.beta * (logits - c) - (1 - law.beta) * 0.5 * alpha * mu.square()
        return law.beta * logits

    def _log_slab(self, law: _Law) -> Tensor:
        """The logarithm of the slabs' precision."""
        log_alpha: Tensor = self.log_slab_precision
        return log_alpha if law.beta is None or law.annealed else log_alpha + law.beta.log()

    def _free_energy(self, v: Tensor, logits: Tensor, law: _Law) -> Tensor:
        own = (v * torch.addcmul(-law.linear, v, 0.5 * law.precision)).sum(1)
        return own - F.softplus(logits).sum(1) - 0.5 * (_LOG_2PI - self._log_slab(law)).sum(-1)

    @explained
    def free_energy(self, v: Tensor, beta: Tensor | None = None) -> Tensor:
        """The free energy of the machine with joint energy βE; β a number or one per row."""
        law = self._law(beta)
        return self._free_energy(v, self._logits(v @ self.weight, law), law)

    def hidden_energy(self, h: Tensor) -> Tensor:
        """-log ∫ exp(-E(v, h, s)) dv ds of spikes alone: log Z is the log-sum of its negative over all h.

        With M_h = I - diag(h) G diag(h), G = α^-½ WᵀΛ⁻¹W α^-½, and m_h = b + Σ hⱼμⱼwⱼ the covariance of v given h is
        C_h = Λ⁻¹ + Λ⁻¹W_h α^-½ M_h⁻¹ α^-½ W_hᵀΛ⁻¹: matrices of the size of the hidden layer only.
        """
        inverse, root = 1 / self.precision(), torch.exp(-0.5 * self.log_slab_precision)
        scaled = self.weight * root  # W α^-½
        gram = scaled.T @ (inverse[:, None] * scaled)
        inner = torch.eye(len(gram), dtype=gram.dtype, device=gram.device) - h[:, :, None] * gram * h[:, None]
        factor = torch.linalg.cholesky(inner)
        m = self.visible_bias + (h * self.slab_mean) @ self.weight.T
        seen = h * ((m * inverse) @ scaled)
        solved = torch.cholesky_solve(seen[:, :, None], factor).squeeze(2)
        quadratic = (m.square() @ inverse) + (seen * solved).sum(1)
        log_det = inverse.log().sum() - 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
        constant = 0.5 * (_LOG_2PI - self.log_slab_precision).sum() + 0.5 * len(m[0]) * _LOG_2PI
        return -(constant + h @ self.hidden_bias + 0.5 * (quadratic + log_det))

    # --- conditionals -------------------------------------------------------------------------------

    @explained
    def hidden_mean(self, v: Tensor) -> Tensor:
        """p(hⱼ = 1 | v), the slabs integrated out."""
        return torch.sigmoid(self._logits(v @ self.weight, self._law()))

    def slab_mean_given(self, v: Tensor, h: Tensor) -> Tensor:
        """E[s | v, h] = h (μ + u/α); the variance is 1/α."""
        return h * (self.slab_mean + (v @ self.weight) / self.slab_precision)

    def visible_mean(self, h: Tensor, s: Tensor) -> Tensor:
        """E[v | h, s]; the variances are 1/λ."""
        return (self.visible_bias + (h * s) @ self.weight.T) / self.precision()

    @explained
    def reconstruct(self, v: Tensor) -> Tensor:
        """E[v | E[h | v], E[s | v, h = 1]]: one mean-field pass up and down."""
        on = torch.ones_like(self.slab_mean)
        return self.visible_mean(self.hidden_mean(v), self.slab_mean_given(v, on))

    # --- Gibbs sampling -----------------------------------------------------------------------------

    def gibbs_noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Uniforms for the spikes, normals for the slabs and the visible units."""
        require_generator(generator, x.device)
        n, (d, k) = len(x), self.weight.shape
        spikes, rest = [], []
        for _ in range(steps):  # two kinds of numbers: drawn in turn, or the cut would matter
            spikes.append(uniforms(1, n * k, generator, dtype=x.dtype, device=x.device))
            rest.append(normals(1, n * (k + d), generator, dtype=x.dtype, device=x.device))
        return torch.cat(spikes).unflatten(1, (n, k)), torch.cat(rest).unflatten(1, (n, k + d))

    def gibbs_sweep(
        self, x: Tensor, noise: tuple[Tensor, ...], clamp: Tensor | None = None, beta: Tensor | None = None
    ) -> Tensor:
        """h ~ p(h | v) with the slabs integrated out, s ~ p(s | v, h), then v ~ p(v | s, h) where not `clamp`."""
        with torch.no_grad():
            law, u = self._law(beta), x @ self.weight
            return self._resample(x, u, below(noise[0], torch.sigmoid(self._logits(u, law))), law, noise[1], clamp)

    def _resample(
        self, v: Tensor, u: Tensor, spikes: Tensor, law: _Law, noise: Tensor, clamp: Tensor | None = None
    ) -> Tensor:
        slab, visible = noise.split(list(self.weight.T.shape), 1)
        active = torch.addcmul(self.slab_mean, u, 1 / self.slab_precision)
        if law.annealed and law.beta is not None:
            active = law.beta * active
        active = torch.addcmul(active, slab, torch.exp(-0.5 * self._log_slab(law)))
        inside = (spikes * active) @ self.weight.T  # slabs behind closed spikes are not seen
        if law.beta is not None:
            inside = law.beta * inside
        new = torch.addcmul((law.linear + inside) / law.precision, visible, law.precision.rsqrt())
        return new if clamp is None else torch.where(clamp, v, new)

    def marginals(self) -> Sequence[Energy]:
        """The spikes, visible units and slabs integrated out."""
        return [HiddenMarginal(self, domain=Binary(len(self.hidden_bias)))]

    def path(self, base_bias: Tensor | None = None, *, data: Tensor | None = None) -> "SpikeSlabPath":
        """The annealing path from independent Gaussian units to this machine, fitted to `data` or of unit scale."""
        if base_bias is not None:
            raise ArgumentError("the base of a SpikeSlabRBM is fitted to data=, or a normalized energy given to ais")
        unit = torch.zeros_like(self.visible_bias), torch.ones_like(self.visible_bias)
        return SpikeSlabPath(self, *(unit if data is None else self._moments(data)))

    def filters(self) -> Filters:
        """What each hidden unit looks for."""
        return Filters(self.weight)

    # --- learning -----------------------------------------------------------------------------------

    def _moments(self, data: Tensor) -> tuple[Tensor, Tensor]:
        self.domain.check(data, "data")
        spread = data.to(self.visible_bias).var(0, correction=0)
        if len(data) < 2 or not bool((spread > 0).all()):
            raise ArgumentError("data must vary in every entry; drop constant columns first")
        return data.to(self.visible_bias).mean(0), 1 / spread

    def initialize_visible_bias(self, data: Tensor) -> None:
        """Set b and λ⁰ so that the machine without weights has the means and variances of the data."""
        mean, precision = self._moments(data)
        with torch.no_grad():
            self.visible_bias.copy_(mean * precision)
            self.log_precision.copy_(precision.log())

    def contrast(
        self, batch: Tensor, chains: Tensor | None, steps: int, generator: torch.Generator, *, fused: bool = False
    ) -> Contrast:
        """F(batch).mean() - F(samples).mean() and the samples, with five products (six with persistent chains); the
        gradients are known."""
        require_generator(generator, batch.device)
        if steps < 1:
            raise ArgumentError(f"contrast(steps={steps}): at least one sweep is needed")
        with torch.no_grad():
            value, v, gradients = self._contrast(batch, chains, steps, generator)
        pairs = [(p, gradients[name]) for name, p in self.named_parameters() if p.requires_grad]
        value, known = with_gradients(value, [p for p, _ in pairs], [g for _, g in pairs])
        return Contrast(value, v, known)

    def _contrast(
        self, batch: Tensor, chains: Tensor | None, steps: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Value, samples and gradients in closed form: ∂F/∂a = -σ(a) for the logits a = c + μu + u²/2α, and through λ
        ∂/∂wᵢⱼ = sign(wᵢⱼ)(ℓᵢ‖wⱼ‖₁ + Σₖℓₖ|wₖⱼ|)/αⱼ with ℓ = ∂/∂λ."""
        alpha, mu, (d, k) = self.slab_precision, self.slab_mean, self.weight.shape
        inverse = 1 / alpha
        size = self.weight.abs()
        norms = size.sum(0)
        law = _Law(self.log_precision.exp() + size @ (norms * inverse), self.visible_bias)

        def up(x: Tensor) -> tuple[Tensor, Tensor, Tensor | float]:
            u = x @ self.weight
            return u, *mean_and_softplus(self._logits(u, law))

        u, p, softplus = data = up(batch)
        v, n, m = batch, len(batch), len(batch if chains is None else chains)
        if chains is not None:
            v = chains
            u, p, softplus = up(v)
        for _ in range(steps):
            spikes = coins(m * k, generator, dtype=v.dtype, device=v.device).flip(p)
            rest = torch.randn(m, k + d, generator=generator, dtype=v.dtype, device=v.device)
            v = self._resample(v, u, spikes, law, rest)
            u, p, softplus = up(v)
        # means over rows of what multiplies each parameter, data with a minus: ∂/∂c, ∂/∂u and the moments of v
        ends = []
        for (at, on, _), share in ((data, -1 / n), ((u, p, softplus), 1 / m)):
            to_u = torch.addcmul(mu, at, inverse).mul_(on)
            seen = on * at
            ends.append((to_u, on.sum(0) * share, seen.sum(0) * share, (seen * at).sum(0) * share))
        weight = torch.addmm(batch.new_empty(()), batch.T, ends[0][0], beta=0, alpha=-1 / n)
        weight.addmm_(v.T, ends[1][0], alpha=1 / m)
        to_c, to_mu, twice = (a + b for a, b in zip(ends[0][1:], ends[1][1:], strict=True))
        to_b = v.mean(0) - batch.mean(0)
        to_precision = 0.5 * (torch.linalg.vecdot(batch, batch, dim=0) / n - torch.linalg.vecdot(v, v, dim=0) / m)
        along = to_precision @ size  # Σₖ ℓₖ|wₖⱼ|
        sign = torch.sgn(self.weight, out=size)
        weight.addcmul_(sign, along * inverse).addcmul_(sign.mul_(norms * inverse), to_precision[:, None])
        gap = data[2] / n - softplus / m
        value = torch.dot(to_precision, law.precision) + torch.dot(to_b, self.visible_bias) - gap
        gradients = {
            "weight": weight,
            "visible_bias": to_b,
            "hidden_bias": to_c,
            "slab_mean": to_mu,
            "log_slab_precision": -(0.5 * twice + along * norms) * inverse,
            "log_precision": to_precision * self.log_precision.exp(),
        }
        return value, v, gradients

    def extra_repr(self) -> str:
        return f"visible={len(self.visible_bias)}, hidden={len(self.hidden_bias)}"


class SpikeSlabPath(Path):
    """From independent Gaussian units to the machine, slabs of precision α all along:

        E_β = (1-β) [½(v-m)ᵀΛ_A(v-m) + ½Σαs²] + βE(v, h, s)

    Every member is a spike-and-slab machine with exact conditionals, and the base is normalized exactly.

    >>> path = SpikeSlabRBM(4, 3).path()
    >>> path.log_z0()  # 2 log 2π + 1.5 log 2π + 3 log 2
    tensor(8.5120)
    """

    def __init__(self, machine: SpikeSlabRBM, mean: Tensor, precision: Tensor) -> None:
        if mean.shape != machine.visible_bias.shape or precision.shape != mean.shape:
            raise ShapeError(f"the base has {tuple(mean.shape)} means, expected {tuple(machine.visible_bias.shape)}")
        self.machine, self.domain = machine, machine.domain
        self.mean, self.base_precision = mean.detach(), precision.detach()

    def log_z0(self) -> Tensor:
        """log Z of the base, exactly."""
        alpha = self.machine.log_slab_precision.detach()
        visible = 0.5 * (_LOG_2PI - self.base_precision.log()).sum()
        return visible + 0.5 * (_LOG_2PI - alpha).sum() + len(alpha) * math.log(2)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        require_generator(generator, self.mean.device)
        count = n * len(self.mean)
        z = normals(1, count, generator, dtype=self.mean.dtype, device=self.mean.device).reshape(n, -1)
        return self.mean + z * self.base_precision.rsqrt()

    def _law(self, beta: Tensor) -> _Law:
        beta = beta.to(self.mean)
        rest = (1 - beta) * self.base_precision
        linear = rest * self.mean + beta * self.machine.visible_bias
        return _Law(rest + beta * self.machine.precision(), linear, beta, annealed=True)

    def _energy(self, v: Tensor, u: Tensor, beta: Tensor) -> Tensor:
        law = self._law(beta)
        constant = 0.5 * (1 - beta.to(v)) * (self.base_precision * self.mean.square()).sum()
        return self.machine._free_energy(v, self.machine._logits(u, law), law) + constant

    def energy(self, v: Tensor, beta: float | Tensor) -> Tensor:
        """The free energy at β, spikes and slabs summed out."""
        return self._energy(v, v @ self.machine.weight, torch.as_tensor(beta))

    def noise(self, x: Tensor, steps: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        return self.machine.gibbs_noise(x, steps, generator)

    def anneal(self, x: Tensor, beta: Tensor, next_beta: Tensor, noise: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            u, law = x @ self.machine.weight, self._law(next_beta)
            increment = self._energy(x, u, beta) - self._energy(x, u, next_beta)
            p = torch.sigmoid(self.machine._logits(u, law))
            return self.machine._resample(x, u, below(noise[0], p), law, noise[1]), increment
