"""Tables: imputation, synthetic rows, outliers, likelihoods, a million rows, drift; peers in an environment of their own.

pip install gibbsian[tables] sdv zuko
GIBBSIAN_DATA=... OMP_NUM_THREADS=1 python tables.py --save results/tables.json              all parts, about half an hour on a core
GIBBSIAN_DATA=... OMP_NUM_THREADS=1 python tables.py --part imputation --save results/tables.json    one of them, the others kept
... --keep-peers      records of peers in hidden cells and synthetic rows that the file has already are taken from it
"""

import argparse
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

KEEPING = {"imputation", "synthesis"}  # parts that can take the records of peers from a file
PARTS = {
    "outliers": ("tables_outliers", "run"),
    "likelihood": ("tables_likelihood", "run"),
    "imputation": ("tables_imputation", "run"),
    "synthesis": ("tables_synthesis", "run"),
    "large": ("tables_large", "run"),
    "drift": ("tables_large", "drift"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="by default all")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--keep-peers", action="store_true", help="take what the file has of peers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for part in options.part or PARTS:
        module, name = PARTS[part]
        run = getattr(importlib.import_module(module), name)
        keep = options.keep_peers and part in KEEPING
        made = run(kept=_read(options.save).get(part, ())) if keep else run()
        found: list[dict[str, Any]]
        for found in made if isinstance(made, Iterator) else [made]:  # some parts say what they have after every table
            if options.save:
                options.save.write_text(json.dumps(_read(options.save) | {part: found}, indent=1) + "\n")


def _read(file: Path | None) -> dict[str, Any]:
    return json.loads(file.read_text()) if file is not None and file.exists() else {}


if __name__ == "__main__":
    main()
