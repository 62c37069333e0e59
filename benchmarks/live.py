"""What being watched costs a run, and how soon it is seen.

    OMP_NUM_THREADS=1 python live.py --save results/live.json

One training of digits-rbm after the other, each followed by the server of `gibbsian watch` with five viewers that ask for everything the page asks for.
Server, pictures and viewers are held (SIGSTOP) and let go by turns, a hundred updates each, so that a busy machine bears on both alike; the processor time
of the training process is compared over pairs of neighboring turns, in both orders. `beside` is the processor time of the server and of the process that makes
pictures, which gives way to everything else. `first curve` is how long after the first update of a run with `--live` headless chromium, open before, has drawn a curve.
"""

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from urllib.error import URLError
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from chromium import browsing
from timing import save

from gibbsian.app.cli import main as gibbsian
from gibbsian.training import fit
from gibbsian.training.loop import timed

TURN, VIEWERS = 100, 5  # updates, people
ORDER = (False, True, True, False)  # watched or not


def view(address: str) -> None:
    """One who looks: hears the news, and asks for the newest samples and checkpoint as the page does."""
    seen: set[str] = set()
    with urlopen(address + "events") as news:
        for line in news:
            if not line.startswith(b'data: {"run"'):
                continue
            facts = json.loads(line[6:])["facts"]
            wanted = {f"{kind}s/0/{step}" for kind in ("sample",) for step in facts["samples"][-1:]}
            wanted |= {f"model/0/{step}" for step in facts["models"][-1:]}
            for one in wanted - seen:
                seen.add(one)
                try:
                    urlopen(f"{address}look/{one}").read()
                except (URLError, ConnectionError):  # removed meanwhile, or the end
                    continue


def family(pid: int) -> list[int]:
    """A process, its children, and theirs."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended
        return []
    return [pid, *(one for child in children for one in family(int(child)))]


def seconds(pids: list[int]) -> float:
    """Processor time of processes."""
    total = 0.0
    for pid in pids:
        try:
            numbers = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")
    return total


class Turns:
    """A hook that holds those who look and lets them go by turns, and notes what the training takes meanwhile."""

    def __init__(self, server: int, viewers: int) -> None:
        self.server, self.viewers = server, viewers
        self.taken: list[tuple[bool, float, float]] = []  # watched, training's seconds, seconds beside
        self.watched, self.mark = True, (time.process_time(), 0.0)
        self.number = 0

    def __call__(self, run: object) -> None:
        own, beside = time.process_time(), seconds(family(self.server))
        if self.number:  # the first turn warms up
            self.taken.append((self.watched, own - self.mark[0], beside - self.mark[1]))
        self.watched = ORDER[self.number % 4]
        self.number += 1
        for pid in [*family(self.server), self.viewers]:
            os.kill(pid, signal.SIGCONT if self.watched else signal.SIGSTOP)
        self.mark = (time.process_time(), beside)


@contextmanager
def looking(folder: Path) -> Iterator[tuple[int, int]]:
    """A server of a folder that is to come, and a process with its viewers: their numbers."""
    folder.mkdir()
    (folder / "metrics.jsonl").touch()
    command = [sys.executable, "-m", "gibbsian", "watch", str(folder), "--no-browser", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = json.loads(server.stdout.readline())["address"]
    (folder / "metrics.jsonl").unlink()
    viewers = subprocess.Popen([sys.executable, __file__, "--view", address])
    try:
        yield server.pid, viewers.pid
    finally:
        for process in (viewers, server):
            for pid in family(process.pid):
                os.kill(pid, signal.SIGCONT)
        viewers.kill()
        server.terminate()
        viewers.wait()
        server.wait()


def by_turns(folder: Path, epochs: int) -> list[tuple[bool, float, float]]:
    """One training, watched and not by turns."""
    whole = fit.train
    with looking(folder) as pids:
        turns = Turns(*pids)

        def train(job, steps, held_out, hooks, *rest):
            return whole(job, steps, held_out, [*timed([(TURN, turns)]), *hooks], *rest)

        fit.train = train
        try:
            given = ["--no-report", "--quiet", "--fit.epochs", str(epochs), "--run", str(folder)]
            assert gibbsian(["train", "digits-rbm", *given]) == 0
        finally:
            fit.train = whole
    return turns.taken


def first_curve(folder: Path) -> float:
    """Seconds from the first update to a curve in the browser."""
    command = [sys.executable, "-m", "gibbsian", "train", "digits-rbm", "--no-report", "--quiet", "--run", str(folder)]
    with browsing() as browser:
        flags = ["--fit.epochs", "20", "--live", "--no-browser", "--json"]
        process = subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        assert process.stderr is not None
        browser.open(json.loads(process.stderr.readline())["address"])
        drawn = browser.run(
            "new Promise((done) => { const look = () => document.querySelector('.curves canvas') ? done(Date.now()) : setTimeout(look, 10);"
            " look(); })"
        )
        process.communicate()
    first = folder / "snapshots" / f"step-{1:012d}.safetensors"  # written right after the first update
    return drawn / 1000 - first.stat().st_mtime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=900)
    parser.add_argument("--view", help="look at this address")
    parser.add_argument("--save")
    options = parser.parse_args()
    if options.view:
        for _ in range(VIEWERS):
            Thread(target=view, args=(options.view,)).start()
        return
    with tempfile.TemporaryDirectory() as place:
        taken = [by_turns(Path(place) / str(i), options.epochs) for i in range(options.runs)]
        first = [first_curve(Path(place) / f"first-{i}") for i in range(3)]
    pairs = [sorted(turns[i : i + 2]) for turns in taken for i in range(0, len(turns) - 1, 2)]  # not watched first
    logs = [math.log(watched[1] / alone[1]) for alone, watched in pairs]
    mean, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    middle = statistics.median(logs)
    own, beside = (sum(one[k] for turns in taken for one in turns if one[0]) for k in (1, 2))
    found = {
        "median": math.exp(middle),
        "ratio": math.exp(mean),
        "interval": [math.exp(mean - 2 * error), math.exp(mean + 2 * error)],
        "pairs": len(pairs),
        "updates": TURN,
        "viewers": VIEWERS,
        "own_s": own,
        "beside_s": beside,
        "first_curve_s": first,
        "load": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
    }
    print(json.dumps(found, indent=1))
    save(found, options.save)


if __name__ == "__main__":
    main()
