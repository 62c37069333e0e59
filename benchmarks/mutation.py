"""Plant small faults and count how many the tests notice.

    python benchmarks/mutation.py --count 300 --workers 8 --save benchmarks/results/mutation.json [--rooms partition,kernels] [--seed 0]

A mutant is one changed token in a function: a comparison turned or made strict, a sign or an operation exchanged, a number
moved, `and` for `or`, a condition negated, `min` for `max`, an in-place update left out. What stands in messages, defaults
of displays and docstrings is left alone. Each runs, in a process of its own, the test files that speak most of what the
module offers, until the first failure. A mutant that outlasts the time limit counts as noticed
only where the tests without it do not.
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
SRC, TESTS = HERE / "src", HERE / "tests"
ROOMS = ("partition", "kernels", "objectives", "training", "uses")
QUIET = {"warn", "ArgumentError", "DomainError", "ShapeError", "CapabilityError", "DivergenceError", "progress_bar"}

COMPARED = {ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
            ast.Is: ast.IsNot, ast.IsNot: ast.Is}  # fmt: skip
OPERATED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult}
NAMED = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min", "sum": "mean", "mean": "sum",
         "log_softmax": "softmax", "argmin": "argmax", "argmax": "argmin", "any": "all", "all": "any"}  # fmt: skip


def faults(node: ast.AST) -> list:
    """The changed versions of one node."""
    made = []

    def other(**fields) -> None:
        twin = copy.copy(node)
        for name, value in fields.items():
            setattr(twin, name, value)
        made.append(twin)

    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
        other(ops=[COMPARED[type(node.ops[0])]()])
    elif (
        isinstance(node, ast.BinOp)
        and type(node.op) in OPERATED
        and not isinstance(node.left, ast.Constant | ast.JoinedStr)
    ):
        other(op=OPERATED[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        made.append(node.operand)
    elif isinstance(node, ast.BoolOp):
        other(op=ast.And() if isinstance(node.op, ast.Or) else ast.Or())
    elif isinstance(node, ast.Attribute) and node.attr in NAMED:
        other(attr=NAMED[node.attr])
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float) and abs(node.value) < 1e6:
        other(value=node.value + 1 if isinstance(node.value, int) else node.value * 0.8)
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        other(test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.AugAssign):
        made.append(ast.copy_location(ast.Pass(), node))
    return made


def places(tree: ast.Module) -> list:
    """(parent, field, index, node) of all that stands in functions and decides something."""
    found = []

    def walk(node: ast.AST, inside: bool) -> None:
        for field, value in ast.iter_fields(node):
            if field in {"annotation", "returns", "decorator_list", "type_params"}:
                continue
            for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.JoinedStr):
                    continue
                if isinstance(child, ast.Call) and getattr(child.func, "attr", getattr(child.func, "id", "")) in QUIET:
                    continue
                here = inside or isinstance(child, ast.FunctionDef)
                if isinstance(child, ast.FunctionDef) and child.name in {"__repr__", "__str__"}:
                    continue
                if inside:
                    found.append((node, field, index, child))
                walk(child, here)

    walk(tree, False)
    return found


def mutants(path: Path) -> list[tuple[int, str, str]]:
    """(line, what changed, whole source) of every mutant of a file."""
    source = path.read_text()
    tree = ast.parse(source)
    out = []
    for parent, field, index, node in places(tree):
        for twin in faults(node):
            ast.copy_location(twin, node)
            before = getattr(parent, field)
            if index is None:
                setattr(parent, field, twin)
            else:
                setattr(parent, field, [*before[:index], twin, *before[index + 1 :]])
            try:
                text = ast.unparse(ast.fix_missing_locations(tree))
            finally:
                setattr(parent, field, before)
            out.append((node.lineno, f"{_short(node)} -> {_short(twin)}", text))
    return out


def _short(node: ast.AST) -> str:
    text = ast.unparse(node).split("\n")[0]
    return text if len(text) < 70 else text[:67] + "..."


def tests_of(path: Path, most: int) -> list[str]:
    """The test files that name most often what a module offers; one of its own name comes first."""
    tree = ast.parse(path.read_text())
    names = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")}
    pattern = re.compile(r"\b(" + "|".join(sorted(names | {path.stem})) + r")\b")
    score = {
        file: len(pattern.findall(file.read_text())) for file in TESTS.glob("test_*.py") if "cuda" not in file.name
    }
    score = {file: count + 1000 * (path.stem in file.stem) for file, count in score.items()}
    ranked = sorted((file for file in score if score[file]), key=lambda file: -score[file])
    return [str(file.relative_to(HERE)) for file in ranked[:most]]


class Planted(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Gives one module another source."""

    def __init__(self, name: str, path: str, source: str) -> None:
        self.name, self.path, self.source = name, path, source

    def find_spec(self, name, path=None, target=None):
        package = self.path.endswith("__init__.py")
        return importlib.util.spec_from_loader(name, self, is_package=package) if name == self.name else None

    def get_filename(self, name):
        return self.path

    def get_data(self, path):
        return self.source.encode()


def outcome(name: str, path: str, source: str, tests: list[str], limit: float) -> tuple[str, float]:
    """Plant and test in a process of its own: "noticed", "unnoticed" or "too long"."""
    begun = time.monotonic()
    with tempfile.NamedTemporaryFile("w", suffix=".py") as planted:
        planted.write(source)
        planted.flush()
        command = [sys.executable, __file__, "--child", name, path, planted.name, *tests]
        child = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=HERE, start_new_session=True
        )
        try:
            code = child.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return "too long", limit
    return ("unnoticed" if code == 0 else "noticed"), time.monotonic() - begun


def child(name: str, path: str, planted: str, *tests: str) -> None:
    """Run tests with another source for one module."""
    import pytest
    import torch

    torch.set_num_threads(1)
    sys.path.insert(0, str(SRC))
    sys.meta_path.insert(0, Planted(name, path, Path(planted).read_text()))
    sys.exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rooms", default=",".join(ROOMS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a mutant")
    parser.add_argument("--total", type=float, default=3600.0, help="seconds for all of it")
    parser.add_argument("--files", type=int, default=3, help="test files for a mutant")
    parser.add_argument(
        "--again", metavar="FILE", help="try what an earlier run did not notice, such as with more files"
    )
    parser.add_argument("--save")
    options = parser.parse_args()
    os.chdir(HERE)
    os.environ["OMP_NUM_THREADS"] = "1"
    pool = []
    for room in options.rooms.split(","):
        for path in sorted((SRC / "gibbsian" / room).rglob("*.py")):
            pool += [(path, *mutant) for mutant in mutants(path)]
    chosen = random.Random(options.seed).sample(pool, min(options.count, len(pool)))
    if options.again:
        missed = [row for row in json.loads(Path(options.again).read_text())["rows"] if row["outcome"] != "noticed"]
        keys = {(row["file"], row["line"], row["what"]) for row in missed}
        chosen = [m for m in pool if (str(m[0].relative_to(SRC)), m[1], m[2]) in keys]
    deadline = time.monotonic() + options.total
    print(f"{len(pool)} mutants, {len(chosen)} of them tried", flush=True)

    def attempt(mutant) -> dict | None:
        path, line, what, source = mutant
        if time.monotonic() > deadline:
            return None
        tests = tests_of(path, options.files)
        name = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        found, seconds = outcome(name, str(path), source, tests, options.limit)
        row = {
            "file": str(path.relative_to(SRC)),
            "line": line,
            "what": what,
            "outcome": found,
            "seconds": round(seconds, 1),
        }
        if found != "noticed":
            print(f"{found}: {row['file']}:{line}: {what}", flush=True)
        return row | {"tests": tests}

    with ThreadPoolExecutor(options.workers) as workers:
        rows = [row for row in workers.map(attempt, chosen) if row is not None]
    count = {kind: sum(row["outcome"] == kind for row in rows) for kind in ("noticed", "unnoticed", "too long")}
    print(count)
    if options.save:
        Path(options.save).write_text(
            json.dumps({"seed": options.seed, "all": len(pool), "count": count, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
