"""What mutations do: the change of -E, higher is fitter."""

import re
from collections.abc import Iterable

import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, ShapeError
from gibbsian.models import Potts
from gibbsian.sequences.alphabet import Alphabet

_PATTERN = re.compile(r"^([A-Za-z-])(-?\d+)([A-Za-z-])$")


def mutation_score(
    potts: Potts, sequence: Tensor, mutation: str, *, first: int = 1, alphabet: str | Alphabet | None = None
) -> Tensor:
    """-ΔE = E(sequence) - E(mutant) of one mutation or several at once: higher is fitter.

    Args:
        potts: learned from the family of the sequence.
        sequence: one-hot `(sites, letters)`, or states `(sites,)`.
        mutation: such as "A3C": from, position, to; several as "A3C:G7U" (or with commas).
        first: the position of the first site.
        alphabet: by default protein, RNA or DNA by the number of letters of the machine (5, or 4 without the
            gap, are RNA's).

    >>> import gibbsian as gb
    >>> potts = gb.models.Potts(4, 5)
    >>> wild = potts.domain.one_hot(torch.tensor([[1, 2, 3, 4]]))[0]  # ACGU
    >>> bool(mutation_score(potts, wild, "A1A").abs() < 1e-6)
    True
    """
    letters = _letters(potts, alphabet)
    states = _states(potts, sequence)
    mutant = states.clone()
    for site, to in _parsed(mutation, states, letters, first):
        mutant[site] = to
    both = potts.domain.one_hot(torch.stack([states, mutant]), dtype=potts.field.dtype)  # type: ignore[attr-defined]
    with torch.no_grad():
        energy = potts(both.to(potts.field.device))
    return energy[0] - energy[1]


def mutation_table(potts: Potts, sequence: Tensor) -> Tensor:
    """-ΔE of every single mutation, `(sites, letters)`: a deep mutational scan; 0 at the letters of the sequence.

        -ΔE(i → a) = gᵢ(a) - gᵢ(xᵢ),   g the conditional fields, all from one product

    >>> import gibbsian as gb
    >>> mutation_table(gb.models.Potts(4, 5), torch.tensor([1, 2, 3, 4])).shape
    torch.Size([4, 5])
    """
    x = potts.domain.one_hot(_states(potts, sequence)[None], dtype=potts.field.dtype).to(potts.field.device)  # type: ignore[attr-defined]
    with torch.no_grad():
        g = potts.conditional_fields(x)[0]
    return g - (x[0] * g).sum(-1, keepdim=True)


def _letters(potts: Potts, alphabet: str | Alphabet | None) -> Alphabet:
    if alphabet is None:
        usual = {len(a): a for a in (Alphabet.of("protein"), Alphabet.of("rna"))}
        usual |= {len(a) - 1: a.without_gap() for a in usual.values()}
        if potts.states not in usual:
            raise ArgumentError(f"a machine of {potts.states} letters: say which with alphabet=")
        alphabet = usual[potts.states]
    letters = Alphabet.of(alphabet)
    if len(letters) != potts.states:
        raise ArgumentError(f"the alphabet {letters.letters} has {len(letters)} letters, the machine {potts.states}")
    return letters


def _states(potts: Potts, sequence: Tensor) -> Tensor:
    if sequence.shape == (potts.sites, potts.states):
        return sequence.argmax(-1)
    if sequence.shape == (potts.sites,):
        return sequence.long()
    raise ShapeError(
        f"the sequence has shape {tuple(sequence.shape)}, expected ({potts.sites}, {potts.states}) one-hot, or "
        f"({potts.sites},) states"
    )


def _parsed(mutation: str, states: Tensor, letters: Alphabet, first: int) -> Iterable[tuple[int, int]]:
    for part in re.split(r"[:,]", mutation):
        match = _PATTERN.match(part.strip())
        if match is None:
            raise ArgumentError(f"mutation {part!r}: expected a letter, a position and a letter, such as 'A3C'")
        old, position, new = letters.index(match[1].upper()), int(match[2]), letters.index(match[3].upper())
        site = position - first
        if not 0 <= site < len(states):
            raise ArgumentError(f"mutation {part!r}: positions go from {first} to {first + len(states) - 1}")
        if int(states[site]) != old:
            is_letter = letters.letters[int(states[site])]
            raise ArgumentError(f"mutation {part!r}: the sequence has {is_letter!r} at position {position}; see first=")
        yield site, new
