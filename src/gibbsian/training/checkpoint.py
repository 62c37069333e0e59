"""Checkpoints: written whole or not at all, checked when read, and free of pickle.

    run/checkpoints/step-000000001000/{state.safetensors, state.json}
    run/checkpoints/step-000000001000/{rank-00000.safetensors, rank-00000.json, ...}

The second line is what each of several processes has to itself, written and read by that process. A checkpoint is written into a temporary folder, flushed to the disk and renamed, so that a process killed at
any moment leaves either the old one or the new one. The text file holds the checksums of the tensors and of itself; a
damaged checkpoint is passed over with a warning and the one before it is used. Whatever goes wrong while a folder is read
is damage, and becomes one sentence in one place: `damage`.
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as serialize_tensors
from torch import Tensor, nn

from gibbsian.errors import CheckpointError, ProcessError, TrainingWarning
from gibbsian.training.renames import current_parts
from gibbsian.training.serialize import describe, load_module, rebuild
from gibbsian.trees import like_tuple

FORMAT = 1


class Weights(NamedTuple):
    """The weights of a module inside a frozen tree."""

    state: dict[str, Tensor]


def freeze(tree: Any, *, modules: bool = True) -> Any:
    """A copy of a tree of tensors, modules (left as they are with `modules=False`) and plain values that stays."""
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, nn.Module):
        return Weights(freeze(dict(tree.state_dict()))) if modules else tree
    if isinstance(tree, dict):
        return {key: freeze(value, modules=modules) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [freeze(value, modules=modules) for value in tree]
        return like_tuple(type(tree), parts)
    return tree


def thaw(frozen: Any, live: Any, device: torch.device) -> Any:
    """What was frozen, on `device`; modules are those of the `live` tree, the frozen weights copied in."""
    if isinstance(frozen, Weights):
        return _loaded(live, frozen)
    if isinstance(frozen, Tensor):
        return frozen.to(device, copy=True)
    if isinstance(frozen, tuple | list):
        fits = isinstance(live, tuple | list) and len(live) == len(frozen)
        parts = [thaw(part, live[i] if fits else None, device) for i, part in enumerate(frozen)]
        return like_tuple(type(frozen), parts)
    if isinstance(frozen, dict):
        known = live if isinstance(live, dict) else {}
        return {key: thaw(part, known.get(key), device) for key, part in frozen.items()}
    return frozen


def _loaded(live: Any, weights: Weights) -> nn.Module:
    if not isinstance(live, nn.Module):
        raise CheckpointError(
            f"the checkpoint holds a trained module where the objective now has a {type(live).__name__}; "
            "resume with the objective that the run was started with"
        )
    load_module(live, weights.state)
    return live


# --- one folder with a tree in it -----------------------------------------------------------------


def _flush(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _distinct(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """CPU tensors that share no memory, as safetensors wants them."""
    written: set[int] = set()
    out = {}
    for key, value in tensors.items():
        value = value.detach().cpu().contiguous()
        address = value.untyped_storage().data_ptr()
        out[key] = value.clone() if address in written else value
        written.add(address)
    return out


_ODD = (  # what code meets that is given what it cannot expect
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError,
    safetensors.SafetensorError,
)  # fmt: skip


@contextmanager
def damage(path: Path) -> Iterator[None]:
    """Inside, whatever goes wrong is the damage of a file or folder, said in one sentence as `CheckpointError`."""
    try:
        yield
    except (CheckpointError, ProcessError):
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}: {error.filename}") from error
    except _ODD as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise CheckpointError(f"{path} is damaged or not gibbsian's ({reason})") from error


def checksum(text: dict[str, Any]) -> str:
    """The checksum of what a text file of JSON says, but for the checksum itself.

    >>> checksum({"a": 1, "checksum": "old"}) == checksum({"a": 1}) != checksum({"a": 2})
    True
    """
    plain = {key: value for key, value in text.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def write_tree(folder: Path, name: str, tree: dict[str, Any], weightless: Collection[str] = ()) -> None:
    """Write `tree` as `name.json` and `name.safetensors` into a folder, flushed to the disk.

    Modules under the keys in `weightless` are written without their weights.
    """
    tensors: dict[str, Tensor] = {}
    plain = {key: describe(part, tensors, key, states=key not in weightless) for key, part in tree.items()}
    content = serialize_tensors(_distinct(tensors))
    text = {"format": FORMAT, "sha256": hashlib.sha256(content).hexdigest(), "tree": plain}
    text["checksum"] = checksum(text)
    _flush(folder / f"{name}.safetensors", content)
    _flush(folder / f"{name}.json", json.dumps(text, indent=1, allow_nan=False).encode())


def read_tree(
    folder: Path, name: str, keys: Collection[str] | None = None, *, note_age: bool = False
) -> dict[str, Any]:
    """The tree that `write_tree` wrote, or its parts under `keys`; `CheckpointError` in one sentence.

    `note_age` warns of a file without a checksum of its own, which was written before there was one.
    """
    path = folder / name
    with damage(path.with_suffix(".json")):
        text = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        _check_text(text, path)
        content = (folder / f"{name}.safetensors").read_bytes()
        if hashlib.sha256(content).hexdigest() != text["sha256"]:
            raise CheckpointError(f"{path}.safetensors is damaged: its checksum is not that in {name}.json")
        tensors = parse_tensors(content)
        tree = current_parts(text["tree"])
        found = {key: rebuild(tree[key], tensors) for key in keys or tree}
    if note_age and "checksum" not in text:
        what = f"{path}.json was written before run folders had checksums of everything"
        warnings.warn(f"{what}: damage to its numbers would go unnoticed", TrainingWarning, stacklevel=4)
    return found


def _check_text(text: dict[str, Any], path: Path) -> None:
    if text["format"] != FORMAT:
        raise CheckpointError(f"{path}.json has format {text['format']}, this gibbsian reads {FORMAT}")
    whole = set(text) - {"checksum"} == {"format", "sha256", "tree"}
    if not whole or ("checksum" in text and text["checksum"] != checksum(text)):
        by_hand = 'if you changed it by hand, delete its entry "checksum"'
        raise CheckpointError(f"{path}.json is damaged: its checksum is not that of what it says ({by_hand})")


# --- the checkpoints of a run ---------------------------------------------------------------------


def _path(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:012d}"


def steps_saved(run: Path) -> list[int]:
    """Steps that have a checkpoint, ascending."""
    names = {path.name for path in (run / "checkpoints").glob("step-*")}
    found = (int(name[5:]) for name in names if name[5:].isdecimal())
    return sorted(step for step in found if _path(run, step).name in names)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _discard(path: Path) -> None:
    """Remove a checkpoint so that a half-removed one never looks like one."""
    hidden = path.with_name(f".{path.name}.old")
    _remove(hidden)
    path.rename(hidden)
    _remove(hidden)


def save_checkpoint(run: Path, step: int, tree: Any) -> Path:
    """Write the checkpoint of a step, atomically; one that exists already is replaced."""
    open_checkpoint(run, step)
    return close_checkpoint(run, step, tree)


def open_checkpoint(run: Path, step: int) -> Path:
    """A hidden folder for the files of a checkpoint."""
    temporary = _path(run, step).with_name(f".{_path(run, step).name}.new")
    _remove(temporary)
    temporary.mkdir(parents=True)
    return temporary


def close_checkpoint(run: Path, step: int, tree: Any) -> Path:
    """Write what all processes share beside what is there, and let the checkpoint appear as a whole."""
    target = _path(run, step)
    temporary = target.with_name(f".{target.name}.new")
    write_tree(temporary, "state", tree)
    _flush_folder(temporary)
    if target.exists():
        _discard(target)
    temporary.rename(target)
    _flush_folder(target.parent)
    return target


def prune(run: Path, keep: Collection[int]) -> None:
    """Remove every checkpoint but those of the steps in `keep`, and what killed writers left behind."""
    for step in steps_saved(run):
        if step not in keep:
            _discard(_path(run, step))
    for leftover in (run / "checkpoints").glob(".step-*"):
        _remove(leftover)


def rank_file(rank: int) -> str:
    """The name of the files with what a process has to itself."""
    return f"rank-{rank:05d}"


class RankFiles(Sequence[Any]):
    """What every process had to itself, read when it is asked for."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder, self.names = folder, names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, rank: Any) -> Any:
        if isinstance(rank, slice):
            return [self[i] for i in range(*rank.indices(len(self)))]
        return read_tree(self.folder, self.names[rank])


def _as_it_is(tree: dict[str, Any]) -> Any:
    return tree


def _read(path: Path, keys: Collection[str] | None) -> dict[str, Any]:
    tree = read_tree(path, "state", keys)
    names = tree.get("ranks")
    if names and isinstance(names[0], str):
        tree["ranks"] = RankFiles(path, names)
    return tree


def read_latest(
    run: Path,
    step: int | None = None,
    keys: Collection[str] | None = None,
    use: Callable[[dict[str, Any]], Any] = _as_it_is,
) -> Any:
    """What `use` makes of the tree (or its parts under `keys`) of the newest checkpoint that is whole, or of `step`.

    A checkpoint that `use` can do nothing with counts as damaged.
    """
    saved = steps_saved(run)
    if not saved:
        raise CheckpointError(f"{run} holds no checkpoint; give the run_dir of a gibbsian.fit")
    if step is not None and step not in saved:
        raise CheckpointError(f"{run} has no checkpoint of step {step}, only of {', '.join(map(str, saved))}")
    problems: list[str] = []
    for candidate in reversed(saved) if step is None else [step]:
        path = _path(run, candidate)
        try:
            with damage(path):
                made = use(_read(path, keys))
        except CheckpointError as error:
            if step is not None:
                raise
            problems.append(str(error))
            continue
        if problems:
            text = f"{problems[0]}; going on from step {candidate} instead"
            warnings.warn(text, TrainingWarning, stacklevel=3)
        return made
    raise CheckpointError(f"every checkpoint in {run} is damaged; the newest: {problems[0]}")
