"""Learning to tell data from something else: noise whose density is known, candidates to rank, outsiders."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn.functional import softplus

from gibbsian.capabilities import Sampleable
from gibbsian.energy import Energy
from gibbsian.errors import ArgumentError, DataError, check_choice, check_number, hold_counts
from gibbsian.objectives.base import Batch, Loss, Objective, check_finite, finish, observed, observed_with
from gibbsian.objectives.noise import NAMED, FittedNoise, FlowNoise, given_noise
from gibbsian.objectives.perturbations import Proposal
from gibbsian.placement import check_rows


class ContrastWithNoise(Objective):
    """Data against noise: a name of one, one with options, or what else the subclass takes."""

    needs_energy: ClassVar[bool] = True

    noise: Any

    @property
    def source(self) -> Any:
        """The noise, looked up where it is a name."""
        return NAMED[self.noise] if isinstance(self.noise, str) else self.noise

    def signs(self, numbers: dict[str, float]) -> dict[str, str]:
        share = numbers.get("accuracy", 0.0)
        if share <= 0.99:
            return {}
        text = (
            f"the noise is too easy: {100 * share:.4g} % of it is told apart from the data, so it gives no gradient; "
        )
        return {"accuracy": text + "use noise closer to it, such as a fitted mixture or flow"}


class LearnedLogZ(nn.Module):
    """c, the log partition function as a parameter."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.log_z = nn.Parameter(start.detach().clone())


class NoiseState(NamedTuple):
    """The learned log Z, and the noise where it was fitted to the data."""

    normalizer: LearnedLogZ
    noise: nn.Module | None


@dataclass(frozen=True)
class NoiseContrastive(ContrastWithNoise):
    """E_data[ζ(-G)] + ν·E_noise[ζ(G)] with G = -E(x) - c - log p_n(x) - log ν, and c = log Z learned along.

    Logistic regression between data and ν noise draws per datum: no sampler, and the model comes out
    normalized. Both ν belong there: without the factor in front c tends to log Z - log ν, without that in G to
    log Z + log ν. With noise equal to the data's law the variance of an estimate is (1 + 1/ν) times the
    maximum-likelihood one; noise that is told apart at once gives no gradient, so watch the metric `accuracy` (½ is
    ideal, 1 is hopeless) and choose closer noise.

    Reference: Gutmann & Hyvärinen 2010, 2012; Gao et al. 2020 for flows trained along.

    Args:
        noise: "gaussian", "mixture" or "flow" on R^d, "uniform" in a box or on discrete units, "marginals" on
            discrete units; one of these with options, such as `FlowNoise(train=True)` or `MixtureNoise(20)`;
            an energy with `log_z()` and `sample()`; or a torch distribution over events.
        ratio: ν, noise draws per datum.

    The state holds `normalizer.log_z`; `gibbsian.fit` returns it as `run.log_z`. It starts at the importance
    estimate under the noise.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> energy = gb.energies.Gaussian(torch.zeros(2), torch.eye(2), trainable=True)
    >>> data = torch.randn(100, 2, generator=g)
    >>> objective = NoiseContrastive("gaussian", ratio=4)
    >>> state = objective.init(energy, data, g)
    >>> loss = objective(energy, data, state, g)
    >>> loss.value.backward()
    """

    noise: str | FittedNoise | Energy | Distribution = "gaussian"
    ratio: int = 1

    def __post_init__(self) -> None:
        hold_counts(self, "ratio")
        if isinstance(self.noise, str):
            check_choice(self, "noise", self.noise, tuple(NAMED))
        elif not isinstance(self.noise, FittedNoise | Sampleable):
            raise ArgumentError(
                f"NoiseContrastive(noise={self.noise!r}): give one of {', '.join(map(repr, NAMED))}, an "
                "energy with log_z() and sample(), or a torch distribution"
            )

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> NoiseState:
        self.check(energy, batch)
        x = observed_with(batch, generator)
        fitted = self.source.fit(energy.domain, x, generator) if isinstance(self.source, FittedNoise) else None
        noise = given_noise(self.noise, energy.domain, fitted)
        with torch.no_grad():
            y = noise.sample(max(1000, len(x)), generator=generator).to(x)  # type: ignore[operator]
            start = torch.logsumexp(-energy(y) - noise.log_prob(y), 0) - math.log(len(y))  # type: ignore[operator]
            if not bool(torch.isfinite(noise.log_prob(x)).all()):  # type: ignore[operator]
                raise DataError(
                    f"NoiseContrastive(noise={self.noise!r}): the noise has no density at some of the data, which would teach nothing; "
                    "give one that reaches as far as they do, such as noise='gaussian'"
                )
        check_finite(start, "the first estimate of log Z from the noise")
        return NoiseState(LearnedLogZ(start), fitted)

    def log_z(self, state: NoiseState) -> Tensor:
        return state.normalizer.log_z.detach()

    def __call__(self, energy: Any, batch: Batch, state: NoiseState, generator: torch.Generator) -> Loss:
        x = observed_with(batch, generator)
        n, c = len(x), state.normalizer.log_z
        noise = given_noise(self.noise, energy.domain, state.noise)
        with torch.no_grad():
            y = noise.sample(self.ratio * n, generator=generator).to(x)  # type: ignore[operator]
            both = torch.cat([x, y])
            log_noise = noise.log_prob(both)  # type: ignore[operator]
        energies = energy(both)
        log_ratio = -energies - c - log_noise
        g = log_ratio - math.log(self.ratio)
        value = softplus(-g[:n]).mean() + self.ratio * softplus(g[n:]).mean()
        with torch.no_grad():
            right = (log_ratio[:n] > 0).to(x).mean() + (log_ratio[n:] < 0).to(x).mean()
            metrics = {
                "accuracy": 0.5 * right,
                "log_z": c,
                "energy_data": energies[:n].mean(),
                "energy_noise": energies[n:].mean(),
            }
        if isinstance(self.source, FlowNoise) and self.source.train:
            noise_nll = -noise.log_prob(x).mean()  # type: ignore[operator]
            metrics["noise_nll"] = noise_nll
            value = value + noise_nll
        return finish(self, value, state, metrics)


@dataclass(frozen=True)
class RankingContrastive(ContrastWithNoise):
    """Pick the datum out of M candidates: no Z, so with `Conditional` no Z(x), and no sampler.

        ranking:  -log [ e^{-E(y₀)}/q(y₀) / Σ_{m=0..M} e^{-E(y_m)}/q(y_m) ]
        pairs:    mean_m ζ(E(y₀) - E(y_m)),   ζ the softplus; q symmetric

    Ranking with noise that does not depend on the datum is consistent for every M; with candidates around the
    datum (`Around`, `Flips`) it is the likelihood with Z estimated by importance sampling: exact as M grows,
    and the usual choice for regression. Pairs are consistent for every M with candidates around the datum.
    The metric `accuracy` is how often the datum ranks first.

    Reference: Ma & Collins 2018 (ranking); Gustafsson, Danelljan, Bhat & Schön 2020 (candidates around the
    datum); Ceylan & Gutmann 2018 (pairs).

    Args:
        noise: `Around(...)`, `Flips(...)`, or noise fitted to the outputs, as for `NoiseContrastive`: "gaussian",
            "mixture", "uniform", "marginals", or one of these with options.
        candidates: M.
        kind: "ranking" or "pairs".

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> model = gb.energies.ConditionalEnergy(gb.energies.PairMLP(3, 1), gb.domains.Real(1))
    >>> around = gb.objectives.Around((0.1, 1.0))
    >>> objective = gb.objectives.Conditional(RankingContrastive(around, candidates=16))
    >>> batch = torch.zeros(10, 3), torch.ones(10, 1)
    >>> objective(model, batch, objective.init(model, batch, g), g).value.backward()
    """

    noise: str | Proposal | FittedNoise = "gaussian"
    candidates: int = 32
    kind: str = "ranking"

    def __post_init__(self) -> None:
        hold_counts(self, "candidates")
        check_choice(self, "kind", self.kind, ("ranking", "pairs"))
        if isinstance(self.noise, str):
            check_choice(self, "noise", self.noise, tuple(NAMED))
        trained = isinstance(self.noise, FlowNoise) and self.noise.train
        if trained or not isinstance(self.source, Proposal | FittedNoise):
            raise ArgumentError(
                f"RankingContrastive(noise={self.noise!r}): give Around(...), Flips(...), one of "
                f"{', '.join(map(repr, NAMED))}, or one of these with options (but no flow trained along)"
            )
        if self.kind == "pairs" and not isinstance(self.noise, Proposal):
            raise ArgumentError(
                "RankingContrastive(kind='pairs') needs symmetric candidates: Around(...) or Flips(...)"
            )

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        if isinstance(self.noise, Proposal):
            self.noise.check(energy.domain)

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> tuple[nn.Module, ...]:
        self.check(energy, batch)
        if isinstance(self.noise, Proposal):
            return ()
        return (self.source.fit(energy.domain, observed(batch), generator).requires_grad_(False),)

    def __call__(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator) -> Loss:
        y = observed_with(batch, generator)
        n, m, domain = len(y), self.candidates, energy.domain
        with torch.no_grad():
            if isinstance(self.noise, Proposal):
                every = torch.cat([y[None], self.noise.draw(domain, y, m, generator)])
                log_q = self.noise.log_prob(domain, every, y)
            else:
                (noise,) = state
                drawn = noise.sample(m * n, generator=generator).to(y).reshape(m, *y.shape)
                every = torch.cat([y[None], drawn])
                log_q = noise.log_prob(every.flatten(0, 1)).reshape(m + 1, n)
        energies = energy(every.flatten(0, 1)).reshape(m + 1, n)  # rows fastest, as inputs repeat
        if self.kind == "pairs":
            value = softplus(energies[0] - energies[1:]).mean()
            first = energies[0] <= energies[1:].amin(0)
        else:
            score = -energies - log_q
            value = (torch.logsumexp(score, 0) - score[0]).mean()
            first = score[0] >= score[1:].amax(0)
        metrics = {
            "accuracy": first.to(y.dtype).mean(),
            "energy_data": energies[0].mean(),
            "energy_noise": energies[1:].mean(),
        }
        return finish(self, value, state, metrics)


class MarginState(NamedTuple):
    """The noise that was fitted to the data, where outsiders are drawn from one."""

    noise: nn.Module | None


@dataclass(frozen=True)
class EnergyMargin(Objective):
    """E_in[max(0, E(x) - m_in)²] + E_out[max(0, m_out - E(x))²]: data below one margin, outsiders above another.

    Fine-tunes a trained classifier or energy for detecting what lies outside its data: add it to the
    objective that keeps the model what it is, `Weighted([CrossEntropy(), EnergyMargin(...)], [1, 0.1])`. A
    hinge, not a likelihood: alone it gives energies that separate, with no density between the margins.
    Look at the energies of both sets before choosing: m_in about the median of the data's, m_out about that
    of the outsiders' or above.

    Reference: Liu, Wang, Owens & Li 2020.

    Args:
        outliers: rows `(n, *event)` to draw from (on the device of training, or they are copied every step),
            a fitted noise such as `objectives.UniformNoise()`, or anything with `sample(n, generator=)`.
        margin_in: m_in, above which the energy of data costs.
        margin_out: m_out, below which the energy of outsiders costs; above m_in.
        ratio: outsiders per row of data.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> joint = gb.models.JointEnergy(gb.energies.MLP(2, outputs=3), gb.domains.Real(2))
    >>> batch = torch.zeros(4, 2), torch.tensor([0, 1, 2, 0])
    >>> objective = gb.objectives.Weighted([
    ...     gb.objectives.CrossEntropy(), EnergyMargin(5 + torch.randn(50, 2, generator=g), -5.0, -1.0)])
    >>> objective(joint, batch, objective.init(joint, batch, g), g).value.backward()
    """

    needs_energy: ClassVar[bool] = True

    outliers: Any = field(compare=False, repr=False)
    margin_in: float
    margin_out: float
    ratio: float = 1.0

    def __post_init__(self) -> None:
        for name in ("margin_in", "margin_out"):
            check_number(self, name, getattr(self, name), -math.inf)
        check_number(self, "ratio", self.ratio, open_low=True)
        if not self.margin_in < self.margin_out:
            raise ArgumentError(
                f"EnergyMargin(margin_in={self.margin_in}, margin_out={self.margin_out}): outsiders belong above "
                "the data, so margin_in must be below margin_out"
            )
        if not isinstance(self.outliers, Tensor | FittedNoise | Sampleable):
            raise ArgumentError(
                f"EnergyMargin(outliers={type(self.outliers).__name__}): give a tensor of rows, a noise such as "
                "objectives.UniformNoise(), or an energy with sample()"
            )

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> MarginState:
        self.check(energy, batch)
        if isinstance(self.outliers, Tensor):
            check_rows(energy, self.outliers, "outliers")
        if isinstance(self.outliers, FittedNoise):
            return MarginState(self.outliers.fit(energy.domain, observed(batch), generator))
        return MarginState(None)

    def draw(self, energy: Any, x: Tensor, state: MarginState, generator: torch.Generator) -> Tensor:
        """Outsiders for a batch."""
        count = max(1, round(self.ratio * len(x)))
        if isinstance(self.outliers, Tensor):
            rows = torch.randint(len(self.outliers), (count,), generator=generator, device=x.device)
            return self.outliers[rows.to(self.outliers.device)].to(x)
        noise = given_noise(self.outliers, energy.domain, state.noise)
        with torch.no_grad():
            return noise.sample(count, generator=generator).to(x)  # type: ignore[operator]

    def __call__(self, energy: Any, batch: Batch, state: MarginState, generator: torch.Generator) -> Loss:
        x = observed_with(batch, generator)
        y = self.draw(energy, x, state, generator)
        inside, outside = energy(torch.cat([x, y])).split([len(x), len(y)])
        value = (inside - self.margin_in).relu().square().mean() + (self.margin_out - outside).relu().square().mean()
        metrics = {
            "energy_in": inside.mean(),
            "energy_out": outside.mean(),
            "kept_in": (inside < self.margin_in).to(x.dtype).mean(),
            "kept_out": (outside > self.margin_out).to(x.dtype).mean(),
        }
        return finish(self, value, state, metrics)
