"""The plan of the house (docs/architecture.md), held: who imports whom, who asks whom what, and how dense functions are."""

import ast
import builtins
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from radon.complexity import cc_visit
from radon.visitors import Class

import gibbsian

SRC = Path(gibbsian.__file__).parent
PLAN = Path(__file__).parent.parent / "docs" / "architecture.md"

# rooms from the ground up: one may import those of its own floor and of the floors before it
FLOORS = [
    ["errors", "progress", "trees"],
    ["random", "schedules", "recorded", "capabilities"],
    ["domains", "quadrature", "placement", "graphs", "distributed"],
    ["drawing"],
    ["energy"],
    ["units"],
    ["derivatives"],
    ["fast"],
    ["nets"],
    ["energies"],
    ["models"],
    ["kernels"],
    ["sampling"],
    ["partition"],
    ["maxent"],
    ["objectives"],
    ["training"],
    ["uses"],
    ["sequences", "spins"],
    ["data"],
    ["metrics"],
    ["tables"],
    ["zoo"],
    ["plots", "testing", "sklearn"],
    ["app"],
    ["__main__"],
]
FLOOR = {room: i for i, rooms in enumerate(FLOORS) for room in rooms}
OWN_LAWS = {"models", "energies"}  # rooms that may know classes of models by name
NAMED_TUPLE = {"_replace", "_fields", "_asdict", "_make"}
TORCH_OWN = {
    "_call_impl",
    "_parameters",
    "_buffers",
    "_modules",
    "_version",
    "_forward_hooks",
    "_forward_pre_hooks",
}  # no other way in
MUTATORS = {"append", "add", "update", "setdefault", "pop", "clear", "extend", "insert", "remove", "popitem"}
MOST_COMPLEX, MANY_COMPLEX = 20, 40  # by radon: no function above the first, at most so many above 10
MOST_LINES, MOST_ARGUMENTS = 85, 9  # of a function without its docstring, and of one that nobody outside calls
LONGEST_FILE = 520  # lines; a list of protocols may be longer


@cache
def modules() -> dict[str, ast.Module]:
    """The syntax tree of every module by its dotted name below `gibbsian`, that of the package itself left out."""
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def room_of(module: str) -> str:
    return module.split(".")[0]


def imports(module: str) -> tuple[tuple[str, str], ...]:
    """Modules of the library that a module imports, at the top, inside functions or for types alone; and the names."""
    return _imports(module, len(modules()[module].body))


@cache
def _imports(module: str, length: int) -> tuple[tuple[str, str], ...]:
    return tuple(_each_import(module))


def _each_import(module: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(modules()[module]):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "gibbsian":
            home = node.module.partition(".")[2]
            for alias in node.names:
                inner = f"{home}.{alias.name}" if home else alias.name
                yield (inner if inner in modules() else home or inner), alias.asname or alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("gibbsian."):
                    yield alias.name.partition(".")[2], alias.name


def test_every_room_stands_in_the_plan():
    assert {room_of(name) for name in modules()} <= set(FLOOR)
    drawn = PLAN.read_text(encoding="utf-8")
    for room in set(FLOOR) - {"__main__"}:
        assert re.search(rf"`{room}(\.py|/)?`", drawn), f"docs/architecture.md does not show {room}"


def test_rooms_import_only_what_stands_below_them():
    wrong = {
        f"{name} imports {target}"
        for name in modules()
        for target, _ in imports(name)
        if target and FLOOR[room_of(target)] > FLOOR[room_of(name)]
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_rooms_on_one_floor_do_not_lean_on_each_other_in_circles():
    """No cycle of modules, imports inside functions and for type checkers included."""
    edges = {name: {t for t, _ in imports(name) if t in modules() and t != name} for name in modules()}
    state: dict[str, int] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert state.get(name) != 1, "a cycle: " + " → ".join((*trail[trail.index(name) :], name))
        if name in state:
            return
        state[name] = 1
        for target in sorted(edges[name]):
            visit(target, (*trail, name))
        state[name] = 2

    for name in sorted(edges):
        visit(name, ())


def imported(module: str) -> dict[str, str]:
    """Names in a module that come from rooms of models: name → where from."""
    return {alias: target for target, alias in imports(module) if room_of(target) in OWN_LAWS}


@cache
def concrete_laws() -> set[str]:
    """Names of the classes in the rooms of models, and of the algebra of energies."""
    found = {
        node.name
        for name, tree in modules().items()
        if room_of(name) in OWN_LAWS
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    algebra = {node.name for node in ast.walk(modules()["energy"]) if isinstance(node, ast.ClassDef)}
    return found | (algebra - {"Energy", "ScoreField"})


def names_in(node: ast.AST) -> set[str]:
    return {
        n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute)
    }


def outside() -> list[str]:
    return [name for name in modules() if room_of(name) not in OWN_LAWS]


def test_models_are_asked_for_what_they_can_do_and_not_for_their_class():
    laws, wrong = concrete_laws(), []
    for name in outside():
        own = {node.name for node in ast.walk(modules()[name]) if isinstance(node, ast.ClassDef)}
        for node in ast.walk(modules()[name]):
            tested: ast.AST | None = None
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in {"isinstance", "issubclass"}
            ):
                tested = node.args[1]
            elif (
                isinstance(node, ast.Compare)
                and isinstance(node.left, ast.Call)
                and names_in(node.left.func) == {"type"}
            ):
                tested = node.comparators[0]
            if tested is None:
                continue
            local = set(imported(name)) | {n for n in names_in(tested) if n in laws - own and n in _energy_names(name)}
            found = (names_in(tested) & laws) & (local | _through_room(tested))
            wrong += [f"{name}:{node.lineno} tests for {', '.join(sorted(found))}"] if found else []
    assert not wrong, "\n".join(wrong)


def _energy_names(module: str) -> set[str]:
    return {alias for target, alias in imports(module) if target == "energy"}


def _through_room(node: ast.AST) -> set[str]:
    """Names reached as `models.X` or `energies.X`."""
    return {
        n.attr
        for n in ast.walk(node)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id in OWN_LAWS
    }


def test_no_class_is_guessed_from_the_attributes_an_object_has():
    wrong = []
    for name in outside():
        for node in ast.walk(modules()[name]):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                literal = len(node.args) > 1 and isinstance(node.args[1], ast.Constant)
                third_party = (
                    literal
                    and isinstance(node.args[0], ast.Attribute | ast.Name)
                    and _root(node.args[0]) in {"torch", "sys", "os"}
                )
                if node.func.id == "hasattr" or (
                    node.func.id == "getattr" and len(node.args) == 3 and literal and not third_party
                ):
                    wrong.append(f"{name}:{node.lineno} {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", ["partition", "kernels", "objectives", "sampling", "derivatives", "fast", "units"])
def test_algorithms_import_no_model(room):
    wrong = {
        f"{n} imports {t}" for n in modules() if room_of(n) == room for t, _ in imports(n) if room_of(t) == "models"
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_annealed_importance_sampling_loads_no_model():
    code = "import gibbsian.partition.annealed, sys; print([m for m in sys.modules if m.startswith('gibbsian.models')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def _defined(tree: ast.Module) -> set[str]:
    """Names that a module gives to its own functions, classes, attributes and variables."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_private_names_stay_in_their_module():
    wrong = []
    for name, tree in modules().items():
        foreign = {  # modules of other libraries
            (alias.asname or alias.name).split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            and not (getattr(node, "module", "") or "").startswith("gibbsian")
            for alias in node.names
        }
        own = _defined(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gibbsian"):
                wrong += [f"{name}:{node.lineno} imports {a.name}" for a in node.names if _private(a.name)]
            elif isinstance(node, ast.Attribute) and _private(node.attr):
                known = node.attr in own | NAMED_TUPLE or _root(node) in foreign
                own_base = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
                nn_module = node.attr in TORCH_OWN
                if not (known or own_base or nn_module):
                    wrong.append(f"{name}:{node.lineno} reads {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


def test_modules_hold_no_state():
    wrong = []
    for name, tree in modules().items():
        top = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.Lambda)):
            local = {a.arg for a in ast.walk(function) if isinstance(a, ast.arg)} | {
                n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
            for node in ast.walk(function):
                if isinstance(node, ast.Global):
                    wrong.append(f"{name}:{node.lineno} global {', '.join(node.names)}")
                changed = None
                if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
                    changed = node.value
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
                    changed = node.func.value
                if isinstance(changed, ast.Name) and changed.id in top - local - set(dir(builtins)):
                    wrong.append(f"{name}:{node.lineno} changes {changed.id}")
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_functions_can_be_read():
    blocks = {}
    for path in sorted(SRC.rglob("*.py")):
        for block in cc_visit(path.read_text(encoding="utf-8")):
            if not isinstance(block, Class):
                blocks[f"{path.relative_to(SRC)}:{block.lineno} {block.fullname}"] = block.complexity
    above = sorted(((n, where) for where, n in blocks.items() if n > 10), reverse=True)
    listed = "\n".join(f"{n} {where}" for n, where in above)
    assert above[0][0] <= MOST_COMPLEX, listed
    assert len(above) <= MANY_COMPLEX, f"{len(above)} functions above 10:\n{listed}"


def test_functions_can_be_read_in_one_sitting():
    wrong = []
    for name, tree in modules().items():
        for node in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
            lines = node.end_lineno - node.lineno + 1 - len((ast.get_docstring(node, clean=False) or "").splitlines())
            takes = len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)
            if lines > MOST_LINES or (_private(node.name) and takes > MOST_ARGUMENTS):
                wrong.append(f"{name}:{node.lineno} {node.name} has {lines} lines and takes {takes} arguments")
    assert not wrong, "\n".join(wrong)


def test_files_can_be_lived_in():
    long = {str(path.relative_to(SRC)): path.read_text(encoding="utf-8").count("\n") for path in SRC.rglob("*.py")}
    assert {name for name, lines in long.items() if lines > LONGEST_FILE} <= {"capabilities.py"}


def test_the_checks_see_what_they_look_for():
    """Every kind of fault, planted, is found; else a rule holds because nobody looks."""
    planted = {
        test_models_are_asked_for_what_they_can_do_and_not_for_their_class: "from gibbsian.models.rbm import RBM\ndef f(x):\n    return isinstance(x, int | RBM)\n",
        test_no_class_is_guessed_from_the_attributes_an_object_has: "def f(x):\n    return hasattr(x, 'weights')\n",
        test_private_names_stay_in_their_module: "def f(x):\n    return x._hidden_away\n",
        test_modules_hold_no_state: "seen = {}\ndef f(x):\n    seen[x] = 1\n",
        test_rooms_import_only_what_stands_below_them: "def f():\n    from gibbsian.app import runs\n    return runs\n",
        test_functions_can_be_read_in_one_sitting: "def _f(a, b, c, d, e, f, g, h, i, j):\n    return a\n",
    }
    tree = modules()["partition.base"]
    for check, text in planted.items():
        added = ast.parse(text).body
        tree.body.extend(added)
        try:
            with pytest.raises(AssertionError, match=r"partition\.base"):
                check()
        finally:
            del tree.body[-len(added) :]
    assert list(itertools.islice(modules(), 1))
