"""A made family with a known fold, to try things on."""

import torch
from torch import Tensor

from gibbsian.errors import check_count
from gibbsian.random import require_generator
from gibbsian.sequences.alphabet import Alphabet
from gibbsian.sequences.family import Family

_FOLD = "..(((((....)))))...((((((.....)))))).."
_PAIRS = {("A", "U"): 0.22, ("U", "A"): 0.22, ("G", "C"): 0.24, ("C", "G"): 0.24, ("G", "U"): 0.04, ("U", "G"): 0.04}


def demo_family(n: int = 2000, *, generator: torch.Generator) -> tuple[Family, Tensor]:
    """Made RNA sequences of two hairpins, and which of their sites pair: 1 for the eleven pairs of the stems, else 0.

    Paired sites hold complementary letters (a few G·U among them) of whatever kind; the loops have letters of their own,
    and a few letters are gaps. Pairs are independent, so the draws are exact.

    >>> family, touching = demo_family(100, generator=torch.Generator().manual_seed(0))
    >>> family, int(touching.sum())
    (Family(100 sequences of 38 sites, rna, effective number 100.0), 22)
    """
    n = check_count("demo_family", "n", n)
    generator = require_generator(generator)
    letters = Alphabet.of("rna")
    sites = len(_FOLD)
    liked = torch.randint(1, 5, (sites,), generator=torch.Generator().manual_seed(5))
    other = torch.randint(1, 5, (n, sites), generator=generator)
    states = torch.where(torch.rand(n, sites, generator=generator) < 0.7, liked, other)
    touching, opened = torch.zeros(sites, sites), list[int]()
    masses = torch.tensor(list(_PAIRS.values()))
    both = torch.tensor([[letters.index(a), letters.index(b)] for a, b in _PAIRS])
    for j, mark in enumerate(_FOLD):
        if mark == "(":
            opened.append(j)
        elif mark == ")":
            i = opened.pop()
            touching[i, j] = touching[j, i] = 1.0
            states[:, [i, j]] = both[torch.multinomial(masses, n, replacement=True, generator=generator)]
    states[torch.rand(n, sites, generator=generator) < 0.02] = letters.index("-")
    names = tuple(f"made{i + 1}" for i in range(n))
    return Family(states.to(torch.uint8), letters, names, source="demo"), touching
