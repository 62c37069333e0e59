"""A million rows of 20 columns through the command line under a memory limit; and whether a test of drift holds its level and sees change."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

COLUMNS, LIMIT = 20, 4 << 30


def made(n: int, seed: int, shift: float = 0.0) -> pd.DataFrame:
    """Rows of a made law: twelve numbers that hang together, four whole ones, four names, 3 % gaps; `shift` moves a number, and flips names more often."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 4, n)
    common = rng.normal(size=(n, 3)) + kind[:, None] * [0.5, -0.5, 0.2]
    mix = np.random.default_rng(7).normal(size=(3, 12))
    numbers = common @ mix + 0.5 * rng.normal(size=(n, 12))
    numbers[:, 0] += shift
    table = pd.DataFrame(numbers.round(4), columns=[f"x{i}" for i in range(12)])
    for i in range(4):
        table[f"n{i}"] = rng.poisson(np.exp(1 + 0.3 * common[:, i % 3]))
    for i in range(4):
        names = np.array(["red", "green", "blue", "grey"])
        flip = rng.random(n) < 0.3 + 0.2 * shift
        table[f"c{i}"] = names[np.where(flip, rng.integers(0, 4, n), kind)]
    return table.mask(rng.random(table.shape) < 0.03)


def limited() -> None:
    """No more than 4 GB for a child."""
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))


def command(*words: str) -> tuple[dict[str, Any], float, float]:
    """What `gibbsian ... --json` says, its seconds of processor time and its greatest memory in GB."""
    script = "import sys, resource\nfrom gibbsian.app.cli import main\ncode = main(sys.argv[1:])\nu = resource.getrusage(resource.RUSAGE_SELF)\nprint(u.ru_utime + u.ru_stime, u.ru_maxrss / 1e6, file=sys.stderr)\nraise SystemExit(code)"
    done = subprocess.run(
        [sys.executable, "-c", script, *words, "--json"], capture_output=True, text=True, preexec_fn=limited, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    seconds, memory = map(float, done.stderr.strip().splitlines()[-1].split())
    return json.loads(done.stdout), seconds, memory


def run(rows: int = 1_000_000) -> list[dict[str, Any]]:
    """Training and scoring: rows a second and memory."""
    records = []
    with tempfile.TemporaryDirectory() as place:
        path, target = Path(place, "rows.csv"), Path(place, "run")
        for i in range(0, rows, 100_000):
            made(min(100_000, rows - i), 1000 + i).to_csv(path, index=False, mode="a" if i else "w", header=not i)
        _, seconds, memory = command("train", str(path), "--family", "mixture", "--run", str(target), "--no-report")
        records.append({"command": "train", "rows": rows, "columns": COLUMNS, "seconds": seconds, "memory": memory})
        print(records[-1], flush=True)
        _, seconds, memory = command("score", str(target), str(path), "--out", str(Path(place, "scores.csv")))
        records.append({"command": "score", "rows": rows, "columns": COLUMNS, "seconds": seconds, "memory": memory})
        print(records[-1], flush=True)
    return records


def drift(repeats: int = 60, rows: int = 1000) -> list[dict[str, Any]]:
    """How often `score --against` at 5 % says that rows have changed: rows of the same law, and of laws moved more and more; every time with
    a training of its own, since rows that are compared with the same kept ones are found changed together."""
    from gibbsian.app.tables import compared
    from gibbsian.tables.drift import drift as test
    from gibbsian.tables.families import Options
    from gibbsian.tables.fitting import fit_table
    from gibbsian.tables.frames import as_frame

    shifts = (0.0, 0.05, 0.1, 0.2, 0.4)
    flagged, begin = dict.fromkeys(shifts, 0), time.process_time()
    for i in range(repeats):
        table = made(1500, i)
        model = fit_table(table, family="mixture", options=Options(components=8, seed=i))
        kept, _ = compared(model, as_frame(table))
        for shift in shifts:
            new = model.rows(made(rows, 10_000 + i, shift))
            found = test(model, kept, new, model.judged(new), seed=i, permutations=199)
            flagged[shift] += found.p_value <= 0.05
    seconds = round(time.process_time() - begin, 1)
    records = [
        {"shift": shift, "rows": rows, "repeats": repeats, "flagged": count / repeats, "seconds": seconds}
        for shift, count in flagged.items()
    ]
    print(records, flush=True)
    return records
