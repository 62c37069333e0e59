"""Persistent contrastive divergence: chains that live as long as the training, in a replay buffer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from gibbsian.capabilities import CountedClasses, Family
from gibbsian.derivatives.known import Gradients, gradients_of, trainable, with_gradients
from gibbsian.errors import ArgumentError, CapabilityError, DataError, check_number, hold_counts
from gibbsian.kernels.base import Kernel, where_chain
from gibbsian.kernels.tempering import ParallelTempering
from gibbsian.nets.layers import standardized_once
from gibbsian.objectives.base import Batch, Loss, Step, classes_of, dealt, finish, labels, observed, observed_with
from gibbsian.objectives.chains import (
    SampledObjective,
    chain_metrics,
    far_above,
    gap_between,
    plain_gibbs,
    walk,
    walk_tempered,
)
from gibbsian.objectives.starts import Start, check_start_option, check_starts, start_points


class Chains(NamedTuple):
    """The persistent chains `(slots, *event)`, and where there are any: the fast weights as one vector, the
    hotter replicas `(slots, replicas - 1, *event)` of tempered chains and whose turn it is to swap.
    """

    x: Tensor
    fast: Tensor | None = None
    hot: Tensor | None = None
    turn: Tensor | None = None

    def at(self, index: Tensor | None) -> "Chains":
        """Some of the slots; all of them where that is None."""
        if index is None:
            return self
        return self._replace(x=self.x[index], hot=None if self.hot is None else self.hot[index])


@contextmanager
def overlaid(parameters: list[torch.nn.Parameter], shift: Tensor | None) -> Iterator[None]:
    """Inside, the parameters are larger by `shift`; afterwards they are what they were, to the bit."""
    if shift is None:
        yield
        return
    saved = [p.data for p in parameters]
    at = 0
    for p in parameters:
        p.data = p.data + shift[at : at + p.numel()].view_as(p)
        at += p.numel()
    try:
        yield
    finally:
        for p, data in zip(parameters, saved, strict=True):
            p.data = data


def written(slots: Tensor, index: Tensor | None, moved: Tensor) -> Tensor:
    """The slots with those at `index` replaced; all of them where that is None."""
    return moved if index is None else slots.index_copy(0, index, moved)


def _energies(
    energy: Any, member: Any, y: Tensor | None, data: Tensor, samples: Tensor, *, together: bool
) -> tuple[Tensor, Tensor]:
    """Energies of data and of samples under a member, that of the classes y where there are some; in one pass where they go `together`:
    compiled kernels fill a GPU better the more rows they have."""
    if not together:
        return member(data), member(samples)
    both = energy if y is None else energy.given(torch.cat([y, y]))
    at_data, at_samples = both(torch.cat([data, samples])).split([len(data), len(samples)])
    return at_data, at_samples


@dataclass(frozen=True)
class PersistentContrastiveDivergence(SampledObjective):
    """E_data[E] - E_chains[E], the chains continued from step to step (stochastic maximum likelihood).

    Chains follow the model while it changes slowly, so a few steps each are enough and the gradient tends to
    the likelihood's. With a `buffer` larger than `chains` every step draws that many slots without
    replacement, continues them and writes them back where they came from; a share `reinit` of them starts
    anew. Class-bound slots train p(x|y): row i of the batch meets a chain of its own class.

    Tempered chains: with `kernels.ParallelTempering` every chain keeps its hotter replicas from step to step,
    which carry it over barriers that the model grows during training.

    Fast weights: an overlay φ ← decay·φ - rate·∇ is added to the parameters while the chains move, which
    pushes them away from where they are and lets them mix at learning rates that would freeze them otherwise.

    Reference: Younes 1989; Tieleman 2008; Tieleman & Hinton 2009 (fast weights); Du & Mordatch 2019 (buffer).

    Args:
        kernel: one of `gibbsian.kernels`.
        steps: steps of every chain per update.
        chains: chains continued per update; with `classes` as many as the batch has rows.
        buffer: slots in all; by default as many as chains, all of which move at every update.
        reinit: probability that a chain starts anew before it moves.
        start: where chains begin: "reference" (`domain.sample`), "data" (rows of the batch), "gaussian", with the
            moments of the batch, class by class where it has labels (`hybrid.like_classes`), "rates": discrete units,
            independent, with the means of the batch, or "smooth": images of noise at all scales. Shares mix them: {"gaussian": 0.7, "smooth": 0.3} begins three of ten chains
            anywhere, which teaches the energy what is no image.
        classes: bind slot k to class k // (buffer / classes) of a family with `given(labels)`; batches are
            then pairs (x, y), and `buffer` must have room for a whole batch in every class.
        fast_weights: learning rate of the fast weights; None for none.
        fast_decay: their decay per update.
        penalty: times the mean squared energies of data and samples, added to keep them near zero.
        reinit_far: probability that a chain starts anew after it moved, where it ended far above the data: by more than five robust
            spreads of their energies. Chains of images that fell into a texture do not come back by themselves.

    >>> import gibbsian as gb
    >>> g = torch.Generator().manual_seed(0)
    >>> rbm, data = gb.models.RBM(6, 3), torch.ones(10, 6)
    >>> objective = PersistentContrastiveDivergence(gb.kernels.Gibbs(), steps=1, chains=20)
    >>> state = objective.init(rbm, data, g)
    >>> loss = objective(rbm, data, state, g)
    >>> loss.value.backward(); loss.state.x.shape
    torch.Size([20, 6])
    """

    kernel: Kernel
    steps: int = 1
    chains: int = 100
    buffer: int | None = None
    reinit: float = 0.0
    start: Start = "reference"
    classes: int | None = None
    fast_weights: float | None = None
    fast_decay: float = 0.95
    penalty: float = 0.0
    reinit_far: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        hold_counts(self, "chains")
        if self.buffer is not None:
            hold_counts(self, "buffer")
            if self.classes is None and self.buffer < self.chains:
                raise ArgumentError(
                    f"PersistentContrastiveDivergence(buffer={self.buffer}, chains={self.chains}): slots "
                    "are drawn without replacement, so the buffer needs at least as many as there are chains"
                )
        check_number(self, "reinit", self.reinit, 0.0, 1.0)
        check_number(self, "reinit_far", self.reinit_far, 0.0, 1.0)
        check_start_option(self, self.start)
        if self.classes is not None:
            hold_counts(self, "classes", least=2)
            if self.buffer is None or self.buffer % self.classes:
                raise ArgumentError(
                    f"PersistentContrastiveDivergence(classes={self.classes}, buffer={self.buffer}): "
                    f"class-bound slots need a buffer whose size is a multiple of {self.classes}"
                )
            if isinstance(self.kernel, ParallelTempering):
                raise CapabilityError(
                    "class-bound slots have no hotter replicas, which would need labels of their own; leave out classes, or "
                    "ParallelTempering"
                )
        if self.fast_weights is not None:
            check_number(self, "fast_weights", self.fast_weights, open_low=True)
        check_number(self, "fast_decay", self.fast_decay, 0.0, 1.0)

    def chains_of(self, state: Chains) -> Tensor:
        return state.x

    def redealt(self, states: Sequence[Chains], rank: int, ranks: int) -> Chains:
        groups = self.classes or 1
        x = dealt([state.x for state in states], rank, ranks, groups)
        hot = [state.hot for state in states if state.hot is not None]
        fast = [state.fast for state in states if state.fast is not None]
        mean = torch.stack(fast).mean(0) if fast else None
        return Chains(x, mean, dealt(hot, rank, ranks, groups) if hot else None, states[0].turn)

    def check(self, energy: Any, batch: Batch) -> None:
        super().check(energy, batch)
        check_starts(self.start, energy)
        if self.classes is not None:
            if not isinstance(energy, Family):
                raise CapabilityError(
                    f"class-bound slots need a family with given(labels), such as models.JointEnergy; "
                    f"{type(energy).__name__} has none"
                )
            if isinstance(energy, CountedClasses) and energy.classes != self.classes:
                raise ArgumentError(
                    f"PersistentContrastiveDivergence(classes={self.classes}): {type(energy).__name__} has {energy.classes} classes"
                )
            y = labels(batch, "class-bound slots")
            if int(y.min()) < 0 or int(y.max()) >= self.classes:
                raise DataError(f"labels run from {int(y.min())} to {int(y.max())}, expected 0 to {self.classes - 1}")
        if self.fast_weights is not None and not trainable(energy):
            raise CapabilityError("fast weights need an energy with trainable parameters")

    def init(self, energy: Any, batch: Batch, generator: torch.Generator) -> Chains:
        self.check(energy, batch)
        x = observed_with(batch, generator)
        n = self.buffer or self.chains
        wanted = None if self.classes is None else torch.arange(n, device=x.device) // (n // self.classes)
        slots = start_points(self.start, n, energy, x, generator, y=classes_of(batch), wanted=wanted)
        weights = None if self.fast_weights is None else parameters_to_vector(trainable(energy)).detach()
        fast = None if weights is None else torch.zeros_like(weights)
        if not isinstance(self.kernel, ParallelTempering):
            return Chains(slots, fast)
        hot = slots[:, None].repeat(1, len(self.kernel.betas) - 1, *[1] * (slots.dim() - 1))
        return Chains(slots, fast, hot, torch.zeros(1, dtype=torch.long, device=slots.device))

    def loss(self, energy: Any, batch: Batch, state: Chains, generator: torch.Generator, step: Step) -> Loss:
        data = observed_with(batch, generator)
        y = None if self.classes is None else labels(batch, "class-bound slots")
        member, index = energy if y is None else energy.given(y), self.chosen(state.x, y, generator)
        before, fast = self._begun(energy, batch, state.at(index), y, generator), state.fast
        if plain_gibbs(self.kernel, member) and not self._looks_at_energies and fast is None:
            value, samples, known = member.contrast(data, before.x, self.steps, generator, fused=step.fused)
            after, metrics = before._replace(x=samples), {"gap": value}
            metrics |= chain_metrics(before.x, samples, step.watched)
        else:
            anew = nullcontext() if fast is None else standardized_once(energy)  # of the weights with their overlay
            with overlaid(trainable(energy), fast), anew:
                after, metrics = self._moved(member, before, generator, step, energy)
            at_data, at_chains = _energies(energy, member, y, data, after.x, together=step.chains)
            value, found = gap_between(at_data, at_chains, self.penalty, watched=step.watched)
            after, far = self._recalled(energy, batch, after, y, (at_data, at_chains), generator)
            metrics, known = found | metrics | far, None
        if fast is not None:
            fast, value, known = self._followed(energy, fast, value)
        hot = None if state.hot is None or after.hot is None else written(state.hot, index, after.hot)
        state = Chains(written(state.x, index, after.x.detach()), fast, hot, after.turn)
        return finish(self, value, state, metrics, gradients=known)

    def _followed(self, energy: Any, fast: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Gradients | None]:
        """The fast weights after an update, and the value with its gradients."""
        if not value.requires_grad:  # only judged, as the average is in validation
            return fast, value, None
        parameters = trainable(energy)
        gradients = gradients_of(value, parameters)
        fast = self.fast_decay * fast - self.fast_weights * parameters_to_vector(gradients)  # type: ignore[operator]
        return fast, *with_gradients(value.detach(), parameters, gradients)

    def chosen(self, slots: Tensor, y: Tensor | None, generator: torch.Generator) -> Tensor | None:
        """The slots that move: for every row one of its class y, no slot twice; some of the buffer; or all (None)."""
        if y is None:
            if self.buffer is None or self.buffer == self.chains:
                return None
            return torch.randperm(len(slots), generator=generator, device=slots.device)[: self.chains]
        classes, each = self.classes or 1, len(slots) // (self.classes or 1)
        if each < len(y):
            raise ArgumentError(
                f"a batch of {len(y)} rows may belong to one class, which has {each} slots; use buffer >= "
                f"{classes * len(y)}, or smaller batches"
            )
        order = torch.rand(classes, each, generator=generator, device=y.device).argsort(1)
        same = y[:, None] == y[None, :]
        rank = same.tril(-1).sum(1)  # how many rows before this one have its class
        return y * each + order[y, rank]

    def _begun(self, energy: Any, batch: Batch, chains: Chains, y: Tensor | None, generator: torch.Generator) -> Chains:
        """The chains before they move, some of them started anew."""
        return self._anew(energy, batch, chains, y, self.reinit, generator) if self.reinit else chains

    @property
    def _looks_at_energies(self) -> bool:
        """Does it need more than the gap of the energies?"""
        return bool(self.penalty or self.reinit_far)

    def _recalled(
        self,
        energy: Any,
        batch: Batch,
        chains: Chains,
        y: Tensor | None,
        energies: tuple[Tensor, Tensor],
        generator: torch.Generator,
    ) -> tuple[Chains, dict[str, Tensor]]:
        """The chains after they moved, some of those far above the data started anew; and the share that was there."""
        if not self.reinit_far:
            return chains, {}
        far = far_above(*energies).to(chains.x.dtype)
        return self._anew(energy, batch, chains, y, self.reinit_far * far, generator), {"far": far.mean()}

    def _anew(
        self,
        energy: Any,
        batch: Batch,
        chains: Chains,
        y: Tensor | None,
        chance: Tensor | float,
        generator: torch.Generator,
    ) -> Chains:
        """The chains, every one of them started anew with that chance."""
        data, (x, _, hot, _) = observed(batch), chains
        fresh = start_points(self.start, len(x), energy, data, generator, y=classes_of(batch), wanted=y)
        anew = torch.rand(len(x), generator=generator, device=data.device) < chance
        hot = hot if hot is None else where_chain(anew, fresh[:, None].expand_as(hot), hot)
        return chains._replace(x=where_chain(anew, fresh, x), hot=hot)

    def _moved(
        self, member: Any, chains: Chains, generator: torch.Generator, step: Step, owner: Any
    ) -> tuple[Chains, dict[str, Tensor]]:
        """The chains after the steps of an update, and metrics."""
        x, _, hot, turn = chains
        if not isinstance(self.kernel, ParallelTempering) or hot is None or turn is None:
            how: dict[str, Any] = {"watched": step.watched, "fused": step.chains, "owner": owner}
            x, moved = walk(member, self.kernel, x, self.steps, generator, **how)
            return chains._replace(x=x), moved
        kept = x, hot, turn
        (x, hot, turn), moved = walk_tempered(member, self.kernel, kept, self.steps, generator, watched=step.watched)
        return chains._replace(x=x, hot=hot, turn=turn), moved
