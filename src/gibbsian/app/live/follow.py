"""A run folder, followed by reading: its log as it grows, its snapshots and checkpoints, and whether somebody still trains."""

import json
import os
import time
from pathlib import Path
from typing import Any

_MOST = 4000  # records that a viewer gets at once; more are thinned
_QUIET = 15.0  # seconds without a record, at least, after which a run that nobody holds the lock of has stopped


class Follower:
    """What is known of one run; `poll` reads what is new.

    >>> one = Follower(Path("no such run"))
    >>> one.poll(), one.facts["state"]
    (True, 'waiting')
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}
        self.generation = 0  # how often the log was begun anew, as by a run that is resumed
        self._file: tuple[int, int] | None = None  # which file was read, and how far
        self._rest = b""  # a line that is not whole yet
        self._settings: dict[str, Any] | None = None

    def poll(self) -> bool:
        """Read what is new; has anything changed?"""
        before = len(self.records), self.generation, self.facts
        self._read_log()
        self.facts = self._facts()
        return before != (len(self.records), self.generation, self.facts)

    def since(self, count: int) -> list[dict[str, Any]]:
        """The records after the first `count`; of very many every k-th, but all events and the last."""
        found = self.records[count:]
        every = -(-len(found) // _MOST)
        return (
            [r for i, r in enumerate(found, 1 - len(found)) if i % every == 0 or "event" in r] if every > 1 else found
        )

    def _read_log(self) -> None:
        try:
            with (self.folder / "metrics.jsonl").open("rb") as file:
                status = os.fstat(file.fileno())
                if self._file is None or self._file[0] != status.st_ino or self._file[1] > status.st_size:
                    self.generation += self._file is not None
                    self.records, self._rest, self._file = [], b"", (status.st_ino, 0)
                file.seek(self._file[1])
                new = file.read()
        except OSError:
            return
        self._file = (self._file[0], self._file[1] + len(new))
        *lines, self._rest = (self._rest + new).split(b"\n")
        self.records += [record for record in map(_record, lines) if record is not None]

    def _facts(self) -> dict[str, Any]:
        settings, command = self._known(), _json(self.folder / "command.json")
        step = max((r["step"] for r in self.records[-50:]), default=0)
        total = command.get("total", settings.get("steps"))  # a run that is resumed may go further than it was asked to
        return {
            "name": command.get("name", self.folder.name),
            "folder": str(self.folder),
            "about": command.get("about", ""),
            "total": total,
            "state": self._state(step, total),
            "samples": _steps(self.folder / "snapshots"),
            "checkpoint": max(_steps(self.folder / "checkpoints"), default=None),
            "report": (self.folder / "report.html").exists(),
        }

    def _known(self) -> dict[str, Any]:
        """The settings of the training, which stay as they are."""
        if self._settings is None:
            tree = _json(self.folder / "config.json").get("tree", {})
            self._settings = tree.get("settings", {}).get("fields") if isinstance(tree, dict) else None
        return self._settings or {}

    def _state(self, step: int, total: int | None) -> str:
        """waiting, training, done or stopped. The lock of the folder is looked up, never taken: that would keep a training
        from beginning."""
        if not self.folder.is_dir():
            return "waiting"
        if _locked(self.folder / ".lock"):
            return "training"
        if total is not None and step >= total:
            return "done"
        times = [r["seconds"] for r in self.records if isinstance(r.get("seconds"), float)][-2:]
        patience = max(_QUIET, 5 * (times[-1] - times[0])) if times else _QUIET
        try:
            quiet = time.time() - (self.folder / "metrics.jsonl").stat().st_mtime
        except OSError:
            return "waiting"
        return "stopped" if quiet > patience else "training"


def members(folder: Path) -> list[Path]:
    """The runs of a folder: itself and its layers where these are trained first, or those of a comparison, as far as they have begun."""
    if not (folder / "comparison.json").exists():
        return [folder, *_begun(folder / "pretraining")]
    return _begun(folder)


def _begun(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/config.json"))


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line, parse_constant=str)  # pages read JSON, which has no word for what is not finite
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _json(path: Path) -> dict[str, Any]:
    """An object of a file, or an empty one: a viewer goes on with what there is."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=str)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _steps(folder: Path) -> list[int]:
    """The steps of files or folders named step-000000000042, ascending."""
    found = (path.name[5:].removesuffix(".safetensors") for path in folder.glob("step-*"))
    return sorted(int(step) for step in found if step.isdecimal())


def _locked(path: Path) -> bool:
    """Does a process of this machine hold the lock, as far as the system says so?"""
    try:
        status, held = path.stat(), Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return False
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(line.split()[1:2] == ["FLOCK"] and name in line.split() for line in held.splitlines())
