"""A family of aligned sequences, and how much each of them counts."""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gibbsian.errors import ArgumentError, ShapeError, check_count, check_number
from gibbsian.progress import progress_bar
from gibbsian.sequences.alphabet import Alphabet


@dataclass(frozen=True)
class Family:
    """Aligned sequences of one length.

    Attributes:
        states: `(sequences, sites)`, the letter of every site as a number.
        alphabet: what the numbers mean.
        names: of the sequences.
        weights: how much each counts: 1 over the number of sequences like it.
        source: where they came from.

    >>> family = Family(torch.tensor([[1, 2], [1, 2], [3, 4]]), Alphabet.of("rna"))
    >>> family, family.x.shape, family.reweighted(0.8).weights
    (Family(3 sequences of 2 sites, rna, effective number 3.0), torch.Size([3, 2, 5]), tensor([0.5000, 0.5000, 1.0000]))
    """

    states: Tensor
    alphabet: Alphabet
    names: tuple[str, ...] = ()
    weights: Tensor = field(default_factory=lambda: torch.empty(0))
    source: str = ""

    def __post_init__(self) -> None:
        if self.states.dim() != 2 or not self.states.numel():
            raise ShapeError(f"states have shape {tuple(self.states.shape)}, expected (sequences, sites)")
        if not self.weights.numel():
            object.__setattr__(self, "weights", torch.ones(len(self.states)))
        if self.weights.shape != self.states.shape[:1]:
            raise ShapeError(f"{len(self.states)} sequences came with weights of shape {tuple(self.weights.shape)}")

    def __len__(self) -> int:
        return len(self.states)

    def __repr__(self) -> str:
        return f"Family({len(self)} sequences of {self.sites} sites, {self.alphabet.name}, effective number {self.effective:.1f})"

    @cached_property
    def x(self) -> Tensor:
        """One-hot rows `(sequences, sites, letters)`."""
        return one_hot(self.states, len(self.alphabet))

    @property
    def sites(self) -> int:
        """The length of every sequence."""
        return self.states.shape[1]

    @property
    def varies(self) -> bool:
        """Whether any two sequences differ."""
        return bool((self.states != self.states[:1]).any())

    @property
    def effective(self) -> float:
        """The effective number of sequences, Σ weights."""
        return float(self.weights.sum())

    @property
    def gaps(self) -> Tensor:
        """The share of gaps in every sequence."""
        return (self.states == self.alphabet.index("-")).float().mean(1)

    def text(self, row: int) -> str:
        """A sequence as letters."""
        return "".join(self.alphabet.letters[int(s)] for s in self.states[row])

    def select(self, rows: Tensor) -> "Family":
        """Some of the sequences, with the weights they have."""
        index = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows
        if not len(index):
            raise ArgumentError("no sequence is left; be less strict")
        names = tuple(self.names[i] for i in index.tolist()) if self.names else ()
        return Family(self.states[index], self.alphabet, names, self.weights[index], self.source)

    def without_gaps(self, most: float = 0.3) -> "Family":
        """The sequences with a share of gaps of at most this."""
        return self.select(self.gaps <= most)

    def reweighted(
        self, identity: float = 0.8, *, device: str | torch.device | None = None, progress: bool | None = None
    ) -> "Family":
        """Weights by similarity, computed on a device: see `similarity_weights`."""
        weights = similarity_weights(self.states.to(device), identity, progress=progress).to(self.states.device)
        return Family(self.states, self.alphabet, self.names, weights, self.source)

    def profile(self, pseudocount: float = 0.0) -> Tensor:
        """fᵢ(a), `(sites, letters)`, weighted, in double precision; with a pseudocount α: (1-α)f + α/q."""
        check_number(self, "pseudocount", pseudocount, 0, 1)
        q = len(self.alphabet)
        at = self.states.long() + q * torch.arange(self.sites, device=self.states.device)
        f = torch.bincount(at.flatten(), self.shares.repeat_interleave(self.sites), minlength=self.sites * q)
        return (1 - pseudocount) * f.reshape(self.sites, q) + pseudocount / q

    def frequencies(
        self, pseudocount: float = 0.0, *, device: str | torch.device | None = None
    ) -> tuple[Tensor, Tensor]:
        """The profile fᵢ(a), and fᵢⱼ(a, b) `(sites, letters, sites, letters)`, weighted, in double precision.

        With a pseudocount α: pairs (1-α)f + α/q², and fᵢᵢ = diag fᵢ, so that margins agree. Computed on a device, where they stay.
        """
        states, shares = self.states.to(device), self.shares.to(device)
        single, q = self.profile(pseudocount).to(states.device), len(self.alphabet)
        count = pairs_by_counting if states.device.type == "cpu" else pairs_by_products
        pairs = count(states, shares, q).mul_(1 - pseudocount).add_(pseudocount / q**2)
        pairs.diagonal(dim1=0, dim2=2).copy_(torch.diag_embed(single).permute(1, 2, 0))
        return single, pairs

    @property
    def shares(self) -> Tensor:
        """The weights, in double precision, adding up to 1."""
        return self.weights.double() / self.weights.double().sum()

    def blocks(self, size: int = 4096) -> Iterator[tuple[Tensor, Tensor]]:
        """One-hot rows of some sequences at a time, and their weights, which add up to 1 over all."""
        for states, w in zip(self.states.split(size), self.shares.split(size), strict=True):
            yield one_hot(states, len(self.alphabet)), w

    def write(self, path: str | Path) -> None:
        """Write the sequences to a FASTA file, gzipped where its name ends in .gz.

        >>> import tempfile, os
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = os.path.join(folder, "new.fasta")
        ...     Family(torch.tensor([[1, 0, 4]]), Alphabet.of("rna"), ("one",)).write(file)
        ...     Path(file).read_text()
        '>one\\nA-U\\n'
        """
        file = Path(path).expanduser()
        with gzip.open(file, "wb") if file.suffix == ".gz" else file.open("wb") as out:
            out.writelines(self.fasta())

    def fasta(self) -> Iterator[bytes]:
        """The records of a FASTA file, one a sequence."""
        letters = np.frombuffer(self.alphabet.letters.encode(), dtype=np.uint8)
        for row, states in enumerate(self.states.cpu().numpy()):
            name = self.names[row] if self.names else f"sequence{row + 1}"
            yield b">" + name.encode() + b"\n" + letters[states].tobytes() + b"\n"


def one_hot(states: Tensor, q: int) -> Tensor:
    """Numbers as one-hot rows `(..., q)`, without the wide integers in between."""
    x = torch.zeros(*states.shape, q, device=states.device, dtype=torch.get_default_dtype())
    return x.scatter_(-1, states.long()[..., None], 1.0)


def pairs_by_counting(states: Tensor, shares: Tensor, q: int) -> Tensor:
    """fᵢⱼ(a, b), i ≠ j, by adding up the shares of the sequences that have both letters: one addition for a pair of sites and
    a sequence, where products of one-hot rows multiply q² numbers."""
    sites = states.shape[1]
    at = (states.long() + q * torch.arange(sites)).T.contiguous()  # (sites, sequences), which of all letters it is
    w = shares.repeat(sites)
    out = torch.zeros(sites, q, sites, q, dtype=torch.float64)
    for i in range(sites - 1):
        code = (at[i] - i * q) * (sites * q) + at[i + 1 :]
        f = torch.bincount(code.flatten(), w[: code.numel()], minlength=sites * q * q).reshape(q, sites, q)[:, i + 1 :]
        out[i, :, i + 1 :], out[i + 1 :, :, i] = f, f.permute(1, 2, 0)
    return out


def pairs_by_products(states: Tensor, shares: Tensor, q: int, block: int = 4096) -> Tensor:
    """The same by products of one-hot rows: what devices with fast matrix products want."""
    sites = states.shape[1]
    out = torch.zeros(sites * q, sites * q, dtype=torch.float64, device=states.device)
    for rows, w in zip(states.split(block), shares.split(block), strict=True):
        flat = one_hot(rows, q).flatten(1)
        out += (flat * w[:, None].to(flat)).T @ flat
    return out.reshape(sites, q, sites, q)


def similarity_weights(
    states: Tensor, identity: float = 0.8, *, block: int = 1024, progress: bool | None = None
) -> Tensor:
    """How much each sequence counts: 1 over the number of sequences, itself included, that agree with it in at least
    this share of the sites.

        wₙ = 1/#{m: identity(n, m) ≥ θ},   Meff = Σ wₙ

    Families are sampled unevenly, many close relatives of a few; the sum of weights is the effective number.

    >>> similarity_weights(torch.tensor([[0, 1, 2], [0, 1, 2], [2, 1, 0]]), 0.6)
    tensor([0.5000, 0.5000, 1.0000])
    """
    block = check_count("similarity_weights", "block", block)
    check_number("similarity_weights", "identity", identity, 0, 1, open_low=True)
    n, sites = states.shape
    least = identity * sites - 1e-6 * sites
    q = int(states.max()) + 1
    alike = torch.zeros(n, device=states.device)
    with progress_bar(n, "similarities", progress) as tick:
        for start in range(0, n, block):
            rows = one_hot(states[start : start + block], q).flatten(1)
            for other in range(start, n, block):  # products of one-hot rows count agreements
                near = rows @ one_hot(states[other : other + block], q).flatten(1).T >= least
                alike[start : start + block] += near.sum(1)
                if other > start:
                    alike[other : other + block] += near.sum(0)
            tick(len(rows))
    return 1 / alike
