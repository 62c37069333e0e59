"""The letters of sequences."""

from dataclasses import dataclass

import numpy as np

from gibbsian.errors import ArgumentError, suggest

_KNOWN = {"protein": "-ACDEFGHIKLMNPQRSTVWY", "rna": "-ACGU", "dna": "-ACGT"}


@dataclass(frozen=True)
class Alphabet:
    """Letters, the gap first. Letters that are not in it (X, N, ...) count as gaps.

    Args:
        letters: every letter once, such as "-ACGU".
        name: what it is called.

    >>> Alphabet.of("rna").index("G"), Alphabet.of("AB").letters
    (3, '-AB')
    """

    letters: str
    name: str = "own"

    def __post_init__(self) -> None:
        if len(set(self.letters)) != len(self.letters) or len(self.letters) < 2:
            raise ArgumentError(f"an alphabet needs two letters or more, each once, got {self.letters!r}")

    @classmethod
    def of(cls, alphabet: "str | Alphabet") -> "Alphabet":
        """ "protein", "rna", "dna", or letters of one's own, to which a gap is added where there is none."""
        if isinstance(alphabet, Alphabet):
            return alphabet
        if not isinstance(alphabet, str) or not alphabet:
            raise ArgumentError(f"alphabet={alphabet!r}: expected protein, rna, dna, or a string of letters")
        if alphabet.lower() in _KNOWN:
            return cls(_KNOWN[alphabet.lower()], alphabet.lower())
        if alphabet != alphabet.upper():
            near = suggest(alphabet.lower(), list(_KNOWN))
            raise ArgumentError(f"there is no alphabet {alphabet!r}; {near}protein, rna, dna, or capital letters")
        return cls(alphabet if "-" in alphabet else "-" + alphabet)

    def without_gap(self) -> "Alphabet":
        """The same letters but for the gap: those of a machine that ignores gaps.

        >>> Alphabet.of("rna").without_gap().letters
        'ACGU'
        """
        return Alphabet(self.letters.replace("-", ""), self.name)

    def __len__(self) -> int:
        return len(self.letters)

    def index(self, letter: str) -> int:
        """The state of a letter."""
        found = self.letters.find(letter) if len(letter) == 1 else -1
        if found < 0:
            raise ArgumentError(f"{letter!r} is no letter of the alphabet {self.letters}")
        return found

    def table(self) -> np.ndarray:
        """The state of every byte: 255 for what is no letter at all, the gap for letters outside the alphabet."""
        gap = max(self.letters.find("-"), 0)
        table = np.full(256, 255, dtype=np.uint8)
        table[ord("A") : ord("Z") + 1] = gap
        table[[ord("."), ord("*")]] = gap
        for state, letter in enumerate(self.letters):
            table[ord(letter)] = state
        for usual, other in ("UT", "TU"):  # nucleotides are written both ways
            if self.name in ("rna", "dna") and usual in self.letters:
                table[ord(other)] = self.letters.index(usual)
        return table

    def known(self) -> bytes:
        """The bytes that stand for a letter, or for a gap, as such."""
        letters = self.letters + {"rna": "T", "dna": "U"}.get(self.name, "") + "-.*"
        return letters.encode()
