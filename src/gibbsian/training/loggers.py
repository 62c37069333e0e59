"""Loggers: where the records of a run go besides `run.history` and `metrics.jsonl`.

A record is a flat dictionary with a `step`: numbers of the training or of a validation, or an event with its message. One of your
own is a class with `open`, `write` and `close`.
"""

import csv
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gibbsian.errors import ArgumentError, CapabilityError

_LONGEST = 1_000_000  # characters of a line


@dataclass
class Logger(ABC):
    """Takes the records of a run, those of the first process."""

    def check(self, folder: Path | None) -> None:  # noqa: B027 - most work anywhere
        """Raise before the first step where it cannot work."""

    @abstractmethod
    def open(self, folder: Path | None, about: dict[str, Any], step: int) -> None:
        """Begin, or go on after `step`: records of later steps, of a run that was resumed from before them, are forgotten.

        Args:
            folder: that of the run, where there is one.
            about: plain values that say what is trained and how.
            step: updates done so far.
        """

    @abstractmethod
    def write(self, record: dict[str, Any]) -> None:
        """Take a record."""

    @abstractmethod
    def close(self) -> None:
        """End; `open` may come again."""


def _place(given: str | None, folder: Path | None, usual: str, owner: str) -> Path:
    if given is not None:
        return Path(given).expanduser()
    if folder is None:
        raise ArgumentError(f"{owner} writes into the run folder; give run_dir, or a path to {owner}")
    return folder / usual


def _spare(path: Path, is_log: Callable[[str], bool]) -> None:
    """Refuse a file that is no log: it would be written anew, and a recipe from elsewhere may name any."""
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            first = file.readline(_LONGEST)
        if first and not is_log(first):
            raise ArgumentError(
                f"{path} holds something else than the log of a training, which would be lost; say another path"
            )


def _plain(value: Any) -> Any:
    odd = isinstance(value, float) and not math.isfinite(value)
    return str(value) if odd else value  # as words: JSON has none for them


@dataclass
class JSONLines(Logger):
    """One record a line as JSON, numbers that are not finite as words.

    Args:
        path: of the file; `log.jsonl` in the run folder by default.
    """

    path: str | None = None

    def check(self, folder: Path | None) -> None:
        _spare(_place(self.path, folder, "log.jsonl", "JSONLines"), lambda line: _step_of(line) < math.inf)

    def open(self, folder: Path | None, about: dict[str, Any], step: int) -> None:
        path = _place(self.path, folder, "log.jsonl", "JSONLines")
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() and step else []
        kept = [line for line in lines if _step_of(line) <= step]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        self.file = path.open("a", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        self.file.write(json.dumps({key: _plain(value) for key, value in record.items()}) + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # a line that was cut off
        return math.inf


@dataclass
class CSV(Logger):
    """A table for spreadsheets: a row a record, a column a number; it is written anew where a column is added.

    Args:
        path: of the file; `log.csv` in the run folder by default.
    """

    path: str | None = None

    def check(self, folder: Path | None) -> None:
        _spare(_place(self.path, folder, "log.csv", "CSV"), lambda line: line.split(",")[0].strip() == "step")

    def open(self, folder: Path | None, about: dict[str, Any], step: int) -> None:
        self.target = _place(self.path, folder, "log.csv", "CSV")
        self.columns, rows = ["step"], list[dict[str, str]]()
        if step and self.target.exists():
            with self.target.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                rows = [row for row in reader if (row.get("step") or "").isdecimal() and int(row["step"]) <= step]
                self.columns = list(reader.fieldnames or self.columns)
        self._rewrite(rows)

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        self.target.parent.mkdir(parents=True, exist_ok=True)
        new = self.target.with_name(f".{self.target.name}.new")
        with new.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        os.replace(new, self.target)
        self.file = self.target.open("a", newline="", encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        fresh = [key for key in record if key not in self.columns]
        if fresh:
            self.file.close()
            with self.target.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            self.columns += fresh
            self._rewrite(rows)
        csv.DictWriter(self.file, self.columns).writerow(record)
        self.file.flush()

    def close(self) -> None:
        self.file.close()


@dataclass
class TensorBoard(Logger):
    """Scalars and events for TensorBoard.

    Args:
        path: of its folder; `tensorboard` in the run folder by default.
    """

    path: str | None = None

    def check(self, folder: Path | None) -> None:
        _place(self.path, folder, "tensorboard", "TensorBoard")
        summary_writer()

    def open(self, folder: Path | None, about: dict[str, Any], step: int) -> None:
        place = _place(self.path, folder, "tensorboard", "TensorBoard")
        self.board = summary_writer()(place, purge_step=step + 1)

    def write(self, record: dict[str, Any]) -> None:
        for name, value in record.items():
            if isinstance(value, int | float) and name != "step":
                self.board.add_scalar(name, value, record["step"])
            elif name == "message":
                self.board.add_text("event", value, record["step"])

    def close(self) -> None:
        self.board.close()


def summary_writer() -> Any:
    """TensorBoard's writer."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise CapabilityError("TensorBoard needs the package tensorboard: pip install tensorboard") from error
    return SummaryWriter


@dataclass
class WandB(Logger):
    """Weights & Biases. A run that is resumed goes on under the same id, which stands in the run folder.

    Args:
        project: where it belongs.
        name: what it is called; the name of the run folder by default.
        mode: "online", "offline" (files in the run folder, for `wandb sync`) or "disabled"; by default what the environment says.
        options: further ones of `wandb.init`, such as `entity`, `group` or `tags`.
    """

    project: str = "gibbsian"
    name: str | None = None
    mode: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def check(self, folder: Path | None) -> None:
        _wandb()

    def open(self, folder: Path | None, about: dict[str, Any], step: int) -> None:
        known = _known_id(folder) if step else None
        given: dict[str, Any] = {"project": self.project, "mode": self.mode, "config": about, "reinit": "create_new"}
        given |= {"name": self.name or (folder.name if folder else None), "dir": folder and str(folder)}
        if known is not None:
            given |= {"id": known, "resume": "allow"}
        self.run = _wandb().init(**given | self.options)
        self.run.define_metric(
            "step"
        )  # a run that is resumed from before its end says some steps twice: the last counts
        self.run.define_metric("*", step_metric="step")
        if folder is not None:
            (folder / "wandb-id").write_text(self.run.id, encoding="utf-8")

    def write(self, record: dict[str, Any]) -> None:
        if "message" in record:
            self.run.alert(title=str(record.get("event", "gibbsian")), text=record["message"])
        self.run.log({key: value for key, value in record.items() if isinstance(value, int | float)})

    def close(self) -> None:
        self.run.finish()


def _known_id(folder: Path | None) -> str | None:
    path = None if folder is None else folder / "wandb-id"
    return path.read_text(encoding="utf-8").strip() if path is not None and path.exists() else None


def _wandb() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise CapabilityError("WandB needs the package wandb: pip install 'gibbsian[wandb]'") from error
    return wandb


def check_loggers(loggers: Sequence[Logger], folder: Path | None) -> None:
    """Refuse what is no logger, or cannot work here, before the first step."""
    for logger in loggers:
        if not isinstance(logger, Logger):
            raise ArgumentError(
                f"loggers holds a {type(logger).__name__}; give some of gibbsian.training.loggers, such as [CSV()], or a Logger of yours"
            )
        logger.check(folder)


def describe_run(energy: Any, objective: Any, settings: Any) -> dict[str, Any]:
    """What is trained and how, in plain values."""
    plain = {
        key: value if isinstance(value, int | float | str | bool | None) else repr(value)
        for key, value in asdict(settings).items()
    }
    return {"energy": type(energy).__name__, "objective": repr(objective), **plain}
