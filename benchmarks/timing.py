"""Interleaved timing: every contender once a round, many rounds, ratios within rounds.

A shared machine drifts by tens of per cent between minutes, so absolute times of different runs say little.
Contenders of one round see the same machine; the ratio of a round is what is reported, with its quartiles.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

Contender = tuple[str, Callable[[int], object], int]  # name, run(steps), steps per round


def interleave(
    title: str,
    contenders: list[Contender],
    *,
    base: str,
    rounds: int = 9,
    sync: Callable[[], object] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict:
    """Time all contenders; print microseconds a step and the ratio to `base`, median with quartiles.

    With `clock=time.process_time` the work of one thread is counted and not what it waited for others.
    """
    times: dict[str, list[float]] = {name: [] for name, _, _ in contenders}
    for _, run, steps in contenders:  # warm-up: compilation, caches
        run(steps)
    for _ in range(rounds):
        for name, run, steps in contenders:
            if sync:
                sync()
            start = clock()
            run(steps)
            if sync:
                sync()
            times[name].append((clock() - start) / steps * 1e6)
    print(f"\n{title}")
    print(f"{'':34s}{'µs a step':>12s}{'best':>10s}   time relative to {base}")
    rows = {}
    for name, values in times.items():
        ratios = [a / b for a, b in zip(values, times[base], strict=True)]
        low, mid, high = statistics.quantiles(ratios, n=4)
        rows[name] = {"us": statistics.median(values), "best_us": min(values), "ratio": mid, "quartiles": [low, high]}
        print(f"{name:34s}{statistics.median(values):12.1f}{min(values):10.1f}   {mid:6.2f}  [{low:.2f}, {high:.2f}]")
    return {"title": title, "base": base, "rounds": rounds, "rows": rows}


def save(results: list[dict] | dict, path: str | None, *, merge: bool = False) -> None:
    """Write results as JSON where a path was given; with `merge` runs of other titles that the file holds stay in it."""
    if not path:
        return
    if merge and Path(path).exists():
        old, new = json.loads(Path(path).read_text()), {run["title"]: run for run in results}
        results = [new.pop(run["title"], run) for run in old] + list(new.values())
    Path(path).write_text(json.dumps(results, indent=1) + "\n")
    print(f"\nwritten to {path}")
