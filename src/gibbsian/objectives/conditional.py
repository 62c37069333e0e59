"""Learning of conditional models: any objective, with the input of every row held."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from gibbsian.capabilities import Family, SplittingModel
from gibbsian.errors import CapabilityError, DataError
from gibbsian.kernels.base import where_chain
from gibbsian.kernels.tempering import ParallelTempering
from gibbsian.objectives.base import Batch, Loss, Objective, Step, WrappedObjective, dealt, finish, within
from gibbsian.objectives.chains import walk
from gibbsian.objectives.first_rows import FirstRows
from gibbsian.objectives.matching import EnergyMatching
from gibbsian.objectives.persistent import PersistentContrastiveDivergence, written
from gibbsian.objectives.starts import start_points
from gibbsian.random import require_generator


class BoundChains(NamedTuple):
    """Persistent chains `(slots, *event)` and the input that each is bound to."""

    x: Tensor
    condition: Tensor


@dataclass(frozen=True)
class Conditional(WrappedObjective):
    """An objective for p(y | x): the energy is `model.given(x)`, one input a row, in every part of the objective.

        E_(x,y)~data [ -log p(y | x) ],   ∇ = E_data[∇E(y | x)] - E_{x~data} E_{y~p(·|x)}[∇E(y | x)]

    Batches are pairs (x, y), or whatever the model's `split` takes (sequences for `models.TemporalRBM`). Chains
    that start at the data, score matching, pseudo-likelihood and exact likelihood work as they are. Persistent
    chains are bound to inputs: every slot keeps the input that it began with, and only y moves, so that each
    chain tends to the law of its own input; `reinit` renews both. In a sum every part has a `Conditional` of its own:
    `Weighted([Conditional(PersistentContrastiveDivergence(...)), Conditional(WeightDecay())])`.

    Reference: Mnih, Larochelle & Hinton 2011 for why chains must not change their input.

    Args:
        objective: the objective for y.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> model = gb.models.GatedRBM(inputs=4, visible=4, hidden=3, factors=5)
    >>> objective = Conditional(gb.objectives.ContrastiveDivergence(gb.kernels.Gibbs()))
    >>> batch = torch.ones(6, 4), torch.zeros(6, 4)
    >>> objective(model, batch, objective.init(model, batch, g), g).value.backward()
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        inner = self.objective
        if isinstance(inner, PersistentContrastiveDivergence):
            asked = inner.classes is not None or inner.fast_weights is not None or inner.penalty or inner.reinit_far
            if asked or isinstance(inner.kernel, ParallelTempering):
                raise CapabilityError(
                    "persistent chains bound to inputs have no classes, fast weights, penalty, reinit_far or tempered replicas; "
                    "leave those out, or use ContrastiveDivergence, which takes any kernel"
                )
        for part in within(inner):
            self._check_part(part)
        if any(isinstance(part, FirstRows) for part in within(inner)):
            raise CapabilityError(
                "inside Conditional FirstRows takes rows away from their inputs, which are bound to all of them already; give "
                "FirstRows(Conditional(...), rows=...)"
            )

    def _check_part(self, part: Objective) -> None:
        """Refuse what does not hold its inputs, however deep it lies."""
        if part.one_law:
            raise CapabilityError(
                f"{type(part).__name__} {part.one_law}, and under Conditional every row has its own; use ContrastiveDivergence, "
                "RankingContrastive or PseudoLikelihood, or ExactLikelihood where y can be enumerated"
            )
        if isinstance(part, PersistentContrastiveDivergence) and part is not self.objective:
            raise CapabilityError(
                f"inside {type(self.objective).__name__} persistent chains are not bound to inputs, and would go on under those of "
                "other rows at every step; let Conditional hold them itself, such as "
                "Weighted([Conditional(PersistentContrastiveDivergence(...)), Conditional(WeightDecay())])"
            )
        if isinstance(part, EnergyMatching) and part.pairing != "independent":
            raise CapabilityError(
                f"EnergyMatching(pairing={part.pairing!r}) pairs noise with rows whatever their inputs are: under one input the flow "
                "would then not begin at the noise that draws begin at; give pairing='independent'"
            )

    def gentler(self, steps_factor: float, penalty: float) -> Self:
        if isinstance(self.objective, PersistentContrastiveDivergence):
            penalty = 0.0  # chains bound to inputs have none
        return super().gentler(steps_factor, penalty)

    @staticmethod
    def split(energy: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        """(input, observed)."""
        if isinstance(energy, SplittingModel):
            return energy.split(batch)
        if isinstance(batch, Tensor) or len(batch) != 2:
            raise DataError("Conditional needs pairs (x, y), for example torch.utils.data.TensorDataset(x, y)")
        return batch[0], batch[1]

    def check(self, energy: Any, batch: Batch) -> None:
        if not isinstance(energy, Family):
            raise CapabilityError(
                f"Conditional trains families with given(x), such as models.GatedRBM; {type(energy).__name__} has none"
            )
        condition, y = self.split(energy, batch)
        self.objective.check(energy.given(condition), y)

    def redealt(self, states: Sequence[Any], rank: int, ranks: int) -> Any:
        if not isinstance(states[0], BoundChains):
            return super().redealt(states, rank, ranks)
        return BoundChains(*(dealt(list(each), rank, ranks) for each in zip(*states, strict=True)))

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> Any:
        self.check(energy, batch)
        condition, y = self.split(energy, batch)
        inner = self.objective
        if not isinstance(inner, PersistentContrastiveDivergence):
            return inner.init(energy.given(condition), y, generator)
        slots = inner.buffer or inner.chains
        rows = _rows(len(y), slots, generator, y.device)
        start = start_points(inner.start, slots, energy, y, generator, rows=rows)
        return BoundChains(start, condition[rows])

    def loss(self, energy: Any, batch: Batch, state: Any, generator: torch.Generator, step: Step) -> Loss:
        condition, y = self.split(energy, batch)
        inner = self.objective
        if not isinstance(inner, PersistentContrastiveDivergence):
            return inner.loss(energy.given(condition), y, state, generator, step)
        require_generator(generator, y.device)
        index = inner.chosen(state.x, None, generator)
        before, bound = (part if index is None else part[index] for part in state)
        if inner.reinit:
            rows = _rows(len(y), len(before), generator, y.device)
            fresh = start_points(inner.start, len(before), energy, y, generator, rows=rows)
            anew = torch.rand(len(before), generator=generator, device=y.device) < inner.reinit
            before, bound = where_chain(anew, fresh, before), where_chain(anew, condition[rows], bound)
        member = energy.given(bound)
        samples, metrics = walk(member, inner.kernel, before, inner.steps, generator, watched=step.watched)
        low, high = energy.given(condition)(y).mean(), member(samples).mean()
        metrics |= {"energy_data": low, "energy_samples": high, "gap": low - high}
        state = BoundChains(written(state.x, index, samples), written(state.condition, index, bound))
        return finish(self, low - high, state, metrics)


def _rows(n: int, count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """`count` of n rows, as evenly as can be: every row once before any comes twice."""
    whole = [torch.randperm(n, generator=generator, device=device) for _ in range(-(-count // n))]
    return torch.cat(whole)[:count]
