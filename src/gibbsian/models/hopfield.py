"""Hopfield networks: patterns stored as minima of a Boltzmann machine's energy, recalled by descending it."""

from typing import NamedTuple

import torch
from torch import Tensor

from gibbsian.domains import Spin
from gibbsian.errors import ArgumentError, check_choice, check_count
from gibbsian.models.boltzmann import BoltzmannMachine
from gibbsian.placement import check_together
from gibbsian.random import require_generator


class Recall(NamedTuple):
    """What a recall returns.

    Attributes:
        x: the states `(batch, n)` it ended in.
        energies: `(steps + 1, batch)`, from the cue on; never rising for one unit at a time.
        converged: which rows are fixed points.
    """

    x: Tensor
    energies: Tensor
    converged: Tensor


class Hopfield(BoltzmannMachine):
    """Associative memory of ±1 units: E = -½ xᵀWx - b·x, with patterns ξ stored in W.

        Hebb:            W = (1/n) Σ_μ ξ^μ ξ^μᵀ
        pseudo-inverse:  W = Ξᵀ(ΞΞᵀ)⁻¹Ξ, the projection on the patterns

    both without their diagonal. Hebb's rule recalls up to about 0.138 n random patterns, and correlated ones
    badly; the pseudo-inverse keeps any independent patterns exactly, up to n - 1 in number. As a Boltzmann
    machine it can be sampled, tempered and trained like any other.

    Reference: Hopfield 1982; Personnaz, Guyon & Dreyfus 1985.

    >>> memory = Hopfield(4)
    >>> memory.store(torch.tensor([[1.0, 1.0, -1.0, -1.0]]))
    >>> memory.recall(torch.tensor([[1.0, -1.0, -1.0, -1.0]])).x
    tensor([[ 1.,  1., -1., -1.]])
    """

    def __init__(self, n: int) -> None:
        super().__init__(n, spin=True)
        with torch.no_grad():
            self.weight.zero_()

    def store(self, patterns: Tensor, rule: str = "hebb") -> None:
        """Set the weights to store patterns `(count, n)` of ±1, instead of what was stored before."""
        Spin(self.n).check(patterns, "patterns")
        check_choice(self, "rule", rule, ("hebb", "pseudo-inverse"))
        patterns = patterns.to(self.weight)
        if rule == "hebb":
            weight = patterns.T @ patterns / self.n
        else:
            gram = patterns @ patterns.T
            if int(torch.linalg.matrix_rank(gram)) < len(patterns):
                raise ArgumentError(
                    f"the {len(patterns)} patterns are linearly dependent, so the pseudo-inverse rule cannot tell "
                    "them apart; drop duplicates and sums of others"
                )
            weight = patterns.T @ torch.linalg.solve(gram, patterns)
        upper = weight.triu(1)
        self.set_parameters(weight=upper + upper.T)

    def recall(
        self, cue: Tensor, *, update: str = "asynchronous", steps: int = 100, generator: torch.Generator | None = None
    ) -> Recall:
        """Descend from a cue until nothing changes, or `steps` sweeps are spent.

        Args:
            cue: `(batch, n)` of ±1.
            update: "asynchronous", one unit after the other, in random order where a generator is given: the
                energy never rises. "synchronous", all at once: faster, may end in a cycle of two states.
            steps: sweeps over all units, at most.
        """
        self.domain.check(cue, "cue")
        check_choice(self, "update", update, ("asynchronous", "synchronous"))
        check_count(self, "steps", steps)
        check_together(cue, self.weight, "cue", "the weight", "machine")
        if generator is not None:
            require_generator(generator, cue.device)
        with torch.no_grad():
            x, energies = cue.clone(), [self(cue)]
            for _ in range(steps):
                before = x
                x = self._all_at_once(x) if update == "synchronous" else self._in_turn(x, generator)
                energies.append(self(x))
                if torch.equal(x, before):
                    break
            return Recall(x, torch.stack(energies), (self._all_at_once(x) == x).all(1))

    def _all_at_once(self, x: Tensor) -> Tensor:
        field = x @ self.coupling() + self.bias
        return torch.where(field == 0, x, field.sign())  # an undecided unit stays

    def _in_turn(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        x, weight = x.clone(), self.coupling()
        order = list(range(self.n))
        if generator is not None:
            order = torch.randperm(self.n, generator=generator, device=generator.device).tolist()
        for i in order:
            field = x @ weight[i] + self.bias[i]
            x[:, i] = torch.where(field == 0, x[:, i], field.sign())
        return x

    def overlap(self, x: Tensor, patterns: Tensor) -> Tensor:
        """(1/n) x·ξ with each pattern, `(batch, count)`: 1 is a perfect recall."""
        return x @ patterns.to(x).T / self.n
