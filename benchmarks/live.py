"""What being watched costs a run, and how soon it is seen.

    OMP_NUM_THREADS=1 python live.py --save results/live.json

`gibbsian train digits-rbm` by itself, with `--live` and nobody looking, and with five viewers that ask for everything the page asks for,
in turns. `cpu` is the processor time of the training process, which does not depend on who else uses the machine; `wall` the seconds from the first
update to the last record, which does. `first curve` is how long after the first update headless chromium, open before, has drawn a curve.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread
from urllib.error import URLError
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from chromium import browsing
from timing import save

TRAIN = """
import sys, time
from gibbsian.app.cli import main
code = main(sys.argv[1:])
print(time.process_time())
sys.exit(code)
"""


def viewer(address: str) -> None:
    """One who looks: hears the news, and asks for the newest samples and checkpoint as the page does."""
    seen: set[str] = set()
    with urlopen(address + "events") as news:
        for line in news:
            if not line.startswith(b'data: {"run"'):
                continue
            facts = json.loads(line[6:])["facts"]
            wanted = {f"samples/0/{step}" for step in facts["samples"][-1:]} | {
                f"model/0/{s}" for s in facts["models"][-1:]
            }
            for one in wanted - seen:
                seen.add(one)
                try:
                    urlopen(f"{address}look/{one}").read()
                except (URLError, ConnectionError):  # removed meanwhile, or the end
                    continue


def train(folder: Path, epochs: int, *flags: str) -> tuple[subprocess.Popen[str], str]:
    """A training that has begun, and the address of its page where it has one."""
    command = [sys.executable, "-c", TRAIN, "train", "digits-rbm", "--no-report", "--quiet", "--run", str(folder)]
    command += ["--fit.epochs", str(epochs), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    return process, json.loads(process.stderr.readline())["address"] if flags else ""


def timed(folder: Path, epochs: int, viewers: int | None) -> dict[str, float]:
    """One run, watched by so many; None is without --live."""
    process, address = train(folder, epochs, *([] if viewers is None else ["--live", "--no-browser", "--json"]))
    threads = [Thread(target=viewer, args=(address,)) for _ in range(viewers or 0)]
    for thread in threads:
        thread.start()
    said, _ = process.communicate()
    for thread in threads:
        thread.join()
    last = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][-2]
    return {"cpu": float(said.splitlines()[-1]), "wall": last["seconds"]}


def first_curve(folder: Path, epochs: int) -> float:
    """Seconds from the first update to a curve in the browser."""
    with browsing() as browser:
        process, address = train(folder, epochs, "--live", "--no-browser", "--json")
        browser.open(address)
        drawn = browser.run(
            "new Promise((done) => { const look = () => document.querySelector('.curves canvas') ? done(Date.now()) : setTimeout(look, 10);"
            " look(); })"
        )
        process.communicate()
    first = (
        (folder / "snapshots" / f"step-{1:012d}.safetensors").stat().st_mtime
    )  # written right after the first update
    return drawn / 1000 - first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--save")
    options = parser.parse_args()
    ways = {"not watched": None, "--live, nobody looks": 0, "--live, five viewers": 5}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    first = []
    with tempfile.TemporaryDirectory() as place:
        for i in range(options.rounds):
            for name, viewers in ways.items():
                found[name].append(timed(Path(place) / f"{i}-{viewers}", options.epochs, viewers))
            first.append(first_curve(Path(place) / f"{i}-first", 20))
    rows = {}
    for name, values in found.items():
        rows[name] = {}
        for key in ("cpu", "wall"):
            ratios = [one[key] / base[key] for one, base in zip(values, found["not watched"], strict=True)]
            low, mid, high = statistics.quantiles(ratios, n=4)
            rows[name][key] = {
                "s": statistics.median(one[key] for one in values),
                "ratio": mid,
                "quartiles": [low, high],
            }
            print(f"{name:24s}{key:6s}{rows[name][key]['s']:8.2f} s   {mid:6.3f}  [{low:.3f}, {high:.3f}]")
    print("first curve", [round(one, 2) for one in first], "s after the first update")
    result = {
        "rows": rows,
        "runs": found,
        "first_curve_s": first,
        "rounds": options.rounds,
        "epochs": options.epochs,
        "load": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
    }
    save(result, options.save)


if __name__ == "__main__":
    main()
