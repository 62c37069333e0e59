"""The kernels and products of a compiled step on disk, so that another process need not even load the compiler.

A tape says which kernels and products there are, in which order, and which memory each works on: that of the arguments, that of
tensors which the step reads besides (parameters), or its own. It lies in the user's cache under the name that `traced` gives to
the step, its kernels beside it. Who plays one compares it with PyTorch first.
"""

import ctypes
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gibbsian.fast.graphs import tensors_of
from gibbsian.fast.native import cache_folder
from gibbsian.fast.recorded import Deed, Launch, Product, Recorder, ReplayError
from gibbsian.fast.traced import Traced, storage_start
from gibbsian.trees import mapped

_VERSION = 2


class _Places:
    """Says in which memory tensors lie, in terms that hold in another process."""

    def __init__(self, arguments: list[Tensor], externals: list[Tensor]) -> None:
        self.arguments = {t.data_ptr(): i for i, t in reversed(list(enumerate(arguments))) if t.numel()}
        self.inside: dict[int, list[int]] = {}
        for i, t in enumerate(arguments):
            self.inside.setdefault(storage_start(t), []).append(i)
        self.starts = [t.data_ptr() for t in arguments]
        self.externals = {storage_start(t): i for i, t in enumerate(externals)}
        self.own: dict[int, int] = {}
        self.sizes: list[int] = []

    def of(self, t: Tensor | int | None) -> list[Any] | int | None:
        """(kind, number, bytes from its beginning, type, shape, strides); whole numbers stand for themselves."""
        if t is None or isinstance(t, int):
            return t
        form = [str(t.dtype).removeprefix("torch."), list(t.shape), list(t.stride())]
        at, start = t.data_ptr(), storage_start(t)
        if at in self.arguments:
            return ["argument", self.arguments[at], 0, *form]
        if start in self.inside:
            among = self.inside[start]
            if len(among) > 1:
                raise ReplayError("arguments share their memory")
            return ["argument", among[0], at - self.starts[among[0]], *form]
        if start in self.externals:
            return ["external", self.externals[start], at - start, *form]
        if start not in self.own:
            self.own[start] = len(self.sizes)
            self.sizes.append(t.untyped_storage().nbytes())
        return ["own", self.own[start], at - start, *form]


def _view(base: Tensor, kind: str, offset: int, dtype: str, shape: list[int], stride: list[int]) -> Tensor:
    storage, given = base.untyped_storage(), getattr(torch, dtype)
    begin = offset + (base.storage_offset() * base.element_size() if kind == "argument" else 0)
    return torch.empty(0, dtype=given).set_(storage, begin // given.itemsize, shape, stride)


class Tape:
    """What a compiled step does, to be done again."""

    def __init__(self, folder: Path) -> None:
        self.record = json.loads((folder / "tape.json").read_text())
        if self.record["version"] != _VERSION:
            raise ValueError("a tape of another version")
        self.libraries = [ctypes.CDLL(str(folder / name)) for name in self.record["kernels"]]
        self.addresses = [int(ctypes.cast(lib.kernel, ctypes.c_void_p).value or 0) for lib in self.libraries]
        self.fill: int | None = None  # what its own memory holds at first

    def play(self, arguments: list[Tensor], externals: list[Tensor]) -> tuple[list[Tensor], list[Deed]]:
        """One step: the tensors that it gives, and its deeds, on memory that is not used again."""
        own = [torch.empty(size, dtype=torch.uint8) for size in self.record["own"]]
        if self.fill is not None:
            for block in own:
                block.fill_(self.fill)
        bases = {"argument": arguments, "external": externals, "own": own}
        known: dict[str, Tensor] = {}

        def found(place: Any) -> Any:
            if place is None or isinstance(place, int):
                return place
            kind, number, offset, dtype, shape, stride = place
            base = bases[kind][number]
            if kind == "argument" and offset == 0 and (list(base.shape), list(base.stride())) == (shape, stride):
                return base  # itself, by which blocks of inputs are known
            name = repr(place)
            if name not in known:
                known[name] = _view(base, kind, offset, dtype, shape, stride)
            return known[name]

        deeds: list[Deed] = []
        for number, alpha, places in self.record["deeds"]:
            given = [found(place) for place in places]
            deed: Deed
            if number is None:
                deed = Product(given[0], given[1], given[2], given[3], alpha)
            else:
                deed = Launch(self.addresses[number], tuple(given))
            _do(deed)
            deeds.append(deed)
        return [t for t in map(found, self.record["outputs"]) if t is not None], deeds


def _do(deed: Deed) -> None:
    if isinstance(deed, Launch):
        kinds = [ctypes.c_void_p] * len(deed.arguments)
        given = (t if isinstance(t, int) else t.data_ptr() for t in deed.arguments)
        ctypes.CFUNCTYPE(None, *kinds)(deed.address)(*given)
    elif deed.added is not None:
        torch.addmm(deed.added, deed.a, deed.b, alpha=deed.alpha, out=deed.out)
    elif deed.a.dim() == 3:
        torch.bmm(deed.a, deed.b, out=deed.out)
    else:
        torch.mm(deed.a, deed.b, out=deed.out)


class Player(NamedTuple):
    """A tape for a certain step: it stands in the place of a `Recorder`."""

    tape: Tape
    seen: Traced

    def made(self, step: Callable[..., Any], things: tuple[Any, ...], state: Any, first: Any) -> tuple[Any, list[Deed]]:
        """What one step gives, and its deeds."""
        outputs, deeds = self.tape.play(tensors_of((things, state, first)), self.seen.externals)
        given = iter(outputs)
        return mapped(lambda leaf: next(given) if isinstance(leaf, Tensor) else leaf, self.seen.result), deeds


def _folder(digest: str) -> Path:
    return cache_folder() / "tapes" / digest


def find_tape(digest: str) -> Tape | None:
    """The tape of this name, or None."""
    if os.environ.get("GIBBSIAN_NATIVE") == "0" or not _folder(digest).is_dir():
        return None
    try:
        return Tape(_folder(digest))
    except (OSError, ValueError, KeyError, AttributeError):  # half of it was deleted, or it belongs to another version
        return None


def _recorded(
    result: Any, deeds: list[Deed], places: _Places, paths: dict[int, str]
) -> tuple[dict[str, Any], list[str]]:
    """What a step did, as it is written down, and the libraries of its kernels."""
    files: dict[int, str] = {}
    told: list[list[Any]] = []
    for deed in deeds:
        if isinstance(deed, Launch):
            files.setdefault(deed.address, paths[deed.address])
            told.append([list(files).index(deed.address), None, [places.of(t) for t in deed.arguments]])
        else:
            told.append([None, deed.alpha, [places.of(t) for t in deed[:4]]])
    outputs = [places.of(t) for t in tensors_of(result)]
    names = [f"{i}.so" for i in range(len(files))]
    record = {"version": _VERSION, "kernels": names, "own": places.sizes, "deeds": told, "outputs": outputs}
    return record, list(files.values())


def save_tape(
    recorder: Recorder, step: Callable[..., Any], things: tuple[Any, ...], state: Any, first: Any, seen: Traced,
    holds: Callable[[Tape], bool],
) -> None:  # fmt: skip
    """Record one compiled step, and keep its tape if it `holds` (its own memory begins with what is no number)."""
    if os.environ.get("GIBBSIAN_NATIVE") == "0":
        return
    result, deeds = recorder.made(step, things, state, first)
    places = _Places(tensors_of((things, state, first)), seen.externals)
    record, files = _recorded(result, deeds, places, recorder.files)
    home = _folder(seen.digest)
    try:
        home.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=home.parent) as folder:
            made = Path(folder) / "tape"
            made.mkdir()
            for name, path in zip(record["kernels"], files, strict=True):
                shutil.copy(path, made / name)
            (made / "tape.json").write_text(json.dumps(record))
            tape = Tape(made)
            tape.fill = 255
            if holds(tape):
                made.rename(home)  # it appears whole
    except OSError:  # no room, no right to write, somebody was faster
        return
