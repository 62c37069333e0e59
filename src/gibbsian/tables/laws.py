"""What is asked of a law of tables: likelihoods, conditionals of single cells, completions.

Two kinds answer: `MixtureLaw`, all of it exact, and `TiltedLaw`, by averages over the draws of its mixture.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gibbsian.random import stream
from gibbsian.tables.codec import Codec
from gibbsian.tables.mixture import Mixture
from gibbsian.tables.rows import Rows
from gibbsian.tables.tilted import Estimate, Tilted, complete, log_mean, normalized

_NODES = 64  # values that stand for the law of a number
_STRATA, _LEAST = 12, 8  # components that have such values, and how many each has at least
_BLOCK = 2048
_DRAWS = 64  # completions of a row, over which the tilt is averaged
_MOVES = 20  # of the chains that draw from a tilted law


class CellLaw(NamedTuple):
    """The law of one cell given the rest of its row: of its code, and of its z where it has one.

    Attributes:
        codes: `(n, states)`, or None for columns without codes; the last is that of numbers that are no atom.
        z, weight: `(n, nodes)`, or None for columns without numbers.
    """

    codes: Tensor | None
    z: Tensor | None
    weight: Tensor | None


class Law(Protocol):
    """A law of the rows of a table."""

    def log_prob(self, rows: Rows) -> Estimate:
        """log p of the observed part, in the units of the table."""

    def log_given(self, rows: Rows, column: int) -> Tensor:
        """log p(xᵢ | x₋ᵢ) of a column's cells, NaN for those that are missing."""

    def cell(self, rows: Rows, column: int) -> CellLaw:
        """The law of a column's cell given the others, whatever it holds itself."""

    def complete(self, rows: Rows, generator: torch.Generator) -> Rows:
        """One draw of what is missing, given what is there."""

    def leant(self, log_odds: Tensor) -> "tuple[Law, Tensor]":
        """The law p(x) Π_j ω_j(code_j) / Z and log Z; `log_odds` has log ω of all codes, slot after slot."""


@dataclass(frozen=True, eq=False)
class MixtureLaw:
    """A mixture, exactly."""

    mixture: Mixture
    codec: Codec

    def log_prob(self, rows: Rows) -> Estimate:
        value = self.mixture.log_prob(rows)
        return Estimate(value, value, value)

    def log_given(self, rows: Rows, column: int) -> Tensor:
        value = self.mixture.log_prob(rows) - self.mixture.log_prob(self.codec.without(rows, column))
        return value.masked_fill(self.codec.missing(rows)[:, column], math.nan)

    def cell(self, rows: Rows, column: int) -> CellLaw:
        return mixture_cell(self.mixture, self.codec, rows, column)

    def complete(self, rows: Rows, generator: torch.Generator) -> Rows:
        return self.codec.settled(self.mixture.complete(rows, generator, drawable=self.codec.drawable))

    def leant(self, log_odds: Tensor) -> tuple[Law, Tensor]:
        mixture, log_z = self.mixture.leant(log_odds)
        return MixtureLaw(mixture, self.codec), log_z


def mixture_cell(mixture: Mixture, codec: Codec, rows: Rows, column: int) -> CellLaw:
    """The law of a cell under a mixture; numbers as nodes, equally likely ones for each of the weightiest components."""
    rest = codec.without(rows, column)
    z_slot, code_slot = codec.z_slot[column], codec.code_slot[column]
    codes = mixture.codes_given(rest, code_slot) if code_slot >= 0 else None
    if z_slot < 0:
        return CellLaw(codes, None, None)
    law = mixture.numbers_given(rest, z_slot)
    weight = law.weight
    if code_slot >= 0:  # a number that is no atom
        weight = weight * mixture.slot(code_slot)[:, -1].exp()
        weight = weight / weight.sum(1, keepdim=True)
    weight, k = weight.topk(min(_STRATA, weight.shape[1]), 1)
    each = max(_NODES // weight.shape[1], _LEAST)
    within = torch.special.ndtri((torch.arange(each, dtype=weight.dtype) + 0.5) / each)
    z = law.mean.gather(1, k)[..., None] + law.spread.gather(1, k)[..., None] * within
    share = weight / weight.sum(1, keepdim=True) / each
    return CellLaw(codes, z.flatten(1), share[..., None].expand_as(z).flatten(1))


@dataclass(frozen=True, eq=False)
class TiltedLaw:
    """A tilted mixture: sums over codes where a row lacks nothing else, else averages over completions.

    Averages use a fixed seed, so that answers do not change from call to call.
    """

    law: Tilted
    codec: Codec
    seed: int = 0

    def _generator(self, name: str) -> torch.Generator:
        return stream(self.seed, name)

    def _gain(self, rows: Rows, name: str) -> Estimate:
        """log E[e^{-f}] over what a row lacks, row by row."""
        gaps = self.codec.gaps(rows)
        value = rows.unit.new_zeros(rows.n)
        out = Estimate(value, value.clone(), value.clone())
        if bool((~gaps).any()):
            exact = self.law.tilt(rows.take(~gaps))
            for part in out:
                part[~gaps] = exact
        for own in gaps.nonzero().flatten().split(_BLOCK):
            filled = complete(self.law.base, self.codec, rows.take(own), _DRAWS, self._generator(name))
            for part, found in zip(out, log_mean(self.law.tilt(filled).view(-1, _DRAWS)), strict=True):
                part[own] = found
        return out

    def log_prob(self, rows: Rows) -> Estimate:
        base, gain = self.law.base.log_prob(rows) - self.law.log_z, self._gain(rows, "gaps")
        error = 3 * self.law.log_z_stderr
        return Estimate(base + gain.value, base + gain.lower - error, base + gain.upper + error)

    def log_given(self, rows: Rows, column: int) -> Tensor:
        base = MixtureLaw(self.law.base, self.codec).log_given(rows, column)
        with_it = self._gain(rows, "gaps").value
        whole = ~self.codec.gaps(rows)
        without = torch.empty_like(with_it)
        if bool(whole.any()):
            without[whole] = self._summed(rows.take(whole), column)[0]
        if bool((~whole).any()):
            without[~whole] = self._gain(self.codec.without(rows.take(~whole), column), "gaps").value
        return base + with_it - without

    def _summed(self, rows: Rows, column: int) -> tuple[Tensor, CellLaw]:
        """log E[e^{-f}] over one cell of rows that have all others, and the tilted law of the cell."""
        base = mixture_cell(self.law.base, self.codec, rows, column)
        z_slot, code_slot = self.codec.z_slot[column], self.codec.code_slot[column]
        values, weights = [], []
        states = 0 if base.codes is None else base.codes.shape[1] - (z_slot >= 0)
        for c in range(states):  # each name, each atom
            code, z = rows.code.clone(), rows.z.clone()
            code[:, code_slot] = c
            if z_slot >= 0:
                z[:, z_slot] = math.nan
            values.append(self.law.tilt(rows._replace(z=z, code=code)))
            weights.append(base.codes[:, c])  # type: ignore[index]
        joined = torch.stack(values, 1) if values else rows.unit.new_zeros(rows.n, 0)
        weight = torch.stack(weights, 1) if weights else rows.unit.new_zeros(rows.n, 0)
        if base.z is not None and base.weight is not None:
            count = base.z.shape[1]
            nodes = rows.repeat(count)
            z = nodes.z.clone()
            z[:, z_slot] = base.z.flatten()
            code = nodes.code.clone()
            if code_slot >= 0:
                code[:, code_slot] = states
            settled = self.codec.settled(nodes._replace(z=z, code=code))
            free = torch.ones_like(base.weight[:, :1]) if base.codes is None else base.codes[:, -1:]
            joined = torch.cat([joined, self.law.tilt(settled).view(rows.n, count)], 1)
            weight = torch.cat([weight, free * base.weight], 1)
        log_terms = joined + weight.clamp(min=1e-300).log()
        total = torch.logsumexp(log_terms, 1)
        p = (log_terms - total[:, None]).exp()
        if base.z is None:
            return total, CellLaw(p, None, None)
        tail = p[:, states:]
        codes = None if base.codes is None else torch.cat([p[:, :states], tail.sum(1, keepdim=True)], 1)
        return total, CellLaw(codes, base.z, tail / tail.sum(1, keepdim=True).clamp(min=1e-300))

    def cell(self, rows: Rows, column: int) -> CellLaw:
        whole = ~self.codec.gaps(rows, besides=column)
        if bool(whole.all()):
            return self._summed(rows, column)[1]
        parts = [self._averaged(rows.take(own), column) for own in torch.arange(rows.n).split(_BLOCK)]
        found = [
            None if part[0] is None else torch.cat([p for p in part if p is not None])
            for part in zip(*parts, strict=True)
        ]
        law = CellLaw(*found)
        if bool(whole.any()):
            exact = self._summed(rows.take(whole), column)[1]
            for mine, better in zip(law, exact, strict=True):
                if mine is not None and better is not None:
                    mine[whole] = better
        return law

    def _averaged(self, rows: Rows, column: int) -> CellLaw:
        """The law of a cell from weighted completions of all that a row lacks."""
        z_slot, code_slot = self.codec.z_slot[column], self.codec.code_slot[column]
        plain = mixture_cell(self.law.base, self.codec, rows, column)
        count = _NODES if plain.z is None else plain.z.shape[1]
        filled = complete(self.law.base, self.codec, self.codec.without(rows, column), count, self._generator("cell"))
        weight = torch.softmax(self.law.tilt(filled).view(rows.n, count), 1)
        codes = None
        if code_slot >= 0:
            hot = torch.nn.functional.one_hot(filled.code[:, code_slot], self.codec.states[code_slot]).to(weight)
            codes = (weight[..., None] * hot.view(rows.n, count, -1)).sum(1)
        if plain.z is None or plain.weight is None:
            return CellLaw(codes, None, None)
        z = filled.z[:, z_slot].view(rows.n, count)
        weight = torch.where(z.isnan(), torch.zeros_like(weight), weight)  # atoms
        total = weight.sum(1, keepdim=True)
        few = total < 1e-12  # no completion but atoms
        weight = torch.where(few, plain.weight, weight / total.clamp(min=1e-300))
        return CellLaw(codes, torch.where(few, plain.z, z.nan_to_num()), weight)

    def leant(self, log_odds: Tensor) -> tuple[Law, Tensor]:
        """The leant mixture under the same tilt."""
        base, log_z = self.law.base.leant(log_odds)
        law = normalized(base, self.law.net, self.codec, self.seed)
        return TiltedLaw(law, self.codec, self.seed), log_z + law.log_z - self.law.log_z

    def complete(self, rows: Rows, generator: torch.Generator) -> Rows:
        """By chains that propose from the mixture and accept by the tilt (independence Metropolis)."""
        base, weight = self.law.base, self.law.base.responsibility(rows)

        def proposal() -> Rows:
            return self.codec.settled(base.complete(rows, generator, drawable=self.codec.drawable, weight=weight))

        now = proposal()
        energy = self.law.tilt(now)
        for _ in range(_MOVES):
            new = proposal()
            other = self.law.tilt(new)
            accept = torch.rand(rows.n, generator=generator, dtype=energy.dtype).log() < other - energy
            now = now._replace(
                z=torch.where(accept[:, None], new.z, now.z), code=torch.where(accept[:, None], new.code, now.code)
            )
            energy = torch.where(accept, other, energy)
        return now
