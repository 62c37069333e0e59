"""Alignments from files: FASTA, a2m and a3m, Stockholm, plain or gzipped."""

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from gibbsian.errors import DataError
from gibbsian.sequences.alphabet import Alphabet
from gibbsian.sequences.family import Family

_SMALL = bytes(range(ord("a"), ord("z") + 1))


def read(
    path: str | Path,
    alphabet: str | Alphabet = "protein",
    *,
    identity: float | None = 0.8,
    most_gaps: float | None = None,
    progress: bool | None = None,
) -> Family:
    """A family of aligned sequences from a file.

    FASTA, a2m or a3m (small letters and dots are insertions and are left out where sequences also have capitals), or
    Stockholm (interleaved or not), each plain or gzipped: what the file is is seen from its first line.

    Args:
        path: the file.
        alphabet: "protein", "rna" (T is read as U), "dna", an `Alphabet`, or letters; others count as gaps.
        identity: weigh sequences by how many agree with them in at least this share of sites; None for equal weights.
        most_gaps: leave out sequences with a larger share of gaps.
        progress: show a progress bar; by default on a terminal.

    >>> import tempfile, os
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = os.path.join(folder, "family.fasta")
    ...     _ = Path(file).write_text(">a\\nACGU\\n>b\\nAC-U\\n")
    ...     family = read(file, "rna")
    >>> family, family.text(1)
    (Family(2 sequences of 4 sites, rna, effective number 2.0), 'AC-U')
    """
    letters = Alphabet.of(alphabet)
    file = Path(path).expanduser()
    names: list[str] = []
    rows: list[np.ndarray] = []
    table = letters.table()
    for name, sequence in _records(file):
        states = table[np.frombuffer(sequence, dtype=np.uint8)]
        if bool((states == 255).any()):
            bad = chr(sequence[int((states == 255).argmax())])
            raise DataError(
                f"{file.name}: sequence {name!r} holds {bad!r}, which is no letter; expected {letters.letters}"
            )
        if rows and len(states) != len(rows[0]):
            raise DataError(
                f"{file.name}: sequence {name!r} has {len(states)} sites, {names[0]!r} has {len(rows[0])}; sequences must be "
                "aligned to one length (in a2m and a3m, without small letters and dots)"
            )
        names.append(name)
        rows.append(states)
    if not rows or not len(rows[0]):
        raise DataError(
            f"{file.name} holds no sequences; expected FASTA (lines that begin with '>'), a2m, a3m or Stockholm"
        )
    family = Family(torch.from_numpy(np.stack(rows)), letters, tuple(names), source=str(path))
    if most_gaps is not None:
        family = family.without_gaps(most_gaps)
    return family if identity is None else family.reweighted(identity, progress=progress)


def _records(file: Path) -> Iterator[tuple[str, bytes]]:
    """Names and sequences, insertions left out."""
    try:
        with file.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(file, "rb") if zipped else file.open("rb") as lines:
            first = next((line for line in lines if line.strip()), b"")
            if first.startswith(b"# STOCKHOLM"):
                yield from _stockholm(lines)
            elif first.startswith(b">"):
                yield from _fasta(first, lines)
            else:
                raise DataError(
                    f"{file.name} begins with {first[:30]!r}; expected '>' (FASTA, a2m, a3m) or '# STOCKHOLM'"
                )
    except (FileNotFoundError, IsADirectoryError) as error:
        raise DataError(f"there is no file {file}") from error
    except (gzip.BadGzipFile, EOFError) as error:
        raise DataError(f"{file.name} is a damaged gzip file: {error}") from error


def _fasta(first: bytes, lines: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    name = _name(first[1:])
    parts: list[bytes] = []
    for line in lines:
        if line.startswith(b">"):
            yield name, _aligned(b"".join(parts))
            name, parts = _name(line[1:]), []
        elif not line.startswith(b";"):
            parts.append(line.translate(None, b" \t\r\n"))
    yield name, _aligned(b"".join(parts))


def _stockholm(lines: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    parts: dict[str, list[bytes]] = {}
    for line in lines:
        if line.startswith(b"//"):
            break
        words = line.split()
        if words and not line.startswith(b"#"):
            if len(words) != 2:
                raise DataError(f"a line of a Stockholm file is {line[:40]!r}, expected a name and a piece of sequence")
            parts.setdefault(_name(words[0]), []).append(words[1])
    for name, pieces in parts.items():
        yield name, _aligned(b"".join(pieces), insertions=False)


def _aligned(sequence: bytes, insertions: bool = True) -> bytes:
    """Capitals and gaps: small letters are insertions beside capitals, and plain letters where there are none."""
    if insertions and any(65 <= byte <= 90 for byte in sequence):
        return sequence.translate(None, _SMALL + b".")
    return sequence.upper().replace(b".", b"-")


def _name(text: bytes) -> str:
    return text.decode("utf-8", errors="replace").strip()
