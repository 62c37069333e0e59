"""Tables: imputation, synthetic rows, outliers, likelihoods, a million rows, drift; peers in an environment of their own.

pip install gibbsian[tables] sdv zuko
GIBBSIAN_DATA=... OMP_NUM_THREADS=1 python tables.py --save results/tables.json              all parts, about half an hour on a core
GIBBSIAN_DATA=... OMP_NUM_THREADS=1 python tables.py --part imputation --save results/tables.json    one of them, the others kept
"""

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

import torch

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
    options = parser.parse_args()
    torch.set_num_threads(1)
    for part in options.part or PARTS:
        module, name = PARTS[part]
        found: list[dict[str, Any]] = getattr(importlib.import_module(module), name)()
        if options.save:
            kept = json.loads(options.save.read_text()) if options.save.exists() else {}
            options.save.write_text(json.dumps(kept | {part: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
