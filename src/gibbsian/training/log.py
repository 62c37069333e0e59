"""The log of a run: `metrics.jsonl`, one line at a time, and TensorBoard where it is asked for."""

import json
import math
import os
from pathlib import Path
from typing import Any

from gibbsian.errors import ArgumentError, CapabilityError


def read_log(folder: Path, lines: int | None = None) -> list[dict[str, Any]]:
    """The records of a run, or its first `lines`; a last line that was cut off by a crash is left out.

    >>> read_log(Path("no such run"))
    []
    """
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines()[:lines]:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    words = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
    return [{k: words.get(v, v) if isinstance(v, str) else v for k, v in record.items()} for record in records]


class Log:
    """Records in memory, and in a run folder where there is one; a line is one write."""

    def __init__(
        self, folder: Path | None, history: list[dict[str, Any]], *, tensorboard: bool = False, step: int = 0
    ) -> None:
        self.history = history
        self.file: int | None = None
        self.board: Any = None
        if folder is None:
            return
        path = folder / "metrics.jsonl"
        rewritten = path.with_suffix(".new")  # a resumed run forgets the lines after its checkpoint
        rewritten.write_text("".join(self._line(record) for record in history))
        rewritten.replace(path)
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND)
        if tensorboard:
            self.board = _summary_writer()(folder / "tensorboard", purge_step=step + 1)

    @staticmethod
    def _line(record: dict[str, Any]) -> str:
        odd = {name: str(x) for name, x in record.items() if isinstance(x, float) and not math.isfinite(x)}
        return json.dumps(record | odd) + "\n"  # JSON has no NaN: numbers that are not finite are written as words

    def write(self, record: dict[str, Any]) -> None:
        """Add a record, a flat dictionary with a `step`."""
        self.history.append(record)
        if self.file is not None:
            os.write(self.file, self._line(record).encode())
        if self.board is not None:
            for name, value in record.items():
                if isinstance(value, int | float) and name != "step":
                    self.board.add_scalar(name, value, record["step"])
                elif name == "message":
                    self.board.add_text("event", value, record["step"])

    def close(self) -> None:
        """Close the files."""
        if self.file is not None:
            os.close(self.file)
            self.file = None
        if self.board is not None:
            self.board.close()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise CapabilityError(
            "Logging(tensorboard=True) needs the package tensorboard: pip install tensorboard"
        ) from error
    return SummaryWriter


def check_tensorboard(folder: Any) -> None:
    """Raise at once where TensorBoard is asked for and cannot be written."""
    if folder is None:
        raise ArgumentError("Logging(tensorboard=True) writes into the run folder; give run_dir as well")
    _summary_writer()
