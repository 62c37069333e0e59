"""Mean-field inference in deep Boltzmann machines, and the bound on log p(v) that it gives.

q(h|v) = Πₗ q(hˡ),   μˡ = σ(cˡ + φ(μ^{l-1})Wˡ + W^{l+1}φ(μ^{l+1})),   log Σ_h exp(-E(v, h)) ≥ -E(v, μ) + H(μ)
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError
from gibbsian.models.dbm.exact import EnumerableMachine
from gibbsian.models.dbm.layers import LayeredMachine
from gibbsian.units import Natural, Unit


class Posterior(NamedTuple):
    """What mean-field inference found, hidden layers from the bottom up.

    Attributes:
        means: E_q[hˡ], events of each layer; for Bernoulli units probabilities.
        naturals: natural parameters of each layer, `(batch, size)`: q(hˡ) ∝ exp(ηˡ·φ(hˡ)).
        iterations: how many were done.
        residual: by how much the last iteration changed a mean at most; 0 at a fixed point.
        converged: whether that is below the tolerance; None where none was given.
    """

    means: tuple[Tensor, ...]
    naturals: tuple[Tensor, ...]
    iterations: int
    residual: Tensor
    converged: bool | None


def start(dbm: LayeredMachine, v: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Where inference starts: one pass up with the input of inner layers doubled, as they miss that from above.

    Returns c¹ + φ(v)W¹, which never changes, and natural parameters and statistics of the layers (φ(v) first).
    """
    seen = [dbm.layers[0].statistic(v)]
    below = torch.addmm(dbm.biases[1], seen[0], dbm.weights[0])
    naturals = []
    for i in range(1, len(dbm.layers)):
        inner = i + 1 < len(dbm.layers)
        if i == 1:
            natural = torch.sub(2 * below, dbm.biases[1]) if inner else below
        else:
            natural = torch.addmm(dbm.biases[i], seen[-1], dbm.weights[i - 1], alpha=2.0 if inner else 1.0)
        naturals.append(natural)
        seen.append(statistic(dbm.layers[i], natural))
    return below, naturals, seen


def statistic(unit: Unit, natural: Tensor) -> Tensor:
    """E[φ(h)] of discrete units with these natural parameters, `(batch, size)`."""
    return unit.mean(Natural(natural)).flatten(1)


def update(
    dbm: LayeredMachine, parity: int, seen: list[Tensor], below: Tensor, naturals: list[Tensor], damping: float = 0.0
) -> None:
    """One half-iteration in place: the layers of a parity from their neighbors' means, `below` the input c¹ + φ(v)W¹
    of the first one, which does not change. Coordinate ascent: without damping the bound never falls."""
    for i in range(2 - parity, len(dbm.layers), 2):
        natural = below if i == 1 else torch.addmm(dbm.biases[i], seen[i - 1], dbm.weights[i - 1])
        if i + 1 < len(dbm.layers):
            natural = torch.addmm(natural, seen[i + 1], dbm.weights[i].T)
        naturals[i - 1] = torch.lerp(natural, naturals[i - 1], damping) if damping else natural
        seen[i] = statistic(dbm.layers[i], naturals[i - 1])


def odd_term(unit: Unit, own: Tensor, natural: Tensor, mean: Tensor) -> Tensor:
    """own·μ + H(μ) of a layer, `(batch,)`: H = log-partition - η·μ."""
    return ((own - natural) * mean).sum(1) + unit.log_partition(Natural(natural))


class InferredMachine(EnumerableMachine):
    """Layers in a row with the posteriors of the hidden ones: by mean field, and exactly where these are small."""

    def infer(
        self, v: Tensor, *, iterations: int = 50, tolerance: float | None = 1e-5, damping: float = 0.0
    ) -> Posterior:
        """Mean-field posteriors of the hidden layers.

            ηˡ ← damping·ηˡ + (1 - damping)(cˡ + φ(μ^{l-1})Wˡ + W^{l+1}φ(μ^{l+1})),   odd layers, then even ones

        from a pass upwards with doubled inputs. Without damping every half-iteration raises the bound, so it converges,
        to a local optimum; damping (of natural parameters, so that μ stays a mean) can help to other optima and never
        changes the fixed points.

        Args:
            v: visible states `(batch, *event)`; gray values in [0, 1] are taken as means of Bernoulli units.
            iterations: most of them; exactly so many without a tolerance.
            tolerance: stop when no mean changes by more; None never looks, so that nothing waits for the device.
            damping: in [0, 1).

        >>> import gibbsian as gb
        >>> posterior = gb.models.DBM(4, 3, 2).infer(torch.ones(2, 4))
        >>> posterior.converged, posterior.iterations < 50
        (True, True)
        """
        if iterations < 1 or not 0 <= damping < 1:
            raise ArgumentError(
                f"iterations={iterations}, damping={damping}: at least one iteration, damping in [0, 1)"
            )
        with torch.no_grad():
            below, naturals, seen = start(self, v)
            for done in range(1, iterations + 1):
                before = list(seen)
                update(self, 1, seen, below, naturals, damping)
                update(self, 0, seen, below, naturals, damping)
                if tolerance is not None or done == iterations:
                    changes = [(a - b).abs().max() for a, b in zip(seen[1:], before[1:], strict=True)]
                    residual = torch.stack(changes).max()
                converged = None if tolerance is None else bool(residual <= tolerance)
                if converged:
                    break
            means = [unit.mean(Natural(n)) for unit, n in zip(self.layers[1:], naturals, strict=True)]
            return Posterior(tuple(means), tuple(naturals), done, residual, converged)

    def log_mass_bound(
        self,
        x: Tensor,
        *,
        iterations: int = 50,
        tolerance: float | None = 1e-5,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """A lower bound on log Σ_h exp(-E(v, h)), `(batch,)`: -E(v, μ) + H(μ) at the mean-field posterior μ.

        Given the μ of the odd layers the even ones can be summed out on average:
        Σ_odd [η⁰·φ(μ) + H(μ)] + Σ_even log Σ exp(natural(φ(μ_odd))), η⁰ the input from v and the bias.
        Nothing is drawn, so that the generator, which other machines need, is not looked at.
        """
        with torch.no_grad():
            naturals = self.infer(x, iterations=iterations, tolerance=tolerance).naturals
            visible = self.layers[0].statistic(x)
            seen = [visible, *(statistic(u, n) for u, n in zip(self.layers[1:], naturals, strict=True))]
            total = -self.layers[0].energy(x, self.biases[0])
            for i, unit in enumerate(self.layers):
                if i % 2:
                    own = self.biases[i] if i > 1 else torch.addmm(self.biases[1], visible, self.weights[0])
                    total = total + odd_term(unit, own, naturals[i - 1], seen[i])
                elif i:
                    total = total + unit.log_partition(self.natural(i, seen))
            return total

    def draw_hidden(self, v: Tensor, *, generator: torch.Generator, steps: int = 100) -> list[Tensor]:
        """h¹, h², ... ~ p(h | v): exactly where the hidden states can be enumerated, else after `steps` Gibbs sweeps
        with v clamped that start from the mean-field posterior."""
        with torch.no_grad():
            if self.sums_exactly():
                return self.exact_hidden(v, tuple(part[0] for part in self.gibbs_noise(v, 1, generator)))
            numbers = self.numbers(v, generator)
            values: list[Tensor | None] = [v]
            for i, natural in enumerate(self.infer(v).naturals, start=1):
                values.append(self.layers[i].sample(Natural(natural), numbers[i]))
            for _ in range(steps):
                numbers = self.numbers(v, generator)
                values = self.resample(self.resample(values, 1, numbers), 0, numbers, visible=False)
            return values[1:]  # type: ignore[return-value]
