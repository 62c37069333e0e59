"""The log of a run: `metrics.jsonl`, one line at a time, and the loggers that it was given."""

import hashlib
import json
import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gibbsian.errors import TrainingWarning
from gibbsian.training.loggers import Logger


def read_log(folder: Path, lines: int | None = None, sha256: str | None = None) -> list[dict[str, Any]]:
    """The records of a run, or its first `lines`; a last line that was cut off by a crash is left out.

    Damaged lines are left out with a warning, which also says where the lines are not those with the checksum that is given.

    >>> read_log(Path("no such run"))
    []
    """
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    written = path.read_bytes().splitlines(keepends=True)[:lines]
    if written and not written[-1].endswith(b"\n"):
        written.pop()
    records = [_record(line) for line in written]
    found = [record for record in records if record is not None]
    if len(found) < len(records) or (sha256 is not None and hashlib.sha256(b"".join(written)).hexdigest() != sha256):
        lost = len(records) - len(found)
        what = f"{lost} of its lines are left out" if lost else "some of its numbers are not those that were written"
        warnings.warn(f"{path} is damaged: {what}", TrainingWarning, stacklevel=3)
    return found


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        return None
    words = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
    return {k: words.get(v, v) if isinstance(v, str) else v for k, v in record.items()}


class Log:
    """Records in memory, and in a run folder where there is one; a line is one write."""

    def __init__(self, folder: Path | None, history: list[dict[str, Any]], loggers: Sequence[Logger] = ()) -> None:
        self.history, self.loggers = history, loggers
        self.file: int | None = None
        lines = [self._line(record) for record in history]
        self.sha256 = hashlib.sha256("".join(lines).encode())  # of all lines so far
        if folder is None:
            return
        path = folder / "metrics.jsonl"
        rewritten = path.with_suffix(".new")  # a resumed run forgets the lines after its checkpoint
        rewritten.unlink(missing_ok=True)  # in a folder from elsewhere it may be a link to a file of yours
        rewritten.write_text("".join(lines))
        rewritten.replace(path)
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND)

    @staticmethod
    def _line(record: dict[str, Any]) -> str:
        odd = {name: str(x) for name, x in record.items() if isinstance(x, float) and not math.isfinite(x)}
        return json.dumps(record | odd) + "\n"  # JSON has no NaN: numbers that are not finite are written as words

    def write(self, record: dict[str, Any]) -> None:
        """Add a record, a flat dictionary with a `step`."""
        self.history.append(record)
        line = self._line(record).encode()
        self.sha256.update(line)
        if self.file is not None:
            os.write(self.file, line)
        for logger in self.loggers:
            logger.write(record)

    def close(self) -> None:
        """Close the files."""
        if self.file is not None:
            os.close(self.file)
            self.file = None
        for logger in self.loggers:
            logger.close()
        self.loggers = ()
