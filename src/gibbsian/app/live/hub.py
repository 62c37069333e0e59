"""Between the runs and those who look: the folders are read once for all viewers, and pictures are made once."""

import json
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import Any

from gibbsian.app.live.follow import Follower, members

_EVERY = 0.4  # seconds between two looks at the folders, while anybody listens
_KEPT = 200  # pictures


class Hub:
    """Runs, followed by one thread as long as anybody listens; and a process for pictures, begun when the first is wanted.

    >>> hub = Hub([Path("no such run")])
    >>> next(hub.listen(1.0))["facts"]["state"]
    'waiting'
    >>> hub.close()
    """

    def __init__(self, folders: Sequence[Path], *, trusted: Sequence[str] = (), nice: int = 19) -> None:
        self.folders = list(folders)
        self.followers: list[Follower] = []
        self.news = Condition()
        self.closed, self.listeners = False, 0
        self.painter = Painter(trusted, nice)
        self._thread: Thread | None = None

    def listen(self, silence: float) -> Generator[dict[str, Any] | None, None, None]:
        """All there is, then what is new as it comes; None after so many seconds of nothing, {} at the end."""
        told: dict[int, tuple[int, int, Any]] = {}
        with self.news:
            self.listeners += 1
            if self._thread is None:
                self._poll()
                self._thread = Thread(target=self._follow, daemon=True)
                self._thread.start()
        try:
            while True:
                with self.news:
                    fresh = self._fresh(told)
                    ended = not fresh and self.closed
                    if not fresh and not ended:
                        self.news.wait(silence)
                        fresh = self._fresh(told)
                if ended:
                    yield {}
                    return
                if not fresh and not self.closed:
                    yield None
                yield from fresh
        finally:
            with self.news:
                self.listeners -= 1
                self.news.notify_all()

    def _fresh(self, told: dict[int, tuple[int, int, Any]]) -> list[dict[str, Any]]:
        """What a listener does not know yet."""
        out = []
        for i, one in enumerate(self.followers):
            facts = one.facts | {"models": self._models(i)}
            generation, count, known = told.get(i, (-1, 0, None))
            anew = generation != one.generation
            count = 0 if anew else count
            if anew or count < len(one.records) or facts != known:
                out.append({"run": i, "anew": anew, "facts": facts, "records": one.since(count)})
            told[i] = (one.generation, len(one.records), facts)
        return out

    def _models(self, run: int) -> list[int]:
        """Checkpoints that can be looked at: those that were, and the newest."""
        newest = self.followers[run].facts.get("checkpoint")
        return sorted({*self.painter.made("model", self.followers[run].folder), *([] if newest is None else [newest])})

    def _follow(self) -> None:
        while not self.closed:
            time.sleep(_EVERY)
            with self.news:
                if self.listeners == 0:
                    self._thread = None
                    return
                if self._poll():
                    self.news.notify_all()

    def _poll(self) -> bool:
        known = {one.folder for one in self.followers}
        new = [Follower(path) for folder in self.folders for path in members(folder) if path not in known]
        self.followers += new
        return any([one.poll() for one in self.followers] + [bool(new)])

    def look(self, kind: str, run: int, step: int) -> str | None:
        """A picture of a run as JSON; None where there is no such run or step."""
        with self.news:
            if run >= len(self.followers):
                return None
            one = self.followers[run]
            there = one.facts["samples"] if kind == "samples" else self._models(run)
        return self.painter.ask(kind, one.folder, step) if step in there else None

    def finish(self, most: float) -> None:
        """Tell what is new, and let those who listen get the pictures that they ask for then, for so many seconds at most."""
        with self.news:
            self._poll()
            self.news.notify_all()
        end, quiet = time.monotonic() + most, 0
        while self.listeners and quiet < 10 and time.monotonic() < end:
            time.sleep(0.1)
            quiet = 0 if self.painter.lock.locked() else quiet + 1

    def close(self) -> None:
        """Tell what is new for the last time, and end."""
        with self.news:
            self._poll()
            self.closed = True
            self.news.notify_all()
            self.news.wait_for(lambda: self.listeners == 0, timeout=2)
        self.painter.close()


class Painter:
    """The process that makes pictures (`gibbsian.app.live.painting`), one at a time; what was made is kept."""

    def __init__(self, trusted: Sequence[str], nice: int) -> None:
        self.arguments = [str(nice), *trusted]
        self.kept: dict[tuple[str, Path, int], str] = {}
        self.lock = Lock()
        self.process: subprocess.Popen[str] | None = None
        self.closed = False

    def made(self, kind: str, folder: Path) -> list[int]:
        """The steps of a run whose pictures are kept."""
        return [step for what, where, step in list(self.kept) if (what, where) == (kind, folder)]

    def ask(self, kind: str, folder: Path, step: int) -> str:
        """The picture, or under `why` the reason that there is none."""
        key = (kind, folder, step)
        with self.lock:
            if key in self.kept:
                return self.kept[key]
            answer = self._made(json.dumps({"folder": str(folder), "kind": kind, "step": step}))
            if '"why"' not in answer[:8]:  # a failure may pass
                self.kept[key] = answer
                if len(self.kept) > _KEPT:
                    self.kept.pop(next(iter(self.kept)))
            return answer

    def _made(self, question: str) -> str:
        gone = json.dumps({"why": "the process that makes pictures has ended"})
        if self.closed:
            return gone
        try:
            if self.process is None or self.process.poll() is not None:
                command = [sys.executable, "-m", "gibbsian.app.live.painting", *self.arguments]
                pipes: dict[str, Any] = {
                    "stdin": subprocess.PIPE,
                    "stdout": subprocess.PIPE,
                    "stderr": subprocess.DEVNULL,
                }
                self.process = subprocess.Popen(command, text=True, process_group=0, **pipes)
            process = self.process
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(question + "\n")
            process.stdin.flush()
            return process.stdout.readline().strip() or gone
        except (OSError, ValueError):
            return gone

    def close(self) -> None:
        """End the process."""
        self.closed = True
        process = self.process
        if process is not None:
            process.kill()
            with self.lock, process:  # which closes its pipes
                pass
