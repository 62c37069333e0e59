"""What is known of a trained model: where it comes from, and figures that were measured on it as it is loaded."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gibbsian.errors import CheckpointError
from gibbsian.training import checkpoint

CARD = "card.json"
_READ = {".json", ".safetensors", ".yaml"}  # by loading


class Figure(NamedTuple):
    """A measured number, an interval that holds it (95 % where a share is counted, else as `how` says; open above for a lower
    bound), and how it was found.

    >>> print(Figure(-85.0, -86.0, None, "a bound"))
    -85 in [-86, open]  (a bound)
    """

    value: float
    low: float
    high: float | None
    how: str

    def __str__(self) -> str:
        high = "open" if self.high is None else f"{self.high:.4g}"
        return f"{self.value:.4g} in [{self.low:.4g}, {high}]  ({self.how})"


@dataclass(frozen=True)
class Card:
    """What is known of a member of the zoo.

    Attributes:
        name: that `gibbsian.zoo.load` takes.
        about: what it is, in a line.
        data: what it was trained on, and whose that is.
        license: of the weights.
        made: how: the command, updates, seed, seconds and machine.
        figures: measured on the weights as they are loaded, by name.
        classes: names of classes, where the model knows any.
        letters: what the states of a site stand for, in order, where events are sequences.
        files: SHA-256 of every file of the folder but the card.
    """

    name: str
    about: str
    data: str
    license: str
    made: dict[str, Any]
    figures: dict[str, Figure]
    classes: tuple[str, ...] = ()
    letters: str = ""
    files: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """All of it, for programs."""
        return asdict(self) | {"figures": {name: figure._asdict() for name, figure in self.figures.items()}}

    def __str__(self) -> str:
        numbers = [f"  {name}: {figure}" for name, figure in self.figures.items()]
        made = ", ".join(
            f"{key} {round(v) if key == 'seconds' else v}" for key, v in self.made.items() if key != "note"
        )
        note = [f"  note: {self.made['note']}"] if "note" in self.made else []
        return "\n".join([f"{self.name}: {self.about}", f"  data: {self.data}", f"  made: {made}", *note, *numbers])


def share(right: int, n: int, how: str) -> Figure:
    """A share that was counted, with Wilson's interval of 95 %.

    >>> [round(v, 3) for v in share(95, 100, "test rows")[:3]]
    [0.95, 0.888, 0.978]
    """
    z, p = 1.959964, right / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Figure(p, (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n), how)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder but its card."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CARD)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def write_card(folder: Path, card: Card) -> None:
    """Write the card of a folder, with the checksums of its files."""
    plain = card.document() | {"files": digests(folder)}
    (folder / CARD).write_text(
        json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
    )


def read_card(folder: Path) -> Card:
    """The card of a folder."""
    with checkpoint.damage(folder / CARD):
        plain = json.loads((folder / CARD).read_text(encoding="utf-8"))
        figures = {name: Figure(**figure) for name, figure in plain["figures"].items()}
        return Card(**plain | {"figures": figures, "classes": tuple(plain["classes"])})


def check_files(folder: Path, card: Card) -> None:
    """Refuse a folder whose files are not those that its card was written for, or that has more of those which loading reads."""
    found = digests(folder)
    wrong = sorted(name for name in card.files if found.get(name) != card.files[name])
    if wrong:
        raise CheckpointError(
            f"{folder / wrong[0]} is damaged or missing: its checksum is not that on the card; install anew"
        )
    more = sorted(name for name in found if name not in card.files and Path(name).suffix in _READ)
    if more:  # such as a later checkpoint, which would be loaded instead
        raise CheckpointError(f"{folder / more[0]} is not on the card of {card.name}; remove it, or install anew")
