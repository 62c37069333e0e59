"""Frames of the lab in headless chromium: how far apart they come, what they cost, and where the time goes.

    python lab.py --save results/lab.json

Each setting runs for some seconds in a window of 1280 × 900. `main` is the processor time of the page's thread per frame, of the 16.7 ms
that a frame has; `all` that of all of the browser's threads (they may share two cores, 33.3 ms): these two do not depend on who else
uses the machine. `fps` is frames over the time they took, `interval` the milliseconds from one to the next, `work` those spent
on steps and pictures by the page's own clock: these do, and `load` is the load average at the time. The profile is that of the
browser's sampling profiler over all kernels.
"""

import argparse
import json
import os
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from chromium import Browser, browsing
from PIL import Image

from gibbsian.app.lab.serve import page, serving

KERNELS = ("walk", "independence", "ula", "mala", "hmc", "nuts", "underdamped", "guided", "microcanonical", "tempering")
SETTINGS = {
    **{f"1000 chains, {kernel}": f"landscape?law=hills&chains=1000&kernel={kernel}" for kernel in KERNELS},
    "1000 chains, drawn landscape": "landscape?law=drawing&chains=1000&step=0.15",
    "1000 chains, formula": "landscape?law=formula&chains=1000&step=0.15",
    "machine, 8 hidden units, three rules": "machine",
    "machine, 48 hidden units": "machine?hidden=48&k=5",
    "wells on the line": "wells",
    "wells in the plane, PCD-10": "wells?dim=2&data=three&principle=pcd&k=10",
    "Ising 128 × 128, Gibbs": "lattice",
    "Ising 256 × 256, Swendsen-Wang": "lattice?size=8&move=swendsenWang",
    "noise levels, 1000 chains": "noise?chains=1000&each=100",
    "AIS, 1000 particles": "annealing?particles=1000",
    "digits": "digits",
}


def quantiles(values: list[float]) -> dict[str, float]:
    """Median, 95th and 99th percentile."""
    ordered = sorted(values)
    return {
        name: round(ordered[int(q * (len(ordered) - 1))], 2)
        for name, q in (("median", 0.5), ("p95", 0.95), ("p99", 0.99))
    }


def page_time(browser: Browser) -> float:
    """Seconds of processor time that the page's thread has spent on tasks."""
    return {m["name"]: m["value"] for m in browser.call("Performance.getMetrics")["metrics"]}["TaskDuration"]


def tree_time(pid: int) -> float:
    """Seconds of processor time of a process and all that it started."""
    parents, times = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        parents[int(path.parent.name)] = int(fields[1])
        times[int(path.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def below(process: int) -> bool:
        while process not in (pid, 0):
            process = parents.get(process, 0)
        return process == pid

    return sum(time for process, time in times.items() if below(process))


def measure(browser: Browser, address: str, seconds: float) -> dict[str, Any]:
    browser.open(address)
    browser.wait(1)  # to compile and settle
    browser.run("window.lab.bench().frames.length = 0")
    before = page_time(browser), tree_time(browser.process.pid)
    browser.wait(seconds)
    frames = browser.run("window.lab.bench().frames")
    after = page_time(browser), tree_time(browser.process.pid)
    main, everything = (round(1000 * (b - a) / len(frames), 2) for a, b in zip(before, after, strict=True))
    gaps = [b[0] - a[0] for a, b in pairwise(frames)]
    fps = 1000 * len(gaps) / (frames[-1][0] - frames[0][0])
    work, steps = [frame[2] for frame in frames], [frame[1] for frame in frames]
    cost = {"main": main, "all": everything}
    return cost | {
        "fps": round(fps, 1),
        "interval": quantiles(gaps),
        "work": quantiles(work),
        "steps": quantiles(steps),
        "load": round(os.getloadavg()[0], 1),
    }


def profile(browser: Browser, address: str, seconds: float) -> dict[str, float]:
    """Shares of the busy time by function, the largest first."""
    spent: Counter[str] = Counter()
    browser.call("Profiler.enable")
    for kernel in KERNELS:
        browser.open(f"{address}#landscape?law=hills&chains=1000&kernel={kernel}")
        browser.wait(0.5)
        browser.call("Profiler.start")
        browser.wait(seconds)
        found = browser.call("Profiler.stop")["profile"]
        names = {node["id"]: node["callFrame"] for node in found["nodes"]}
        for node, delta in zip(found["samples"], found["timeDeltas"], strict=True):
            frame = names[node]
            where = frame["url"].rsplit("/", 1)[-1].split("#")[0]
            spent[f"{frame['functionName'] or 'anonymous'} {where}".strip()] += delta
    for idle in ("(idle)", "(root)"):
        spent.pop(idle, None)
    total = sum(spent.values())
    return {name: round(time / total, 3) for name, time in spent.most_common(12)}


def taken(browser: Browser, address: str, selector: str, seconds: float, path: Path) -> Image.Image:
    """The first visible element of a page that the selector finds, after some seconds."""
    browser.open(address, width=1264, height=1300)
    browser.wait(seconds)
    found = f"[...document.querySelectorAll('{selector}')].find((one) => one.offsetParent ?? one.offsetHeight)"
    box = browser.run(f"(({{ x, y, right, bottom }}) => [x, y, right, bottom])({found}.getBoundingClientRect())")
    browser.picture(path)
    with Image.open(path) as image:
        return image.convert("RGB").crop(tuple(map(int, box)))


def pictures(browser: Browser, address: str, folder: Path) -> None:
    """The lab as the README shows it: one experiment whole, and the stages of five others below."""
    path = folder / "lab.png"
    hmc = "landscape?law=banana&kernel=hmc&step=0.25&leapfrog=12&chains=40&speed=0.15"
    whole = taken(browser, f"{address}#{hmc}", "body", 9, path)
    bottom = int(browser.run("document.querySelector('.bench').getBoundingClientRect().bottom")) + 14
    out = Image.new("RGB", (whole.width, bottom + 250), whole.getpixel((2, 2)))
    out.paste(whole.crop((0, 0, whole.width, bottom)), (0, 0))
    shown = {
        "wells?dim=2&data=three&principle=dsm&sigma=0.2": 6,
        "lattice?size=8": 5,
        "annealing?law=eight&levels=40": 3,
        "noise?law=letters&low=0.05&levels=18&chains=800&step=0.15&speed=3": 11,
        "digits?drawn=...%23%23.....%23..%23...%23......................": 4,
    }
    for place, (where, seconds) in enumerate(shown.items()):
        part = taken(browser, f"{address}#{where}", "#stage canvas", seconds, path)
        out.paste(part.resize((226, 226), Image.Resampling.LANCZOS), (30 + place * 244, bottom + 4))
    out = out.resize((1011, 1011 * out.height // out.width), Image.Resampling.LANCZOS)
    out.quantize(255).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="take the README's picture instead")
    options = parser.parse_args()
    out: dict[str, Any] = {"cores": os.cpu_count(), "niceness": os.nice(0), "seconds": options.seconds, "settings": {}}
    with serving(page()) as address, browsing() as browser:
        if options.pictures:
            pictures(browser, address, options.pictures)
            return
        out["browser"] = browser.call("Browser.getVersion")["product"]
        browser.call("Performance.enable", timeDomain="threadTicks")
        for name, where in SETTINGS.items():
            found = out["settings"][name] = measure(browser, f"{address}#{where}", options.seconds)
            print(
                f"{name:40} main {found['main']:6} ms  all {found['all']:6} ms  {found['fps']:5} fps  interval {found['interval']}  work {found['work']}",
                flush=True,
            )
        out["profile"] = profile(browser, address, 1.5)
        print(json.dumps(out["profile"], indent=1))
    if options.save:
        options.save.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
