"""Data of 20 GB on disk (and 4 GB as parquet), trained under a memory limit of 4 GB, stopped half-way and resumed at the row.

    python benchmarks/big_data.py --folder /tmp --save benchmarks/results/big_data.json

Two forms of the same rows, 784 bytes each, which begin with their number: one memory-mapped array, under a limit of
4 GB on memory of its own (`RLIMIT_DATA`: a map of 20 GB is address space and not memory), and a folder of parquet files, under a
limit of 4 GB on its whole address space (`RLIMIT_AS`, what `ulimit -v` sets). Rows are dropped from the page cache before the training.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

WIDTH, CHUNK, GROUP = 784, 1 << 16, 4096


def block(first: int, rows: int, noise: np.ndarray) -> np.ndarray:
    """Rows of bytes that begin with their number; the rest is the same noise in every block, which is written in no time."""
    x = noise[:rows]
    x[:, :8] = np.arange(first, first + rows, dtype=np.uint64)[:, None].view(np.uint8)
    return x


def forget(path: Path) -> None:
    """Write a file out and drop it from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def make(kind: str, place: Path, rows: int) -> None:
    """Write the rows."""
    noise = np.random.default_rng(0).integers(0, 256, (CHUNK, WIDTH), dtype=np.uint8)
    if kind == "array":
        header = np.lib.format.open_memmap(place / "rows.npy", "w+", np.uint8, (rows, WIDTH))
        offset = header.offset
        del header
        with (place / "rows.npy").open("r+b") as file:
            file.seek(offset)
            for first in range(0, rows, CHUNK):
                file.write(block(first, min(CHUNK, rows - first), noise).data)
                if first % (16 * CHUNK) == 0:
                    file.flush()
                    forget(place / "rows.npy")
        forget(place / "rows.npy")
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    for k, start in enumerate(range(0, rows, 8 * CHUNK)):
        stop = min(rows, start + 8 * CHUNK)
        path = place / f"{k:04d}.parquet"
        schema = pa.schema([("x", pa.list_(pa.uint8(), WIDTH))])
        with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False, write_statistics=False) as writer:
            for first in range(start, stop, CHUNK):
                x = block(first, min(CHUNK, stop - first), noise)
                column = pa.FixedSizeListArray.from_arrays(x.reshape(-1), WIDTH)
                writer.write_table(pa.table({"x": column}, schema=schema), row_group_size=GROUP)
        forget(path)


def status(name: str) -> float:
    """A line of /proc/self/status, in GiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 2**20 for line in lines if line.startswith(name))


def train(kind: str, place: Path, run: Path, upto: int) -> None:
    """Train, or go on; prints the numbers of the rows that were seen and what it took."""
    import torch

    import gibbsian as gb

    data = np.load(place / "rows.npy", mmap_mode="r") if kind == "array" else gb.data.Parquet(place)
    seen: list[int] = []

    def bits(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        seen.extend(x[:, :8].contiguous().view(torch.int64).flatten().tolist())
        return (x > 127).float()

    begun, cpu, first = time.perf_counter(), time.process_time(), []
    hooks = [({1, upto}, lambda run: first.append(time.perf_counter() - begun))]
    if run.exists():
        resumed = gb.resume(run, data, upto, transform=bits, hooks=hooks, progress=False)
    else:
        machine = gb.models.RBM(WIDTH, 64)
        objective = gb.objectives.PersistentContrastiveDivergence(gb.kernels.Gibbs(), chains=100)
        resumed = gb.fit(machine, objective, data, steps=upto, batch_size=128, lr=0.01, run_dir=run, transform=bits, hooks=hooks, progress=False)  # fmt: skip
    told = {"step": resumed.step, "seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - cpu}
    told |= {
        "first_update_s": first[0],
        "peak_rss": status("VmHWM"),
        "own": status("RssAnon"),
        "address_space": status("VmPeak"),
    }
    print(json.dumps({"told": told, "rows": seen}))


def limited(kind: str, place: Path, run: Path, upto: int, limit: float) -> dict:
    """The same in a process under the limit."""
    which = resource.RLIMIT_DATA if kind == "array" else resource.RLIMIT_AS
    size = int(limit * 2**30)
    command = [sys.executable, __file__, "--train", kind, str(place), str(run), str(upto)]
    environment = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env=environment,
        preexec_fn=lambda: resource.setrlimit(which, (size, size)),
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def measure(kind: str, folder: Path, gigabytes: float, updates: int, limit: float) -> dict:
    """One form of the data: written, trained at once, trained in two parts, removed."""
    place = folder / f"gibbsian-big-{kind}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    rows = int(
        gigabytes * 1e9 / WIDTH / (1 if kind == "array" else 20)
    )  # a fifth on disk, since bytes take four in parquet
    try:
        begun = time.perf_counter()
        make(kind, place, rows)
        written = time.perf_counter() - begun
        size = sum(file.stat().st_size for file in place.glob("rows.npy" if kind == "array" else "*.parquet"))
        whole = limited(kind, place, place / "whole", updates, limit)
        half = limited(kind, place, place / "parts", updates // 2, limit)
        rest = limited(kind, place, place / "parts", updates, limit)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    at_once, parts = (
        whole["rows"][-128 * updates :],
        half["rows"][-128 * (updates // 2) :] + rest["rows"][-128 * (updates - updates // 2) :],
    )
    spread = np.bincount(np.array(at_once) * 64 // rows, minlength=64)
    found = {"bytes": size, "rows": rows, "limit_gib": limit, "updates": updates, "write_s": written, **whole["told"]}
    found |= {
        "distinct_rows": len(set(at_once)),
        "seen": len(at_once),
        "sixty_fourths_touched": int((spread > 0).sum()),
    }
    found |= {"resumed_alike": at_once == parts, "resumed_peak_rss": rest["told"]["peak_rss"]}
    print(kind, json.dumps(found, indent=1), flush=True)
    return found


def shares(folder: Path, rounds: int = 5) -> dict:
    """What one of p processes decodes of an epoch of parquet (131,072 rows in 32 row groups, windows of 16), and its processor time."""
    import torch

    import gibbsian as gb
    from gibbsian.training.feeds.choose import make_feed

    place = folder / "gibbsian-big-shares"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        make("parquet", place, 2 * CHUNK)
        found: dict[int, dict] = {p: {"processes": p, "cpu_seconds": []} for p in (1, 2, 4, 8)}
        for _ in range(rounds):
            for p, row in found.items():
                rows, read = gb.data.Parquet(place), []
                plain = rows.read
                rows.read = lambda start, stop, plain=plain, read=read: read.append(start) or plain(start, stop)
                options = {"seed": 0, "device": torch.device("cpu"), "check": lambda batch: None, "world": p}
                feed = make_feed(rows, 256, **options, loading=gb.training.Loading(workers=0))
                cpu = time.process_time()
                for _ in range(2 * CHUNK // 256):
                    feed.next()
                row["cpu_seconds"].append(time.process_time() - cpu)
                row["groups"] = len(read)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    for row in found.values():
        row["cpu_seconds"] = float(np.median(row["cpu_seconds"]))
    print(json.dumps(list(found.values()), indent=1), flush=True)
    return {"groups": 2 * CHUNK // GROUP, "rounds": rounds, "rows": list(found.values())}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--train", nargs=4)
    options.add_argument("--folder", default="/tmp")
    options.add_argument("--gigabytes", type=float, default=20.0)
    options.add_argument("--limit", type=float, default=4.0)
    options.add_argument("--updates", type=int, default=300)
    options.add_argument("--kinds", default="array,parquet,shares")  # others are left as they were saved
    options.add_argument("--save")
    given = options.parse_args()
    if given.train:
        kind, place, run, upto = given.train
        train(kind, Path(place), Path(run), int(upto))
        return
    folder = Path(given.folder)
    found = json.loads(Path(given.save).read_text()) if given.save and Path(given.save).exists() else {}
    for kind in given.kinds.split(","):
        found[kind] = (
            shares(folder) if kind == "shares" else measure(kind, folder, given.gigabytes, given.updates, given.limit)
        )
    if given.save:
        Path(given.save).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
