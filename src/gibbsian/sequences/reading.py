"""Alignments from files: FASTA, a2m and a3m, Stockholm, plain or gzipped; read line by line, whatever their size."""

import gzip
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path

import numpy as np
import torch

from gibbsian.errors import DataError, DataWarning, check_number
from gibbsian.sequences.alphabet import Alphabet
from gibbsian.sequences.family import Family

_SMALL = bytes(range(ord("a"), ord("z") + 1))
_CASE = bytes(ord(".") if chr(i).islower() or chr(i) == "." else ord("A") for i in range(128)) + b"A" * 128
_TELLING = 100  # letters that tell DNA from a protein
_LONGEST = 1 << 24  # characters of a line


def read(
    path: str | Path,
    alphabet: str | Alphabet = "protein",
    *,
    identity: float | None = 0.8,
    most_gaps: float | None = None,
    insertions: bool | None = None,
    device: str | torch.device = "cpu",
    progress: bool | None = None,
) -> Family:
    """A family of aligned sequences from a file.

    FASTA, a2m, a3m or Stockholm (interleaved or not), each plain or gzipped: what the file is is seen from its first
    line. Nothing but the letters that are kept, a byte each, stays in memory.

    Args:
        path: the file.
        alphabet: "protein", "rna" (T is read as U), "dna", an `Alphabet`, or letters. Capitals outside it, such as X, are
            read as gaps, with a warning that counts them; anything else is refused.
        identity: weigh sequences by how many agree with them in at least this share of sites; None for equal weights.
        most_gaps: leave out sequences with a larger share of gaps.
        insertions: whether small letters and dots are insertions to be left out, as in a2m and a3m. By default they are
            where the first sequence has capitals; without any, small letters are letters and dots are gaps.
        device: where weights are computed; the family itself stays in the memory of the CPU.
        progress: show a progress bar; by default on a terminal.

    >>> import tempfile, os
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = os.path.join(folder, "family.fasta")
    ...     _ = Path(file).write_text(">a\\nACGU\\n>b\\nAC-U\\n")
    ...     family = read(file, "rna")
    >>> family, family.text(1)
    (Family(2 sequences of 4 sites, rna, effective number 2.0), 'AC-U')
    """
    file = Path(path).expanduser()
    reader = _Reader(file.name, Alphabet.of(alphabet), most_gaps, insertions)
    for name, sequence in _records(file):
        reader.take(name, sequence)
    family = reader.family(str(path))
    return family if identity is None else family.reweighted(identity, device=device, progress=progress)


class _Reader:
    """The sequences that are kept, and what is to be said about the file."""

    def __init__(self, file: str, alphabet: Alphabet, most_gaps: float | None, insertions: bool | None) -> None:
        if most_gaps is not None:
            check_number("read", "most_gaps", most_gaps, 0, 1)
        self.file, self.alphabet, self.most_gaps, self.insertions = file, alphabet, most_gaps, insertions
        self.table, self.gap = alphabet.table(), alphabet.index("-")
        self.known = alphabet.known()
        self.names: list[str] = []
        self.states = bytearray()
        self.first: tuple[str, int] | None = None  # name and length
        self.strange: Counter[str] = Counter()
        self.undecoded = 0
        self.dotted: tuple[str, bytes] | None = None  # the first sequence with a dot, and where it has insertions

    def take(self, raw_name: bytes, raw: bytes) -> None:
        """One sequence more."""
        name = raw_name.decode("utf-8", errors="replace").strip()
        self.undecoded += "\N{REPLACEMENT CHARACTER}" in name
        if self.insertions is None and raw.strip(b"-."):
            self.insertions = raw != raw.lower()
        if self.insertions:
            self._check_dots(name, raw)
        sequence = raw.translate(None, _SMALL + b".") if self.insertions else raw.upper()
        codes = np.frombuffer(sequence, dtype=np.uint8)
        states = self.table[codes]
        if bool((states == 255).any()):
            at = int((states == 255).argmax())
            bad = sequence[at : at + 4].decode("utf-8", errors="replace")[0]
            raise DataError(
                f"{self.file}: sequence {name!r} holds {bad!r}, which is no letter; expected {self.alphabet.letters}, and "
                "other capitals for what is not known"
            )
        self._check_length(name, len(states))
        unknown = sequence.translate(None, self.known)
        if unknown:
            self.strange.update(unknown.decode())
        if self.most_gaps is not None and (states == self.gap).mean() > self.most_gaps:
            return
        self.names.append(name)
        self.states += states.tobytes()

    def _check_dots(self, name: str, raw: bytes) -> None:
        """Refuse dots that stand where another sequence of the same length has a capital: they are gaps, and leaving them out would
        shift one sequence against the other. In a2m dots fill the sites of insertions, which are those of all sequences."""
        sites = raw.translate(_CASE)
        if self.dotted is None and b"." in raw:
            self.dotted = name, sites
        if self.dotted is not None and len(sites) == len(self.dotted[1]) and sites != self.dotted[1]:
            raise DataError(
                f"{self.file}: sequences {self.dotted[0]!r} and {name!r} have dots or small letters at other sites, so that dots are gaps "
                "and no insertions; say insertions=False (--insertions keep)"
            )

    def _check_length(self, name: str, length: int) -> None:
        if self.first is None:
            self.first = name, length
        if length != self.first[1]:
            hint = (
                "small letters and dots were taken for insertions and left out: say insertions=False (--insertions keep) where they are not"
                if self.insertions
                else "sequences must be aligned to one length"
            )
            raise DataError(
                f"{self.file}: sequence {name!r} has {length} sites, {self.first[0]!r} has {self.first[1]}; {hint}"
            )

    def family(self, source: str) -> Family:
        """All that was kept."""
        if self.first is None or not self.first[1]:
            raise DataError(
                f"{self.file} holds no sequences; expected FASTA (lines that begin with '>'), a2m, a3m or Stockholm"
            )
        if not self.names:
            raise DataError(
                f"{self.file}: no sequence has a share of gaps of {self.most_gaps} or less; raise most_gaps"
            )
        self._warn()
        states = torch.frombuffer(self.states, dtype=torch.uint8).reshape(len(self.names), self.first[1])
        return Family(states, self.alphabet, tuple(self.names), source=source)

    def _nucleotides(self) -> list[str]:
        """What is said where a protein has the letters of DNA and no others."""
        used = {self.alphabet.letters[i] for i in np.unique(np.frombuffer(self.states, dtype=np.uint8))} | {"-"}
        meant = self.alphabet.name == "protein" and len(self.states) >= _TELLING and used == set("-ACGT")
        return ["no other letters than A, C, G and T; is alphabet='dna' meant?"] if meant else []

    def _warn(self) -> None:
        said = []
        if self.strange:
            kinds = ", ".join(f"{letter} {count}" for letter, count in self.strange.most_common(5))
            said.append(f"{self.strange.total()} letters outside {self.alphabet.letters} were read as gaps ({kinds})")
            if self.strange.total() > 0.05 * len(self.states):
                said[-1] += f"; is alphabet={self.alphabet.name!r} meant?"
        said += self._nucleotides()
        counts = Counter(self.names)
        if len(counts) < len(self.names):
            name, count = counts.most_common(1)[0]
            more = len(self.names) - len(counts)
            said.append(
                f"{more} names stand more than once ({name!r} {count} times); each is kept as a sequence of its own"
            )
        if self.undecoded:
            said.append(f"{self.undecoded} names are not UTF-8 and have a mark in place of what could not be read")
        for sentence in said:
            warnings.warn(f"{self.file}: {sentence}", DataWarning, stacklevel=4)


def _records(file: Path) -> Iterator[tuple[bytes, bytes]]:
    """Names and sequences as they stand in the file."""
    try:
        with file.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(file, "rb") if zipped else file.open("rb") as opened:
            lines = _lines(opened, file.name)
            first = next((line for line in lines if line.strip()), b"").removeprefix(b"\xef\xbb\xbf")
            if first.startswith(b"# STOCKHOLM"):
                yield from _stockholm(lines, file.name)
            elif first.startswith(b">"):
                yield from _fasta(first, lines)
            elif not first:
                raise DataError(f"{file.name} is empty")
            elif first.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise DataError(f"{file.name} is text in UTF-16; save it in UTF-8")
            else:
                raise DataError(
                    f"{file.name} begins with {first[:30]!r}; expected '>' (FASTA, a2m, a3m) or '# STOCKHOLM'"
                )
    except (FileNotFoundError, IsADirectoryError) as error:
        raise DataError(f"there is no file {file}") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{file.name} is a damaged gzip file: {error}") from error


def _lines(opened: BufferedIOBase, file: str) -> Iterator[bytes]:
    """The lines of a file, none longer than memory allows."""
    while line := opened.readline(_LONGEST + 1):
        if len(line) > _LONGEST:
            raise DataError(f"{file} has a line of more than {_LONGEST} characters; expected lines of sequences")
        yield line


def _fasta(first: bytes, lines: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    name, parts = first[1:], list[bytes]()
    for line in lines:
        if line.startswith(b">"):
            yield name, b"".join(parts)
            name, parts = line[1:], []
        elif not line.startswith(b";"):
            parts.append(line.translate(None, b" \t\r\n"))
    yield name, b"".join(parts)


def _stockholm(lines: Iterator[bytes], file: str) -> Iterator[tuple[bytes, bytes]]:
    """Pieces of interleaved sequences are put together by name; dots are gaps here, and small letters letters."""
    parts: dict[bytes, bytearray] = {}
    for line in lines:
        if line.startswith(b"//"):
            break
        words = line.split()
        if words and not line.startswith(b"#"):
            if len(words) != 2:
                raise DataError(f"{file}: a line is {line[:40]!r}, expected a name and a piece of sequence")
            parts.setdefault(words[0], bytearray()).extend(words[1])
    for name, pieces in parts.items():
        yield name, bytes(pieces).upper().replace(b".", b"-")
    if next((line for line in lines if line.strip()), b"").startswith(b"# STOCKHOLM"):
        warnings.warn(f"{file} holds more than one alignment; the first was read", DataWarning, stacklevel=4)
