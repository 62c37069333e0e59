"""Trained models to start from: small run folders with a card each.

`names()` says which there are, `card(name)` what is known of one, `load(name)` gives the model: an energy, a score network, or
the law of a table. Loading builds classes of this library and reads tensors; it runs no other code.

>>> import gibbsian as gb, torch
>>> rbm = gb.zoo.load("digits-rbm")
>>> gb.draw(rbm, 4, steps=100, generator=torch.Generator().manual_seed(0)).shape
torch.Size([4, 64])
>>> gb.zoo.card("digits-rbm").figures["test log-likelihood"].how
'nats a row, 297 test rows, AIS bounds'
"""

from pathlib import Path
from typing import Any

import torch

from gibbsian.errors import ArgumentError, suggest
from gibbsian.tables.keeping import model_of
from gibbsian.training import checkpoint
from gibbsian.training.fit import load as load_run
from gibbsian.zoo.cards import Card, Figure, check_files, read_card, share, write_card
from gibbsian.zoo.packing import begin, chains_of, pack, pack_table, save

__all__ = [
    "Card", "Figure", "begin", "card", "chains", "chains_of", "checked_path", "load", "names", "pack", "pack_table", "path", "read_card",
    "save", "share", "write_card",
]  # fmt: skip

_MEMBERS = Path(__file__).parent / "members"


def names() -> list[str]:
    """The members of the zoo."""
    return sorted(folder.parent.name for folder in _MEMBERS.glob("*/card.json"))


def path(name: str) -> Path:
    """The folder of a member."""
    known = names()
    if name not in known:
        raise ArgumentError(f"there is no {name!r} in the zoo; {suggest(str(name), known)}there are {', '.join(known)}")
    return _MEMBERS / name


def checked_path(name: str) -> Path:
    """The folder of a member, once every file in it is the one that its card was written for."""
    folder = path(name)
    check_files(folder, read_card(folder))
    return folder


def card(name: str) -> Card:
    """What is known of a member: data, settings, seed, figures with intervals, license, checksums."""
    return read_card(path(name))


def load(name: str, *, device: torch.device | str = "cpu") -> Any:
    """A trained model, in evaluation mode and the default precision.

    Args:
        name: one of `names()`.
        device: where to put it; laws of tables stay on the CPU.
    """
    folder = checked_path(name)
    if (folder / "table.json").exists():
        return model_of(checkpoint.read_tree(folder, "table"))
    return load_run(folder, device=device)


def chains(name: str) -> torch.Tensor | None:
    """Chains of the training of a member, `(rows, *event)`: where draws of it may well begin; None where it has none.

    They lie class by class: take rows of them by lot, not the first.
    """
    return chains_of(checked_path(name))
