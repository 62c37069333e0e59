"""What mutations do: the change of -E, higher is fitter."""

import re
from collections.abc import Iterable
from itertools import combinations

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
    return mutation_scores(potts, sequence, [mutation], first=first, alphabet=alphabet)[0]


def mutation_scores(
    potts: Potts, sequence: Tensor, mutations: Iterable[str], *, first: int = 1, alphabet: str | Alphabet | None = None
) -> Tensor:
    """-ΔE of many mutants of one sequence, single or multiple, such as a column of a deep mutational scan: `(mutants,)`.

        -ΔE = Σᵢ [gᵢ(aᵢ) - gᵢ(xᵢ)] + Σ_{i<j} [Jᵢⱼ(aᵢ, aⱼ) - Jᵢⱼ(aᵢ, xⱼ) - Jᵢⱼ(xᵢ, aⱼ) + Jᵢⱼ(xᵢ, xⱼ)]

    over the sites that change, with the conditional fields g of the sequence, which one product gives.

    Args:
        potts, sequence, first, alphabet: as in `mutation_score`.
        mutations: such as ["A3C", "A3C:G7U"].

    >>> import gibbsian as gb
    >>> potts, wild = gb.models.Potts(4, 5), torch.tensor([1, 2, 3, 4])  # ACGU
    >>> mutation_scores(potts, wild, ["A1C", "A1C:U4G"]).shape
    torch.Size([2])
    """
    letters, states = _letters(potts, alphabet), _states(potts, sequence)
    found = [dict(changes(one, states, letters, first)) for one in mutations]
    table = mutation_table(potts, sequence).cpu()
    row = torch.tensor([n for n, change in enumerate(found) for _ in change], dtype=torch.long)
    site = torch.tensor([i for change in found for i in change], dtype=torch.long)
    to = torch.tensor([a for change in found for a in change.values()], dtype=torch.long)
    scores = table.new_zeros(len(found)).index_add(0, row, table[site, to])
    return (scores + _together(potts, states.cpu(), found)).to(potts.field.device)


def _together(potts: Potts, states: Tensor, found: list[dict[int, int]]) -> Tensor:
    """What the changes of a mutant do to each other, over its pairs of sites."""
    pairs = [(n, i, a, j, b) for n, change in enumerate(found) for (i, a), (j, b) in combinations(change.items(), 2)]
    scores = torch.zeros(len(found), dtype=potts.field.dtype)
    if not pairs:
        return scores
    n, i, a, j, b = torch.tensor(pairs).T
    x, y, coupling = states[i], states[j], potts.coupling.detach().cpu()

    def between(a: Tensor, b: Tensor) -> Tensor:
        return (coupling[i, a, j, b] + coupling[j, b, i, a]) / 2

    return scores.index_add_(0, n, between(a, b) - between(a, y) - between(x, b) + between(x, y))


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


def changes(mutation: str, states: Tensor, letters: Alphabet, first: int) -> Iterable[tuple[int, int]]:
    """The sites that a mutation changes, from 0, and their new letters; refused where the sequence has others there.

    >>> list(changes("A1C:U4G", torch.tensor([1, 2, 3, 4]), Alphabet.of("rna"), 1))
    [(0, 2), (3, 3)]
    """
    seen: set[int] = set()
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
        if site in seen:
            raise ArgumentError(f"mutation {mutation!r}: position {position} changes twice")
        seen.add(site)
        yield site, new
