"""What every recipe takes and reaches: time, memory, result, seed, machine. Writes benchmarks/recipes.md.

    python benchmarks/recipes.py                        all recipes that this machine has the data and the device for
    python benchmarks/recipes.py digits-rbm moons-energy --machine "one thread of a laptop"
    python benchmarks/recipes.py --page                 the page alone, from recipes.json
    python benchmarks/recipes.py cifar-jem --keep out   and the run folder stays, as out/cifar-jem

Every recipe is run as a user would run it, `gibbsian train NAME`, in a process of its own, judged and reported. Rows are kept in
benchmarks/recipes.json, one for every recipe and kind of device; a new run replaces its own row alone. CPU seconds are those of the
process (a loaded machine does not change them much), memory is the largest that it held. Results are those of `gibbsian train`
on the recipe's own held-out part, so a recipe that has none shows none.
"""

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from gibbsian.app.catalog import entries, recipe_names

HERE = Path(__file__).resolve().parent
ROWS = HERE / "recipes.json"


def nats(found: dict[str, Any]) -> str:
    """A likelihood with its interval."""
    ll = found["likelihood"]
    upper = "open" if ll["upper"] is None or ll["upper"] == float("inf") else f"{ll['upper']:.2f}"
    return f"{ll['value']:.2f} nats a row in [{ll['lower']:.2f}, {upper}]"


def result_of(found: dict[str, Any]) -> str:
    """The figures that tell most, with their intervals where they have some."""
    if "members" in found:
        several = {name: one for name, one in found["members"].items() if "likelihood" in one}
        return "nats a row: " + ", ".join(f"{name} {one['likelihood']['value']:.2f}" for name, one in several.items())
    parts = []
    if "likelihood" in found:
        parts.append(f"{nats(found)}, {found['likelihood']['rows']} {found['part']} rows")
    if "classes" in found:
        classes = found["classes"]
        right = f"accuracy {100 * classes['accuracy']:.2f} %, calibration error {classes['calibration_error']:.3f}"
        parts.append(f"{right}, {found['rows']} {found['part']} rows")
    if "anomalies" in found:
        parts.append(f"AUROC {found['anomalies']['auroc']:.3f} of anomalies")
    two = found.get("two_sample", {})
    if not parts and "value" in two:
        parts.append(f"{two['method']} of samples and data {two['value']:.4f}, p = {two['p_value']:.2f}")
    return "; ".join(parts) or "–"


class Done(NamedTuple):
    """How a process ended, and what it took."""

    code: int
    out: str
    error: str
    took: resource.struct_rusage


def waited_for(command: list[str], most: float) -> Done:
    """A process of its own, killed after so many seconds. What it took is its own alone: `getrusage` would tell the largest memory of
    all that ran before."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        process = subprocess.Popen(command, stdout=out, stderr=error)
        clock = threading.Timer(most, process.kill)
        clock.start()
        _, status, took = os.wait4(process.pid, 0)
        clock.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), error.seek(0)
        return Done(process.returncode, out.read(), error.read(), took)


def run(name: str, most: float, device: str, kept: Path | None, flags: str) -> dict[str, Any]:
    """A row: one training in a process of its own."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        target = str(kept / name) if kept else f"{folder}/run"
        command = [sys.executable, "-m", "gibbsian", "train", name, "--json", "--run", target, *flags.split()]
        done = waited_for(command, most)
    row: dict[str, Any] = {
        "recipe": name,
        "device": device,
        "seconds": round(time.perf_counter() - begun, 1),
        "cpu_seconds": round(done.took.ru_utime + done.took.ru_stime, 1),
        "memory_mib": round(done.took.ru_maxrss / 1024),
    }
    if done.code == -signal.SIGKILL and row["seconds"] >= most:
        return row | {"result": f"not done after {most:.0f} s"}
    if done.code:
        return row | {"result": "failed: " + " ".join(done.error.split())[-160:]}
    found = json.loads(done.out)
    members = found.get("members", {"": found}).values()
    return row | {"updates": sum(int(one["step"]) for one in members), "result": result_of(found)}


def page(rows: list[dict[str, Any]]) -> str:
    """The table."""
    about = {entry.name: entry.about for entry in entries("recipes")}
    lines = [
        "# Recipes",
        "",
        "What `gibbsian train NAME` takes and reaches, from data to report, with the recipe as it is (seed 0). Written by",
        "`python benchmarks/recipes.py`; CPU seconds are those of the process, wall seconds also tell how loaded the machine was.",
        "",
        "| recipe | machine | updates | CPU s | wall s | memory, MiB | result | seed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda r: (r["recipe"], r["device"])):
        cells = [" ".join([row["recipe"], *row.get("flags", "").split()]), row.get("machine", row["device"])]
        cells += [str(row.get(key, "–")) for key in ("updates", "cpu_seconds", "seconds", "memory_mib", "result")]
        lines.append("| " + " | ".join([*cells, "0"]) + " |")
    missing = [name for name in about if name not in {row["recipe"] for row in rows}]
    lines += ["", f"Not run yet: {', '.join(missing)}." if missing else "All recipes were run."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="which recipes; all by default")
    parser.add_argument("--most", type=float, default=1800.0, help="seconds for one of them")
    parser.add_argument(
        "--flags", default="", help="of the training, where it is not the recipe as it is; the table shows them"
    )
    parser.add_argument("--machine", help="in words; by default what the system says of itself")
    parser.add_argument("--keep", type=Path, help="a folder for the run folders, which are removed otherwise")
    parser.add_argument("--rows", type=Path, default=ROWS, help="where the rows are kept; the page lies beside them")
    parser.add_argument("--page", action="store_true", help="write the page from what is kept, and run nothing")
    chosen = parser.parse_args()
    rows = json.loads(chosen.rows.read_text()) if chosen.rows.exists() else []
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    machine = chosen.machine or (device if device != "cpu" else f"{platform.machine()}, {os.cpu_count()} cores")
    for name in [] if chosen.page else chosen.names or recipe_names():
        row = run(name, chosen.most, device, chosen.keep, chosen.flags)
        row |= {"machine": machine, "torch": torch.__version__} | ({"flags": chosen.flags} if chosen.flags else {})
        print(json.dumps(row), flush=True)
        rows = [r for r in rows if (r["recipe"], r["device"]) != (name, device)] + [row]
        chosen.rows.write_text(json.dumps(sorted(rows, key=lambda r: (r["recipe"], r["device"])), indent=1) + "\n")
    chosen.rows.with_suffix(".md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
